"""The maintainers' scripts run, and the format checker, which shares no code with the package, sees what is wrong."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import stores
import test_arrays
import test_masks
from support import run

TOOLS = Path(__file__).parent.parent / "tools"


def _check(store: Path) -> tuple[int, str]:
    done = run(sys.executable, TOOLS / "check_format.py", store)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_checker_takes_new_stores_and_sees_a_changed_byte(tmp_path: Path) -> None:
    arrays = [test_arrays.made(case, masks=True)[0] for case in ("volumes", "colours", "swapped", "many")]
    images = [stores.store(codec, gray=gray) for codec, gray in (("jpeg", False), ("jpeg", True), ("rgb", False), ("png", True))]
    for path in (*images, test_masks.masked(size=(50, 30)), *arrays, TOOLS.parent / "tests/data/golden.fds"):
        code, said = _check(path)
        assert (code, "as docs/format.md says" in said) == (0, True), said
    copy = Path(shutil.copytree(images[0], tmp_path / "o.fds"))
    shard = copy / "64" / "shard-00000.mdb"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, said = _check(copy)
    assert code == 1 and "shard-00000.mdb: size or checksum" in said


def test_the_tests_of_the_guarantees_exist() -> None:
    for name, path in re.findall(r"`(test_\w+)(?:\.py)?`\]\(\.\./(\S+)\)", (TOOLS.parent / "docs/design.md").read_text()):
        assert path.endswith(f"/{name}.py") or f"def {name}(" in (TOOLS.parent / path).read_text(), name
