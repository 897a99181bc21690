"""Damaged bytes through every reader: none of the targets' cases crashes, hangs, grows, or raises what it does not allow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from attack import load_targets
from kills import KILLS
from load import LOADS
from support import run

HERE = Path(__file__).parent
TARGETS = load_targets()
QUICK = ("saving", "loading", "preparing")
TIMES = int(os.environ.get("FAULTS", "1"))  # make nightly tries more of all,
SEED = int(os.environ.get("FAULTS_SEED", "0"))  # and others each day
pytestmark = pytest.mark.slow


def attack(name: str, count: int, *options: str | float) -> None:
    """In another process, which may fork: this one has threads of pytest's."""
    if name.startswith("remote_"):
        pytest.importorskip("obstore")
    command = (sys.executable, HERE / "attack.py", name, "--seed", SEED, *options)
    found = run(*command, "--count", count, seconds=600 * TIMES)
    number = next((line for line in reversed(found.stdout.splitlines()) if line.isdigit()), 0)
    assert found.returncode == 0, f"{' '.join(map(str, command))} --first {number}: {found.returncode}\n{found.stderr[-8000:]}"


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_do_no_harm(name: str) -> None:
    attack(name, TARGETS[name].cases * TIMES)


@pytest.mark.parametrize("name", KILLS)
def test_a_signal_at_any_moment_does_no_harm(name: str) -> None:
    attack(name, (10 if name in QUICK else 2) * TIMES)


@pytest.mark.parametrize("name", LOADS)
def test_a_load_leaves_nothing(name: str) -> None:
    attack(name, 1, "--size", 0.04 * TIMES)


def test_names_are_unique() -> None:
    names = [*TARGETS, *KILLS, *LOADS]
    assert len(names) == len({*names})


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_not_damaged_is_read(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    for case in target.undamaged(tmp_path):
        target.read(case)
