"""Annotations in COCO's JSON: boxes, categories, keypoints and captions of images, as columns.

The format: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, SourceList
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.store.format import Labels
from fastdata.words import number_of

__all__ = ["with_coco"]

Entry = Mapping[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Coco:
    """A file of annotations. keypoints: names, of the one category that has some."""

    path: Path
    images: list[Entry]
    annotations: dict[int, list[Entry]]
    categories: dict[int, int]
    names: tuple[str, ...]
    keypoints: tuple[str, ...]

    def has(self, key: str) -> bool:
        return any(key in one for found in self.annotations.values() for one in found)


def with_coco(inputs: SourceList, path: Path, *, reject_boxes: bool) -> SourceList:
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
    columns, sources, counts = _columns(coco), list[Source](), Counter[str]()
    if twice := {column.name for column in inputs.columns} & {column.name for column in columns}:
        raise PrepError(f"--fields {min(twice)}: --coco {path} gives a column of this name; rename it in the table")
    for image in coco.images:
        name = image["file_name"]
        source = by_name.pop(os.path.normpath(name), None)
        source = Source(name, -1, -1, "missing") if source is None else replace(source, label=-1, problem=_own_problem(source))
        size = image["height"], image["width"]
        values, outside = _values(coco, columns, image, size, counts)
        problem = source.problem or ("box-outside" if outside and reject_boxes else "")
        counts["clipped"] += outside if not reject_boxes else 0
        counts["empty"] += not coco.annotations[image["id"]]
        sources.append(replace(source, problem=problem, values=(*source.values, *values)))
    unlisted = [replace(source, label=-1, problem=_own_problem(source) or "not-annotated") for source in by_name.values()]
    if len(unlisted) == len(inputs.sources):
        raise PrepError(
            f"--coco {path} lists none of the images in {inputs.root}: its first file_name is {coco.images[0]['file_name']}, "
            f"the first image is {inputs.sources[0].name}; give as SOURCE the folder that file_name is relative to"
        )
    notes = (*inputs.notes, *_notes(coco, counts))
    return replace(
        inputs, labels=Labels("none"), sources=sources + unlisted, notes=notes, columns=(*inputs.columns, *columns), labelled_by=""
    )


def _own_problem(source: Source) -> str:
    return "" if source.problem == "no-label" else source.problem


def _read(path: Path) -> _Coco:
    try:
        body = json.loads(path.read_bytes())
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
    known = {image["id"] for image in images}
    annotations = defaultdict[int, list[Entry]](list)
    for one in _entries(path, body, "annotations", {"image_id": int}):
        if one["image_id"] not in known:
            raise PrepError(f"--coco {path}: annotation {one.get('id')} is of the image {one['image_id']}, which is not listed")
        annotations[one["image_id"]].append(one)
    points = {tuple(one["keypoints"]) for one in categories if one.get("keypoints")}
    if len(points) > 1:
        raise PrepError(f"--coco {path}: {len(points)} categories have different keypoints; prepare each by itself")
    return _Coco(path, images, annotations, numbers, tuple(one["name"] for one in categories), next(iter(points), ()))


def _entries(path: Path, body: Entry, key: str, needed: Mapping[str, type]) -> Iterator[Entry]:
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


def _columns(coco: _Coco) -> tuple[Column, ...]:
    """Return the columns for what the annotations hold."""
    columns = [Column("image_id", "int64"), SOURCE_SIZE]
    if coco.has("bbox"):
        columns += [
            Column("boxes", "float32", (4,), many=True, geometry="xyxy", group=INSTANCES),
            Column("category", "int64", many=True, group=INSTANCES, names=coco.names),
            Column("area", "float32", many=True, group=INSTANCES),
            Column("crowd", "bool", many=True, group=INSTANCES),
        ]
    if coco.keypoints:
        columns.append(
            Column("keypoints", "float32", (len(coco.keypoints), 3), True, geometry="xy", group=INSTANCES, names=coco.keypoints)
        )
    if coco.has("caption"):
        columns.append(Column("captions", "json"))
    return tuple(columns)


def _values(
    coco: _Coco, columns: Sequence[Column], image: Entry, size: tuple[int, int], counts: Counter[str]
) -> tuple[list[Any], int]:
    """Return the value of each column for an image, and how many of its boxes lie partly outside of it."""
    found = coco.annotations[image["id"]]
    instances = [one for one in found if "bbox" in one]
    boxes, outside = _boxes(coco, instances, size)
    keep = [k for k, box in enumerate(boxes) if box[2] > box[0] and box[3] > box[1]]
    counts["dropped"] += len(instances) - len(keep)
    counts["other"] += sum("bbox" not in one and "caption" not in one for one in found)
    values: dict[str, Any] = {
        "image_id": image["id"],
        SOURCE_SIZE.name: list(size),
        "boxes": [boxes[k] for k in keep],
        "category": [_category(coco, instances[k]) for k in keep],
        "area": [_number(coco, instances[k], "area", _area(boxes[k])) for k in keep],
        "crowd": [bool(instances[k].get("iscrowd", 0)) for k in keep],
        "captions": [str(one["caption"]) for one in found if "caption" in one],
    }
    if coco.keypoints:
        values["keypoints"] = [_keypoints(coco, instances[k]) for k in keep]
    return [values[column.name] for column in columns], outside


def _boxes(coco: _Coco, instances: Sequence[Entry], size: tuple[int, int]) -> tuple[list[list[float]], int]:
    """Return boxes as x1, y1, x2, y2, clipped to the image, and how many were clipped."""
    boxes, clipped = list[list[float]](), 0
    for one in instances:
        try:
            x, y, width, height = map(float, one["bbox"])
        except (TypeError, ValueError):
            raise _damaged(coco, one, "bbox", "must be [x, y, width, height]") from None
        whole = [x, y, x + width, y + height]
        if not np.isfinite(whole).all():
            raise _damaged(coco, one, "bbox", "must be finite numbers")
        box = [min(max(value, 0.0), float(limit)) for value, limit in zip(whole, (size[1], size[0]) * 2, strict=True)]
        clipped += any(abs(a - b) > 0.01 for a, b in zip(whole, box, strict=True))  # many files round to two digits
        boxes.append(box)
    return boxes, clipped


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


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _notes(coco: _Coco, counts: Counter[str]) -> Iterator[str]:
    if counts["empty"]:
        yield f"{number_of(counts['empty'], 'image')} without annotations"
    if counts["other"]:
        yield f"{number_of(counts['other'], 'annotation')} with neither a box nor a caption {_was(counts['other'])} left out"
    if coco.has("segmentation"):
        yield "segmentations are not stored: --masks stores masks"
    if counts["clipped"]:
        boxes = number_of(counts["clipped"], "box")
        yield f"{boxes} reached outside of the image and {_was(counts['clipped'])} clipped; --bad-boxes reject rejects such images"
    if counts["dropped"]:
        yield f"{number_of(counts['dropped'], 'box')} without area inside of the image {_was(counts['dropped'])} dropped"
