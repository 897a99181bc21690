"""Damaged bytes through every reader: none of the targets' cases crashes, hangs, grows, or raises what it does not allow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from campaign import load_targets
from support import run

HERE = Path(__file__).parent
TARGETS = load_targets()
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_do_no_harm(name: str) -> None:
    """In another process, which may fork: this one has threads of pytest's."""
    cases = TARGETS[name].cases
    found = run(sys.executable, HERE / "campaign.py", "--target", name, "--cases", cases, "--seed", 0, "--fresh", seconds=600)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_not_damaged_is_read(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    for case in target.undamaged(tmp_path):
        target.read(case)
