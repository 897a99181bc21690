"""Arrays whose files expand without measure: `--max-bytes` holds while they are read, not only for what came of it."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fastdata import CodecError
from fastdata.arrays.readers import npz_names
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


def test_a_damaged_directory_of_an_npz_loses_no_array(tmp_path: Path) -> None:
    """Any bit of it, and any entry that is not there. What is listed is all arrays, or the file is refused."""
    np.savez(tmp_path / "good.npz", a=np.arange(3), b=np.arange(4.0), c=np.arange(5, dtype=np.uint8))
    good, path = (tmp_path / "good.npz").read_bytes(), tmp_path / "x.npz"
    begin = good.index(b"PK\1\2")
    size = len(good) - begin - 22

    def listed(data: bytes) -> list[str]:
        path.write_bytes(data)
        return npz_names(path)

    assert listed(good) == ["a", "b", "c"]
    refused = 0
    for bit in range(8 * begin, 8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert sorted(listed(bytes(damaged))) == ["a", "b", "c"]
        except CodecError:
            refused += 1
    assert refused > 500
    for k in range(3):
        entries = good[begin : begin + k * size // 3] + good[begin + (k + 1) * size // 3 : begin + size]
        end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 2, 2, len(entries), begin, 0)
        with pytest.raises(CodecError, match="does not fit what the file holds"):
            listed(good[:begin] + entries + end)


@pytest.mark.slow
def test_a_header_of_npy_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(b"\x93NUMPY\2\0" + struct.pack("<I", 512 << 20))
        for _ in range(512):
            member.write(b" " * (1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.npz")
    assert kept == 0 and "its .npy header claims 536870912 bytes" in first and peak < 450


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
    assert kept == 0 and "(1073741824,) uint8 are 1073741824 bytes, more than 1048576: see max_bytes" in first and peak < 450


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_extensions_of_nifti_are_limited(tmp_path: Path, kind: Any) -> None:
    nibabel.save(kind(np.zeros((4, 4, 4), np.uint8), np.eye(4)), tmp_path / "y.nii")
    data = bytearray((tmp_path / "y.nii").read_bytes())
    at, form = (108, "<f") if kind is nibabel.Nifti1Image else (168, "<q")
    size = 348 if kind is nibabel.Nifti1Image else 540
    struct.pack_into(form, data, at, 512 << 20)
    data[size] = 1  # there are extensions
    with gzip.open(tmp_path / "x.nii.gz", "wb", compresslevel=1) as file:
        file.write(data[: size + 4] + struct.pack("<ii", (512 << 20) - size - 4, 6))
        for _ in range(512):
            file.write(bytes(1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.nii.gz")
    assert kept == 0 and "its values begin at byte 5.36871e+08" in first.replace("536870912", "5.36871e+08") and peak < 450
