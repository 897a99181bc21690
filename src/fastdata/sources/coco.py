"""Annotations in COCO's JSON: boxes, categories, keypoints and captions of images, as columns.

The format: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastdata.errors import PrepError
from fastdata.sources.annotations import BOXES, annotated, category_column, finished, keypoint_column
from fastdata.sources.inputs import FieldSource, Source, SourceList, read_bytes
from fastdata.sources.notes import listed
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.words import number_of, was

__all__ = ["with_coco"]

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class _Coco:
    """A file of annotations.

    Attributes:
        keypoints: names, of the one category that has some.
        unlisted: how many annotations are of images that it does not list.
    """

    path: AnyPath
    images: list[Entry]
    annotations: dict[int, list[Entry]]
    categories: dict[int, int]
    names: tuple[str, ...]
    keypoints: tuple[str, ...]
    unlisted: int

    def has(self, key: str) -> bool:
        return any(key in one for found in self.annotations.values() for one in found)


def with_coco(inputs: SourceList, path: AnyPath) -> SourceList:
    """Return the images that a COCO file lists, with fields of what it says of them.

    Images of SOURCE that it does not list, and listed images that are not there, remain in the list with that problem, but where a
    table names the inputs: then what it does not name is left out.

    Args:
        inputs: the images of the folder that `file_name` is relative to.
        path: the JSON.

    Raises:
        PrepError: the file cannot be read, or is not consistent.
    """
    coco = _read(path)
    by_name = {os.path.normpath(source.name): source for source in inputs.sources}
    composed = {unicodedata.normalize("NFC", name): name for name in by_name if not name.isascii()}
    fields, sources, counts = _fields(coco), Packed[Source](), Counter[str]()
    absent = list[str]()
    for image in coco.images:
        name = image["file_name"]
        key = os.path.normpath(name)
        source = by_name.pop(key if key in by_name else composed.get(unicodedata.normalize("NFC", key), key), None)
        if source is None and inputs.selected:
            absent.append(name)
            continue
        source = source or Source(name, -1, -1, "missing")
        counts["empty"] += not coco.annotations[image["id"]]
        sources.append(annotated(source, *_values(coco, fields, image, counts)))
    sources.extend(annotated(source, (), "not-annotated") for source in by_name.values())
    if len(by_name) == len(inputs.sources):
        raise PrepError(
            f"--coco {path} lists none of the images in {inputs.root}: its first file_name is {coco.images[0]['file_name']}, "
            f"the first image is {inputs.sources[0].name}; give as SOURCE the folder that file_name is relative to"
        )
    return finished(inputs, f"--coco {path}", fields, sources, [*_notes(coco, counts, absent)])


def _read(path: AnyPath) -> _Coco:
    try:
        body = json.loads(read_bytes(path))
    except OSError as error:
        raise PrepError(f"cannot read --coco {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PrepError(f"--coco {path} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise PrepError(f"--coco {path} is not an object with images and annotations")
    images = list(_entries(path, body, "images", {"id": int, "file_name": str, "height": int, "width": int}))
    if not images:
        raise PrepError(f"--coco {path} lists no images")
    _refuse_repeated(path, "the image id ", (image["id"] for image in images))
    _refuse_repeated(path, "the file ", (os.path.normpath(image["file_name"]) for image in images))
    categories = sorted(_entries(path, body, "categories", {"id": int, "name": str}), key=lambda one: int(one["id"]))
    numbers = {one["id"]: k for k, one in enumerate(categories)}
    _refuse_repeated(path, "the category id ", (one["id"] for one in categories))
    known = {image["id"] for image in images}
    annotations, unlisted = defaultdict[int, list[Entry]](list), list[Entry]()
    for one in _entries(path, body, "annotations", {"image_id": int}):
        (annotations[one["image_id"]] if one["image_id"] in known else unlisted).append(one)
    if unlisted and not annotations:
        one = unlisted[0]
        raise PrepError(f"--coco {path}: annotation {one.get('id')} is of the image {one['image_id']}, which is not listed")
    points = {_point_names(path, one) for one in categories if one.get("keypoints")}
    if len(points) > 1:
        raise PrepError(f"--coco {path}: {len(points)} categories have different keypoints; prepare each by itself")
    return _Coco(
        path, images, annotations, numbers, tuple(one["name"] for one in categories), next(iter(points), ()), len(unlisted)
    )


def _refuse_repeated(path: AnyPath, what: str, found: Iterable[object]) -> None:
    if repeated := [one for one, count in Counter(found).items() if count > 1]:
        raise PrepError(f"--coco {path} lists {what}{repeated[0]} more than once")


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


def _fields(coco: _Coco) -> tuple[FieldSource, ...]:
    """Return the fields for what the annotations hold."""
    fields = [FieldSource(Column("image_id", "int64"), True), FieldSource(SOURCE_SIZE, True)]
    if coco.has("bbox"):
        fields += [
            FieldSource(BOXES, True, layout="xywh"),
            FieldSource(category_column(coco.names, list(coco.categories)), True),
            FieldSource(Column("area", "float32", many=True, group=INSTANCES), True),
            FieldSource(Column("crowd", "bool", many=True, group=INSTANCES), True),
        ]
    if coco.keypoints:
        fields.append(FieldSource(keypoint_column(len(coco.keypoints), coco.keypoints), True, layout="xy"))
    if coco.has("caption"):
        fields.append(FieldSource(Column("captions", "json"), True))
    return tuple(fields)


def _values(coco: _Coco, fields: Sequence[FieldSource], image: Entry, counts: Counter[str]) -> tuple[list[Any], str]:
    """Return the value of each field for an image, and the problem of its annotations, or "". Workers check the numbers."""
    annotations = coco.annotations[image["id"]]
    instances = [one for one in annotations if "bbox" in one]
    counts["other"] += sum("bbox" not in one and "caption" not in one for one in annotations)
    boxes = [one["bbox"] for one in instances]
    try:
        values: dict[str, Any] = {
            "image_id": image["id"],
            SOURCE_SIZE.name: [image["height"], image["width"]],
            "boxes": boxes,
            "category": [_category(coco, one) for one in instances],
            "area": [one["area"] if "area" in one else box[2] * box[3] for one, box in zip(instances, boxes, strict=True)],
            "crowd": [bool(one.get("iscrowd", 0)) for one in instances],
            "keypoints": [one.get("keypoints") or [0] * 3 * len(coco.keypoints) for one in instances],
            "captions": [str(one["caption"]) for one in annotations if "caption" in one],
        }
    except (ValueError, TypeError, IndexError) as error:
        return [], f"bad-annotation: {error}"
    return [values[field.column.name] for field in fields], ""


def _category(coco: _Coco, one: Entry) -> int:
    number = one.get("category_id")
    if number not in coco.categories:
        raise ValueError(f"annotation {one.get('id')}: category_id {number!r:.60} is not the id of a category")
    return coco.categories[number]


def _notes(coco: _Coco, counts: Counter[str], absent: Sequence[str]) -> Iterator[str]:
    if absent:
        yield f"--coco has {number_of(len(absent), 'more image')}, which SOURCE does not name: {listed(absent)}"
    if coco.unlisted:
        yield f"{number_of(coco.unlisted, 'annotation')} of images that --coco does not list {was(coco.unlisted)} left out"
    if counts["empty"]:
        yield f"{number_of(counts['empty'], 'image')} without annotations"
    if counts["other"]:
        yield f"{number_of(counts['other'], 'annotation')} with neither a box nor a caption {was(counts['other'])} left out"
    if coco.has("segmentation"):
        yield "segmentations are not stored: --masks stores masks"
