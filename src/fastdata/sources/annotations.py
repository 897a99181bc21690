"""Annotations of images as columns: COCO's JSON, and YOLO's text files, one for each image."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fastdata.errors import PrepError
from fastdata.sources.fields import annotated, instance_column, with_annotations
from fastdata.sources.files import parse_json, read_bytes
from fastdata.sources.folder import FileIndex, Walk, walk_files
from fastdata.sources.inputs import Field, Packed, Source, SourceList, listed
from fastdata.sources.urls import AnyPath
from fastdata.store.columns import INSTANCES, SOURCE_SIZE, Column, mirror_order
from fastdata.words import number_of, was

# COCO: https://cocodataset.org/#format-data

Number = int | float


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
    """One annotation. If it is damaged, its image is rejected."""

    id: Any = None
    category_id: Number | None = None
    bbox: tuple[Number, Number, Number, Number] | UnsetType = UNSET
    area: Any = UNSET
    iscrowd: bool | Literal[0, 1, "0", "1"] | None = 0
    keypoints: Any = None
    caption: str | UnsetType = UNSET


class _CocoFile(Struct):
    images: list[_Image]
    annotations: list[Any] = []  # objects, which are checked with their images
    categories: list[_Category] = []

    def __post_init__(self) -> None:
        if not all(isinstance(one, dict) and isinstance(one.get("image_id"), int) for one in self.annotations):
            raise ValueError("an annotation has no whole number as its image_id")
        self.categories.sort(key=lambda one: one.id)
        for what, found in (
            ("image id", [image.id for image in self.images]),
            ("file", [os.path.normpath(image.file_name) for image in self.images]),
            ("category id", [one.id for one in self.categories]),
        ):
            if repeated := [one for one, count in Counter(found).items() if count > 1]:
                raise ValueError(f"the {what} {repeated[0]} is listed more than once")
        if len({one.keypoints for one in self.categories if one.keypoints}) > 1:
            raise ValueError("categories have different keypoints; prepare them from separate COCO files")


def with_coco(inputs: SourceList, path: AnyPath) -> SourceList:
    """Return the images, with the annotations of a COCO file as fields. `file_name` is relative to the inputs' root.

    Images of SOURCE that the file does not list, and listed images that are missing, stay in the list, with a problem. Where a
    table names the inputs, images that the table does not name are left out.
    """
    try:
        file = msgspec.convert(parse_json(read_bytes(path)), _CocoFile)  # which takes NaN, unlike msgspec.json
    except (OSError, ValueError, RecursionError) as error:
        raise PrepError(f"--coco {path} cannot be read as COCO's JSON: {error}") from None
    annotations = defaultdict[int, list[Any]](list)
    for one in file.annotations:
        annotations[one["image_id"]].append(one)
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
        except ValueError as error:
            values, problem = [], f"bad-annotation: {error}"
        sources.extend(annotated(one, values, problem) for one in found or [Source(image.file_name, -1, -1, "missing")])
    unlisted = index.unpaired()
    if len(unlisted) == len(inputs.sources):
        first = file.images[0].file_name if file.images else "nothing"
        names = f"the first file_name is {first}, the first image in SOURCE is {inputs.sources[0].name}"
        raise PrepError(f"--coco {path} lists no image in SOURCE: {names}. A file_name must be relative to SOURCE")
    sources.extend(annotated(source, (), "not-annotated") for source in unlisted)
    return with_annotations(inputs, fields, sources, _coco_notes(file, absent, sum(map(len, annotations.values())), empty))


def _fields(file: _CocoFile) -> list[Field]:
    """Return the fields of the annotations."""
    columns, names = [Column("image_id", "int64"), SOURCE_SIZE], tuple(one.name for one in file.categories)
    if any("bbox" in one for one in file.annotations):
        columns += [
            instance_column("boxes", "xywh"),
            Column("category", "int64", many=True, group=INSTANCES, names=names, ids=tuple(one.id for one in file.categories)),
            Column("area", "float32", many=True, group=INSTANCES),
            Column("crowd", "bool", many=True, group=INSTANCES),
        ]
    if points := next((one.keypoints for one in file.categories if one.keypoints), ()):
        columns.append(instance_column("keypoints", "xy", (len(points),), points))
    if any("caption" in one for one in file.annotations):
        columns.append(Column("captions", "json"))
    return [Field(column, True, layout={"boxes": "xywh", "keypoints": "xy"}.get(column.name, "")) for column in columns]


def _values(fields: Sequence[Field], image: _Image, own: Sequence[Any], categories: Mapping[Any, int]) -> list[Any]:
    """Return the value of each field for an image. Workers check the numbers."""
    annotations = msgspec.convert(own, list[_Annotation])
    instances = [one for one in annotations if one.bbox is not UNSET]
    if unknown := [one for one in instances if one.category_id not in categories]:
        raise ValueError(f"annotation {unknown[0].id}: category_id {unknown[0].category_id} is not the id of a category")
    no_points = [0] * 3 * next((len(field.column.names) for field in fields if field.column.name == "keypoints"), 0)
    values: dict[str, Any] = {
        "image_id": image.id,
        SOURCE_SIZE.name: [image.height, image.width],
        "boxes": [one.bbox for one in instances],
        "category": [categories[one.category_id] for one in instances],
        "area": [_area_inside(one.bbox, image) if one.area is UNSET else one.area for one in instances],
        "crowd": [one.iscrowd in (1, "1") for one in instances],
        "keypoints": [one.keypoints or no_points for one in instances],
        "captions": [one.caption for one in annotations if one.caption is not UNSET],
    }
    return [values[field.column.name] for field in fields]


def _area_inside(bbox: Any, image: _Image) -> Any:
    sides = (min(bbox[k] + bbox[k + 2], end) - max(bbox[k], 0) for k, end in enumerate((image.width, image.height)))
    return math.prod(max(side, 0) for side in sides)


def _coco_notes(file: _CocoFile, absent: Sequence[str], unlisted: int, empty: int) -> Iterator[str]:
    if absent:
        yield f"--coco has {number_of(len(absent), 'more image')}, which SOURCE does not name: {listed(absent)}"
    if unlisted:
        yield f"{number_of(unlisted, 'annotation')} of images that --coco does not list {was(unlisted)} left out"
    if empty:
        yield f"{number_of(empty, 'image')} without annotations"
    if other := sum("bbox" not in one and "caption" not in one for one in file.annotations):
        yield f"{number_of(other, 'annotation')} with neither a box nor a caption {was(other)} left out"
    if any(one.get("segmentation") for one in file.annotations):
        yield "segmentations are not stored; for masks, use --masks"


# YOLO: https://docs.ultralytics.com/datasets/detect/, .../segment/ and .../pose/
#
# A line is an object: `class x_center y_center width height`, then in a pose dataset its keypoints, `x y` or `x y visibility`; or
# `class x1 y1 x2 y2 x3 y3 ...`, a polygon. Coordinates are fractions of the sides of the upright image.

CLASS_FILES = ("classes.txt", "obj.names")  # a name in each line; darknet's tools write these
LEVELS = 3  # of folders to look for the names in: labels/train, labels, and the dataset


class _Dataset(Struct):
    """The contents of Ultralytics' data.yaml. told_by: its name, or the name of a file with a class in each line."""

    names: list[str] | dict[int, str] = []
    kpt_shape: tuple[int, int] = (0, 2)  # keypoints of each object, and numbers of each: 2, or 3 with its visibility
    flip_idx: list[int] = []  # which keypoint each one becomes in a mirror image
    kpt_names: dict[str, list[str]] | list[str] = []  # of each class, or of all
    told_by: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.names, dict) and sorted(self.names) != [*range(len(self.names))]:
            raise ValueError("names must be a list of names, or map 0, 1, 2, ... to names")
        (points, dims), names = self.kpt_shape, self.points
        if points < 0 or dims not in (2, 3):
            raise ValueError(f"kpt_shape must be [number of keypoints, 2 or 3], but is [{points}, {dims}]")
        if names and (len(names) != points or (self.flip_idx and mirror_order(names) != self.flip_idx)):
            raise ValueError(f"kpt_names and flip_idx must each have {points} entries; flip_idx must swap left_NAME and right_NAME")

    @property
    def classes(self) -> list[str]:
        return [self.names[k] for k in sorted(self.names)] if isinstance(self.names, dict) else self.names

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the keypoints, which say what swaps in mirror images; empty if they are unknown."""
        lists = [*self.kpt_names.values()] if isinstance(self.kpt_names, dict) else [self.kpt_names]
        if self.kpt_names and all(one == lists[0] for one in lists):
            return tuple(lists[0])
        return tuple(f"point_{k}" if k == j else f"left_{k}" if k < j else f"right_{j}" for k, j in enumerate(self.flip_idx))


def with_yolo(inputs: SourceList, folder: AnyPath) -> SourceList:
    """Return the images with the annotations of YOLO's files as fields. Values are fractions, which a worker turns into pixels."""
    if not folder.is_dir():
        raise PrepError(f"--yolo {folder} is no folder: give a folder with the .txt files, named like their images")
    walk = Walk(folder)
    names = (name for name, _, _ in walk_files(folder, walk) if name.lower().endswith(".txt"))
    index = FileIndex(Source(name, -1, -1) for name in names if name.rpartition("/")[2] not in CLASS_FILES)
    if folder.resolve().is_relative_to(inputs.root.resolve()):
        inputs = replace(inputs, skipped=inputs.skipped - Counter({".txt": len(index)}))
    dataset = _dataset(folder)
    fields = [
        Field(SOURCE_SIZE),
        Field(instance_column("boxes", "xyxy"), True, layout="xyxy", fractions=True),
        Field(Column("category", "int64", many=True, group=INSTANCES, names=tuple(dataset.classes)), True),
    ]
    if dataset.kpt_shape[0]:
        points = instance_column("keypoints", "xy", dataset.kpt_shape[:1], dataset.points)
        fields.append(Field(points, True, layout="xy", fractions=True))
    sources, counts = Packed[Source](), Counter[str]()
    for source in inputs.sources:
        files, objects, problem = index.find(source.name), list[_Object](), ""
        counts["without a"] += not files
        for file in files[:1]:
            try:
                objects = [*_objects(folder / file.name, dataset)]
                counts["with an empty"] += not objects
            except ValueError as error:
                problem = f"bad-annotation: {file.name}: {error}"
        if len(files) > 1:
            problem = f"bad-annotation: it has both {files[0].name} and {files[1].name}"
        counts["polygons"] += sum(one[3] for one in objects)
        sources.append(annotated(source, [[one[k] for one in objects] for k in range(len(fields) - 1)], problem))
    notes = [*walk.notes(), *_yolo_notes(dataset, counts), *index.notes(inputs, ".txt", folder)]
    return with_annotations(inputs, fields, sources, notes)


