"""COCO annotations: boxes and keypoints follow their image, whatever preparing, crops and flips do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives import write_table
from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, RandomScaleCrop, Resize, prep
from fastdata.errors import PrepError
from fastdata.store.store import Store
from stores import write_files
from support import boxes_of, picture

POINTS = ["nose", "left_eye", "right_eye", "tail"]
CATEGORIES = [
    {"id": 7, "name": "dog", "keypoints": POINTS},
    {"id": 3, "name": "person", "keypoints": POINTS},
    {"id": 20, "name": "tree"},
]
NUMBER = {3: 0, 7: 1, 20: 2}
FIELDS = ("boxes", "category", "area", "crowd", "keypoints")
MODES = ("short", "long", "crop", "stretch")


def scene(root: Path, count: int = 14) -> dict[str, Any]:
    """Write images and return random annotations of them, as COCO's JSON has them."""
    rng = np.random.default_rng(5)
    images, annotations = [], list[dict[str, Any]]()
    for k in range(count):
        height, width = (int(side) for side in rng.integers(40, 150, 2))
        name = f"{'sub/' if k % 2 else ''}{k:02d}.png"
        write_files(root, {name: picture(k, height, width)})
        images.append({"id": 1000 - k, "file_name": name, "height": height, "width": width})
        for _ in range(int(rng.integers(0, 5))):
            x, y = float(rng.uniform(0, width - 4)), float(rng.uniform(0, height - 4))
            w, h = float(rng.uniform(2, width - x)), float(rng.uniform(2, height - y))
            points = [
                v for _ in POINTS for v in (x + float(rng.uniform(0, w)), y + float(rng.uniform(0, h)), int(rng.integers(0, 3)))
            ]
            one = {"id": len(annotations), "image_id": 1000 - k, "bbox": [x, y, w, h], "area": w * h / 2, "keypoints": points}
            annotations.append({**one, "category_id": int(rng.choice([3, 7, 20])), "iscrowd": int(rng.integers(0, 2))})
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def write(path: Path, body: Any) -> Path:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    write(root / "all.json", scene(root / "images"))
    return root


@pytest.fixture(scope="module")
def body(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "all.json").read_text())


@pytest.fixture(scope="module")
def stores(folder: Path) -> dict[str, Path]:
    """A store for each way of resizing, with two sizes each."""
    made = {}
    for mode in MODES:
        options = {"size": (64, 48), "resize": mode, "coco": folder / "all.json", "codec": "rgb"}
        made[mode] = prep(folder / "images", folder / f"{mode}.fds", workers=1, **options).out
    return made


def stored_shape(height: int, width: int, size: int, mode: str) -> tuple[float, float, int, int]:
    """By docs of `--resize`: factors of y and x, and where the stored image begins in the resized one."""
    if mode == "stretch":
        return size / height, size / width, 0, 0
    side = max(height, width) if mode == "long" else min(height, width)
    rows, columns = int(size * height / side), int(size * width / side)
    square = min(size, rows, columns)
    corner = ((rows - square) // 2, (columns - square) // 2) if mode == "crop" else (0, 0)
    return rows / height, columns / width, *corner


def expected(body: Any, row: int, size: int, mode: str, box: Any, flips: Any, shape: tuple[int, int], least: float) -> Any:
    """What becomes of the annotations of an image, one after another."""
    image = body["images"][row]
    fy, fx, top, left = stored_shape(image["height"], image["width"], size, mode)
    height, width = shape

    def across(x: float) -> float:
        x = (x * fx - left - box[1]) * width / box[3]
        return width - x if flips[0] else x

    def down(y: float) -> float:
        y = (y * fy - top - box[0]) * height / box[2]
        return height - y if flips[1] else y

    found = []
    for one in body["annotations"]:
        if one["image_id"] != image["id"]:
            continue
        x, y, w, h = one["bbox"]
        (x1, x2), (y1, y2) = sorted([across(x), across(x + w)]), sorted([down(y), down(y + h)])
        inner = [min(max(v, 0), limit) for v, limit in ((x1, width), (y1, height), (x2, width), (y2, height))]
        area = (inner[2] - inner[0]) * (inner[3] - inner[1])
        if area <= 0 or area < least * (x2 - x1) * (y2 - y1):
            continue
        points = []
        for k in (0, 2, 1, 3) if flips[0] != flips[1] else range(4):
            px, py, v = one["keypoints"][3 * k : 3 * k + 3]
            px, py = across(px), down(py)
            points.append([px, py, v] if v and 0 <= px < width and 0 <= py < height else [0, 0, 0])
        found.append((inner, NUMBER[one["category_id"]], one["area"] * area / (w * h), bool(one["iscrowd"]), points))
    return found


def assert_equal(found: dict[str, Any], want: Any) -> None:
    assert len(found["boxes"]) == len(want)
    if want:
        boxes, categories, areas, crowds, points = zip(*want, strict=True)
        np.testing.assert_allclose(found["boxes"], boxes, atol=2e-4)
        np.testing.assert_allclose(found["keypoints"], points, atol=2e-4)
        np.testing.assert_allclose(found["area"], areas, rtol=1e-3)
        assert found["category"].tolist() == list(categories) and found["crowd"].tolist() == list(crowds)


CROPS = [None, RandomResizedCrop(40), RandomResizedCrop((24, 33), scale=(0.02, 0.3)), CenterCrop(36)]
CROPS += [CenterCrop((36, 60), resize=40), RandomScaleCrop(50, (0.4, 2.0)), RandomCrop(60, padding=40), Resize((30, 50))]


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_geometry_is_that_of_a_plain_loop(stores: dict[str, Path], body: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        mode=st.sampled_from(MODES),
        size=st.sampled_from([48, 64]),
        crop=st.sampled_from(CROPS),
        flips=st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5])),
        least=st.sampled_from([0.0, 0.3, 1.0]),
        seed=st.integers(0, 1 << 32),
    )
    def check(mode: str, size: int, crop: Any, flips: Any, least: float, seed: int) -> None:
        dataset = LMDBDataset(stores[mode], size=size, crop=crop, hflip=flips[0], vflip=flips[1], fields=FIELDS, min_visible=least)
        for batch in Loader(dataset, 1 if crop is None else 7, shuffle=True, seed=seed, num_workers=0):
            boxes, flipped = boxes_of(dataset, batch.ids, seed=seed, epoch=0)
            shape = tuple(batch[0].shape[2:])
            for place, row in enumerate(batch.ids.tolist()):
                want = expected(body, row, size, mode, boxes[place], flipped[place], shape, least)
                assert_equal({name: value[place] for name, value in batch[1].items()}, want)

    check()


