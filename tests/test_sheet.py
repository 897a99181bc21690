"""Contact sheets of stores of every kind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import stores
from fastdata import prep
from support import MAIN, Array, encode, picture, run

TITLE, TILE = 56, 144  # pixels: above the samples, and a side of their pictures


def drawn(store: Path, sheet: Path, *options: Any) -> tuple[int, Array]:
    """How many samples `fastdata info` says that it drew, and the picture, RGB."""
    found = run(*MAIN, "info", store, "--sheet", sheet, *options)
    assert (found.returncode, found.stderr) == (0, "")
    said = re.search(r"^(\d+) \w+ drawn in", found.stdout, re.M)
    assert said is not None
    return int(said[1]), cv2.cvtColor(cv2.imread(str(sheet)), cv2.COLOR_BGR2RGB)


def areas(sheet: Array) -> dict[tuple[int, ...], int]:
    """How many pixels there are of each colour."""
    colors, counts = np.unique(sheet.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(color): count for color, count in zip(colors.tolist(), counts.tolist(), strict=True)}


def differing(one: Array, other: Array) -> list[int]:
    """The rows in which two sheets differ."""
    assert one.shape == other.shape
    return np.flatnonzero((one != other).any(axis=(1, 2))).tolist()


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
    assert [areas(sheet)[color] for color in colors.values()] == [24 * TILE * TILE] * 2
    (tmp_path / "in/red").rename(tmp_path / "in/rad")
    _, other = drawn(prep(tmp_path / "in", tmp_path / "p/o.fds", codec="png", workers=1).out, tmp_path / "s.png")
    rows = differing(sheet, other)
    assert TITLE + TILE < rows[0] and rows[-1] < sheet.shape[0], "the class stands below its samples"
    shutil.copytree(store, tmp_path / "another name.fds")
    _, other = drawn(tmp_path / "another name.fds", tmp_path / "s.png")
    rows = differing(sheet, other)
    assert rows and rows[-1] < TITLE, "the store's name stands above them"


def test_boxes_keypoints_and_captions(tmp_path: Path) -> None:
    """A black image of 288 pixels: the sheet shows it at half its size."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(encode(np.zeros((288, 288, 3), np.uint8), ".png"))
    boxes = {"bbox": [40, 60, 80, 100], "category_id": 7, "keypoints": [200, 220, 2, 250, 30, 0]}
    body: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "height": 288, "width": 288}],
        "annotations": [{"id": 1, "image_id": 1, **boxes}, {"id": 2, "image_id": 1, "caption": "an\nOWL"}],
        "categories": [{"id": 7, "name": "bird", "keypoints": ["beak", "tail"]}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(body))
    _, sheet = drawn(prep(tmp_path / "in", tmp_path / "o.fds", coco=tmp_path / "coco.json", codec="png").out, tmp_path / "s.png")
    (top, *_), (left, *_) = np.nonzero((sheet == 0).all(axis=2))
    tile = sheet[top : top + TILE, left : left + TILE].max(axis=2) > 100
    rows, columns = np.nonzero(tile[:, :70])
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == pytest.approx((30, 80, 20, 60), abs=2)
    assert not tile[40:70, 30:50].any(), "only the outline is drawn"
    assert tile[110, 100] and not tile[10:20, 120:130].any(), "a keypoint that is not labelled is not drawn"
    body["annotations"][1]["caption"], body["categories"][0]["name"] = "a rook", "chess"
    (tmp_path / "coco.json").write_text(json.dumps(body))
    _, other = drawn(prep(tmp_path / "in", tmp_path / "p/o.fds", coco=tmp_path / "coco.json", codec="png").out, tmp_path / "s.png")
    rows = np.array(differing(sheet, other))
    caption = (rows > top + TILE) & (rows < top + TILE + 20)
    assert caption.any() and (rows[~caption] > top + TILE + 30).all() and not caption.all(), "the caption, and the legend below"


def test_masks_stand_beside_their_images_and_in_a_legend(tmp_path: Path) -> None:
    count, sheet = drawn(stores.masked(), tmp_path / "s.png")
    assert count == 3
    mask = TILE * TILE * 3 // 4
    classes = [color for color, area in areas(sheet).items() if 0 <= area - mask - 18 * 18 < 300]
    assert len(classes) == 3, "30 x 40 pixels of each class, its patch in the legend, and letters' edges in the same grey"
    for k in range(3):
        left = 8 + k * (2 * TILE + 8)
        image, right = sheet[TITLE + 18 : TITLE + 126, left : left + TILE], sheet[TITLE + 18 : TITLE + 126, left + TILE :][:, :TILE]
        reference = cv2.resize(picture(k, 30, 40), (TILE, 108), interpolation=cv2.INTER_NEAREST)
        assert np.abs(image.astype(float) - reference).mean() < 8, "as a JPEG has it"
        assert len(areas(right)) == 1 and set(areas(right)) < set(classes)


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


@pytest.mark.slow
def test_tokens_are_shown_as_documents(tmp_path: Path) -> None:
    sheets = list[Array]()
    for text in ("one two\nthree", "one two\nfour!", "one two\nthree\n" + "five " * 200):
        (tmp_path / "a.txt").write_text(text)
        out = prep(tmp_path / "a.txt", tmp_path / "o.fds", tokenizer="bytes", split_lines=True, overwrite=True, workers=1).out
        count, sheet = drawn(out, tmp_path / "s.png")
        assert count == text.count("\n") + 1
        sheets.append(sheet)
    rows = differing(sheets[0][TITLE:], sheets[1][TITLE:])
    assert rows[0] > 60, "the first documents are the same"
    assert len(sheets[2]) > len(sheets[0]) and (sheets[2][TITLE + 124 : TITLE + 160] < 128).any(), "a long one fills two lines"
    assert drawn(stores.tokens(), tmp_path / "s.png")[0] == 2, "without a tokenizer"
