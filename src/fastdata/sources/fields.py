"""`--fields`: which values become columns of a store, of which type, and where they lie: in columns, members of tars, or files.

Boxes and keypoints come out in pixels of the upright file, and boxes as x1, y1, x2, y2, clipped to the image. Values from tables
of paths and from Python are in the plan; workers read all others.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from msgspec import structs

from fastdata.errors import CodecError, PrepError, may_pass
from fastdata.sources import arrow
from fastdata.sources.base import pointer_of, read_range
from fastdata.sources.files import are_names, as_spelled, look, parse_json, read_bytes, read_json, to_float
from fastdata.sources.inputs import Field, Packed, Source, SourceList
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.store.columns import INSTANCES, SOURCE_SIZE, TEXTS, Column
from fastdata.store.manifest import Labels
from fastdata.types import Array, StrPath
from fastdata.words import number_of, was

FIELD = re.compile(
    r"(?P<name>[^=].*?)(=\.?(?P<ending>[^=:/]+))?(:(?P<type>[a-z]+[0-9]*)(?P<brackets>\[(?P<shape>[0-9]+(,[0-9]+)*)?\])?)?"
)
LABEL = "label"  # datasets emit the image's label under this name
TEXT_ENDINGS = frozenset("txt text caption transcript cls cls2 class count index inx id score".split())  # as in webdataset
JSON_ENDINGS = ("json", "jsn")
WIDE = {"f": np.float64, "b": np.bool_}  # what values of a column's dtype are held as until they are stored; whole numbers as int64
NO_COLUMNS = "columns: NAME is a column of a table of paths (SOURCE or --labels), or of a Parquet or Arrow file of images"
USUAL_NAMES = ("boxes", "box", "bbox", "bboxes", "keypoints")


def field_error(field: Field | str, why: object) -> PrepError:
    return PrepError(f"--fields {field}: {why}")


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse the values of `--fields` (docs/annotations.md)."""
    fields = list(map(_parse, texts))
    if twice := [name for name, count in Counter(field.column.name for field in fields).items() if count > 1]:
        raise field_error(twice[0], "this name is given more than once; give each column once")
    return fields


def _parse(text: str) -> Field:
    match = FIELD.fullmatch(text)
    if match is None:
        raise field_error(text, "give NAME, NAME:TYPE or NAME=ENDING, such as caption, score:float32 or caption=txt")
    path, type = tuple(match["name"].split(".")), match["type"] or "text"
    if path[-1] == LABEL:
        raise field_error(text, f"{LABEL} is the name of the image's label, which --label-column chooses")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    layout = type if type in LAYOUTS else ""
    if layout and match["brackets"] and (type != "xy" or len(shape) != 1):
        raise field_error(text, "boxes are given as xyxy, xywh or cxcywh, and keypoints as xy, or xy[17] for 17 per instance")
    try:
        many = match["brackets"] is not None and not shape
        column = instance_column(path[-1], type, shape) if layout else Column(path[-1], type, shape, many)
    except ValueError as error:
        raise field_error(text, error) from None
    return Field(column, path=path, ending=match["ending"] or "", layout=layout, typed=match["type"] is not None)


def give_type(field: Field) -> str:
    return f"give their type: {field}:float32, {field}:xyxy for boxes, {field}:int64[] for lists, {field}:json or {field}:text"


def nested(value: Any, path: Sequence[str]) -> Any:
    """Return the value under these names in an object, or in each object of a list. Raise ValueError if an object lacks one."""
    for name in path:
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) and name in one for one in objects):
            raise ValueError(f"{value!r:.60} has no {name}")
        value = [one[name] for one in objects] if isinstance(value, list) else value[name]
    return value


# Listing


