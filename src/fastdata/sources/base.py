"""Containers of inputs: the interface of their kinds, which of them SOURCE is, its list of inputs, and the bytes of each.

A new kind is a module with CONTAINERS, and an entry of MODULES.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from fastdata.errors import CodecError, PrepError
from fastdata.sources.folder import list_entries
from fastdata.sources.inputs import SPLITS, Source, SourceList, SplitsError, is_image, look
from fastdata.sources.labels import Value, encode_labels, read_classes
from fastdata.sources.notes import not_stored
from fastdata.sources.options import NO_LABELS, LabelOptions, StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.patterns import expand, function_of, locate, split_key
from fastdata.sources.urls import AnyPath, UrlPath, join, to_path
from fastdata.store.column import Column

__all__ = ["ArchiveColumns", "Container", "Folder", "Selection", "Table", "cell_of", "column_of", "damaged_file", "ends_in"]
__all__ += ["even_sizes", "files_in", "label_value", "list_archives", "list_tables", "make_list", "open_once", "pointer_of"]
__all__ += ["read_range", "read_source", "release", "unreadable"]

POINTER_BYTES = 200
POINTERS = (
    (re.compile(rb"version https://git-lfs"), "Git LFS", "git lfs pull"),
    (re.compile(rb"/?annex/objects/"), "git-annex", "git annex get"),
)
FEW = 1 << 20  # inputs that an archive may have whatever its size: empty images take no bytes where they are compressed


@dataclass(frozen=True)
class Folder:
    """A folder given as SOURCE, and the names of its entries."""

    path: AnyPath
    files: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """What the caller named in an archive.

    Attributes:
        key: the text after `::`, or "".
        label: the label column, NO_LABELS, or "".
        fields, endings: other columns, and members of a sample, to store.
        images: the endings of the images of a sample, if it has several.
        classes: the names of the classes, if the caller gives them.
        regression: the columns of numbers to predict, whose first is `label`.
    """

    key: str = ""
    label: str = ""
    fields: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    regression: tuple[str, ...] = ()


class ArchiveColumns(NamedTuple):
    """The columns that are read. label: "" if there is none. others: those not stored. names: of the classes."""

    image: str
    label: str
    others: tuple[str, ...]
    names: tuple[str, ...] = ()
    has_path: bool = False


Table = tuple[ArchiveColumns, list[Source], list[Any]]  # the columns, the inputs and their labels, of a file


def _no_column(path: AnyPath, name: str, *where: Any) -> Any:
    raise PrepError(f"{path} has no column {name}")


@dataclass(frozen=True)
class Container:
    """A kind of container.

    Attributes:
        name: the first entry of the `place` of its inputs.
        takes: tells from an existing path whether it is such an archive.
        inputs: lists the inputs of archives below a root, which is the first argument.
        read: returns the bytes of an image file, from the archive's path and the rest of a `place`.
        inside: returns the archives of this kind that make up a folder. Raises PrepError if it holds several splits.
        has_columns: whether the caller can name a label column.
        column, cell: return the column of the store that suits a column of the archive, and its value for an input, from the
            archive's path, the name, and the rest of a `place`.
    """

    name: str
    takes: Callable[[AnyPath], bool]
    inputs: Callable[[AnyPath, list[AnyPath], Selection], SourceList]
    read: Callable[..., bytes]
    inside: Callable[[Folder], list[AnyPath]] = lambda folder: []
    has_columns: bool = False
    column: Callable[..., Any] = _no_column
    cell: Callable[..., Any] = _no_column


Opened = TypeVar("Opened")  # with a method `close`
_cached: list[tuple[Any, Any]] = []  # the stamp and the archive that this process has open; at most one


def ends_in(*endings: str) -> Callable[[AnyPath], bool]:
    """Make a function that tells whether a path is a file with one of these endings."""
    return lambda path: path.is_file() and path.suffix.lower() in endings


def open_once(path: AnyPath, opener: Callable[[AnyPath], Opened], key: str = "") -> Opened:
    """Open an archive, or return it if it is the last one opened and has not changed. Close the last one otherwise.

    key: what tells whether it has changed; "": the state of the file.
    """
    info = None if key else path.stat()
    stamp = opener, path, info and (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    if not _cached or _cached[0][0] != stamp:
        release()
        _cached.append((stamp, opener(path)))
    opened: Opened = _cached[0][1]
    return opened


def release() -> None:
    """Close the archive that `open_once` keeps open."""
    while _cached:
        _cached.pop()[1].close()


def read_range(path: AnyPath, offset: int, length: int) -> bytes:
    """Read `length` bytes of a file from `offset` on."""
    if isinstance(path, UrlPath):
        data = path.read_range(offset, length)
    else:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
    if len(data) < length:
        raise CodecError(f"the archive ends inside the image: {len(data)} of {length} bytes are there", "truncated")
    return data


def even_sizes(path: AnyPath, count: int) -> list[int]:
    """Divide the bytes of an archive that does not tell the size of an input into `count` nearly equal parts."""
    total = path.stat().st_size  # a few bytes may claim any number of inputs, and each costs memory when it is listed
    if not 0 <= count <= max(total, FEW):
        raise PrepError(f"{path} claims to hold {count} images in {total} bytes: it is damaged, or is no archive of images")
    return [(k + 1) * total // count - k * total // count for k in range(count)]


def make_list(
    root: AnyPath,
    inputs: Iterable[Source],
    labels: Sequence[Value],
    names: Sequence[str] = (),
    skipped: Counter[str] | None = None,
    *,
    by: str,
    selection: Selection,
    notes: tuple[str, ...] = (),
) -> SourceList:
    """Make the list of inputs from those without a label, and their labels.

    Args:
        names: of the classes, if they are known.
        by: what the labels were read from.
        selection: which labels the caller asked for.
    """
    meaning, encode = encode_labels(
        [] if selection.label == NO_LABELS else labels,
        "numbers" if selection.regression else "values",
        selection.classes,
        names=names or selection.regression,
        by=by,
        sure=bool(selection.label),
    )
    encoded = zip(inputs, map(encode, labels), strict=True)
    sources = Packed(replace(source, label=label, problem=source.problem or unlabelled) for source, (label, unlabelled) in encoded)
    return SourceList(root, meaning, sources, skipped or Counter(), by, notes)


def list_tables(
    read_table: Callable[[AnyPath, str, Selection], Table],
    root: AnyPath,
    files: list[AnyPath],
    selection: Selection,
    errors: tuple[type[Exception], ...] = (OSError, ValueError),
) -> SourceList:
    """Make the list of the inputs of files that have the same columns.

    Args:
        read_table: reads the path of each, its name, and the selection.
        errors: what it raises for a file that cannot be read.
    """
    inputs, labels, first = Packed[Source](), Packed[Value](), None
    for path in files:
        try:
            columns, rows, values = read_table(path, str(path.relative_to(root)), selection)
        except errors as error:
            raise unreadable(path, error) from error
        if first not in (None, columns):
            raise PrepError(f"{path} has other image or label columns, or other classes, than {files[0]}; prepare them separately")
        first = columns
        inputs.extend(rows)
        labels.extend(label_value(value, columns.label) for value in values)
    if first is None:
        raise PrepError(f"SOURCE {root} lists no files of samples")
    by = f"column {first.label}" if first.label else ""
    stored = f"images come from {first.image}" + (f", labels from {first.label}" if first.label else "")
    notes = (not_stored(first.others, stored),) if first.others else ()
    return make_list(root, inputs, labels, () if selection.regression else first.names, by=by, selection=selection, notes=notes)


def label_value(value: Any, column: str) -> Value:
    """Return a cell of a label column; what is neither a number, nor a list of numbers, nor None is text."""
    if isinstance(value, dict | bytes) or (isinstance(value, list) and not all(isinstance(one, int | float) for one in value)):
        raise PrepError(
            f"column {column} holds a {type(value).__name__}, but labels are numbers, lists of numbers, or text; name another with "
            f"--label-column, or {NO_LABELS}"
        )
    if isinstance(value, list):
        return tuple(value)
    return value if value is None or isinstance(value, int | float) else str(value)


def files_in(folder: Folder, *endings: str) -> list[AnyPath]:
    """Return the files with these endings in a folder that holds no image and no other folder; else an empty list.

    Raises:
        SplitsError: words in the names of the files are those of several splits.
    """
    files = [name for name in folder.files if name.lower().endswith(endings)]
    if not files or folder.folders or any(map(is_image, folder.files)):
        return []
    words = [next((word for word in re.split(r"[-_.\d]", name) if word.lower() in SPLITS), "") for name in files]
    splits = {
        word: str(folder.path / (f"{word}[-_.0-9]*" if name.startswith(word) else f"*{word}*")) + os.path.splitext(name)[1]
        for name, word in zip(files, words, strict=True)
        if word
    }
    if len(splits) > 1:
        beside = next((name for name, word in zip(files, words, strict=True) if not word), "")
        raise SplitsError(folder.path, splits, beside=beside)
    return [folder.path / name for name in files]


def unreadable(path: AnyPath, error: Exception) -> PrepError:
    """Make the error for a file that cannot be read at all."""
    if isinstance(error, OSError) and error.strerror:
        return PrepError(f"cannot read {path}: {error.strerror}")
    said = str(error).partition("\n")[0]  # pyarrow writes more
    return damaged_file(path, f"is damaged, or was cut short ({type(error).__name__}: {said})")


def damaged_file(path: AnyPath, why: str) -> PrepError:
    """Make the error for a file of inputs that is not whole, which may be a pointer to one."""
    pointer = ""
    with suppress(OSError, ValueError):  # ValueError: a damaged index names it
        if not look(path)[1]:  # reading a pipe might never end
            with path.open("rb") as file:
                pointer = pointer_of(file.read(POINTER_BYTES))
    return PrepError(f"{path} is {pointer}" if pointer else f"{path} {why}; copy it again")


def pointer_of(begin: bytes) -> str:
    """Return what the first bytes of a file point to, if they are a pointer instead of its contents; else ""."""
    for pattern, program, command in POINTERS:
        if pattern.match(begin):
            return f"a pointer of {program}, and not the file itself: fetch it, as `{command}` does"
    return ""


# The kinds

MODULES = {"tar": "tar", "parquet": "arrow", "arrow": "arrow", "python": "python", "streamed": "streamed"}  # of this package


@cache
def _find(name: str) -> Container:
    container: Container = importlib.import_module(f"fastdata.sources.{MODULES[name]}").CONTAINERS[name]
    return container


def _kind_that_takes(path: AnyPath) -> Container | None:
    return next((kind for kind in map(_find, MODULES) if kind.takes(path)), None)


def list_archives(
    source: StrPath,
    options: LabelOptions,
    fields: Sequence[str] = (),
    endings: Sequence[str] = (),
    images: Sequence[str] = (),
) -> SourceList | None:
    """List the inputs of SOURCE. Return None if it is a single path that is not an archive, or does not exist.

    Args:
        options: which labels to take.
        fields, endings: other columns, and members of a sample, that are wanted.
        images: the endings of the images of a sample, if it has several.
    """
    path, key = split_key(source)
    kind: Container | None
    files = expand(path)
    if function_of(path):
        kind, files = _find("python"), [path]
    else:
        found = list(map(_kind_that_takes, files))
        kind = found[0] if found else None
        if found == [None] and files[0].is_dir():
            kind, files = _inside(files[0])
        elif None in found and files != [path]:
            raise PrepError(
                f"{files[found.index(None)]} is not a known archive: several files at once may be .tar, .parquet or .arrow; for "
                "images give their folder, or a .csv file of paths"
            )
        elif len(set(found)) > 1:
            names = " and ".join(sorted({one.name for one in found if one}))
            raise PrepError(f"SOURCE mixes {names}; prepare each kind by itself")
    if kind is None:
        return None
    if len(options.regression) > 1:
        raise PrepError(f"--regression {' and '.join(options.regression)}: an archive has one label column; give only one")
    elsewhere = options.labels is not None or options.label_from is not None
    column = NO_LABELS if elsewhere else "".join(options.regression) or options.label_column or ""
    if column not in ("", NO_LABELS, *options.regression) and not kind.has_columns:
        raise PrepError(f"--label-column {column}: SOURCE {source} has no columns; here it can only be {NO_LABELS}")
    if images and kind.name != "tar":
        raise PrepError(f"--images: SOURCE {source} is {kind.name}, but several images come from folders or from WebDataset tars")
    asked = (None, ()) if column == NO_LABELS else (read_classes(options.classes), options.regression)
    return kind.inputs(locate(source)[0], files, Selection(key, column, tuple(fields), tuple(endings), tuple(images), *asked))


def _inside(path: AnyPath) -> tuple[Container | None, list[AnyPath]]:
    """Return the archives in a folder that holds nothing else, and their kind."""
    try:
        listed = [(entry.name, entry.is_dir()) for entry in list_entries(path) if not entry.name.startswith(".")]
    except (OSError, PrepError):  # listing it as a folder of images reports this better
        return None, []
    folder = Folder(path, tuple(name for name, is_dir in listed if not is_dir), tuple(name for name, is_dir in listed if is_dir))
    found = ((kind, kind.inside(folder)) for kind in map(_find, MODULES))
    return next(((kind, files) for kind, files in found if files), (None, []))


def column_of(root: AnyPath, source: Source, name: str) -> Column:
    """Return the column of the store that suits a column of the archive that an input lies in. Raise PrepError if there is none."""
    kind, file, *where = source.place
    column: Column = _find(str(kind)).column(root / str(file), name, *where)
    return column


def cell_of(root: AnyPath, source: Source, name: str) -> Any:
    """Return the value of a column of the archive for an input. Raise CodecError if it is damaged."""
    kind, file, *where = source.place
    return _find(str(kind)).cell(root / str(file), name, *where)


def read_source(root: StrPath, source: Source) -> bytes:
    """Read the bytes of an input's image file. The archive stays open until another is read, or `release` is called.

    Raises:
        CodecError: the archive is damaged there, or holds no image there.
        OSError: the file cannot be read.
    """
    if not source.place:
        return join(to_path(root), source.name).read_bytes()
    name, file, *where = source.place
    return _find(str(name)).read(to_path(root) / str(file), *where)
