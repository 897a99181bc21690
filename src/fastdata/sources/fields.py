"""`--fields`: which values become columns of a store, as which type, and where they lie.

They are columns of a table or an archive, members of a tar, or files with the name of the image. Those of a table of paths are in
the plan; workers read the others.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fastdata.errors import CodecError, PrepError, may_pass
from fastdata.sources.base import cell_of, column_of, read_range
from fastdata.sources.inputs import Field, Source, SourceList, is_number, look
from fastdata.sources.instances import LAYOUTS, as_instances, instance_column
from fastdata.sources.options import StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.store.column import SOURCE_SIZE, TEXTS, Column
from fastdata.words import number_of

__all__ = ["field_error", "field_files", "fit", "make_column", "parse_fields", "read_fields", "typed_cells", "with_fields"]

Array = np.ndarray[Any, np.dtype[Any]]

FIELD = re.compile(
    r"(?P<name>[^=].*?)(=\.?(?P<ending>[^=:/]+))?(:(?P<type>[a-z]+[0-9]*)(?P<brackets>\[(?P<shape>[0-9]+(,[0-9]+)*)?\])?)?"
)
LABEL = "label"  # datasets emit the image's label under this name
PROBES = 32  # values that are read to infer a type
TEXT_ENDINGS = ("txt", "text", "caption", "transcript")
JSON_ENDINGS = ("json", "jsn")
NUMBER_ENDINGS = frozenset("cls cls2 class count index inx id score".split())  # as in webdataset: whole numbers, or text
HELP = (
    "give columns of a table of paths (.csv, .tsv, .jsonl, .parquet), which is SOURCE or --labels, or of a Parquet or Arrow file "
    "that holds the images, as NAME; and files next to the images, or members of a tar, as NAME=ENDING, such as caption=txt"
)


def field_error(field: Field | str, why: str) -> PrepError:
    """Make the error on a value of `--fields`."""
    return PrepError(f"--fields {field}: {why}")


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse the values of `--fields`.

    Each is NAME or NAME=ENDING, then perhaps :TYPE, :TYPE[] for lists, or :TYPE[SHAPE] for arrays. The type of boxes is xyxy, xywh
    or cxcywh, that of keypoints xy, or xy[COUNT]. NAME may lead into objects, as in objects.bbox.
    """
    fields = list(map(_parse, texts))
    if twice := [name for name, count in Counter(field.column.name for field in fields).items() if count > 1]:
        raise field_error(twice[0], "this name is given twice; a column has one name and one type")
    return fields


def _parse(text: str) -> Field:
    match = FIELD.fullmatch(text)
    if match is None:
        raise field_error(text, "give NAME, NAME:TYPE or NAME=ENDING, such as caption, score:float32 or caption=txt")
    path, ending, type = tuple(match["name"].split(".")), match["ending"] or "", match["type"] or "json"
    if path[-1] == LABEL:
        raise field_error(text, f"{LABEL} is the name of the image's label, which --label-column chooses")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    if type not in LAYOUTS:
        column = make_column(path[-1], type, shape, many=bool(match["brackets"]) and not shape)
        return Field(column, path=path, ending=ending, typed=match["type"] is not None)
    if match["brackets"] and (type != "xy" or len(shape) != 1):
        raise field_error(text, "boxes are given as xyxy, xywh or cxcywh, and keypoints as xy, or xy[17] for 17 of each instance")
    return Field(_made(path[-1], lambda: instance_column(path[-1], type, shape)), path=path, ending=ending, layout=type)


def make_column(name: str, type: str, shape: tuple[int, ...] = (), *, many: bool = False, names: tuple[str, ...] = ()) -> Column:
    """Return a column. Raise PrepError if there is no such type, or no column can have this name."""
    return _made(name, lambda: Column(name, type, shape, many, names=names))


