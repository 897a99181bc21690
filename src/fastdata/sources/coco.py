"""Annotations in COCO's JSON: boxes, categories, keypoints and captions of images, as columns.

The format: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from fastdata.errors import PrepError
from fastdata.sources.inputs import Field, Source, SourceList, listed, read_bytes
from fastdata.sources.instances import annotated, instance_column, with_annotations
from fastdata.sources.packed import Packed
from fastdata.sources.pairs import FileIndex
from fastdata.sources.urls import AnyPath
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.words import number_of, was

__all__ = ["with_coco"]


class _Image(Struct):
    id: int
    file_name: str
    height: int
    width: int


class _Category(Struct):
    id: int
    name: str
    keypoints: tuple[str, ...] = ()


class _Annotation(Struct):
    """What one annotation says. Its values are checked with its image, which is rejected if they are damaged."""

    image_id: int
    id: Any = None
    category_id: Any = None
    bbox: Any = UNSET
    area: Any = UNSET
    iscrowd: Any = 0
    keypoints: Any = None
    caption: Any = UNSET
    segmentation: Any = None


class _File(Struct):
    images: list[_Image]
    annotations: list[_Annotation] = []
    categories: list[_Category] = []

    def __post_init__(self) -> None:
        self.categories.sort(key=lambda one: one.id)
        for what, found in (
            ("image id", [image.id for image in self.images]),
            ("file", [os.path.normpath(image.file_name) for image in self.images]),
            ("category id", [one.id for one in self.categories]),
        ):
            if repeated := [one for one, count in Counter(found).items() if count > 1]:
                raise ValueError(f"the {what} {repeated[0]} is listed more than once")
        if len({one.keypoints for one in self.categories if one.keypoints}) > 1:
            raise ValueError("categories have different keypoints; prepare each by itself")


def with_coco(inputs: SourceList, path: AnyPath) -> SourceList:
    """Return the images that a COCO file lists, with fields of what it says of them. `file_name` is relative to the inputs' root.

    Images of SOURCE that it does not list, and listed images that are not there, remain in the list with that problem, but where a
    table names the inputs: then what it does not name is left out.
    """
    try:
        file = msgspec.convert(json.loads(read_bytes(path)), _File)  # which takes NaN, unlike msgspec.json
    except (OSError, ValueError, RecursionError) as error:
        raise PrepError(f"--coco {path} cannot be read as COCO's JSON: {error}") from None
    annotations = defaultdict[int, list[_Annotation]](list)
    for one in file.annotations:
        annotations[one.image_id].append(one)
    fields, categories = _fields(file), {one.id: k for k, one in enumerate(file.categories)}
    index, sources, absent, empty = FileIndex(inputs.sources, os.path.normpath), Packed[Source](), list[str](), 0
    for image in file.images:
        found = index.find(image.file_name)
        own = annotations.pop(image.id, [])
        if not found and inputs.selected:
            absent.append(image.file_name)
            continue
        empty += not own
        try:
            values, problem = _values(fields, image, own, categories), ""
        except (ValueError, TypeError, IndexError) as error:
            why = error if isinstance(error, ValueError) else "a bbox is not a list of four numbers"
            values, problem = [], f"bad-annotation: {why}"
        sources.extend(annotated(one, values, problem) for one in found or [Source(image.file_name, -1, -1, "missing")])
    unlisted = index.unpaired()
    if len(unlisted) == len(inputs.sources):
        first = file.images[0].file_name if file.images else "nothing"
        raise PrepError(
            f"--coco {path} lists none of the images in {inputs.root}: its first file_name is {first}, the first image is "
            f"{inputs.sources[0].name}; give as SOURCE the folder that file_name is relative to"
        )
    sources.extend(annotated(source, (), "not-annotated") for source in unlisted)
    return with_annotations(inputs, fields, sources, _notes(file, absent, sum(map(len, annotations.values())), empty))


def _fields(file: _File) -> list[Field]:
    """Return the fields for what the annotations hold."""
    columns, names = [Column("image_id", "int64"), SOURCE_SIZE], tuple(one.name for one in file.categories)
    if any(one.bbox is not UNSET for one in file.annotations):
        columns += [
            instance_column("boxes", "xywh"),
            Column("category", "int64", many=True, group=INSTANCES, names=names, ids=tuple(one.id for one in file.categories)),
            Column("area", "float32", many=True, group=INSTANCES),
            Column("crowd", "bool", many=True, group=INSTANCES),
        ]
    if points := next((one.keypoints for one in file.categories if one.keypoints), ()):
        columns.append(instance_column("keypoints", "xy", (len(points),), points))
    if any(one.caption is not UNSET for one in file.annotations):
        columns.append(Column("captions", "json"))
    return [Field(column, True, layout={"boxes": "xywh", "keypoints": "xy"}.get(column.name, "")) for column in columns]


def _values(fields: Sequence[Field], image: _Image, annotations: Sequence[_Annotation], categories: Mapping[int, int]) -> list[Any]:
    """Return the value of each field for an image. Workers check the numbers."""
    instances = [one for one in annotations if one.bbox is not UNSET]
    if unknown := [one for one in instances if one.category_id not in categories]:
        raise ValueError(f"annotation {unknown[0].id}: category_id {unknown[0].category_id!r:.60} is not the id of a category")
    no_points = [0] * 3 * next((len(field.column.names) for field in fields if field.column.name == "keypoints"), 0)
    values: dict[str, Any] = {
        "image_id": image.id,
        SOURCE_SIZE.name: [image.height, image.width],
        "boxes": [one.bbox for one in instances],
        "category": [categories[one.category_id] for one in instances],
        "area": [one.bbox[2] * one.bbox[3] if one.area is UNSET else one.area for one in instances],
        "crowd": [bool(one.iscrowd) for one in instances],
        "keypoints": [one.keypoints or no_points for one in instances],
        "captions": [str(one.caption) for one in annotations if one.caption is not UNSET],
    }
    return [values[field.column.name] for field in fields]


def _notes(file: _File, absent: Sequence[str], unlisted: int, empty: int) -> Iterator[str]:
    if absent:
        yield f"--coco has {number_of(len(absent), 'more image')}, which SOURCE does not name: {listed(absent)}"
    if unlisted:
        yield f"{number_of(unlisted, 'annotation')} of images that --coco does not list {was(unlisted)} left out"
    if empty:
        yield f"{number_of(empty, 'image')} without annotations"
    if other := sum(one.bbox is UNSET and one.caption is UNSET for one in file.annotations):
        yield f"{number_of(other, 'annotation')} with neither a box nor a caption {was(other)} left out"
    if any(one.segmentation for one in file.annotations):
        yield "segmentations are not stored: --masks stores masks"
