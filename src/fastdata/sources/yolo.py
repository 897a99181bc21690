"""Annotations in YOLO's text files, one for each image, as columns.

A line is an object: `class x_center y_center width height`, then in a pose dataset its keypoints, `x y` or `x y visibility`; or
`class x1 y1 x2 y2 x3 y3 ...`, a polygon. Coordinates are fractions of the sides of the upright image. The formats:
https://docs.ultralytics.com/datasets/detect/, .../segment/ and .../pose/
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from fastdata.errors import PrepError
from fastdata.sources.annotations import BOXES, annotated, category_column, finished, keypoint_column
from fastdata.sources.folder import Walk, walk_files
from fastdata.sources.inputs import FieldSource, Source, SourceList, read_bytes
from fastdata.sources.notes import listed
from fastdata.sources.packed import Packed
from fastdata.sources.pairs import FileIndex
from fastdata.sources.urls import AnyPath, is_inside
from fastdata.store.column import SOURCE_SIZE, mirror_order
from fastdata.words import number_of

__all__ = ["with_yolo"]

CLASS_FILES = ("classes.txt", "obj.names")  # a name in each line; darknet's tools write these
LEVELS = 3  # of folders to look for the names in: labels/train, labels, and the dataset
VISIBLE = 2.0  # as in COCO: labelled and visible


@dataclass(frozen=True)
class _Dataset:
    """What the files mean.

    Attributes:
        told_by: the file that says so, or "".
        points: keypoints of each object.
        dims: numbers of each keypoint: 2, or 3 with its visibility.
    """

    told_by: str = ""
    names: tuple[str, ...] = ()
    points: int = 0
    dims: int = 3
    point_names: tuple[str, ...] = ()


@dataclass
class _Objects:
    """The objects of one image, in fractions of its sides."""

    boxes: list[list[float]] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    keypoints: list[list[list[float]]] = field(default_factory=list)
    polygons: int = 0


def with_yolo(inputs: SourceList, folder: AnyPath) -> SourceList:
    """Return the images with fields of what YOLO's files say of them. A worker makes pixels of the fractions.

    An image without a file shows no object. One whose file is damaged remains in the list with that problem.

    Args:
        inputs: the images.
        folder: a .txt for each image, with the same path but for the extension.

    Raises:
        PrepError: there is no such folder, no file belongs to an image, or the file of names is damaged.
    """
    inputs, files, unpaired = _pair_files(inputs, folder)
    dataset = _dataset(folder)
    fields = [
        FieldSource(SOURCE_SIZE),
        FieldSource(BOXES, True, layout="xyxy", fractions=True),
        FieldSource(category_column(dataset.names), True),
    ]
    if dataset.points:
        points = keypoint_column(dataset.points, dataset.point_names)
        fields.append(FieldSource(points, True, layout="xy", fractions=True))
    sources, polygons, empty = Packed[Source](), 0, 0
    for source, name in zip(inputs.sources, files, strict=True):
        try:
            found, problem = _read(folder / name, dataset) if name else _Objects(), ""
        except ValueError as error:
            found, problem = _Objects(), f"bad-annotation: {name}: {error}"
        values: list[Any] = [found.boxes, found.categories, found.keypoints]
        sources.append(annotated(source, values[: len(fields) - 1], problem))
        polygons += found.polygons
        empty += bool(name) and not found.boxes and not problem
    notes = [*_notes(dataset, polygons, files.count(""), empty)]
    if unpaired:
        notes.append(f"{number_of(len(unpaired), '.txt file')} without an image: {listed(unpaired)}")
    return finished(inputs, f"--yolo {folder}", fields, sources, notes)


def _pair_files(inputs: SourceList, folder: AnyPath) -> tuple[SourceList, Sequence[str], list[str]]:
    """Return the inputs, the .txt of each or "", which has its path but for the extension, and the files without an image."""
    if not folder.is_dir():
        raise PrepError(f"--yolo {folder} is not a folder; it holds a .txt file for each image, with the same name")
    walk = Walk(folder, lambda name: name.lower().endswith(".txt"))
    names = (name for name, _, _ in walk_files(folder, walk) if name.lower().endswith(".txt"))
    index = FileIndex(Source(name, -1, -1) for name in names if name.rpartition("/")[2] not in CLASS_FILES)
    index.refuse_unpaired(inputs, ".txt file", folder)
    found = Packed(next((file.name for file in index.find(source.name)), "") for source in inputs.sources)
    if is_inside(folder, inputs.root):
        inputs = replace(inputs, skipped=inputs.skipped - Counter({".txt": len(index)}))
    return replace(inputs, notes=(*inputs.notes, *walk.notes())), found, index.unpaired()


def _notes(dataset: _Dataset, polygons: int, without: int, empty: int) -> Iterator[str]:
    if dataset.names:
        yield f"categories: {number_of(len(dataset.names), 'name')} from {dataset.told_by}"
    else:
        yield "categories have no names: put a data.yaml or classes.txt into the folder of --yolo"
    for count, what in ((without, "without a"), (empty, "with an empty")):
        if count:
            yield f"{number_of(count, 'image')} {what} .txt file, which show{'s' * (count == 1)} no object"
    if polygons:
        yield f"{number_of(polygons, 'polygon')} stored as the box around {'it' if polygons == 1 else 'them'}"
    if dataset.points and not dataset.point_names:
        remedy = f"add flip_idx or kpt_names to {dataset.told_by}"
        yield f"keypoints have no names, so that left and right do not swap in mirror images: {remedy}"


def _dataset(folder: AnyPath) -> _Dataset:
    """Read the names of classes and keypoints from the nearest file that has some."""
    try:
        for level in [folder.absolute(), *folder.absolute().parents][:LEVELS]:
            described = [path for path in sorted([*level.glob("*.yaml"), *level.glob("*.yml")]) if _describes(path)]
            if len(described) > 1:
                raise PrepError(f"--yolo {folder}: {described[0]} and {described[1].name} both name classes; keep one of them")
            if described:
                return _described(described[0])
            for path in (level / name for name in CLASS_FILES):
                if path.is_file():
                    return _Dataset(path.name, tuple(line.strip() for line in _lines(path) if line.strip()))
    except ValueError as error:
        raise PrepError(f"--yolo {folder}: a file of names in it, or above it: {error}") from None
    return _Dataset()


def _describes(path: AnyPath) -> bool:
    return path.is_file() and any(re.match(r"names\s*:", line) for line in _lines(path))


def _lines(path: AnyPath) -> list[str]:
    """Return the lines of a file. Raise ValueError if it cannot be read."""
    try:
        return read_bytes(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text: {error}") from None


def _described(path: AnyPath) -> _Dataset:
    """Read the file that Ultralytics calls data.yaml."""
    try:
        found = yaml.load("\n".join(_lines(path)), yaml.BaseLoader)  # which leaves a class called no or 01 as it is written
    except (yaml.YAMLError, RecursionError) as error:
        raise PrepError(f"--yolo: {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise PrepError(f"--yolo: {path} is no map with names")
    names = found.get("names")
    if isinstance(names, dict):
        names = [names.get(str(k)) for k in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise PrepError(f"{path}: names must be a list of names, or one for each number from 0 on")
    if found.get("kpt_shape") is None:
        return _Dataset(path.name, tuple(names))
    try:
        points, dims = map(int, found["kpt_shape"])
        order = None if found.get("flip_idx") is None else [*map(int, found["flip_idx"])]
    except (ValueError, TypeError) as error:
        raise PrepError(f"{path}: kpt_shape and flip_idx must be lists of whole numbers: {error}") from None
    if points < 1 or dims not in (2, 3):
        raise PrepError(f"{path}: kpt_shape must be [number of keypoints, 2 or 3], but is [{points}, {dims}]")
    return _Dataset(path.name, tuple(names), points, dims, _point_names(path, points, found.get("kpt_names"), order))


def _point_names(path: AnyPath, count: int, named: Any, order: list[int] | None) -> tuple[str, ...]:
    """Return names of the keypoints that tell what swaps in mirror images; none if nothing does."""
    if isinstance(named, dict) and named:  # one list for each class
        lists = list(named.values())
        named = lists[0] if all(one == lists[0] for one in lists) else None
    if named is not None and (not isinstance(named, list) or len(named) != count):
        raise PrepError(f"{path}: kpt_names must be {count} names, as many as kpt_shape says")
    if order is not None and (len(order) != count or sorted(order) != list(range(count))):
        raise PrepError(f"{path}: flip_idx must be the numbers 0 to {count - 1} in another order, as many as kpt_shape says")
    if named is None:
        named = [f"point_{k}" if k == j else f"left_{k}" if k < j else f"right_{j}" for k, j in enumerate(order or ())]
    names = tuple(map(str, named))
    if order is not None and mirror_order(names) != order:
        raise PrepError(f"{path}: flip_idx must swap left_NAME and right_NAME, and no others; rename the keypoints in kpt_names")
    return names


def _read(path: AnyPath, dataset: _Dataset) -> _Objects:
    found = _Objects()
    for number, line in enumerate(_lines(path), 1):
        if numbers := line.split():
            try:
                _add(found, numbers, dataset)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return found


def _add(found: _Objects, numbers: list[str], dataset: _Dataset) -> None:
    """Add the object of a line. Raises ValueError if it is damaged."""
    category, *values = map(float, numbers)
    if category < 0 or not category.is_integer() or (dataset.names and category >= len(dataset.names)):
        known = f"from 0 to {len(dataset.names) - 1}, as {dataset.told_by} says" if dataset.names else "a whole number from 0"
        raise ValueError(f"the class is {numbers[0]}, but must be {known}")
    points, dims = dataset.points, dataset.dims
    own = values[: 4 + points * dims]
    coordinates = own[:4] + [v for k, v in enumerate(own[4:]) if k % dims < 2] if points else values
    if wrong := [value for value in coordinates if not -1 <= value <= 2]:
        raise ValueError(f"a coordinate is {wrong[0]:g}, but must be a fraction of the image's width or height, from 0 to 1")
    if points and len(values) != 4 + points * dims:
        raise ValueError(f"{len(numbers)} numbers, but kpt_shape [{points}, {dims}] of {dataset.told_by} needs {5 + points * dims}")
    if points or len(values) == 4:
        x, y, width, height = values[:4]
        box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    elif len(values) >= 6 and len(values) % 2 == 0:
        box = [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]
        found.polygons += 1
    else:
        raise ValueError(
            f"{len(numbers)} numbers; a line is class x_center y_center width height, or class x1 y1 x2 y2 x3 y3 ... of a polygon; "
            "for keypoints, data.yaml must have kpt_shape"
        )
    found.boxes.append(box)
    found.categories.append(int(category))
    if points:
        found.keypoints.append([_point(values[4 + k * dims : 4 + (k + 1) * dims]) for k in range(points)])


def _point(values: list[float]) -> list[float]:
    """Return x, y, visibility. Without a visibility, 0, 0 is where files put points that are not labelled."""
    if len(values) == 3:
        if not math.isfinite(values[2]):
            raise ValueError(f"a visibility is {values[2]}")
        return values
    return [*values, VISIBLE if any(values) else 0.0]
