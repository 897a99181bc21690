"""Export a store of images as image files with annotations in COCO's JSON: https://cocodataset.org/#format-data"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.images.export import write_images
from fastdata.images.export_columns import ExportColumns, as_json, warn_left_out
from fastdata.store.column import INSTANCES, Column
from fastdata.store.store import Store

__all__ = ["write_coco"]

ANNOTATIONS = "annotations.json"
IMAGE_KEYS = frozenset({"id", "file_name", "height", "width"})
OWN = frozenset({"image_id", "boxes", "category", "area", "crowd", "keypoints", "captions"})  # columns that COCO has keys for


def write_coco(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image to `images`, and annotations to `annotations.json`, where `file_name` is relative to `images`.

    Images have the ids of the column `image_id`, else numbers from 1; categories the ids that they had, else numbers from 1. Other
    columns become further keys of images and annotations. A category has keypoints if an instance of it has one that is labelled.
    """
    variant = store.variant(size)
    written = write_images(store, root, size, tick, "images")
    rows = ExportColumns(store, variant)
    columns = {column.name: column for column in rows.columns}
    boxes = columns.get("boxes")
    annotated = boxes is not None and boxes.group == INSTANCES
    own = OWN if annotated else {"image_id", "captions"}
    more = [column for column in rows.columns if column.name not in own]
    left_out = [column for column in more if column.type == "bytes" or column.name in IMAGE_KEYS]
    of_images = [column.name for column in more if column not in left_out and column.group != INSTANCES]
    of_instances = [column.name for column in more if column not in left_out and column.group == INSTANCES]
    ids = _category_ids(columns["category"], store, rows) if annotated else {}
    images, annotations, with_points = list[Any](), list[Any](), set[int]()
    for k, (name, values) in enumerate(zip(written, rows, strict=True)):
        number = int(values.get("image_id", k + 1))
        height, width = (int(store.samples[f"{variant.name}/{side}"][k]) for side in ("height", "width"))
        others = {key: as_json(values[key]) for key in of_images}
        images.append({"id": number, "file_name": name, "height": height, "width": width, **others})
        found = _instances(values, list(ids), of_instances) if annotated else iter(())
        captions = ({"caption": text} for text in (values["captions"] if "captions" in columns else ()))
        for one in (*found, *captions):
            annotations.append({"id": len(annotations) + 1, "image_id": number, **one})
            if one.get("num_keypoints"):
                with_points.add(one["category_id"])
    categories = [{"id": number, "name": name} for number, name in ids.items()]
    if annotated and "keypoints" in columns:
        for one in categories:
            if one["id"] in with_points or not with_points:
                one["keypoints"] = columns["keypoints"].names
    body = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
    (root / ANNOTATIONS).write_text(json.dumps(body))
    warn_left_out(root, left_out, "COCO has no place for these columns", rows.left)
    return len(written)


def _category_ids(column: Column, store: Store, rows: ExportColumns) -> dict[int, str]:
    """Return the name of each category by its id, in their order."""
    names = column.names
    if not names:
        highest = max((int(values[column.name].max(initial=-1)) for values in rows), default=-1)
        names = tuple(map(str, range(highest + 1)))
    return dict(zip(column.ids or range(1, len(names) + 1), names, strict=True))


def _instances(values: dict[str, Any], ids: list[int], more: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the annotations of an image's instances."""
    for k, (x1, y1, x2, y2) in enumerate(values["boxes"].astype(np.float64).tolist()):
        one: dict[str, Any] = {
            "category_id": ids[int(values["category"][k])],
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": float(values["area"][k]) if "area" in values else (x2 - x1) * (y2 - y1),
            "iscrowd": int(values["crowd"][k]) if "crowd" in values else 0,
        }
        if "keypoints" in values:
            points = values["keypoints"][k]
            one["num_keypoints"] = int((points[:, 2] > 0).sum())
            one["keypoints"] = [v for x, y, seen in points.tolist() for v in (x, y, int(seen) if seen.is_integer() else seen)]
        yield one | {key: as_json(values[key][k]) for key in more}
