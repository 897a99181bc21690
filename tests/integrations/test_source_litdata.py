"""LitData's own datasets as SOURCE: what its reader gives, of what its writer wrote just now."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastdata
from fastdata import LMDBDataset
from support import picture

litdata = pytest.importorskip("litdata")


def sample(k: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(picture(k, 40 + k, 30)).save(file, "jpeg")
    return {"image": Image.open(file), "label": k % 4}


def test_the_same_pixels_and_labels_as_its_own_reader(tmp_path: Path) -> None:
    litdata.optimize(sample, list(range(12)), str(tmp_path / "in"), chunk_size=5, num_workers=1)
    theirs = litdata.StreamingDataset(str(tmp_path / "in"))
    ours = LMDBDataset(fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec="original", workers=1).out)
    assert len(ours) == len(theirs) == 12
    for k in range(12):
        image = np.asarray(theirs[k]["image"])  # [3, H, W], as its decoder gives it
        assert np.abs(ours[k][0].numpy().astype(int) - image).max() <= 2 and ours[k][1] == theirs[k]["label"]
