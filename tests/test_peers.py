"""The benchmark beside other loaders, with the one that needs no environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

RUN = Path(__file__).resolve().parent.parent / "benchmarks/peers/run.py"


@pytest.mark.slow
def test_a_quick_run_measures_the_loader_beside_torch_s(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    noise = np.random.default_rng(0)
    for k in range(8):
        small = noise.integers(0, 256, (9, 12, 3), np.uint8)
        cv2.imwrite(str(photos / f"{k}.jpg"), cv2.resize(small, (400, 300), interpolation=cv2.INTER_CUBIC))
    command = [sys.executable, str(RUN), "--quick", "--photos", str(photos), "--works", "train-256", "--images", "64"]
    command += ["--batch", "16", "--only", "torch", "--only", "bare", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (report,) = (tmp_path / "out").glob("peers-*.md")
    text = report.read_text()
    assert "torch DataLoader + cv2" in text and "fastdata-torch 0" in text
    assert "LEFT OUT" not in done.stdout