def with_fields(inputs: SourceList, fields: Sequence[Field], source: StrPath) -> SourceList:
    """Return the inputs with those fields that do not come from a table of paths. source: SOURCE, for messages."""
    if not fields or not inputs.sources:
        return inputs
    kinds = {source.locator[0] if source.locator else "" for source in inputs.sources}
    for field in fields:
        if not kinds <= ({"", "tar"} if field.ending else {"parquet", "arrow"}):
            what = "members: NAME=ENDING takes files next to images, or members of a tar" if field.ending else NO_COLUMNS
            raise field_error(field, f"SOURCE {source} has no such {what}")
    endings = [field.ending for field in fields if field.ending]
    if kinds == {""}:
        look_at_all(inputs.root, (name for source in inputs.sources for name in field_files(source, endings)))
        skipped = inputs.skipped.copy()
        inputs = replace(inputs, sources=Packed(_with_sizes(inputs, endings, skipped)), skipped=skipped)
    before = len(inputs.fields)  # whose values come before the members
    added = list[Field]()
    for field in fields:
        try:
            column = _member(inputs, field, before + endings.index(field.ending)) if field.ending else _archived(inputs, field)
        except (ValueError, CodecError) as error:
            raise field_error(field, error) from None
        added.append(replace(field, column=column))
    return replace(inputs, fields=(*inputs.fields, *added), skipped=+inputs.skipped)


def _with_sizes(inputs: SourceList, endings: Sequence[str], skipped: Counter[str]) -> Iterator[Source]:
    """Add the sizes of the files next to the images, and do not count these as skipped."""
    for source in inputs.sources:
        size = source.size
        for name in field_files(source, endings):
            found, problem = look(_file(inputs.root, name))
            size += 0 if problem or size < 0 else found
            skipped[os.path.splitext(name)[1].lower()] -= not problem
        yield replace(source, size=size)


def field_files(source: Source, endings: Sequence[str]) -> list[str]:
    """Return the names of the files next to an image that have these endings."""
    stem = os.path.splitext(source.name)[0]
    return [f"{stem}.{ending}" for ending in endings]


def _file(root: AnyPath, name: str) -> AnyPath:
    return join(root, as_spelled(root, name))


def _archived(inputs: SourceList, field: Field) -> Column:
    """Return the column that suits a column of all archives, which must have one type unless a type is given."""
    found = dict[Column, str]()
    for file in dict.fromkeys(str(source.locator[1]) for source in inputs.sources):
        found.setdefault(arrow.column(inputs.root / file, field.path[0]), file)
    if field.typed:
        return field.column
    if len(field.path) > 1:
        raise ValueError(f"its values are nested: {give_type(field)}")
    if len(found) > 1:
        (one, here), (other, there) = [*found.items()][:2]
        raise ValueError(f"{here} has {one}, {there} has {other}; prepare such files separately")
    return next(iter(found))


def _member(inputs: SourceList, field: Field, k: int) -> Column:
    """Return the column that suits a member of a tar, or a file next to each image. k: the index in the values of an input."""
    root, name, last = inputs.root, field.column.name, field.ending.lower().rpartition(".")[2]

    def is_there(source: Source) -> bool:
        return source.values[k] is not None if source.locator else not look(_file(root, *field_files(source, [field.ending])))[1]

    there = (source for source in inputs.sources if not source.problem and is_there(source))
    if (first := next(there, None)) is None:
        raise ValueError(f"no image has a .{field.ending} file or tar member of the same name")
    of_arrays = field.column.many and last == "npy" and not field.layout  # the files tell the shape of an item
    if field.typed and not of_arrays:
        return field.column
    if last != "npy":
        return Column(name, "text" if last in TEXT_ENDINGS else "json" if last in JSON_ENDINGS else "bytes")
    for source in chain([first], there):
        with suppress(ValueError, CodecError, OSError):  # a worker will reject it
            array = _array_in(_bytes(root, source, field.ending, source.values[k:]))
            return Column(name, field.column.type if of_arrays else array.dtype.name, array.shape[of_arrays:], of_arrays)
    raise ValueError("none of its arrays can be read")


