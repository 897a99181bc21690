"""Export a store of images as image files with annotations in COCO's JSON: https://cocodataset.org/#format-data"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.images.export import write_images
from fastdata.images.export_columns import ExportColumns, as_json, warn_left_out
from fastdata.store.column import INSTANCES, Column
from fastdata.store.store import Store

__all__ = ["write_coco"]

ANNOTATIONS, IMAGE_ID = "annotations.json", "image_id"
IMAGE_KEYS = frozenset({"id", "file_name", "height", "width"})
OF_INSTANCES = frozenset({"boxes", "category", "area", "crowd", "keypoints"})  # columns that annotations of COCO have keys for


def write_coco(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image to `images`, and annotations to `annotations.json`, where `file_name` is relative to `images`.

    Several images of a sample go to folders of their names, and `file_name` is relative to the first of these.

    Images have the ids of the column `image_id`, else numbers from 1; categories the ids that they had, else numbers from 1. Other
    columns become further keys of images and annotations. A category has keypoints if an instance of it has one that is labelled.
    """
    variant = store.variant(size)
    written = write_images(store, root, size, tick, "images")
    rows = ExportColumns(store, variant)
    columns = {column.name: column for column in rows.columns}
    numbers = _image_ids(rows, len(store))
    left_out = [column for column in rows.columns if column.type == "bytes" or column.name in IMAGE_KEYS]
    more = [column for column in rows.columns if column not in left_out and (column.name != IMAGE_ID or numbers is None)]
    of_images = [column.name for column in more if column.group != INSTANCES]
    of_instances = [column.name for column in more if column.group == INSTANCES and column.name not in OF_INSTANCES]
    category = columns["category"] if _has_instances(columns) else None
    images, annotations, used, with_points = list[Any](), list[Any](), set[int](), set[int]()
    for k, (name, values) in enumerate(zip(written, rows, strict=True)):
        number = k + 1 if numbers is None else numbers[k]
        height, width = (int(store.samples[f"{variant.name}/{side}"][k]) for side in ("height", "width"))
        others = {key: as_json(values[key]) for key in of_images}
        captions = others.pop("captions") if _are_captions(others.get("captions")) else []
        images.append({"id": number, "file_name": name, "height": height, "width": width, **others})
        found = list(_instances(values, category, of_instances)) if category else []
        used.update(values["category"].tolist() if category else ())
        with_points.update(one["category_id"] for one in found if one.get("num_keypoints"))
        for one in (*found, *({"caption": text} for text in captions)):
            annotations.append({"id": len(annotations) + 1, "image_id": number, **one})
    categories = list[Any]()
    if category:
        names = category.names or map(str, range(max(used, default=-1) + 1))
        categories = [{"id": _category_id(category, k), "name": name} for k, name in enumerate(names)]
    if category and "keypoints" in columns:
        points = columns["keypoints"].names or [f"point_{k}" for k in range(columns["keypoints"].shape[0])]
        for one in categories:
            if one["id"] in with_points or not with_points:
                one["keypoints"] = points
    body: dict[str, Any] = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
    (root / ANNOTATIONS).write_text(json.dumps(body))
    warn_left_out(root, left_out, "COCO has no place for these columns", rows.left)
    return len(written)


def _has_instances(columns: Mapping[str, Column]) -> bool:
    return all(name in columns and columns[name].group == INSTANCES for name in ("boxes", "category"))


def _image_ids(rows: ExportColumns, count: int) -> list[int] | None:
    """Return the ids of the images, if a column holds different whole numbers."""
    column = next((column for column in rows.columns if column.name == IMAGE_ID), None)
    if column is None or column.ragged or column.shape or column.dtype.kind not in "iu":
        return None
    found = rows.whole(IMAGE_ID).tolist()
    return found if len(set(found)) == count else None


def _are_captions(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _category_id(category: Column, index: int) -> int:
    return category.ids[index] if category.ids else index + 1


def _instances(values: Mapping[str, Any], category: Column, more: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the annotations of an image's instances. more: columns that become further keys."""
    for k, (x1, y1, x2, y2) in enumerate(values["boxes"].astype(np.float64).tolist()):
        one: dict[str, Any] = {
            "category_id": _category_id(category, int(values["category"][k])),
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": float(values["area"][k]) if "area" in values else (x2 - x1) * (y2 - y1),
            "iscrowd": int(values["crowd"][k]) if "crowd" in values else 0,
        }
        if "keypoints" in values:
            points = values["keypoints"][k]
            one["num_keypoints"] = int((points[:, 2] > 0).sum())
            one["keypoints"] = [v for x, y, seen in points.tolist() for v in (x, y, int(seen) if seen.is_integer() else seen)]
        yield one | {key: as_json(values[key][k]) for key in more}