def _made(name: str, make: Callable[[], Column]) -> Column:
    try:
        return make()
    except ValueError as error:
        raise field_error(name, str(error)) from None


def typed_cells(
    field: Field, cells: Sequence[Any], where: Callable[[int], str], *, texts: bool, declared: Column | None = None
) -> tuple[Field, Sequence[Any]]:
    """Return the field of the cells of a column of a table, with its type, and its values as JSON.

    Args:
        cells: of all rows.
        where: describes a row, for messages.
        texts: whether the cells are text, as in a CSV, or values, as in JSON.
        declared: the column that suits the values, if the table says it.
    """

    def each(convert: Callable[[Any], Any]) -> Sequence[Any]:
        found = Packed[Any]()
        for row, cell in enumerate(cells):
            try:
                found.append(convert(cell))
            except (ValueError, OverflowError, RecursionError) as error:
                raise field_error(field, f"{where(row)}: {error}") from None
        return found

    if field.layout or len(field.path) > 1:  # in text as JSON
        cells = each(lambda cell: _nested(json.loads(cell) if texts else cell, field.path[1:]))
        texts, declared = False, None
    column = field.column
    if not field.typed:
        column = declared or (make_column(column.name, infer_text(cells)) if texts else infer_values(column.name, cells))
    if column.type == "bytes" and not texts:
        raise field_error(field, "bytes come from files or members, as NAME=ENDING, or from a Parquet that holds the images")
    if field.layout:
        values = each(lambda cell: as_instances(column, cell).tolist())
    else:
        values = each(lambda cell: listed(column, parse_text(column, cell) if texts else cell))
    return replace(field, column=column, listed=True), values


def _nested(value: Any, path: Sequence[str]) -> Any:
    """Return what lies under these names in an object, or in each object of a list. Raise ValueError if an object lacks one."""
    for name in path:
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) and name in one for one in objects):
            raise ValueError(f"{value!r:.60} has no {name}")
        value = [one[name] for one in objects] if isinstance(value, list) else value[name]
    return value


# Listing


def with_fields(inputs: SourceList, fields: Sequence[Field], source: StrPath) -> SourceList:
    """Return the inputs with fields that are no columns of a table of paths. source: SOURCE, for messages."""
    if not fields or not inputs.sources:
        return inputs
    kinds = {source.place[0] if source.place else "" for source in inputs.sources}
    for field in fields:
        if not kinds <= ({"", "tar"} if field.ending else {"parquet", "arrow"}):
            raise field_error(field, f"SOURCE {source} has no such {'members' if field.ending else 'columns'}; {HELP}")
    endings = [field.ending for field in fields if field.ending]
    if kinds == {""}:
        inputs = _with_files(inputs, endings)
    before = len(inputs.fields)  # whose values come before the members
    columns = [_member(inputs, one, before + endings.index(one.ending)) if one.ending else _cells(inputs, one) for one in fields]
    added = [replace(field, column=column) for field, column in zip(fields, columns, strict=True)]
    return replace(inputs, fields=(*inputs.fields, *added))


def _with_files(inputs: SourceList, endings: Sequence[str]) -> SourceList:
    """Add the sizes of the files next to the images, and do not count these as skipped."""
    skipped = inputs.skipped.copy()
    look_at_all(inputs.root, (name for source in inputs.sources for name in field_files(source, endings)))

    def with_sizes() -> Iterator[Source]:
        for source in inputs.sources:
            size = source.size
            for name in field_files(source, endings):
                found, problem = look(join(inputs.root, name))
                size += 0 if problem or size < 0 else found
                skipped[os.path.splitext(name)[1].lower()] -= not problem
            yield replace(source, size=size)

    return replace(inputs, sources=Packed(with_sizes()), skipped=+skipped)


def field_files(source: Source, endings: Sequence[str]) -> list[str]:
    """Return the names of the files next to an image that have these endings."""
    stem = os.path.splitext(source.name)[0]
    return [f"{stem}.{ending}" for ending in endings]


