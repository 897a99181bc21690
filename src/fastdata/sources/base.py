"""Archives, which hold many inputs in one file: how to tell their kind, and how to read each input.

Each kind of archive has a module in this package; ENDINGS maps endings to kinds. The module has `list_inputs`, and `read`, which
takes the archive's path and the rest of a `locator`, and returns the bytes of an image file.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import CodecError, PrepError
from fastdata.sources.files import is_image, look
from fastdata.sources.folder import list_entries
from fastdata.sources.inputs import SPLITS, Field, Packed, Source, SourceList, SplitsError, listed, not_stored
from fastdata.sources.labels import Value, with_labels
from fastdata.sources.options import NO_LABELS, LabelOptions
from fastdata.sources.urls import AnyPath, UrlPath, explain_missing, join, look_at_all, state_of, to_path
from fastdata.store.manifest import Labels
from fastdata.types import StrPath

ENDINGS = {".tar": "tar", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".python": "python"}
ENDINGS |= dict.fromkeys((".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"), "tar")  # refused with advice
INDEX = "index.json"  # of a dataset of MosaicML Streaming or LitData
SAVED_SPLITS = "dataset_dict.json"  # next to the folders of the splits, if Hugging Face's datasets saved several
CACHE = re.compile(r"cache-.*\.arrow")  # what `map` of Hugging Face's datasets writes next to the files it was computed from
# what SOURCE may be, beside a path: module:function, or a pattern
FUNCTION = re.compile(r"[^\W\d][\w.]*:(?P<name>[^\W\d][\w.]*)")
SPECIAL = re.compile(r"[*?\[]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
POINTER = re.compile(rb"version https://git-lfs|\s*/?(?:\.\./)*(?:\.git/)?annex/objects/")
POINTER_BYTES = 64  # that show one
MIN_LIMIT = 1 << 20  # inputs that an archive may have whatever its size: empty images take no bytes where they are compressed


class ArchiveColumns(NamedTuple):
    """The columns that are read. label: "" if there is none. others: columns that are not stored. names: the classes."""

    image: str
    label: str
    others: tuple[str, ...]
    names: tuple[str, ...] = ()


Table = tuple[ArchiveColumns, list[Source], list[Any]]  # the columns, the inputs and their labels, of a file


# Opening and reading

_cached: list[tuple[Any, Any]] = []  # the stamp and the archive that this process has open; at most one
_open_binary = methodcaller("open", "rb")


def open_once(path: AnyPath, opener: Callable[[AnyPath], Any], key: str = "") -> Any:
    """Return the open archive if its path and key (without a key: its file) are unchanged; else open it with `opener`."""
    stamp = opener, path, key or state_of(path)
    if not _cached or _cached[0][0] != stamp:
        release()
        _cached.append((stamp, opener(path)))
    return _cached[0][1]


def release() -> None:
    """Close the archive that `open_once` keeps open."""
    while _cached:
        _cached.pop()[1].close()


def read_range(path: AnyPath, offset: int, length: int) -> bytes:
    """Read `length` bytes of a file from `offset` on. A URL stays open, as its buffer may hold the next range."""
    with nullcontext(open_once(path, _open_binary)) if isinstance(path, UrlPath) else path.open("rb") as file:
        file.seek(offset)
        data: bytes = file.read(length)
    if len(data) < length:
        raise CodecError(f"the archive ends too early: {len(data)} of {length} bytes were read", "truncated")
    return data


def read_source(root: StrPath, source: Source) -> bytes:
    """Read an input's image file. Raise OSError, or CodecError if its archive is damaged or lacks the image."""
    if not source.locator:
        return join(to_path(root), source.name).read_bytes()
    kind, file, *where = source.locator
    data: bytes = _module(kind).read(to_path(root) / str(file), *where)
    return data


def _module(kind: str | int) -> Any:
    return importlib.import_module(f"fastdata.sources.{'arrow' if kind == 'parquet' else kind}")


def unreadable(path: AnyPath, error: Exception) -> PrepError:
    """Make the error for a file that cannot be read at all."""
    if isinstance(error, OSError) and error.strerror:
        return PrepError(f"cannot read {path}: {error.strerror}")
    said = str(error).partition("\n")[0]  # pyarrow writes more
    return damaged_file(path, f"is damaged, or was cut short ({type(error).__name__}: {said})")