@pytest.mark.parametrize("crop", [RandomResizedCrop(96, scale=(0.3, 1)), RandomScaleCrop(96, (0.4, 1.5))])
def test_a_box_stays_on_what_it_surrounds(crop: Any, tmp_path: Path) -> None:
    """Pixels are the reference: a white rectangle on black, and the box of what is white after everything."""
    rows, seen = [{"path": f"{k}.png", "boxes": [30 + 8 * k, 20 + 5 * k, 60, 50]} for k in range(12)], 0
    for k in range(12):
        image = np.zeros((200, 260, 3), np.uint8)
        image[20 + 5 * k :, 30 + 8 * k :][:50, :60] = 255
        write_files(tmp_path, {f"{k}.png": image})
    options = {"size": 128, "resize": "crop", "codec": "rgb", "fields": "boxes:xywh", "label_column": "none", "workers": 1}
    out = prep(write_table(tmp_path / "t.jsonl", rows), tmp_path / "o.fds", **options).out
    dataset = RAMDataset(out, fields="boxes", crop=crop, hflip=0.5, vflip=0.5)
    for images, boxes in (batch for _ in range(4) for batch in Loader(dataset, 6, shuffle=True, num_workers=0)):
        for image, box in zip(images, boxes, strict=True):
            white_rows, columns = np.nonzero(image[0].numpy() > 127)
            if len(white_rows) > 20:
                white = [columns.min(), white_rows.min(), columns.max() + 1, white_rows.max() + 1]
                np.testing.assert_allclose(box[0], white, atol=1.6)
                seen += 1
            elif len(white_rows) == 0 and len(box):
                assert (box[0, 2:] - box[0, :2]).min() < 1.6
    assert seen > 30


def test_what_a_table_does_not_name_is_a_note(folder: Path, body: Any, tmp_path: Path) -> None:
    """A table of one split, and annotations of all."""
    names = [one["file_name"] for one in body["images"]]
    table = write(tmp_path / "t.csv", "path\n" + "".join(f"{name}\n" for name in names[:3]))
    stray = {"id": 1, "image_id": 77, "bbox": [1, 2, 3, 4], "category_id": 3}
    path = write(tmp_path / "a.json", {**body, "annotations": [*body["annotations"], stray]})
    done = prep(table, tmp_path / "o.fds", size=32, coco=path, root=folder / "images", workers=1)
    assert (done.kept, done.rejected) == (3, {})
    assert any(note.startswith(f"--coco has {len(names) - 3} more images, which SOURCE does not name: ") for note in done.notes)
    assert "1 annotation of images that --coco does not list was left out" in done.notes


def test_captions_and_images_without_annotations(folder: Path, body: Any, tmp_path: Path) -> None:
    captions = [{"image_id": one["id"], "caption": f"picture {one['id']}, {n}"} for one in body["images"][1:] for n in "ab"]
    path = write(tmp_path / "captions.json", {"images": body["images"], "annotations": captions})
    summary = prep(folder / "images", tmp_path / "o.fds", size=32, coco=path, workers=1)
    assert "1 image without annotations" in summary.notes and summary.kept == len(body["images"])
    columns = LMDBDataset(summary.out).columns
    for number, found in zip(columns["image_id"].tolist(), columns["captions"], strict=True):
        assert found == ([] if number == 1000 else [f"picture {number}, a", f"picture {number}, b"])