def _yolo_notes(dataset: _Dataset, counts: Counter[str]) -> Iterator[str]:
    if dataset.names:
        yield f"categories: {number_of(len(dataset.names), 'name')} from {dataset.told_by}"
    else:
        yield "categories have no names: put a data.yaml or classes.txt into the folder of --yolo"
    for what in ("without a", "with an empty"):
        if count := counts[what]:
            yield f"{number_of(count, 'image')} {what} .txt file: stored without objects"
    if count := counts["polygons"]:
        yield f"{number_of(count, 'polygon')} stored as the box around {'it' if count == 1 else 'each'}"
    if dataset.kpt_shape[0] and not dataset.points:
        yield f"keypoints have no names, so left and right do not swap in mirror images: add flip_idx to {dataset.told_by}"


def _dataset(folder: AnyPath) -> _Dataset:
    """Read the names of classes and keypoints from the nearest file that has some."""
    import yaml

    for level in [folder.absolute(), *folder.absolute().parents][:LEVELS]:
        told = list[_Dataset]()
        paths = (*sorted([*level.glob("*.yaml"), *level.glob("*.yml")]), *(level / name for name in CLASS_FILES))
        for path in (path for path in paths if path.is_file()):
            try:
                text = read_bytes(path).decode("utf-8-sig")
                if path.name in CLASS_FILES:
                    told.append(_Dataset([line.strip() for line in text.splitlines() if line.strip()]))
                elif re.search(r"^names\s*:", text, re.MULTILINE):
                    known = yaml.load(text, yaml.BaseLoader)  # which leaves a class called no or 01 as it is written
                    told.append(msgspec.convert(known, _Dataset, strict=False))
                else:
                    continue
            except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
                raise PrepError(f"--yolo {folder}: {path}: {' '.join(str(error).split())}") from None
            told[-1].told_by = path.name
        if other := [found.told_by for found in told if found.classes != told[0].classes]:
            raise PrepError(f"--yolo {folder}: {told[0].told_by} and {other[0]} in {level} name different classes; keep one file")
        if told:
            return told[0]
    return _Dataset()