def damaged_file(path: AnyPath, why: str) -> PrepError:
    """Make the error for a damaged file of inputs, or for a pointer that lies in its place."""
    pointer = ""
    with suppress(OSError, ValueError):  # ValueError: a damaged index names it
        if not look(path)[1]:  # reading a pipe might never end
            with path.open("rb") as file:
                pointer = pointer_of(file.read(POINTER_BYTES))
    return PrepError(f"{path} is {pointer}" if pointer else f"{path} {why}; copy it again")


def pointer_of(begin: bytes) -> str:
    """Return a message if the first bytes of a file are a pointer instead of its contents; else ""."""
    what = "a pointer of Git LFS or git-annex, and not the file itself: fetch the file with `git lfs pull` or `git annex get`"
    return what if POINTER.match(begin) else ""


# The list of inputs, for the kinds


def even_sizes(path: AnyPath, count: int) -> list[int]:
    """Divide the bytes of an archive into `count` nearly equal parts."""
    total = look(path)[0]  # a few bytes may claim any number of inputs, and listing each costs memory
    if not 0 <= count <= max(total, MIN_LIMIT):
        raise PrepError(f"{path} claims to hold {count} images in {total} bytes: it is damaged, or is no archive of images")
    return [(k + 1) * total // count - k * total // count for k in range(count)]


def list_tables(
    read: Callable[[AnyPath, str], Table], root: AnyPath, files: list[AnyPath], options: LabelOptions, *errors: type[Exception]
) -> SourceList:
    """List the inputs of files with the same columns. errors: what `read` raises for damage, besides OSError and ValueError."""
    inputs, labels, first = Packed[Source](), Packed[Value](), None
    for path in files:
        try:
            columns, rows, values = read(path, str(path.relative_to(root)))
        except (OSError, ValueError, *errors) as error:  # type: ignore[misc]
            raise unreadable(path, error) from error
        first = first or columns
        if first._replace(others=columns.others) != columns:
            raise PrepError(f"{path} and {files[0]} differ in image column, label column or classes; prepare each by itself")
        inputs.extend(rows)
        labels.extend(values)
    if first is None:
        raise PrepError(f"the {INDEX} of SOURCE {root} lists no files of samples")
    by = f"column {first.label}" if first.label else ""
    stored = f"image column: {first.image}" + (f", label column: {first.label}" if first.label else "")
    notes = (not_stored(first.others, stored),) if first.others else ()
    found = SourceList(root, Labels("none"), inputs, notes=notes)
    return with_labels(found, labels, options, names=() if options.regression else first.names, by=by)


# SOURCE as it is typed


def function_of(source: StrPath) -> re.Match[str] | None:
    """Return the module and the name that SOURCE gives as `module:function`, or None for a path."""
    match = FUNCTION.fullmatch(str(source))
    return None if match is None or Path(source).exists() else match


def expand(source: StrPath) -> list[AnyPath]:
    """Return the files that a path or a pattern stands for. A path that exists is never a pattern.

    Braces expand in the order written, each to existing files; `*`, `?` and `[...]` match files, sorted by name.
    """
    from braceexpand import braceexpand

    path = to_path(source)
    if path.exists() or not SPECIAL.search(str(path)):
        return [path] if path.exists() else []
    names = [str(path)]
    with suppress(ValueError):  # unbalanced braces
        names = [*braceexpand(str(path), escape=False)]
    paths = [type(path)(name) for name in names]
    look_at_all(paths[0].parent, [one.name for one in paths if one.parent == paths[0].parent])
    matches = [[one] if one.exists() else _matching(one) for one in paths]
    if missing := [name for name, files in zip(names, matches, strict=True) if not files]:
        raise PrepError(f"SOURCE {path}: {len(missing)} of {len(names)} paths are absent: {listed(missing)}{explain_missing(path)}")
    return [file for files in matches for file in files]


def _matching(pattern: AnyPath) -> list[AnyPath]:
    """Return the paths that match `*`, `?` and `[...]`, sorted by name."""
    if isinstance(pattern, Path):  # Path.glob takes no absolute patterns
        return [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207
    root = UrlPath(re.split(r"[*?\[]", str(pattern))[0].rpartition("/")[0])
    return [*root.glob(str(pattern)[len(str(root)) + 1 :])] if root.is_dir() else []


def locate(source: StrPath) -> tuple[AnyPath, str]:
    """Return the folder that names are relative to, and the default name of a store of SOURCE, without ".fds"."""
    if match := function_of(source):
        return Path(), match["name"].rpartition(".")[2]
    path, start = to_path(source), ""
    root, special = path, None if path.exists() else SPECIAL.search(str(path))
    if special is not None:
        folder, start = os.path.split(str(path)[: special.start()])
        root = type(path)(folder)
    named = Path(os.path.abspath(root)) if isinstance(root, Path) else root  # a link keeps its name
    if special is None and not path.is_dir():
        return path.parent, named.stem
    return root, start.rstrip("-_. ") or named.name or "archives"


def list_archives(source: StrPath, options: LabelOptions, fields: Sequence[Field], images: Sequence[str]) -> SourceList | None:
    """List the inputs of SOURCE. Return None if SOURCE is missing, no archive, or, with `images`, no tar."""
    path = to_path(source)
    kind, files = ("python", [path]) if function_of(path) else _archives(path)
    if not kind or (images and kind != "tar"):
        return None
    if len(options.regression) > 1:
        raise PrepError(f"--regression {' and '.join(options.regression)}: for an archive or a sequence, use --regression once")
    options = options.of_source()
    if options.label_column not in (None, NO_LABELS) and kind == "tar":
        raise PrepError(f"--label-column {options.column}: SOURCE {source} has no columns; leave --label-column out")
    inputs: SourceList = _module(kind).list_inputs(locate(source)[0], files, options, fields, images)
    return inputs


def _kind_of(name: str) -> str:
    """Return the kind of archives with this name, or "" for none."""
    return next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), "")


