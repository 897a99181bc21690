"""Annotations in COCO's JSON: boxes, categories, keypoints and captions of images, as columns.

The format: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from fastdata.errors import PrepError
from fastdata.sources.inputs import Field, Source, SourceList, read_bytes
from fastdata.sources.instances import annotated, category_column, instance_column, with_annotations
from fastdata.sources.notes import listed
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


def with_coco(inputs: SourceList, path: AnyPath) -> SourceList:
    """Return the images that a COCO file lists, with fields of what it says of them. `file_name` is relative to the inputs' root.

    Images of SOURCE that it does not list, and listed images that are not there, remain in the list with that problem, but where a
    table names the inputs: then what it does not name is left out.
    """
    file = _read(path)
    annotations = defaultdict[int, list[_Annotation]](list)
    for one in file.annotations:
        annotations[one.image_id].append(one)
    fields = _fields(path, file)
    categories = {one.id: k for k, one in enumerate(file.categories)}
    index = FileIndex(inputs.sources, os.path.normpath)
    sources, absent, empty = Packed[Source](), list[str](), 0
    for image in file.images:
        found, own = index.find(image.file_name), annotations.pop(image.id, [])
        if not found and inputs.selected:
            absent.append(image.file_name)
            continue
        empty += not own
        try:
            values, problem = _values(fields, image, own, categories), ""
        except (ValueError, TypeError, IndexError) as error:
            values, problem = [], f"bad-annotation: {error}"
        found = found or [Source(image.file_name, -1, -1, "missing")]
        sources.extend(annotated(source, values, problem) for source in found)
    unlisted = index.unpaired()
    sources.extend(annotated(source, (), "not-annotated") for source in unlisted)
    if len(unlisted) == len(inputs.sources):
        raise PrepError(
            f"--coco {path} lists none of the images in {inputs.root}: its first file_name is {file.images[0].file_name}, "
            f"the first image is {inputs.sources[0].name}; give as SOURCE the folder that file_name is relative to"
        )
    notes = _notes(file, absent, sum(map(len, annotations.values())), empty)
    return with_annotations(inputs, fields, sources, notes)


def _read(path: AnyPath) -> _File:
    try:
        file = msgspec.convert(json.loads(read_bytes(path)), _File)  # which takes NaN, unlike msgspec.json
    except OSError as error:
        raise PrepError(f"cannot read --coco {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PrepError(f"--coco {path} is not COCO's JSON: {error}") from None
    if not file.images:
        raise PrepError(f"--coco {path} lists no images")
    _refuse_repeated(path, "the image id ", (image.id for image in file.images))
    _refuse_repeated(path, "the file ", (os.path.normpath(image.file_name) for image in file.images))
    _refuse_repeated(path, "the category id ", (one.id for one in file.categories))
    file.categories.sort(key=lambda one: one.id)
    return file


def _refuse_repeated(path: AnyPath, what: str, found: Iterable[object]) -> None:
    if repeated := [one for one, count in Counter(found).items() if count > 1]:
        raise PrepError(f"--coco {path} lists {what}{repeated[0]} more than once")


def _fields(path: AnyPath, file: _File) -> list[Field]:
    """Return the fields for what the annotations hold."""
    fields = [Field(Column("image_id", "int64"), True), Field(SOURCE_SIZE, True)]
    if any(one.bbox is not UNSET for one in file.annotations):
        fields += [
            Field(instance_column("boxes", "xywh"), True, layout="xywh"),
            Field(category_column([one.name for one in file.categories], [one.id for one in file.categories]), True),
            Field(Column("area", "float32", many=True, group=INSTANCES), True),
            Field(Column("crowd", "bool", many=True, group=INSTANCES), True),
        ]
    points = {one.keypoints for one in file.categories if one.keypoints}
    if len(points) > 1:
        raise PrepError(f"--coco {path}: {len(points)} categories have different keypoints; prepare each by itself")
    for names in points:
        fields.append(Field(instance_column("keypoints", "xy", (len(names),), names), True, layout="xy"))
    if any(one.caption is not UNSET for one in file.annotations):
        fields.append(Field(Column("captions", "json"), True))
    return fields


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