def with_groups(inputs: SourceList) -> SourceList:
    """Return the inputs, with boxes, keypoints and the lists beside them in one group of instances, and with each image's size.

    The names of whole numbers and keypoints come from the columns.json of an export, if it lies beside the inputs.
    """
    names = [field.column.name for field in inputs.fields if not field.layout and field.column.name.lower() in USUAL_NAMES]
    notes = [
        f"column {name} is stored unchanged, and does not follow a resize, crop or flip: for that, give its layout, as "
        + (f"{name}:xy" if name == "keypoints" else f"{name}:xyxy, {name}:xywh or {name}:cxcywh")
        for name in names
    ]
    known = read_json(inputs.root / MEANINGS) if inputs.fields else None
    grouped, fields = any(field.layout for field in inputs.fields), list[Field]()
    for field in inputs.fields:
        column, meaning = field.column, known.get(field.column.name) if isinstance(known, dict) else None
        whole = column.type not in TEXTS and column.dtype.kind in "iu"
        if not column.names and are_names(meaning) and (column.shape[0] == len(meaning) if column.shape[1:] else whole):
            column = structs.replace(column, names=tuple(meaning))
        if grouped and column.many and column.group is None:
            column = structs.replace(column, group=INSTANCES)
        if field.layout and all(one.column != SOURCE_SIZE for one in fields):
            fields.append(Field(SOURCE_SIZE))
        fields.append(replace(field, column=column))
    return replace(inputs, fields=tuple(fields), notes=(*inputs.notes, *notes))


def read_fields(root: StrPath, source: Source, fields: Sequence[Field]) -> list[Any]:
    """Return an input's value of each field, and None for an unlisted SOURCE_SIZE. Raise CodecError if a value does not fit."""
    path, own = to_path(root), iter(source.values)
    return [_value(path, source, field, own) for field in fields]


def _value(root: AnyPath, source: Source, field: Field, own: Iterator[Any]) -> Any:
    column = field.column
    if column == SOURCE_SIZE:
        return next(own) if field.listed else None
    what = f"{f'the .{field.ending}' if field.ending else f'column {column.name}'} of {source.name}"
    try:
        if field.listed:
            value = next(own)
        elif field.ending:
            value = parse_file(column, field.ending, _bytes(root, source, field.ending, own))
        else:
            _, file, _, row = source.locator
            value = nested(arrow.cell(root / str(file), field.path[0], int(row)), field.path[1:])
        return fit(column, value)
    except FileNotFoundError:
        raise CodecError(f"{what} is not there", "missing-field") from None
    except OSError as error:
        if may_pass(error):
            raise
        raise CodecError(f"{what}: {error.strerror or type(error).__name__}", "unreadable-field") from None
    except (CodecError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"{what}: {error}", "bad-field") from None


def _bytes(root: AnyPath, source: Source, ending: str, own: Iterable[Any]) -> bytes:
    """Read a file next to an image, or a member of a tar. own: yields the offset and the size of the next member."""
    if source.locator:
        member = next(iter(own))
        if member is None:
            raise FileNotFoundError
        return read_range(root / str(source.locator[1]), *member)
    data = read_bytes(_file(root, *field_files(source, [ending])))
    if pointer := pointer_of(data):
        raise CodecError(f"it is {pointer}", "bad-field")
    return data


# Values


def parse_text(column: Column, text: str) -> Any:
    """Return the value in a cell of a CSV, or in a text file, for `fit`. Raise ValueError if it does not hold one."""
    if column.type in TEXTS:
        return parse_json(text or "null") if column.type == "json" else text
    if column.shape or column.many:
        return parse_json(text)
    if not text:
        return None
    if column.dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)  # other text does not fit
    if "_" in text:  # Python would read 1_2 as 12
        raise ValueError(f"{text!r:.60} is not a number")
    return to_float(text) if column.dtype.kind == "f" else int(text)


def parse_file(column: Column, ending: str, data: bytes) -> Any:
    """Return the value in a file, or a member of a tar, for `fit`. Raise ValueError if it holds none. ending: of its name."""
    last = ending.lower().rpartition(".")[2]
    if column.type == "bytes":
        return data
    if last == "npy" and column.type not in TEXTS:
        return _array_in(data)
    text = data.decode("utf-8-sig").rstrip("\r\n")
    if last in JSON_ENDINGS and column.type != "text":
        return parse_json(text)
    return parse_text(column, text if column.type in TEXTS else text.strip())


def _array_in(data: bytes) -> Array:
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # noqa: BLE001  numpy evaluates the header: whatever that throws at damaged bytes
        raise ValueError(f"it is no .npy file of numbers: {error}") from None