def _archives(path: AnyPath) -> tuple[str, list[AnyPath]]:
    """Return the kind of the archives that SOURCE stands for, and their paths; the kind is "" for a path that is no archive."""
    files = expand(path)
    if len(files) == 1 and files[0].is_dir():
        return _inside(files[0])
    kinds = [_kind_of(file.name) if file.is_file() else "" for file in files]
    if "" in kinds and files != [path]:
        what = "matches SOURCE, but is no .tar, .parquet or .arrow file; for image files, give their folder or table of paths"
        raise PrepError(f"{files[kinds.index('')]} {what}")
    if len(names := sorted(set(kinds))) > 1:
        raise PrepError(f"SOURCE mixes {' and '.join(names)}; prepare each kind by itself")
    return "".join(names), files


def _inside(path: AnyPath) -> tuple[str, list[AnyPath]]:
    """Return the kind and the paths of the archives in a folder without images or folders. Raise SplitsError if it has splits."""
    try:
        entries = [entry for entry in list_entries(path) if not entry.name.startswith(".") and not CACHE.fullmatch(entry.name)]
        folders = [entry.name for entry in entries if entry.is_dir()]
    except (OSError, PrepError):  # listing it as a folder of images reports this better
        return "", []
    found = defaultdict[str, list[str]](list)
    for name in (entry.name for entry in entries if entry.name not in folders):
        found["image" if is_image(name) else name if name in (INDEX, SAVED_SPLITS) else _kind_of(name)].append(name)
    if found[SAVED_SPLITS] and len(folders) > 1:
        raise SplitsError(path, {name: str(path / name) for name in folders})
    if found[INDEX] and _module("streamed").read_index(path):
        return "streamed", [path]
    kind = next((kind for kind in ENDINGS.values() if found[kind]), "")
    if not kind or folders or found["image"]:
        return "", []
    words = [next((word for word in re.split(r"[-_.\d]", name) if word.lower() in SPLITS), "") for name in found[kind]]
    splits = {
        word: str(path / (f"{word}[-_.0-9]*" if name.startswith(word) else f"*{word}*")) + os.path.splitext(name)[1]
        for name, word in zip(found[kind], words, strict=True)
        if word
    }
    if len(splits) > 1:
        raise SplitsError(path, splits, beside=found[kind][words.index("")] if "" in words else "")
    return kind, [path / name for name in found[kind]]
