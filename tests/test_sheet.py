"""Contact sheets of stores of every kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import stores
from fastdata import prep
from support import MAIN, Array, encode, run

TITLE, TILE = 56, 144  # pixels: above the samples, and a side of their pictures


def drawn(store: Path, sheet: Path, *options: Any) -> tuple[int, Array]:
    """How many samples `fastdata info` says that it drew, and the picture, RGB."""
    found = run(*MAIN, "info", store, "--sheet", sheet, *options)
    assert (found.returncode, found.stderr) == (0, "")
    said = re.search(r"^(\d+) \w+ drawn in", found.stdout, re.M)
    assert said is not None
    return int(said[1]), cv2.cvtColor(cv2.imread(str(sheet)), cv2.COLOR_BGR2RGB)


@pytest.mark.slow
def test_the_sheet_shows_samples_with_their_classes(tmp_path: Path) -> None:
    colors = {"red": (250, 10, 10), "blue": (10, 10, 250)}
    for name, color in colors.items():
        for k in range(30):
            path = tmp_path / "in" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(np.full((40, 40, 3), color, np.uint8), ".png"))
    store = prep(tmp_path / "in", tmp_path / "o.fds", codec="png", workers=1).out
    count, sheet = drawn(store, tmp_path / "s.png")
    assert count == 48
    assert [(sheet == color).all(axis=2).sum() for color in colors.values()] == [24 * TILE * TILE] * 2


def test_the_middle_slice_of_a_volume(tmp_path: Path) -> None:
    """It has a ramp, all other slices are noise."""
    (tmp_path / "in").mkdir()
    volume = np.random.default_rng(0).integers(-30_000, 30_000, (40, 72, 72)).astype(np.int16)
    volume[20] = np.arange(72)[None] * 100 - 3000
    np.save(tmp_path / "in/a.npy", volume)
    count, sheet = drawn(prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out, tmp_path / "s.png")
    tile = sheet[TITLE : TITLE + TILE, 8 : 8 + TILE]
    assert count == 1 and (tile == tile[:1]).all() and (tile[:, :, :1] == tile).all()
    line = tile[0, ::2, 0].astype(float)
    assert np.abs(line - np.linspace(0, 255, 72)).max() < 6


def test_masks_and_further_images_stand_beside_their_images() -> None:
    assert drawn(stores.tokens(), stores.tokens().with_suffix(".png"))[0] == 2, "documents, as ids without a tokenizer"
    for store, count in ((stores.masked(), 3), (stores.several(), 6)):
        shown, sheet = drawn(store, store.with_suffix(".png"))
        assert shown == count
        for k in range(count):
            left = 8 + k % 4 * (2 * TILE + 8)
            row = TITLE + TILE // 2 + k // 4 * (TILE + 2 * 18 + 8)
            first, second = (sheet[row, left + at : left + at + TILE] for at in (0, TILE))
            assert len(np.unique(first)) > 2 and (second != first).any()
