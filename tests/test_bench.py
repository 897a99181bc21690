"""fastdata bench: the harness counts right, the contestants are checked, and the command says and writes what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastdata
from fastdata.bench.harness import Run, summarize
from support import MAIN, run, write_pictures

COUNT = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images of 48 x 64."""
    root = tmp_path_factory.mktemp("bench")
    write_pictures(root / "in" / "a", COUNT // 2)
    write_pictures(root / "in" / "b", COUNT // 2, seed=100)
    return fastdata.prep(root / "in", root / "small.fds", size=48, workers=1).out


def test_medians_and_ratios_within_a_round() -> None:
    """The machine slows down threefold, then recovers a little: b is twice as fast as a in each round all the same."""
    runs = {
        "a": [Run(900, 3, 3.0), Run(300, 3, 3.0), Run(600, 3, 3.0)],
        "b": [Run(1800, 3, 6.0), Run(600, 3, 3.0), Run(1200, 3, 6.0)],
    }
    a, b = summarize(runs, reference="a")
    assert a["images_per_s"] == {"median": 200, "min": 100, "max": 300, "rounds": [300, 100, 200]}
    assert a["ratio"]["rounds"] == [1, 1, 1]
    assert b["ratio"] == {"median": 2, "min": 2, "max": 2, "rounds": [2, 2, 2]}
    assert (b["name"], b["cpu_ms_per_image"]) == ("b", 5.0)


@pytest.mark.slow
def test_bench(store: Path) -> None:
    options = "--crop 32 --batch-size 8 --workers 0 --workers 2 --seconds 0.2 --repeats 2".split()
    done = run(*MAIN, "bench", store, *options)
    assert done.returncode == 0, done.stderr
    header, rule, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert header[1:4] == ["of the limit", "min - max", "images/s"] and len(rule) == 6
    first, *loaders = rows
    assert first[0].startswith("decode limit") and first[1:3] == ["1.00", "1.00 - 1.00"]
    assert sorted(row[0].partition(",")[0] for row in loaders) == ["DataLoader", *["Loader"] * 3] and "RAM" in loaders[-1][0]
    limit = float(first[3].replace(",", ""))
    for _, share, spread, rate, megabytes, milliseconds in rows:
        least, greatest = map(float, spread.split(" - "))
        assert 0 < least <= float(share) <= greatest and float(megabytes) > 0 and float(milliseconds) > 0
        assert float(rate.replace(",", "")) == pytest.approx(float(share) * limit, abs=0.006 * limit)  # one scale
