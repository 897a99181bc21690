"""YOLO's text files: fractions become pixels of the upright image, names come from YAML, and damage is told by file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import LMDBDataset, prep
from fastdata.errors import PrepError
from fastdata.store.store import Store
from stores import write_files
from support import picture
from test_image_files import saved

POSE = "kpt_shape: [3, {dims}]\nflip_idx: [0, 2, 1]\nnames:\n  0: person\n"


def write(root: Path, files: dict[str, str | bytes | tuple[int, int]]) -> Path:
    """Write texts, and pictures of (height, width)."""
    return write_files(root, {name: picture(len(name), *one) if isinstance(one, tuple) else one for name, one in files.items()})


def rotated(height: int, width: int, orientation: int) -> bytes:
    """A JPEG that is height x width upright, and stored as its EXIF orientation says."""
    stored, exif = (width, height) if orientation >= 5 else (height, width), Image.Exif()
    exif[274] = orientation
    return saved(Image.fromarray(picture(orientation, *stored)), "JPEG", exif=exif)


def test_boxes_are_those_of_the_upright_image_and_clipped_to_it(tmp_path: Path) -> None:
    objects = "3 0.5 0.4 0.3 0.2\n0 0.9 0.1 0.4 0.3\n1 -0.1 0.5 0.1 0.2\n"
    write(tmp_path, {"in/a/0.jpg": rotated(40, 70, 6), "in/a/1.jpg": rotated(50, 20, 1), "in/a/2.jpg": rotated(9, 9, 3)})
    write(tmp_path, {"l/a/0.txt": objects, "l/a/2.txt": ""})
    summary = prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "l", workers=1)
    columns = LMDBDataset(summary.out).columns
    np.testing.assert_allclose(columns["boxes"][0], [[24.5, 12, 45.5, 20], [49, 0, 70, 10]], atol=1e-4)
    assert [one.tolist() for one in columns["category"]] == [[3, 0], [], []]
    assert columns["source_size"].tolist() == [[40, 70], [50, 20], [9, 9]]
    assert {"2 boxes reached outside of the image and were clipped", "1 box without area inside of the image was dropped"} <= {
        *summary.notes
    }


def test_polygons_become_boxes_and_lines_may_be_mixed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"in/a.png": (50, 100), "l/a.txt": "2 0.1 0.2 0.5 0.1 0.3 0.8\n\n0 0.5 0.5 0.2 0.4\n", "l/classes.txt": "x\ny\nz\n"},
    )
    summary = prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "l")
    columns = LMDBDataset(summary.out).columns
    np.testing.assert_allclose(columns["boxes"][0], [[10, 5, 50, 40], [40, 15, 60, 35]], atol=1e-4)
    assert columns["category"][0].tolist() == [2, 0]
    assert {"1 polygon stored as the box around it", "categories: 3 names from classes.txt"} <= set(summary.notes)
    assert Store(summary.out).manifest.columns[2].names == ("x", "y", "z")


def test_keypoints_without_visibility(tmp_path: Path) -> None:
    """A labelled point is visible; flip_idx swaps the second and third."""
    line = "0 0.5 0.5 1 1 0.5 0.5 0.25 0.75 0 0\n"
    write(tmp_path, {"in/a.png": (40, 80), "d/labels/train/a.txt": line, "d/data.yaml": POSE.format(dims=2)})
    out = prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "d/labels/train").out
    stored = LMDBDataset(out, fields="keypoints")[0][1].tolist()
    assert stored == [[[40.0, 20.0, 2.0], [20.0, 30.0, 2.0], [0.0, 0.0, 0.0]]]
    mirrored = LMDBDataset(out, fields="keypoints", hflip=1.0)[0][1].tolist()
    assert mirrored == [[[40.0, 20.0, 2.0], [0.0, 0.0, 0.0], [60.0, 30.0, 2.0]]]


def test_nothing_vanishes(tmp_path: Path) -> None:
    """Files may lie next to their images."""
    sizes: dict[str, str | bytes | tuple[int, int]] = {f"in/{k}.png": (20, 30) for k in "abcd"}
    own = {"in/a.txt": "0 0.5 0.5 0.5 0.5\n", "in/b.txt": "", "in/c.txt": "0 0.9 0.5 0.4 0.5\n0 0.5 0.5 0 0.1", "in/z.txt": ""}
    write(tmp_path, {**sizes, **own})
    summary = prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "in")
    assert summary.rejected == {} and summary.kept == 4 and summary.skipped == {}
    assert LMDBDataset(tmp_path / "o.fds").columns["boxes"][0].tolist() == [[7.5, 5.0, 22.5, 15.0]]
    notes = "\n".join(summary.notes)
    assert "1 image without a .txt file: stored without objects" in notes
    assert "1 image with an empty .txt file: stored without objects" in notes
    assert "1 box reached outside of the image and was clipped" in notes and "1 box without area" in notes
    assert "categories have no names" in notes and ".txt: 1 file without an input: z.txt" in notes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"l/a.txt": "0 0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5"}, "a.txt: line 2: it has 4 numbers, but a line is class x_center"),
        ({"l/a.txt": "0 320 200 64 64"}, "a.txt: line 1: a coordinate is 320, but must be a fraction of the image's width"),
        ({"l/a.txt": "2 .5 .5 .5 .5", "l/classes.txt": "a\nb"}, "class is 2, but classes.txt has classes 0 to 1"),
        ({"l/a.txt": "0 .5 .5 .5 .5", "l/data.yaml": POSE.format(dims=3)}, "5 numbers, but kpt_shape [3, 3] of data.yaml needs 14"),
        ({"l/a.txt": b"\xff"}, "a.txt: 'utf-8' codec can't decode"),
    ],
)
def test_a_damaged_file_rejects_its_image(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    write(tmp_path, {"in/a.png": (20, 30), "in/b.png": (20, 30), **files})
    rejects = Store(prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "l", workers=1).out).rejects()
    assert [(one["name"], one["reason"]) for one in rejects] == [("a.png", "bad-annotation")] and message in rejects[0]["detail"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"l/a.txt": "", "l/data.yaml": "names: [a, [b]]\n"}, "data.yaml: Expected `str`, got `array` - at `$.names[1]`"),
        ({"l/a.txt": "", "l/data.yaml": "names: {0: a, 2: b}"}, "names must be a list of names, or map 0, 1, 2, ... to names"),
        ({"l/a.txt": "", "l/data.yaml": "names: [a]\nkpt_shape: [2, 2]\nkpt_names: [a, b]\nflip_idx: [1, 0]"}, "idx must swap"),
        ({"l/a.txt": "", "l/a.yaml": "names: [a]", "l/b.yaml": "names: [b]"}, "name different classes; keep one"),
        ({"l/b.txt": ""}, "belongs to an input: the first input is a.png, the first .txt is b.txt"),
    ],
)
def test_damage_is_told(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    write(tmp_path, {"in/a.png": (20, 30), **files})
    with pytest.raises(PrepError) as caught:
        prep(tmp_path / "in", tmp_path / "o.fds", yolo=tmp_path / "l")
    assert message in str(caught.value)


def test_names_are_as_they_are_written(tmp_path: Path) -> None:
    """Not as YAML 1.1 has them, where no is false and 01 a number."""
    for k, text in enumerate(("[no, 01, 1.5, it''s, 'b c']", "{0: no, 1: 01, 2: 1.5, 3: it''s, 4: b c}")):
        write(tmp_path, {"in/a.png": (20, 30), f"l{k}/a.txt": "", f"l{k}/data.yaml": f"names: {text}\ndownload: |\n  names: x\n"})
        out = prep(tmp_path / "in", tmp_path / f"{k}.fds", yolo=tmp_path / f"l{k}").out
        assert LMDBDataset(out).columns.names("category") == ("no", "01", "1.5", "it''s", "b c")
