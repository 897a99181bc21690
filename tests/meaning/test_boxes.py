"""Boxes and keypoints mean the same however they are given, and follow the pixels: one scene in every way there is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archives import write_table
from fastdata import CenterCrop, LMDBDataset, prep
from fastdata.errors import PrepError
from fastdata.store.export import export
from fastdata.store.store import Store, verify
from stores import write_files
from support import encode, picture

SIDES = [(60, 110), (90, 70), (64, 64), (80, 81)]  # height, width
BOXES = [[[10.0, 5.0, 50.0, 45.0], [60.0, 0.0, 110.0, 30.0]], [], [[0.0, 0.0, 64.0, 64.0]], [[40.5, 20.25, 70.0, 60.0]]]
CATEGORIES = [[1, 0], [], [0], [1]]
POINTS = [
    [[[20.0, 10.0, 2.0], [30.0, 20.0, 1.0]], [[0.0, 0.0, 0.0], [100.0, 9.0, 2.0]]],
    [],
    [[[5, 6, 2.0], [7, 8, 2]]],
    [[[41, 21, 2]] * 2],
]
POINT_NAMES, NAMES = ["left_eye", "right_eye"], ["cup", "plate"]
COUNT, SIZE = len(SIDES), 48


def given(layout: str, k: int) -> list[list[float]]:
    """The boxes of image k in a layout."""
    found = []
    for x1, y1, x2, y2 in BOXES[k]:
        corner = {"xyxy": [x1, y1], "xywh": [x1, y1], "cxcywh": [(x1 + x2) / 2, (y1 + y2) / 2]}[layout]
        found.append(corner + ([x2, y2] if layout == "xyxy" else [x2 - x1, y2 - y1]))
    return found


def write_images(root: Path) -> Path:
    return write_files(root, {f"{k}.png": picture(k, *sides) for k, sides in enumerate(SIDES)})


def row(layout: str, k: int) -> dict[str, Any]:
    return {"file_name": f"{k}.png", "boxes": given(layout, k), "category": CATEGORIES[k], "keypoints": POINTS[k]}


def by_coco(root: Path, out: Path, **options: Any) -> Path:
    annotations = [
        {"image_id": k, "bbox": box, "category_id": category, "keypoints": np.ravel(points).tolist()}
        for k in range(COUNT)
        for box, category, points in zip(given("xywh", k), CATEGORIES[k], POINTS[k], strict=True)
    ]
    images = [{"id": k, "file_name": f"{k}.png", "height": height, "width": width} for k, (height, width) in enumerate(SIDES)]
    categories = [{"id": k, "name": name, "keypoints": POINT_NAMES} for k, name in enumerate(NAMES)]
    body = {"images": images, "annotations": annotations, "categories": categories}
    (root / "a.json").write_text(json.dumps(body))
    return prep(write_images(root / "in"), out, coco=root / "a.json", workers=1, **{"size": SIZE, **options}).out


def by_yolo(root: Path, out: Path) -> Path:
    write_images(root / "in")
    for k, (height, width) in enumerate(SIDES):
        lines = [
            [category, *np.divide(box, [width, height] * 2), *np.divide(points, [width, height, 1]).ravel()]
            for box, category, points in zip(given("cxcywh", k), CATEGORIES[k], POINTS[k], strict=True)
        ]
        (root / f"in/{k}.txt").write_text("".join(f"{' '.join(map(repr, map(float, one)))}\n" for one in lines))
    (root / "data.yaml").write_text("names: [cup, plate]\nkpt_shape: [2, 3]\nkpt_names: {0: [left_eye, right_eye]}\n")
    return prep(root / "in", out, size=SIZE, yolo=root / "in", workers=1).out


def by_table(layout: str, ending: str) -> Callable[[Path, Path], Path]:
    def make(root: Path, out: Path) -> Path:
        write_images(root / "in")
        table = write_table(root / f"in/t{ending}", [row(layout, k) for k in range(COUNT)])
        meanings = {"category": NAMES, "keypoints": POINT_NAMES}
        (root / "in/columns.json").write_text(json.dumps(meanings))
        fields = (f"boxes:{layout}", "category:int64[]", "keypoints:xy[2]")
        return prep(table, out, size=SIZE, fields=fields, label_column="none", workers=1).out

    return make


def by_images_in_parquet(root: Path, out: Path) -> Path:
    """As Hugging Face's datasets has them: images, and an object with lists."""
    rows = [
        {
            "image": {"bytes": encode(picture(k, *SIDES[k]), ".png"), "path": f"{k}.png"},
            "objects": {
                "boxes": given("xywh", k),
                "category": CATEGORIES[k],
                "keypoints": [np.ravel(p).tolist() for p in POINTS[k]],
            },
        }
        for k in range(COUNT)
    ]
    write_table(root / "t.parquet", rows)
    (root / "columns.json").write_text(json.dumps({"category": NAMES, "keypoints": POINT_NAMES}))
    fields = ("objects.boxes:xywh", "objects.category:int64[]", "objects.keypoints:xy[2]")
    return prep(root / "t.parquet", out, size=SIZE, fields=fields, workers=1).out