def _cells(inputs: SourceList, field: Field) -> Column:
    """Return the type of a column of the archives, which all must have it with the same type."""
    found = dict[Column, str]()
    for source in {source.place[1]: source for source in reversed(inputs.sources)}.values():
        found[column_of(inputs.root, source, field.path[0])] = str(source.place[1])
    if field.typed:
        return field.column
    if len(field.path) > 1:
        usable = _some(inputs, [k for k, source in enumerate(inputs.sources) if not source.problem])
        try:
            return infer_values(field.column.name, [_cell(inputs.root, source, field) for source in usable])
        except (ValueError, CodecError) as error:
            raise field_error(field, str(error)) from None
    if len(found) > 1:
        (one, here), (other, there) = [*found.items()][:-3:-1]
        raise field_error(field, f"{here} has {one}, {there} has {other}; prepare them separately")
    return next(iter(found))


def _some(inputs: SourceList, able: Sequence[int]) -> list[Source]:
    """Return up to PROBES of the inputs with these numbers, evenly spaced."""
    count = min(PROBES, len(able))
    return [inputs.sources[able[k * len(able) // count]] for k in range(count)]


def _member(inputs: SourceList, field: Field, place: int) -> Column:
    """Return the type of a member of a tar, or of a file next to each image. place: in the values of an input."""
    root, sources = inputs.root, inputs.sources
    usable = [k for k, source in enumerate(sources) if not source.problem]
    there = [k for k in usable if _is_there(root, sources[k], field.ending, place)]
    if not there:
        what = "member" if sources[0].place else "file"
        listed = ", ".join(f"{ending} {count}" for ending, count in inputs.skipped.most_common(5))
        others = f"; other files: {listed}" if listed else ""
        images = number_of(len(usable), "image")
        raise field_error(field, f"none of {images} has a {what} of its name that ends in .{field.ending}{others}")
    last = field.ending.lower().rpartition(".")[2]
    is_list = field.column.many and last == "npy" and not field.layout  # the files tell the shape of an item
    if field.typed and not is_list:
        return field.column
    if last not in ("npy", *NUMBER_ENDINGS):
        return make_column(field.column.name, "text" if last in TEXT_ENDINGS else "json" if last in JSON_ENDINGS else "bytes")
    values, error, chosen = list[Any](), Exception(), _some(inputs, there)
    for source in chosen:
        try:
            data = _bytes(root, source, field.ending, source.values[place] if source.place else None)
            values.append(parse_file(None, field.ending, data))
        except (ValueError, CodecError, OSError) as caught:
            error = caught
    if not values:
        raise field_error(field, f"{_part_name(chosen[0], field.ending)}: {error}")
    if last != "npy":
        return make_column(field.column.name, infer_text([value.strip() for value in values]))
    shapes, types = sorted({array.shape for array in values}), sorted({array.dtype.name for array in values})
    if is_list and () not in shapes and len({shape[1:] for shape in shapes}) == 1:
        return structs.replace(field.column, shape=shapes[0][1:])
    if is_list or len(shapes) > 1 or len(types) > 1:
        found = ", ".join(f"{array.dtype} {list(array.shape)}" for array in values[:5])
        how = f"where only the first axis differs, store lists with --fields {field}:{types[0]}[]"
        raise field_error(field, f"its arrays differ: {found}; {how}")
    return make_column(field.column.name, types[0], shapes[0])


def _is_there(root: AnyPath, source: Source, ending: str, place: int) -> bool:
    return source.values[place] is not None if source.place else not look(join(root, *field_files(source, [ending])))[1]


# Reading


def read_fields(root: StrPath, source: Source, fields: Sequence[Field]) -> list[Any]:
    """Return an input's value of each field: those that are listed, and those that are read now; None for SOURCE_SIZE.

    Raises:
        CodecError: one is not there, or does not fit its column.
    """
    path, own = to_path(root), iter(source.values)
    return [_value(path, source, field, own) for field in fields]


def _value(root: AnyPath, source: Source, field: Field, own: Iterator[Any]) -> Any:
    column = field.column
    if column == SOURCE_SIZE:
        return next(own) if field.listed else None
    what = _part_name(source, field.ending) if field.ending else f"column {column.name} of {source.name}"
    try:
        if field.listed:
            value = next(own)
        elif field.ending:
            value = parse_file(column, field.ending, _bytes(root, source, field.ending, next(own) if source.place else None))
        else:
            value = _cell(root, source, field)
        return as_instances(column, value) if field.layout else fit(column, value)
    except FileNotFoundError:
        raise CodecError(f"{what} is not there", "missing-field") from None
    except OSError as error:
        if may_pass(error):
            raise
        raise CodecError(f"{what}: {error.strerror or type(error).__name__}", "unreadable-field") from None
    except (CodecError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"{what}: {error}", "bad-field") from None


def _part_name(source: Source, ending: str) -> str:
    """Return the name of a member or file, relative to the root."""
    if not source.place:
        return field_files(source, [ending])[0]
    folder, slash, base = source.name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}.{ending}"


def _bytes(root: AnyPath, source: Source, ending: str, member: Sequence[int] | None) -> bytes:
    """Read the bytes of a file next to an image, or of a member of a tar, at an offset and of a size."""
    if source.place:
        if member is None:
            raise FileNotFoundError
        return read_range(root / str(source.place[1]), *member)
    path = join(root, *field_files(source, [ending]))
    if isinstance(path, Path) and look(path)[1] == "not-a-file":  # reading a pipe might never end
        raise FileNotFoundError
    return path.read_bytes()


def _cell(root: AnyPath, source: Source, field: Field) -> Any:
    return _nested(cell_of(root, source, field.path[0]), field.path[1:])


# Values


def parse_text(column: Column, text: str) -> Any:
    """Return the value in a cell of a CSV, or in a text file, for `fit`. Raise ValueError if it does not hold one."""
    if column.type in TEXTS:
        return json.loads(text or "null") if column.type == "json" else text
    if column.shape or column.many:
        found = json.loads(text)
        if not isinstance(found, list):
            raise ValueError(f"{text!r:.60} is not a list, such as [1, 2]")
        return found
    if not text:
        return None
    if column.dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)  # other text does not fit
    if "_" in text:  # Python would read 1_2 as 12
        raise ValueError(f"{text!r:.60} is not a number")
    return float(text) if column.dtype.kind == "f" else int(text)


def parse_file(column: Column | None, ending: str, data: bytes) -> Any:
    """Return the value in a file, or a member of a tar, for `fit`. Raise ValueError if it does not hold one.

    Text is UTF-8, without a byte-order mark and without line ends at its end.

    Args:
        column: what to read it as; None: what the ending says. An unknown one is text if it can be.
        ending: of its name, such as "txt" or "seg.npy".
    """
    if column is not None and column.type == "bytes":
        return data
    last = ending.lower().rpartition(".")[2]
    if last == "npy" and (column is None or column.type not in TEXTS):
        return _array_in(data)
    text = data.decode("utf-8-sig").rstrip("\r\n")
    if last in JSON_ENDINGS and (column is None or column.type != "text"):
        return json.loads(text)
    return text if column is None else parse_text(column, text.strip() if column.type not in TEXTS else text)


def _array_in(data: bytes) -> Array:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # noqa: BLE001  numpy evaluates the header: whatever that throws at damaged bytes
        raise ValueError(f"it is no .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds several arrays")
    return array


def infer_text(texts: Sequence[str]) -> str:
    """Return int64 or float32, if all cells are such numbers, else text."""
    if all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in texts):
        return "int64"
    filled = list(filter(None, texts))
    return "float32" if filled and all(map(is_number, filled)) else "text"