_Object = tuple[list[float], int, list[float], bool]  # its box, its category, its keypoints, and whether it is a polygon


def _objects(path: AnyPath, dataset: _Dataset) -> Iterator[_Object]:
    """Yield the objects of an image. Raise ValueError if the file or a line is damaged."""
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if words := line.split():
            try:
                yield _object(words, dataset)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None


def _object(words: list[str], dataset: _Dataset) -> _Object:
    category, *values = map(float, words)
    if category < 0 or not category.is_integer() or (dataset.names and category >= len(dataset.names)):
        known = f"{dataset.told_by} has classes 0 to {len(dataset.names) - 1}" if dataset.names else "must be a whole number >= 0"
        raise ValueError(f"the class is {words[0]}, but {known}")
    points, dims = dataset.kpt_shape
    if points and len(values) != 4 + points * dims:
        raise ValueError(f"{len(words)} numbers, but kpt_shape [{points}, {dims}] of {dataset.told_by} needs {5 + points * dims}")
    coordinates = [value for k, value in enumerate(values) if not (points and dims == 3 and k >= 4 and k % 3 == 0)]
    if wrong := [value for value in coordinates if not -1 <= value <= 2]:
        raise ValueError(f"a coordinate is {wrong[0]:g}, but must be a fraction of the image's width or height, from 0 to 1")
    if points or len(values) == 4:
        x, y, width, height = values[:4]
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2], int(category), values[4:], False
    if len(values) < 6 or len(values) % 2:
        known = "class x_center y_center width height, or class x1 y1 x2 y2 x3 y3 ...; keypoints need data.yaml's kpt_shape"
        raise ValueError(f"it has {len(words)} numbers, but a line is {known}")
    xs, ys = values[::2], values[1::2]
    return [min(xs), min(ys), max(xs), max(ys)], int(category), [], True