def by_export(to: str) -> Callable[[Path, Path], Path]:
    def make(root: Path, out: Path) -> Path:
        """From a store of whole images, which is exported, read back and made small."""
        (root / "a").mkdir()
        export(by_coco(root / "a", root / "whole.fds", size=None, codec="png"), root / "x", to=to)
        if to == "webdataset":
            fields = ("boxes=boxes.npy:xyxy", "category=category.npy:int64[]", "keypoints=keypoints.npy:xy[2]")
            return prep(root / "x", out, size=SIZE, fields=fields, label_column="none", workers=1).out
        fields = ("boxes:xyxy", "category:int64[]", "keypoints:xy[2]")
        return prep(root / "x/metadata.jsonl", out, size=SIZE, fields=fields, label_column="none", workers=1).out

    return make


WAYS: dict[str, Callable[[Path, Path], Path]] = {
    "yolo": by_yolo,
    "csv": by_table("xyxy", ".csv"),
    "jsonl": by_table("xywh", ".jsonl"),
    "parquet": by_table("cxcywh", ".parquet"),
    "images in parquet": by_images_in_parquet,
    "metadata.jsonl": by_export("imagefolder"),
    "tars": by_export("webdataset"),
}


FIELDS = ("boxes", "category", "keypoints")


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scene by COCO's JSON, which `test_coco.py` compares with one annotation after another."""
    root = tmp_path_factory.mktemp("coco")
    return by_coco(root, root / "o.fds")


@pytest.mark.parametrize("way", WAYS)
def test_one_scene_given_in_every_way(coco: Path, tmp_path: Path, way: str) -> None:
    root = tmp_path / "s"
    root.mkdir()
    store = WAYS[way](root, tmp_path / "o.fds")
    columns = {column.name: column for column in Store(store).manifest.columns}
    assert {name: (columns[name].geometry, columns[name].group) for name in ("boxes", "category", "keypoints", "source_size")} == {
        "boxes": ("xyxy", "instances"),
        "category": (None, "instances"),
        "keypoints": ("xy", "instances"),
        "source_size": (None, None),
    }
    assert columns["category"].names == tuple(NAMES) and columns["keypoints"].names == tuple(POINT_NAMES)
    dataset, wanted = (LMDBDataset(path, crop=CenterCrop(40), hflip=1.0, fields=FIELDS) for path in (store, coco))
    for k in range(COUNT):
        for name in FIELDS:
            np.testing.assert_allclose(dataset[k][1][name], wanted[k][1][name], atol=2e-4, err_msg=f"{name} of {k}")
    assert [len(wanted[k][1]["boxes"]) for k in range(COUNT)] == [2, 0, 1, 1]
    whole = LMDBDataset(store).columns
    assert [list(size) for size in whole["source_size"]] == [list(sides) for sides in SIDES]
    assert list(verify(store)) == []


