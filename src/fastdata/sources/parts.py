"""Values that lie next to images: columns of their archive, members of a tar, and files with the name of the image.

Listing finds their places and types. Workers read them, so that the plan does not hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fastdata.errors import CodecError, PrepError, may_pass
from fastdata.sources.base import kind_of, read_range
from fastdata.sources.fields import Field, field_error, make_column, nested
from fastdata.sources.inputs import FieldSource, Source, SourceList, look
from fastdata.sources.instances import as_instances
from fastdata.sources.options import StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.sources.values import JSON_ENDINGS, fit, infer_text, parse_file
from fastdata.store.column import SOURCE_SIZE, Column
from fastdata.words import number_of

__all__ = ["file_parts", "read_fields", "with_parts"]

PROBES = 32  # files that are read to infer a type
TEXTS = ("txt", "text", "caption", "transcript")
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id", "score")  # as in the package webdataset: whole numbers, or text
HELP = (
    "give columns of a table of paths (.csv, .tsv, .jsonl, .parquet), which is SOURCE or --labels, or of a Parquet or Arrow file "
    "that holds the images, as NAME; and files next to the images, or members of a tar, as NAME=ENDING, such as caption=txt"
)


def with_parts(inputs: SourceList, fields: Sequence[Field], source: StrPath) -> SourceList:
    """Return the inputs with the columns of `fields` that lie next to the images.

    Args:
        inputs: with the places of the members of a tar.
        fields: what is not a column of a table of paths.
        source: SOURCE, for messages.

    Raises:
        PrepError: SOURCE has no such columns, members or files; or a type does not suit or cannot be inferred.
    """
    if not fields or not inputs.sources:
        return inputs
    kinds = {source.place[0] if source.place else "" for source in inputs.sources}
    members = [field for field in fields if field.ending]
    for field in fields:
        suits = kinds <= {"", "tar"} if field.ending else all(_has_columns(source) for source in inputs.sources)
        if not suits:
            raise field_error(field, f"SOURCE {source} has no such {'members' if field.ending else 'columns'}; {HELP}")
    if members and kinds == {""}:
        inputs = _with_files(inputs, members)
    order = {str(field): k for k, field in enumerate(members)}
    added = [_member(inputs, field, order[str(field)]) if field.ending else _cells(inputs, field) for field in fields]
    return replace(inputs, fields=(*inputs.fields, *added))


def _has_columns(source: Source) -> bool:
    kind = kind_of(source)
    return kind is not None and kind.cell is not None


def _cells(inputs: SourceList, field: Field) -> FieldSource:
    """Return the field that is a column of the archives, which all must have it with the same type."""
    first = {source.place[1]: source for source in reversed(inputs.sources)}
    found = dict[Column, str]()
    if field.layout or len(field.path) > 1:
        return FieldSource(field.column or field.infer(_probed(inputs, field)), path=field.path, layout=field.layout)
    for source in reversed(first.values()):
        kind = kind_of(source)
        assert kind is not None and kind.column is not None  # `with_parts` has checked it
        _, file, *where = source.place
        found.setdefault(kind.column(inputs.root / str(file), field.name, *where), str(file))
    if len(found) > 1:
        (one, here), (other, there) = [*found.items()][:2]
        raise field_error(field, f"{here} has {one}, {there} has {other}; prepare them separately")
    return FieldSource(field.shaped(next(iter(found))), path=field.path)


def _probed(inputs: SourceList, field: Field) -> list[Any]:
    """Return the cells of some inputs, evenly spaced."""
    able = [k for k, source in enumerate(inputs.sources) if not source.problem]
    chosen = [inputs.sources[able[k * len(able) // min(PROBES, len(able))]] for k in range(min(PROBES, len(able)))]
    try:
        return [_cell(inputs.root, source, field.path) for source in chosen]
    except (ValueError, CodecError) as error:
        raise field_error(field, str(error)) from None


def _with_files(inputs: SourceList, fields: Sequence[Field]) -> SourceList:
    """Add the sizes of the files next to the images, and do not count these as skipped."""
    skipped = inputs.skipped.copy()
    look_at_all(inputs.root, (_file_name(source.name, field.ending) for source in inputs.sources for field in fields))

    def with_sizes() -> Iterator[Source]:
        for source in inputs.sources:
            size = source.size
            for field in fields:
                found, problem = look(join(inputs.root, _file_name(source.name, field.ending)))
                size += 0 if problem or size < 0 else found
                skipped[os.path.splitext(f"x.{field.ending}")[1].lower()] -= not problem
            yield replace(source, size=size)

    sources = Packed(with_sizes())
    return replace(inputs, sources=sources, skipped=+skipped)


def _file_name(name: str, ending: str) -> str:
    return f"{os.path.splitext(name)[0]}.{ending}"


def file_parts(source: Source, endings: Sequence[str]) -> Iterator[str]:
    """Yield the names of the files next to an image that have these endings."""
    return (_file_name(source.name, ending) for ending in endings)


def _member(inputs: SourceList, field: Field, place: int) -> FieldSource:
    """Return the field of a member of a tar, or of a file next to each image, with its type."""
    able = [k for k, source in enumerate(inputs.sources) if not source.problem and (not source.place or source.parts[place])]
    there = [k for k in able if inputs.sources[k].place or not look(_path(inputs, k, field))[1]]
    if not there:
        usable = number_of(sum(not source.problem for source in inputs.sources), "image")
        what = "member" if inputs.sources[0].place else "file"
        listed = ", ".join(f"{ending} {count}" for ending, count in inputs.skipped.most_common(5))
        others = f"; other files: {listed}" if listed else ""
        raise field_error(field, f"none of {usable} has a {what} of its name that ends in .{field.ending}{others}")
    chosen = [there[k * len(there) // min(PROBES, len(there))] for k in range(min(PROBES, len(there)))]
    return FieldSource(_infer(inputs, field, place, chosen), ending=field.ending, layout=field.layout)


def _path(inputs: SourceList, k: int, field: Field) -> AnyPath:
    return join(inputs.root, _file_name(inputs.sources[k].name, field.ending))


def _infer(inputs: SourceList, field: Field, place: int, chosen: Sequence[int]) -> Column:
    """Return the column for a field, from some of its values."""
    last = field.ending.lower().rpartition(".")[2]
    if field.column is not None and (field.layout or last != "npy" or not field.column.many):
        return field.column
    if last in (*TEXTS, *JSON_ENDINGS) and not field.layout:
        return make_column(field.name, "text" if last in TEXTS else "json")
    if last != "npy" and last not in NUMBERS and not field.layout:
        return make_column(field.name, "bytes")
    values, error = list[Any](), Exception()
    for k in chosen:
        try:
            values.append(
                parse_file(
                    None, field.ending, _bytes(inputs.root, inputs.sources[k], field.ending, place), is_json=bool(field.layout)
                )
            )
        except (ValueError, CodecError, OSError) as caught:
            error = caught
    if not values:
        raise field_error(field, f"{_part_name(inputs.sources[chosen[0]], field.ending)}: {error}")
    if field.layout:
        return field.infer(values)
    if last == "npy":
        return _array_column(field, values)
    return make_column(field.name, infer_text([value.strip() for value in values]))


def _array_column(field: Field, arrays: Sequence[np.ndarray[Any, np.dtype[Any]]]) -> Column:
    shapes, types = sorted({array.shape for array in arrays}), sorted({array.dtype.name for array in arrays})
    many = field.column is not None
    if len({shape[1:] for shape in shapes}) > 1 or (len(types) > 1 and not many) or (many and () in shapes):
        found = ", ".join(f"{array.dtype} {list(array.shape)}" for array in arrays[:5])
        raise field_error(field, f"its arrays have different types, or more than their first axis differs: {found}")
    if field.column is not None:
        return structs.replace(field.column, shape=shapes[0][1:])
    if len(shapes) > 1:
        raise field_error(
            field,
            f"the length of its arrays differs: {', '.join(str(list(shape)) for shape in shapes[:5])}; store lists with "
            f"--fields {field}:{types[0]}[]",
        )
    return make_column(field.name, types[0], shapes[0])


def read_fields(root: StrPath, source: Source, fields: Sequence[FieldSource]) -> list[Any]:
    """Return an input's value of each field: those that are listed, and those that are read now; None for SOURCE_SIZE.

    Raises:
        CodecError: one is not there, or does not fit its column.
    """
    return list(_values(to_path(root), source, fields))


def _values(root: AnyPath, source: Source, fields: Sequence[FieldSource]) -> Iterator[Any]:
    listed, member = iter(source.values), 0
    for field in fields:
        column = field.column
        if column == SOURCE_SIZE:
            yield next(listed) if field.listed else None
            continue
        what = _part_name(source, field.ending) if field.ending else f"column {column.name} of {source.name}"
        try:
            if field.listed:
                value = next(listed)
            elif field.ending:
                read_as = None if field.layout else column
                value = parse_file(read_as, field.ending, _bytes(root, source, field.ending, member), is_json=bool(field.layout))
                member += 1
            else:
                value = _cell(root, source, field.path)
            yield as_instances(column, value) if field.layout else fit(column, value)
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
        return _file_name(source.name, ending)
    folder, slash, base = source.name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}.{ending}"


def _bytes(root: AnyPath, source: Source, ending: str, place: int) -> bytes:
    """Read the bytes of a file next to an image, or of a member of a tar, which is the `place`-th of its parts."""
    if not source.place:
        path = join(root, _file_name(source.name, ending))
        if isinstance(path, Path) and look(path)[1] == "not-a-file":  # reading a pipe might never end
            raise FileNotFoundError
        return path.read_bytes()
    part = source.parts[place]
    if part is None:
        raise FileNotFoundError
    return read_range(root / str(source.place[1]), *part)


def _cell(root: AnyPath, source: Source, path: Sequence[str]) -> Any:
    kind = kind_of(source)
    if kind is None or kind.cell is None:
        raise PrepError(f"{source.name} has no columns")
    _, file, *where = source.place
    return nested(kind.cell(root / str(file), path[0], *where), path[1:])
