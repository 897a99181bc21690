"""Arrays whose files expand without measure: `--max-bytes` holds while they are read, not only for what came of it."""

from __future__ import annotations

import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import PEAK_MEMORY, run

PEAK = f"""{PEAK_MEMORY}
import json, resource, sys
import fastdata
try:
    made = fastdata.prep(sys.argv[1], sys.argv[2], workers=1, **json.loads(sys.argv[3]))
    print(json.dumps([made.kept, made.rejected, made.first_reject]))
except fastdata.PrepError as error:
    print(json.dumps([0, {{}}, str(error)]))
print(max(peak_memory(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10) >> 20)
"""


def measured(source: Path, **options: Any) -> tuple[int, dict[str, int], str, int]:
    """Arrays kept, rejects, the first of them or the error, and the largest memory of the run and its workers in MiB."""
    done = run(sys.executable, "-c", PEAK, source, source.with_name("o.fds"), json.dumps(options))
    assert done.returncode == 0, done.stderr
    (kept, rejected, first), peak = map(json.loads, done.stdout.splitlines())
    return kept, rejected, first, peak


@pytest.mark.slow
def test_a_member_that_expands_without_measure(tmp_path: Path) -> None:
    header = np.lib.format.magic(1, 0) + struct.pack("<H", 118)
    header += repr({"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)}).encode().ljust(117) + b"\n"
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(header)
        for _ in range(1 << 10):
            member.write(bytes(1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.npz", max_bytes=1 << 20)
    assert kept == 0 and "bytes, more than 1048576: see max_bytes" in first and peak < 450
