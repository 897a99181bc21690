"""`--fields`: which values become columns of a store, as which type, and where they lie.

They are columns of a table or an archive, members of a tar, or files with the name of the image. Those of a table of paths are in
the plan; workers read the others.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from fastdata.errors import CodecError, PrepError, may_pass
from fastdata.sources.base import cell_of, column_of, read_range
from fastdata.sources.inputs import FieldSource, Source, SourceList, look
from fastdata.sources.instances import LAYOUTS, as_instances, instance_column
from fastdata.sources.options import StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.sources.values import JSON_ENDINGS, fit, infer_text, infer_values, listed, parse_file, parse_text
from fastdata.store.column import SOURCE_SIZE, Column
from fastdata.words import number_of

__all__ = ["Field", "field_error", "field_files", "make_column", "nested", "parse_fields", "read_fields", "with_fields"]

FIELD = re.compile(
    r"(?P<name>[^=].*?)(=\.?(?P<ending>[^=:/]+))?(:(?P<type>[a-z]+[0-9]*)(?P<brackets>\[(?P<shape>[0-9]+(,[0-9]+)*)?\])?)?"
)
LABEL = "label"  # datasets emit the image's label under this name
PROBES = 32  # values that are read to infer a type
TEXTS = ("txt", "text", "caption", "transcript")
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id", "score")  # as in the package webdataset: whole numbers, or text
HELP = (
    "give columns of a table of paths (.csv, .tsv, .jsonl, .parquet), which is SOURCE or --labels, or of a Parquet or Arrow file "
    "that holds the images, as NAME; and files next to the images, or members of a tar, as NAME=ENDING, such as caption=txt"
)


@dataclass(frozen=True)
class Field:
    """A value of `--fields`: the name of a column, where its values are, and what to store them as.

    Attributes:
        path: the column of the table or archive, and what is nested in it: "objects.bbox" are the boxes in a column of objects.
        column: None, if the type is to be inferred from the values.
        ending: of the files, or members of a tar, that hold the values; "": they are a column of a table, or of an archive.
        layout: how boxes or keypoints are given, as in `LAYOUTS`; "" for other values.
    """

    path: tuple[str, ...]
    column: Column | None = None
    ending: str = ""
    layout: str = ""

    @property
    def name(self) -> str:
        """The name of the stored column."""
        return self.path[-1]

    def __str__(self) -> str:
        """What was typed, without the type."""
        return ".".join(self.path) + (f"={self.ending}" if self.ending else "")

    def shaped(self, declare: Callable[[], Column]) -> Column:
        """Return the column to store. declare: returns one that suits the values."""
        if self.column is None:
            return declare()
        if self.layout or not self.column.many:
            return self.column
        declared = declare()
        return structs.replace(self.column, shape=declared.shape if declared.many else declared.shape[1:])

    def typed(
        self, cells: Sequence[Any], where: Callable[[int], str], *, texts: bool, declared: Column | None = None
    ) -> tuple[Column, Sequence[Any]]:
        """Return the column of these cells, and its values as JSON.

        Args:
            cells: of all rows.
            where: describes a row, for messages.
            texts: whether the cells are text, as in a CSV, or values, as in JSON.
            declared: the column that suits the values, if the table says it.
        """
        if self.layout or len(self.path) > 1:  # in text as JSON
            of_text = json.loads if texts else lambda cell: cell
            cells = self._each(cells, where, lambda cell: nested(of_text(cell), self.path[1:]))
            texts, declared = False, None
        if texts:
            column = self.column or make_column(self.name, infer_text(cells))
        else:
            column = self.shaped(lambda: declared or infer_values(self.name, cells))
        if column.type == "bytes" and not texts:
            raise field_error(self, "bytes come from files or members, as NAME=ENDING, or from a Parquet that holds the images")
        if self.layout:
            return column, self._each(cells, where, lambda cell: as_instances(column, cell).tolist())
        return column, self._each(cells, where, lambda cell: listed(column, parse_text(column, cell) if texts else cell))

    def _each(self, cells: Sequence[Any], where: Callable[[int], str], convert: Callable[[Any], Any]) -> Sequence[Any]:
        found = Packed[Any]()
        for row, cell in enumerate(cells):
            try:
                found.append(convert(cell))
            except (ValueError, OverflowError, RecursionError) as error:
                raise field_error(self, f"{where(row)}: {error}") from None
        return found


def nested(value: Any, path: Sequence[str]) -> Any:
    """Return what lies under these names in an object, or in each object of a list.

    Raises:
        ValueError: an object lacks a name, or is none.
    """
    for name in path:
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) and name in one for one in objects):
            raise ValueError(f"{value!r:.60} has no {name}")
        value = [one[name] for one in objects] if isinstance(value, list) else value[name]
    return value


def field_error(field: Field | str, why: str) -> PrepError:
    """Make the error on a value of `--fields`."""
    return PrepError(f"--fields {field}: {why}")


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse the values of `--fields`.

    Each is NAME or NAME=ENDING, then perhaps :TYPE, :TYPE[] for lists, or :TYPE[SHAPE] for arrays. The type of boxes is xyxy, xywh
    or cxcywh, that of keypoints xy, or xy[COUNT]. NAME may lead into objects, as in objects.bbox.
    """
    fields = list(map(_parse, texts))
    if twice := [name for name, count in Counter(field.name for field in fields).items() if count > 1]:
        raise field_error(twice[0], "this name is given twice; a column has one name and one type")
    return fields