def prepared(root: Path, rows: list[dict[str, Any]], *fields: str, **options: Any) -> Any:
    shutil.rmtree(root, ignore_errors=True)
    write_images(root)
    write_table(root / "t.jsonl", [{"file_name": f"{k}.png", **one} for k, one in enumerate(rows)])
    return prep(
        root / "t.jsonl", root.with_suffix(".fds"), fields=fields, label_column="none", workers=1, overwrite=True, **options
    )


def test_boxes_are_clipped_dropped_or_rejected(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"b": [[-5, 5, 50, 45], [10, 10, 10, 30], [1, 1, 9, 9]], "n": [7, 8, 9], "notes": ["x"]},
        {"b": [3, 4, 10, 20], "n": [1], "notes": []},
        {"b": [], "n": [], "notes": ["y", "z"]},
        {"b": [[0, 0, 9, 9]], "n": [1, 2], "notes": []},
    ]
    done = prepared(tmp_path / "a", rows, "b:xyxy", "n:int64[]", "notes:json")
    assert done.rejected == {"bad-field": 1} and "b 1, n 2" in done.first_reject and "type json" in done.first_reject
    assert {note for note in done.notes if "box" in note} == {
        "1 box reached outside of the image and was clipped",
        "1 box without area inside of the image was dropped",
    }
    columns = LMDBDataset(done.out).columns
    assert [one.tolist() for one in columns["b"]] == [[[0, 5, 50, 45], [1, 1, 9, 9]], [[3, 4, 10, 20]], []]
    assert [one.tolist() for one in columns["n"]] == [[7, 9], [1], []] and columns["notes"] == [["x"], [], ["y", "z"]]


def test_what_has_no_geometry_is_told(tmp_path: Path) -> None:
    rows = [{"bbox": [[1, 2, 3, 4]], "keypoints": [[1, 2]]}]
    done = prepared(tmp_path / "a", rows, "bbox:json", "keypoints:json")
    follow = "is stored unchanged, and does not follow a resize, crop or flip: for that, give its layout, as"
    told = {f"column bbox {follow} bbox:xyxy, bbox:xywh or bbox:cxcywh", f"column keypoints {follow} keypoints:xy"}
    assert told <= set(done.notes)
    with pytest.raises(ValueError, match=r"min_visible is 0.5, but no boxes belong to bbox of .*, which fastdata-prep stores"):
        LMDBDataset(done.out, fields="bbox", min_visible=0.5)
    moved = prepared(tmp_path / "b", rows, "bbox:xywh", "keypoints:xy")
    assert LMDBDataset(moved.out, fields=("bbox", "keypoints"), min_visible=0.5)[0][1]["bbox"].tolist() == [[1, 2, 4, 6]]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("b:xyxy", [[1, 2, 3]], r"row of '0.png': it is an array of shape \[1, 3\], but boxes are lists of 4 numbers"),
        ("b:xyxy", [[1, 2, 3, "4"]], "is not a list with equally many numbers for each instance"),
        ("b:xyxy", [[1, 2, 3, float("nan")]], "has numbers that are not finite"),
        ("b:xyxy[4]", [], "boxes are given as xyxy, xywh or cxcywh, and keypoints as xy"),
        ("b.c:xyxy", {"d": 1}, "has no c"),
        ("b:xy", [[1, 2, 2, 3, 4, 2]], r"for each instance: (--)?fields sets their number, such as b:xy\[17\]"),
        ("b:xy[3]", [[1, 2, 2, 3, 4, 2]], None),
        ("b:xy[2]", [[1, 2, 2, 3, 4, 2]], None),
        ("b:xy[4]", [[1, 2, 2, 3, 4, 2]], r"an array of shape \[1, 6\], but b has 4 keypoints \(\[x, y\] or \["),
    ],
)
def test_damage_is_told(tmp_path: Path, field: str, value: Any, message: str | None) -> None:
    if message is None:
        assert prepared(tmp_path / "a", [{"b": value}], field).kept == 1
        return
    with pytest.raises(PrepError, match=message):
        prepared(tmp_path / "a", [{"b": value}], field)
