"""The benchmarks that need a GPU, rehearsed on a CPU: each runs to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support import run, write_pictures

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
PARTS = ("inputs", "copies", "normalize", "resnet50", "loaders")


@pytest.mark.slow
def test_all_parts_run_to_their_end(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", 3, height=400, width=500, ending=".jpg")
    folders = [part for name in ("photos", "work", "out") for part in (f"--{name}", tmp_path / name)]
    done = run(sys.executable, GPU / "run.py", "--device", "cpu", "--quick", *folders, seconds=540)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (written,) = (tmp_path / "out").glob("*.json")
    assert written.name.startswith("cpu-")
    text = written.with_suffix(".md").read_text()
    assert str(tmp_path) not in text + written.read_text(), "where things lie is the machine's business"
    report = json.loads(written.read_text())
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