def fit(column: Column, value: Any) -> Any:
    """Return a value as the column holds it. Raise ValueError, OverflowError or RecursionError if it does not fit."""
    if column.geometry is not None:
        return _as_instances(column, value)
    if column.type == "json":
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except TypeError as error:
            raise ValueError(f"it cannot be written as JSON: {error}") from None
        return value
    if column.type == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if column.type in TEXTS:
        if not isinstance(value, str):
            missing = f"it holds no {column.type}: fill it, or leave the image out"
            raise ValueError(missing if value is None else f"{_shown(value)} is not {column.type}")
        value.encode()  # lone surrogates, which JSON may have, are no text
        return value
    array = _as_array(column, value)
    return array if column.shape or column.many else array.item()


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


def _as_array(column: Column, value: Any) -> Array:
    """Return an array of the column's shape, () for one number, with values that its dtype holds. Nulls among floats become NaN."""
    dtype, lists = column.dtype, column.shape or column.many
    if value is None and (lists or dtype.kind != "f"):
        raise ValueError("it holds no value: fill it, or leave the image out")
    if lists and not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{_shown(value)} is not a list, such as [1, 2]")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and dtype.kind == "f" and not any(isinstance(item, str) for item in array.flat):
            array = array.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"{_shown(value)} is not a list of numbers, or its rows differ in length") from None
    of_many = array.ndim and (array.shape[1:] == column.shape or array.shape == (0,))
    if not (of_many if column.many else array.shape == column.shape):
        expected = ", ".join(map(str, ["n"] * column.many + [*column.shape]))
        raise ValueError(f"it has shape {list(array.shape)}, but {column.name} has shape [{expected}] for each sample")
    if array.size and array.dtype.kind not in {"f": "fiu", "b": "biu"}.get(dtype.kind, "iu"):
        whole = " whole" if dtype.kind in "iu" and array.dtype.kind == "f" else ""
        raise ValueError(f"{_shown(value)} does not hold{whole} numbers that fit {column.type}")
    with np.errstate(over="ignore"):
        stored = array.astype(dtype)
    wrong = np.isinf(stored) & ~np.isinf(array) if dtype.kind == "f" else stored != array
    if wrong.any():
        raise ValueError(f"{array[wrong].flat[0]} {'is too large for' if dtype.kind == 'f' else 'does not fit'} {column.type}")
    array = array.astype(WIDE.get(dtype.kind, np.int64), copy=False)
    return array.reshape(-1, *column.shape) if column.many else array


# Boxes and keypoints

LAYOUTS = ("xyxy", "xywh", "cxcywh", "xy")  # x1, y1, x2, y2; x1, y1, width, height; the same from the centre; x, y, visibility
MEANINGS = "columns.json"  # of exports: the names of categories and keypoints
VISIBLE = 2.0  # of a keypoint, as in COCO: labelled and visible
ROUNDING_PX, ROUNDING = 0.01, 1e-5  # what a box may reach outside: of two digits of pixels, or of five of the image's sides


def instance_column(name: str, layout: str, shape: tuple[int, ...] = (), names: Iterable[str] = ()) -> Column:
    """Return the column of boxes, or of keypoints: (x, y, visibility), or `shape` of them, for each instance."""
    geometry, shape = ("xy", (*shape, 3)) if layout == "xy" else ("xyxy", (4,))
    return Column(name, "float32", shape, many=True, geometry=geometry, group=INSTANCES, names=tuple(names))


def annotated(source: Source, values: Iterable[Any], problem: str = "") -> Source:
    """Return the source with the values of its annotations, and without a label, which it does not need."""
    own = "" if source.problem == "no-label" else source.problem
    return replace(source, label=-1, problem=own or problem, values=(*source.values, *values))


def with_annotations(inputs: SourceList, fields: Iterable[Field], sources: Sequence[Source], notes: Iterable[str]) -> SourceList:
    """Return the list of annotated inputs. fields, notes: what the annotations add."""
    fields, notes = (*inputs.fields, *fields), (*inputs.notes, *notes)
    return replace(inputs, labels=Labels("none"), labelled_by="", sources=sources, fields=fields, notes=notes)