def test_nothing_vanishes(folder: Path, body: Any, tmp_path: Path) -> None:
    images = [dict(one) for one in body["images"]]
    images[0]["file_name"] = "elsewhere.png"
    images[1]["height"] += 1
    known, about = {one["id"] for one in images[:-1]}, {"image_id": images[2]["id"], "category_id": 3}
    annotations = [one for one in body["annotations"] if one["image_id"] in known]
    annotations += [{**about, "bbox": [-5, 1, 30, 9]}, {**about, "bbox": [5, 1, 0, 9]}, {**about, "segmentation": [[1, 1, 9, 1]]}]
    path = write(tmp_path / "a.json", {**body, "images": images[:-1], "annotations": annotations})
    summary = prep(folder / "images", tmp_path / "o.fds", size=32, coco=path, workers=1)
    assert summary.rejected == {"missing": 1, "annotated-size": 1, "not-annotated": 2}
    assert any(note.startswith("1 box reached outside") for note in summary.notes)
    assert any(note.startswith("1 box without area") for note in summary.notes)
    assert "1 annotation with neither a box nor a caption was left out" in summary.notes
    assert "segmentations are not stored; for masks, use --masks" in summary.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [0, 0, 1, "x"]}, "got `str` - at `$[0].bbox[3]`"),
        ({"bbox": [0, 0, 1, float("inf")]}, "has numbers that are not finite"),
        ({"iscrowd": float("inf")}, "$[0].iscrowd"),
        ({"category_id": None}, "annotation 0: category_id None is not the id of a category"),
        ({"keypoints": [1]}, "keypoints"),
        ({"caption": None}, "$[0].caption"),
    ],
)
def test_a_damaged_annotation_rejects_its_image(folder: Path, body: Any, tmp_path: Path, change: Any, message: str) -> None:
    annotations = [dict(one) for one in body["annotations"]]
    annotations[0] |= change
    row = 1000 - annotations[0]["image_id"]
    path = write(tmp_path / "a.json", {**body, "annotations": annotations})
    done = prep(folder / "images", tmp_path / "o.fds", size=32, coco=path, workers=1)
    (reject,) = (one for one in Store(done.out).rejects() if one["name"] == body["images"][row]["file_name"])
    assert sum(done.rejected.values()) == 1 and reject["reason"] in ("bad-annotation", "bad-field") and message in reject["detail"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{\n\n]", "Expecting property name enclosed in double quotes: line 3"),
        ('{"images": [], "annotations": [], "images": []}', "an object has the key 'images' twice"),
        ({"images": [{"id": 1, "file_name": "00.png", "height": 4}]}, "missing required field `width` - at `$.images[0]`"),
        ({"categories": [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]}, "the category id 3 is listed more than once"),
    ],
)
def test_a_damaged_file_is_told(folder: Path, body: Any, tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path / "a.json", change if isinstance(change, str) else {**body, **change})
    with pytest.raises(PrepError) as caught:
        prep(folder / "images", tmp_path / "o.fds", coco=path)
    assert message in str(caught.value) and "a.json" in str(caught.value)


def test_an_area_that_is_not_given_is_that_of_the_clipped_box(folder: Path, body: Any, tmp_path: Path) -> None:
    image = {**body["images"][0], "id": 0}
    height, width, about = image["height"], image["width"], {"image_id": 0, "category_id": 3}
    boxes = [[-5, -2, 15, 6], [width - 8, height - 4, 20, 20], [1, 2, 3, 4]]
    annotations = [{**about, "bbox": box} for box in boxes] + [{**about, "bbox": boxes[0], "area": 7}]
    path = write(tmp_path / "a.json", {**body, "images": [image], "annotations": annotations})
    done = prep(folder / "images", tmp_path / "o.fds", coco=path, workers=1)
    assert LMDBDataset(done.out, fields="area").columns["area"][0].tolist() == [40, 32, 12, 7]


def test_it_goes_with_columns_of_a_table(folder: Path, body: Any, tmp_path: Path) -> None:
    names = [one["file_name"] for one in body["images"]]
    table = write(tmp_path / "t.csv", "path,mood,area\n" + "".join(f"{name},mood of {name},1\n" for name in names))
    options = {"coco": folder / "all.json", "root": folder / "images", "workers": 1}
    columns = LMDBDataset(prep(table, tmp_path / "o.fds", fields="mood", **options).out).columns
    assert columns["mood"] == [f"mood of {names[1000 - k]}" for k in columns["image_id"].tolist()]
    with pytest.raises(PrepError, match="fields area: another column has this name"):
        prep(table, tmp_path / "p.fds", fields="area:float32", **options)


def test_a_transform_that_boxes_would_not_follow_is_refused(stores: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="transform takes an image, and boxes would not follow"):
        LMDBDataset(stores["short"], fields=("area", "boxes"), transform=lambda image: image[::-1])
