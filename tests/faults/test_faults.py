"""Damaged bytes through every reader: none of the targets' cases crashes, hangs, grows, or raises what it does not allow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from campaign import FOLDER, MEMORY, load_targets
from kills import KILLS
from load import LOADS
from rounds import NAMES, lacking
from support import kill_group, run, start, until

HERE = Path(__file__).parent
TARGETS = load_targets()
QUICK = ("saving", "loading", "loading_from_memory")
pytestmark = pytest.mark.slow


def campaign(name: str, cases: int, *options: str | float) -> None:
    """In another process, which may fork: this one has threads of pytest's."""
    if lacking(name):
        pytest.skip(f"{lacking(name)} is not installed")
    found = run(
        sys.executable, HERE / "campaign.py", "--target", name, "--cases", cases, "--seed", 0, "--fresh", *options, seconds=600
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_do_no_harm(name: str) -> None:
    campaign(name, TARGETS[name].cases)


@pytest.mark.parametrize("name", KILLS)
def test_a_signal_at_any_moment_does_no_harm(name: str) -> None:
    campaign(name, 10 if name in QUICK else 2)


@pytest.mark.parametrize("name", LOADS)
def test_a_load_leaves_nothing(name: str) -> None:
    campaign(name, 1, "--size", 0.04)


def test_names_are_unique() -> None:
    names = [*TARGETS, *NAMES]
    assert len(names) == len({*names})


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_not_damaged_is_read(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    for case in target.undamaged(tmp_path):
        target.read(case)


def test_what_a_killed_campaign_leaves_in_memory_goes_at_the_next_start() -> None:
    process = start(sys.executable, HERE / "campaign.py", "--target", "wire", "--hours", 1, "--fresh")
    left = until(lambda: list(MEMORY.glob(f"{FOLDER}{process.pid}-*")), seconds=60)
    kill_group(process)
    assert left[0].exists()
    campaign("wire", 1)
    assert not left[0].exists()