def _as_instances(column: Column, value: Any) -> Array:
    """Return a sample's boxes, float64 [n, 4], or its keypoints with their visibility, [n, ..., 3], in the layout as given.

    A single instance may lack the outer list; the keypoints of an instance may be a flat list. Raise ValueError for anything else.
    """
    try:
        array = np.array(value)
    except ValueError:
        array = np.array(None)
    if array.size and array.dtype.kind not in "iuf":
        raise ValueError(f"{value!r:.60} is not a list with equally many numbers for each instance")
    array, each = array.astype(np.float64), column.shape
    if not np.isfinite(array).all():
        raise ValueError(f"{value!r:.60} has numbers that are not finite")
    if not array.size:
        return np.empty((0, *each))
    for last in (4,) if column.geometry == "xyxy" else (2, 3):
        inner, flat = (*each[:-1], last), (int(np.prod(each[:-1])) * last,)
        if array.shape not in (inner, flat) and array.shape[1:] not in (inner, flat):
            continue
        found = array.reshape(-1, *inner)
        if last != 2:
            return found
        seen = np.where(found.any(axis=-1, keepdims=True), VISIBLE, 0.0)  # 0, 0 is where files put those that are not labelled
        return np.concatenate([found, seen], axis=-1)
    points = f"{number_of(int(np.prod(each[:-1])), 'keypoint')} ([x, y] or [x, y, visibility]) for each instance"
    points = f"{column.name} has {points}: --fields sets their number, such as {column.name}:xy[17]"
    wanted = "boxes are lists of 4 numbers" if column.geometry == "xyxy" else points
    raise ValueError(f"it is an array of shape {list(array.shape)}, but {wanted}")


def in_pixels(fields: Sequence[Field], values: Sequence[Any], size: tuple[int, int], counts: Counter[str]) -> list[Any]:
    """Return the values of an image, one for each field, with boxes and keypoints in pixels of the upright file.

    Boxes are clipped to the image; instances whose boxes have no area inside of it are dropped; `counts` counts both. Raise
    CodecError if lists of the instances differ in length, or the image's (height, width) is not SOURCE_SIZE.
    """
    lengths = {one.column.name: len(value) for one, value in zip(fields, values, strict=True) if one.column.group == INSTANCES}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise CodecError(f"lists need one value per object, or the type json, but lengths differ: {said}", "bad-field")
    height, width = size
    sides, remain, out = np.array((width, height) * 2), np.ones(next(iter(lengths.values()), 0), bool), list(values)
    for k, field in enumerate(fields):
        if field.column == SOURCE_SIZE:
            if values[k] is not None and tuple(values[k]) != size:
                annotated = f"its annotations say {values[k][1]} x {values[k][0]} pixels"
                raise CodecError(f"{annotated}, but the upright image is {width} x {height}", "annotated-size")
            out[k] = size
        elif field.layout == "xy":
            out[k] = values[k] * (width, height, 1) if field.fractions else values[k]
        elif field.layout:
            boxes = _as_corners(values[k], field.layout) * (sides if field.fractions else 1)
            out[k] = inside = np.clip(boxes, 0, sides)
            counts["clipped"] += int((abs(boxes - inside) > np.maximum(ROUNDING_PX, ROUNDING * sides)).any(axis=1).sum())
            remain &= (inside[:, 2:] > inside[:, :2]).all(axis=1)
    if not remain.all():
        counts["dropped"] += int((~remain).sum())
        for k, field in enumerate(fields):
            if field.column.group == INSTANCES:
                out[k] = [one for one, stays in zip(out[k], remain, strict=True) if stays]
    return out


def _as_corners(boxes: Array, layout: str) -> Array:
    """Return boxes as x1, y1, x2, y2."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if layout == "xywh":
        second = first + second
    elif layout == "cxcywh":
        first, second = first - second / 2, first + second / 2
    return np.concatenate([first, second], axis=1)


def box_notes(counts: Counter[str]) -> Iterator[str]:
    """Yield notes on the boxes that were counted."""
    if count := counts["clipped"]:
        yield f"{number_of(count, 'box')} reached outside of the image and {was(count)} clipped"
    if count := counts["dropped"]:
        yield f"{number_of(count, 'box')} without area inside of the image {was(count)} dropped"
