"""benchmarks/tips.py: the page has a place for each tip."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support import run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks/tips.py"
PAGE = ROOT / "docs/speed.md"
CELL = re.compile(r"<!--(cpu|gpu):(\w+)-->(.*?)<!--/-->")


def rows() -> dict[str, list[str]]:
    """The cells of a page, by column."""
    found: dict[str, list[str]] = {"cpu": [], "gpu": []}
    for column, name, _ in CELL.findall(PAGE.read_text()):
        found[column].append(name)
    return found


@pytest.mark.slow
def test_the_table_has_one_place_for_each_tip() -> None:
    listed = run(sys.executable, SCRIPT, "--list", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    where = dict(re.match(r"(\w+) \((\w+)\): ", line).groups() for line in listed.stdout.splitlines())  # type: ignore[union-attr]
    assert len(where) > 30
    assert sorted(rows()["cpu"]) == sorted(["machine", *(name for name, place in where.items() if place != "gpu")])
    assert sorted(rows()["gpu"]) == sorted(["machine", *(name for name, place in where.items() if place != "host")])
