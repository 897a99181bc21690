"""Kills and loads of stores in object storage: a small part of what `make campaign` does where obstore is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import run

FAULTS = Path(__file__).parents[1] / "faults"
CASES = {"remote_loading": 4, "remote_publishing": 2, "remote_preparing": 2}
LOADS = ("remote_epochs", "remote_loaders", "remote_fetchers", "remote_interrupts")


@pytest.mark.parametrize(("name", "cases"), [*CASES.items(), *((name, 1) for name in LOADS)])
def test_no_signal_does_harm_and_no_load_leaves_anything(name: str, cases: int) -> None:
    command = [sys.executable, FAULTS / "campaign.py", "--target", name, "--cases", cases, "--size", 0.04, "--seed", 0, "--fresh"]
    found = run(*command, seconds=600)
    assert found.returncode == 0, found.stdout + found.stderr
