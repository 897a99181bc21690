"""The benchmarks that need a GPU, rehearsed on a CPU: each runs to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support import run, write_pictures

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
PARTS = ("inputs", "copies", "normalize", "resnet50", "loaders")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report of a rehearsal of everything, as JSON and as Markdown."""
    root = tmp_path_factory.mktemp("gpu")
    write_pictures(root / "photos", 3, height=400, width=500, ending=".jpg")
    options = ["--device", "cpu", "--quick", "--photos", root / "photos", "--work", root / "work", "--out", root / "out"]
    done = run(sys.executable, GPU / "run.py", *options, seconds=540)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (written,) = (root / "out").glob("*.json")
    assert written.name.startswith("cpu-")
    text = written.with_suffix(".md").read_text()
    assert str(root) not in text + written.read_text(), "where things lie is the machine's business"
    return json.loads(written.read_text()), text


@pytest.mark.slow
def test_all_parts_run_to_their_end(rehearsed):
    report, text = rehearsed
    assert [part["name"] for part in report["parts"]] == list(PARTS)
    assert {part["state"] for part in report["parts"]} == {"ok"}
    assert report["rehearsal"] and "A REHEARSAL" in text
    for part in report["parts"][1:]:
        result = part["result"]
        assert len(result["rows"]) >= 1 and result["checked"], part["name"]
        assert any(row["of_ceiling"]["median"] == 1 for row in result["rows"]), part["name"]
        for row in result["rows"]:
            assert row["rate"]["min"] <= row["rate"]["median"] <= row["rate"]["max"] and row["rate"]["min"] > 0
            assert f"| {row['name']} " in text
        assert f"## {part['name']}: " in text