def _parse(text: str) -> Field:
    match = FIELD.fullmatch(text)
    if match is None:
        raise field_error(text, "give NAME, NAME:TYPE or NAME=ENDING, such as caption, score:float32 or caption=txt")
    path, ending, type = tuple(match["name"].split(".")), match["ending"] or "", match["type"]
    if path[-1] == LABEL:
        raise field_error(text, f"{LABEL} is the name of the image's label, which --label-column chooses")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    if type is None:
        return Field(path, None, ending)
    if type not in LAYOUTS:
        return Field(path, make_column(path[-1], type, shape, many=bool(match["brackets"]) and not shape), ending)
    if match["brackets"] and (type != "xy" or len(shape) != 1):
        raise field_error(text, "boxes are given as xyxy, xywh or cxcywh, and keypoints as xy, or xy[17] for 17 of each instance")
    return Field(path, _checked(path[-1], lambda: instance_column(path[-1], type, shape)), ending, type)


def make_column(name: str, type: str, shape: tuple[int, ...] = (), *, many: bool = False, names: tuple[str, ...] = ()) -> Column:
    """Return a column. Raise PrepError if there is no such type, or no column can have this name."""
    return _checked(name, lambda: Column(name, type, shape, many, names=names))


def _checked(name: str, make: Callable[[], Column]) -> Column:
    try:
        return make()
    except ValueError as error:
        raise field_error(name, str(error)) from None


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
    added = [
        _member(inputs, field, before + endings.index(field.ending)) if field.ending else _cells(inputs, field) for field in fields
    ]
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


def _cells(inputs: SourceList, field: Field) -> FieldSource:
    """Return the field that is a column of the archives, which all must have it with the same type."""
    if field.layout or len(field.path) > 1:
        usable = _some(inputs, [k for k, source in enumerate(inputs.sources) if not source.problem])
        try:
            cells = [] if field.layout else [_cell(inputs.root, source, field.path) for source in usable]
        except (ValueError, CodecError) as error:
            raise field_error(field, str(error)) from None
        return FieldSource(field.shaped(lambda: infer_values(field.name, cells)), path=field.path, layout=field.layout)
    found = dict[Column, str]()
    for source in {source.place[1]: source for source in reversed(inputs.sources)}.values():
        found[column_of(inputs.root, source, field.name)] = str(source.place[1])
    if len(found) > 1:
        (one, here), (other, there) = [*found.items()][:-3:-1]
        raise field_error(field, f"{here} has {one}, {there} has {other}; prepare them separately")
    return FieldSource(field.shaped(lambda: next(iter(found))), path=field.path)


