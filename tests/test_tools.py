"""The maintainers' scripts run, and the format checker, which shares no code with the package, sees what is wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import fastdata
import test_arrays
import test_masks
from support import run

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture(params=[("jpeg", False), ("jpeg", True), ("rgb", False), ("png", True)], ids=str)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    codec, gray = request.param
    rng = np.random.default_rng(1)
    for k in range(20):
        path = tmp_path / "in" / str(k % 2) / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 256, (40 + k, 50 + 7 * k, 3), np.uint8))
    (tmp_path / "in" / "0" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return fastdata.prep(tmp_path / "in", tmp_path / "out.fds", size=[48, 32], codec=codec, gray=gray).out


def _check(store: Path) -> tuple[int, str]:
    done = run(sys.executable, TOOLS / "check_format.py", store)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_checker_takes_a_new_store_and_sees_a_changed_byte(store: Path) -> None:
    code, said = _check(store)
    assert (code, "as docs/format.md says" in said) == (0, True), said
    shard = store / "32" / "shard-00000.mdb"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, said = _check(store)
    assert code == 1 and "shard-00000.mdb: size or checksum" in said


@pytest.mark.slow
def test_a_store_with_masks_is_too() -> None:
    arrays = [test_arrays.made(case, masks=True)[0] for case in ("volumes", "colours", "swapped", "many")]
    for path in (test_masks.masked(size=(50, 30)), *arrays):
        assert _check(path)[0] == 0


def test_the_tests_of_the_guarantees_exist() -> None:
    for name, path in re.findall(r"`(test_\w+)(?:\.py)?`\]\(\.\./(\S+)\)", (TOOLS.parent / "docs/design.md").read_text()):
        assert path.endswith(f"/{name}.py") or f"def {name}(" in (TOOLS.parent / path).read_text(), name