def infer_values(name: str, values: Sequence[Any]) -> Column:
    """Return the column that suits JSON's values: bool, int64, float32, text, arrays or lists of numbers; else JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {list}:
        return _infer_lists(name, (value for value in values if value is not None)) or Column(name, "json")
    fitting: dict[str, set[type]] = {"bool": {bool}, "int64": {int}, "float32": {int, float}, "text": {str}}
    return Column(name, next((type for type, fits in fitting.items() if kinds and kinds <= fits), "json"))


def _infer_lists(name: str, values: Iterable[list[Any]]) -> Column | None:
    """Return a column of arrays, or of lists if their lengths differ; None if these are not numbers, or the shapes do not fit."""
    lengths, shapes, kinds = set[int](), set[tuple[int, ...]](), set[str]()
    for value in values:
        try:
            array = np.array(value)
        except ValueError:  # the lengths differ inside one value
            return None
        lengths.add(len(array))
        if array.size:
            shapes.add(array.shape[1:])
            kinds.add(array.dtype.kind)
    type = "bool" if kinds == {"b"} else "int64" if kinds == {"i"} else "float32"
    if len(shapes) != 1 or (type == "float32" and not kinds <= {"i", "f"}):
        return None
    (shape,) = shapes
    return Column(name, type, (*lengths, *shape)) if len(lengths) == 1 else Column(name, type, shape, many=True)


def fit(column: Column, value: Any) -> Any:
    """Return a value as the column can hold it. Whole numbers are held exactly; others are rounded when they are stored.

    Raises:
        ValueError: the column cannot hold it.
        OverflowError, RecursionError: nor can Python read it.
    """
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
    if column.shape or column.many:
        return array
    plain = {"f": float, "b": bool}.get(column.dtype.kind, int)
    return plain(array.item())


def listed(column: Column, value: Any) -> Any:
    """Return a value that fits as JSON has it."""
    found = fit(column, value)
    if not isinstance(found, np.ndarray):
        return found
    return found.astype({"f": np.float64, "b": np.bool_}.get(column.dtype.kind, np.int64)).tolist()


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


def _as_array(column: Column, value: Any) -> Array:
    """Return an array of the column's shape, () for one number, whose values its dtype holds. Nulls among floats are NaN."""
    dtype, lists = column.dtype, column.shape or column.many
    if value is None and (lists or dtype.kind != "f"):
        raise ValueError("its cell is empty: fill it, or leave the row out")
    if lists and not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{_shown(value)} is not a list, such as [1, 2]")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and dtype.kind == "f" and not any(isinstance(item, str) for item in array.flat):
            array = array.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"{_shown(value)} is not a list of numbers, or its rows differ in length") from None
    fits = array.shape[1:] == column.shape or array.shape == (0,) if column.many and array.ndim else array.shape == column.shape
    if not fits or (column.many and not array.ndim):
        holds = (
            f"lists of {list(column.shape) or 'numbers'}"
            if column.many
            else f"{list(column.shape) or 'one number'} for each sample"
        )
        raise ValueError(f"an array of {list(array.shape)}, but {column.name} holds {holds}")
    if array.size and array.dtype.kind not in {"f": "fiu", "b": "biu"}.get(dtype.kind, "iu"):
        whole = " whole" if dtype.kind in "iu" and array.dtype.kind == "f" else ""
        raise ValueError(f"{_shown(value)} does not hold{whole} numbers that fit {column.type}")
    with np.errstate(over="ignore"):
        stored = array.astype(dtype)
    wrong = np.isinf(stored) & ~np.isinf(array) if dtype.kind == "f" else stored != array
    if wrong.any():
        raise ValueError(f"{array[wrong].flat[0]} {'is too large for' if dtype.kind == 'f' else 'does not fit'} {column.type}")
    return array.reshape(-1, *column.shape) if column.many else array
