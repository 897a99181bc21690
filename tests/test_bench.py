"""fastdata bench: the harness counts right, the contestants are checked, and the command says and writes what it found."""

from __future__ import annotations

import json
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
def test_bench(store: Path, tmp_path: Path) -> None:
    options = "--crop 32 --batch-size 8 --workers 0 --workers 2 --seconds 0.2 --repeats 2".split()
    done = run(*MAIN, "bench", store, *options, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"store", "settings", "results"}
    assert result["store"]["name"] == "small.fds" and result["store"]["images"] == COUNT
    assert result["settings"] == {"crop": 32, "batch_size": 8, "seconds": 0.2, "repeats": 2}
    rows = {row["name"]: row for row in result["results"]}
    first, *loaders = rows
    assert first.startswith("decode limit") and sorted(name.partition(",")[0] for name in loaders) == [
        "DataLoader",
        *["Loader"] * 3,
    ]
    assert any("RAM" in name for name in rows)
    for row in rows.values():
        rate = row["images_per_s"]
        assert len(rate["rounds"]) == 2 and 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert row["cpu_ms_per_image"] > 0
    assert result["results"][0]["ratio"]["rounds"] == [1, 1]

    limit = result["results"][0]["images_per_s"]["median"]
    table = {cells[1].strip(): cells for line in done.stderr.splitlines() if len(cells := line.split("|")) == 8}
    for name, row in rows.items():  # one scale
        share, rate = float(table[name][2]), float(table[name][4].replace(",", ""))
        assert share == round(row["ratio"]["median"], 2) and rate == pytest.approx(row["ratio"]["median"] * limit, abs=0.51)