def _some(inputs: SourceList, able: Sequence[int]) -> list[Source]:
    """Return up to PROBES of the inputs with these numbers, evenly spaced."""
    count = min(PROBES, len(able))
    return [inputs.sources[able[k * len(able) // count]] for k in range(count)]


def _member(inputs: SourceList, field: Field, place: int) -> FieldSource:
    """Return the field of a member of a tar, or of a file next to each image, with its type."""
    usable = [k for k, source in enumerate(inputs.sources) if not source.problem]
    there = [k for k in usable if _is_there(inputs.root, inputs.sources[k], field.ending, place)]
    if not there:
        what = "member" if inputs.sources[0].place else "file"
        listed = ", ".join(f"{ending} {count}" for ending, count in inputs.skipped.most_common(5))
        others = f"; other files: {listed}" if listed else ""
        images = number_of(len(usable), "image")
        raise field_error(field, f"none of {images} has a {what} of its name that ends in .{field.ending}{others}")
    return FieldSource(_infer(inputs.root, field, place, _some(inputs, there)), ending=field.ending, layout=field.layout)


def _is_there(root: AnyPath, source: Source, ending: str, place: int) -> bool:
    return source.values[place] is not None if source.place else not look(join(root, *field_files(source, [ending])))[1]


def _infer(root: AnyPath, field: Field, place: int, chosen: Sequence[Source]) -> Column:
    """Return the column for a field, from some of its values."""
    last = field.ending.lower().rpartition(".")[2]
    if field.column is not None and (field.layout or last != "npy" or not field.column.many):
        return field.column
    if last not in ("npy", *NUMBERS):
        return make_column(field.name, "text" if last in TEXTS else "json" if last in JSON_ENDINGS else "bytes")
    values, error = list[Any](), Exception()
    for source in chosen:
        try:
            data = _bytes(root, source, field.ending, source.values[place] if source.place else None)
            values.append(parse_file(None, field.ending, data))
        except (ValueError, CodecError, OSError) as caught:
            error = caught
    if not values:
        raise field_error(field, f"{_part_name(chosen[0], field.ending)}: {error}")
    if last != "npy":
        return make_column(field.name, infer_text([value.strip() for value in values]))
    shapes, types = sorted({array.shape for array in values}), sorted({array.dtype.name for array in values})
    if field.column is not None and () not in shapes and len({shape[1:] for shape in shapes}) == 1:
        return structs.replace(field.column, shape=shapes[0][1:])
    if field.column is not None or len(shapes) > 1 or len(types) > 1:
        found = ", ".join(f"{array.dtype} {list(array.shape)}" for array in values[:5])
        how = f"where only the first axis differs, store lists with --fields {field}:{types[0]}[]"
        raise field_error(field, f"its arrays differ: {found}; {how}")
    return make_column(field.name, types[0], shapes[0])


# Reading


def read_fields(root: StrPath, source: Source, fields: Sequence[FieldSource]) -> list[Any]:
    """Return an input's value of each field: those that are listed, and those that are read now; None for SOURCE_SIZE.

    Raises:
        CodecError: one is not there, or does not fit its column.
    """
    path, own = to_path(root), iter(source.values)
    return [_value(path, source, field, own) for field in fields]


def _value(root: AnyPath, source: Source, field: FieldSource, own: Iterator[Any]) -> Any:
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
            value = _cell(root, source, field.path)
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


def _cell(root: AnyPath, source: Source, path: Sequence[str]) -> Any:
    return nested(cell_of(root, source, path[0]), path[1:])
