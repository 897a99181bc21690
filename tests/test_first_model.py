"""The clock of a new user: every route leads from files to a trained model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support import run

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_every_route_leads_to_a_trained_model(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = run(sys.executable, ROOT / "benchmarks/first_model.py", "--quick", "--epochs", 1, "--json", out, seconds=540)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["command"] for row in rows] == [
        "fastdata-prep images/ first.fds --size 32",
        "fastdata-prep flat/ --label-from '^([0-9]+)-' first.fds --size 32",
        "fastdata-prep labels.csv --root photos/ first.fds --size 32",
        "fastdata-prep data/ first.fds --size 32",
    ]
    for row in rows:
        assert row["classes"] == 3 and 0 <= row["top1"] <= 1
        assert min(row[step] for step in ("prepare_s", "first_batch_s", "train_s")) > 0
        assert 60 * row["minutes"] >= row["prepare_s"] + row["first_batch_s"] + row["train_s"] - 1e-6
        assert f"| {row['route']} " in done.stdout and f"`{row['command']}` |" in done.stdout
