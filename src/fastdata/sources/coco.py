"""Annotations in COCO's JSON: boxes, categories, keypoints and captions of images, as columns.

The format: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.annotations import BOXES, BoxCheck, annotated, category_column, finished, keypoint_column, was
from fastdata.sources.inputs import Source, SourceList, read_bytes
from fastdata.sources.packed import PackedInputs
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.words import number_of

__all__ = ["with_coco"]

Entry = Mapping[str, Any]
TOLERANCE = 0.01  # pixels: many files round to two digits


@dataclass(frozen=True)
class _Coco:
    """A file of annotations. keypoints: names, of the one category that has some."""

    path: AnyPath
    images: list[Entry]
    annotations: dict[int, list[Entry]]
    categories: dict[int, int]
    names: tuple[str, ...]
    keypoints: tuple[str, ...]

    def has(self, key: str) -> bool:
        return any(key in one for found in self.annotations.values() for one in found)


def with_coco(inputs: SourceList, path: AnyPath, *, reject_boxes: bool) -> SourceList:
    """Return the images that a COCO file lists, with columns of what it says of them.

    Images of the folder that it does not list, and listed images that are not there, remain in the list with that problem.

    Args:
        inputs: the images of the folder that `file_name` is relative to.
        path: the JSON.
        reject_boxes: reject an image with a box that lies partly outside of it; else clip the box, and drop it if nothing is left.

    Raises:
        PrepError: the file cannot be read, or is not consistent.
    """
    coco = _read(path)
    by_name = {os.path.normpath(source.name): source for source in inputs.sources}
    columns, sources, counts = _columns(coco), PackedInputs[Source](), Counter[str]()
    check = BoxCheck(reject=reject_boxes, tolerance=TOLERANCE)
    for image in coco.images:
        name = image["file_name"]
        source = by_name.pop(os.path.normpath(name), Source(name, -1, -1, "missing"))
        counts["empty"] += not coco.annotations[image["id"]]
        sources.append(annotated(source, *_values(coco, columns, image, check, counts)))
    sources.extend(annotated(source, (), "not-annotated") for source in by_name.values())
    if len(by_name) == len(inputs.sources):
        raise PrepError(
            f"--coco {path} lists none of the images in {inputs.root}: its first file_name is {coco.images[0]['file_name']}, "
            f"the first image is {inputs.sources[0].name}; give as SOURCE the folder that file_name is relative to"
        )
    return finished(inputs, f"--coco {path}", columns, sources, [*_notes(coco, counts), *check.notes()])


def _read(path: AnyPath) -> _Coco:
    try:
        body = json.loads(read_bytes(path))
    except OSError as error:
        raise PrepError(f"cannot read --coco {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise PrepError(f"--coco {path}, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise PrepError(f"--coco {path} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise PrepError(f"--coco {path} is not an object with images and annotations")
    images = list(_entries(path, body, "images", {"id": int, "file_name": str, "height": int, "width": int}))
    if not images:
        raise PrepError(f"--coco {path} lists no images")
    if repeated := [k for k, count in Counter(image["id"] for image in images).items() if count > 1]:
        raise PrepError(f"--coco {path} lists the image id {repeated[0]} more than once")
    if repeated := [k for k, count in Counter(os.path.normpath(image["file_name"]) for image in images).items() if count > 1]:
        raise PrepError(f"--coco {path} lists {repeated[0]} more than once")
    categories = sorted(_entries(path, body, "categories", {"id": int, "name": str}), key=lambda one: int(one["id"]))
    numbers = {one["id"]: k for k, one in enumerate(categories)}
    if repeated := [k for k, count in Counter(one["id"] for one in categories).items() if count > 1]:
        raise PrepError(f"--coco {path} lists the category id {repeated[0]} more than once")
    known = {image["id"] for image in images}
    annotations = defaultdict[int, list[Entry]](list)
    for one in _entries(path, body, "annotations", {"image_id": int}):
        if one["image_id"] not in known:
            raise PrepError(f"--coco {path}: annotation {one.get('id')} is of the image {one['image_id']}, which is not listed")
        annotations[one["image_id"]].append(one)
    points = {_point_names(path, one) for one in categories if one.get("keypoints")}
    if len(points) > 1:
        raise PrepError(f"--coco {path}: {len(points)} categories have different keypoints; prepare each by itself")
    return _Coco(path, images, annotations, numbers, tuple(one["name"] for one in categories), next(iter(points), ()))


def _entries(path: AnyPath, body: Entry, key: str, needed: Mapping[str, type]) -> Iterator[Entry]:
    """Yield the objects of a list, each with the fields that it needs."""
    found = body.get(key, [])
    if not isinstance(found, list):
        raise PrepError(f'--coco {path}: "{key}" is not a list')
    for place, one in enumerate(found):
        for name, kind in needed.items():
            if not isinstance(one, dict) or type(one.get(name)) is not kind:
                raise PrepError(
                    f'--coco {path}: {key}[{place}] has no "{name}" that is {"text" if kind is str else "a whole number"}'
                )
        yield one


def _point_names(path: AnyPath, category: Entry) -> tuple[str, ...]:
    names = category["keypoints"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PrepError(f'--coco {path}: category {category["id"]}: "keypoints" must be a list of names, but is {names!r:.60}')
    return tuple(names)


def _columns(coco: _Coco) -> tuple[Column, ...]:
    """Return the columns for what the annotations hold."""
    columns = [Column("image_id", "int64"), SOURCE_SIZE]
    if coco.has("bbox"):
        columns += [
            BOXES,
            category_column(coco.names, list(coco.categories)),
            Column("area", "float32", many=True, group=INSTANCES),
            Column("crowd", "bool", many=True, group=INSTANCES),
        ]
    if coco.keypoints:
        columns.append(keypoint_column(len(coco.keypoints), coco.keypoints))
    if coco.has("caption"):
        columns.append(Column("captions", "json"))
    return tuple(columns)


def _values(coco: _Coco, columns: Sequence[Column], image: Entry, check: BoxCheck, counts: Counter[str]) -> tuple[list[Any], str]:
    """Return the value of each column for an image, and the problem of its boxes, or ""."""
    found = coco.annotations[image["id"]]
    instances = [one for one in found if "bbox" in one]
    boxes, keep, problem = check.check([_box(coco, one) for one in instances], image["width"], image["height"])
    kept = [instances[k] for k in keep]
    counts["other"] += sum("bbox" not in one and "caption" not in one for one in found)
    values: dict[str, Any] = {
        "image_id": image["id"],
        SOURCE_SIZE.name: [image["height"], image["width"]],
        "boxes": boxes,
        "category": [_category(coco, one) for one in kept],
        "area": [_number(coco, one, "area", _area(box)) for one, box in zip(kept, boxes, strict=True)],
        "crowd": [bool(one.get("iscrowd", 0)) for one in kept],
        "captions": [str(one["caption"]) for one in found if "caption" in one],
    }
    if coco.keypoints:
        values["keypoints"] = [_keypoints(coco, one) for one in kept]
    return [values[column.name] for column in columns], problem


def _box(coco: _Coco, one: Entry) -> list[float]:
    """Return a box as x1, y1, x2, y2."""
    try:
        x, y, width, height = map(float, one["bbox"])
    except (TypeError, ValueError):
        raise _damaged(coco, one, "bbox", "must be [x, y, width, height]") from None
    box = [x, y, x + width, y + height]
    if not np.isfinite(box).all():
        raise _damaged(coco, one, "bbox", "must be finite numbers")
    return box


def _area(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _number(coco: _Coco, one: Entry, key: str, default: float) -> float:
    try:
        return float(one.get(key, default))
    except (TypeError, ValueError):
        raise _damaged(coco, one, key, "must be a number") from None


def _category(coco: _Coco, one: Entry) -> int:
    try:
        return coco.categories[one["category_id"]]
    except (KeyError, TypeError):
        raise _damaged(coco, one, "category_id", "is not the id of one of its categories") from None


def _keypoints(coco: _Coco, one: Entry) -> list[list[float]]:
    """Return (x, y, visibility) for each keypoint; zeros for an instance without any."""
    count = len(coco.keypoints)
    try:
        points = np.array(one.get("keypoints") or [0] * 3 * count, np.float64).reshape(count, 3)
    except (TypeError, ValueError):
        raise _damaged(coco, one, "keypoints", f"must be {3 * count} numbers, for {count} keypoints") from None
    if not np.isfinite(points).all():
        raise _damaged(coco, one, "keypoints", "must be finite numbers")
    return points.tolist()


def _damaged(coco: _Coco, one: Entry, key: str, why: str) -> PrepError:
    return PrepError(f'--coco {coco.path}: annotation {one.get("id")}: "{key}" {why}, but is {one.get(key)!r:.60}')


def _notes(coco: _Coco, counts: Counter[str]) -> Iterator[str]:
    if counts["empty"]:
        yield f"{number_of(counts['empty'], 'image')} without annotations"
    if counts["other"]:
        yield f"{number_of(counts['other'], 'annotation')} with neither a box nor a caption {was(counts['other'])} left out"
    if coco.has("segmentation"):
        yield "segmentations are not stored: --masks stores masks"
