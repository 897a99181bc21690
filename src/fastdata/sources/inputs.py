"""Inputs, which are files or parts of archives; lists of them, in little memory; and notes on them."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import re
import shlex
import stat
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import xxhash

from fastdata.errors import PrepError, may_pass
from fastdata.sources.options import NO_LABELS
from fastdata.sources.urls import AnyPath, UrlPath, join
from fastdata.store.columns import Column
from fastdata.store.manifest import Labels
from fastdata.types import Array, StrPath
from fastdata.words import number_of

T = TypeVar("T")
P = TypeVar("P", bound="Packed[Any]")

BLOCK = 32  # items that are compressed together: each that is asked for out of turn costs the unpacking of so many
SHUFFLE_SEED = 0  # it determines the bytes of a store, so it must never change


class Packed(Sequence[T]):
    """A sequence of values that pickle, held compressed. What it returns is not to be changed."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._data = bytearray()
        self._ends = array("Q", [0])  # of the blocks
        self._last: list[T] = []  # items that do not fill a block yet
        self._read: tuple[int, list[T]] = -1, []  # the block that was read last, and its number
        self._chosen: Sequence[int] | Array | None = None  # of the items, in their order; None: all, as they came
        self.extend(items)

    def append(self, item: T) -> None:
        """Add an item to the end."""
        self._last.append(item)
        if len(self._last) == BLOCK:
            self._data += zlib.compress(pickle.dumps(self._last, pickle.HIGHEST_PROTOCOL), 1)
            self._ends.append(len(self._data))
            self._last = []

    def extend(self, items: Iterable[T]) -> None:
        """Add items to the end."""
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return (len(self._ends) - 1) * BLOCK + len(self._last) if self._chosen is None else len(self._chosen)

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return self._item(found) if isinstance(found, int) else tuple(map(self._item, found))

    def __iter__(self) -> Iterator[T]:
        if self._chosen is not None:
            return map(self._item, range(len(self)))
        return (item for number in range(len(self._ends)) for item in self._block(number))

    def _item(self, index: int) -> T:
        number, offset = divmod(index if self._chosen is None else int(self._chosen[index]), BLOCK)
        return self._block(number)[offset]

    def _block(self, number: int) -> list[T]:
        if number == len(self._ends) - 1:
            return self._last
        read = self._read
        if read[0] != number:
            begin, end = self._ends[number : number + 2]
            self._read = read = number, pickle.loads(zlib.decompress(memoryview(self._data)[begin:end]))
        return read[1]

    def taken(self: P, indices: Sequence[int] | Array) -> P:
        """Return the items at some indices, which share their memory with this list. Distant items take long to read."""
        chosen = copy(self)
        chosen._chosen = indices if self._chosen is None else np.asarray(self._chosen)[indices]
        return chosen


def shuffled(sources: Packed[Any], *, remote: bool = False) -> Packed[Any]:
    """Return inputs in an order that depends on their number alone: by the checksum of each one's index."""
    kind, file = getattr(sources[0], "locator", ())[:2] or ("", "") if sources else ("", "")  # an archive is not mixed with others
    if kind == "parquet" or (kind == "arrow" and remote):
        instead = "prepare it with --order listed, export the store (fastdata export), and prepare the export with --order shuffled"
        raise PrepError(f"{file} is unpacked in large pieces, which shuffled inputs would do once for each: {instead}")
    keys = (xxhash.xxh3_64_intdigest(k.to_bytes(8, "little"), SHUFFLE_SEED) for k in range(len(sources)))
    return Packed(sources.taken(np.argsort(np.fromiter(keys, np.uint64, len(sources)), kind="stable")))


def trimmed(item: Any) -> list[Any]:
    """Return the values of a dataclass without the defaults at their end."""
    kind: Any = type(item)
    row, defaults = list(vars(item).values()), _defaults(kind)
    while row and type(row[-1]) is type(default := defaults[len(row) - 1]) and row[-1] == default:
        row.pop()
    return row


@cache
def _defaults(kind: Any) -> tuple[Any, ...]:
    return tuple(one.default for one in fields(kind))  # MISSING equals nothing


EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .tif .tiff .gif .avif .jp2 .j2k .j2c .pbm .pgm .ppm .pnm .avifs .heic "
    ".heif .hif .jxl "
    ".pam .ras .sun .psd .qoi .sgi .msp .hdr .exr .pfm .dds .svg .cr2 .cr3 .nef .arw .dng".split()  # not decoded: rejected by name
)
SPLITS = frozenset("train training val valid validation test testing dev eval".split())
FOLDERS = "the folders"  # the `labelled_by` of inputs in class folders
SHOWN = 5
FLAT = "a .csv file of path,label as SOURCE or as --labels FILE, or --label-from '(n\\d+)_', whose group is the class"
DETAILS = {
    "missing": "there is no such file",
    "broken-link": "it is a link to a file that is not there",
    "unreadable": "it cannot be looked at: its name or its rights forbid it",
    "not-a-file": "it is no ordinary file",
    "no-label": "others have a label, this one has none",
    "not-finite": "its label is not a finite number, or too large for float32",
    "no-image": "it has no image",
    "two-images": "it has more than one image",
    "not-listed": "the table of --labels does not list it",
    "not-annotated": "the annotations do not list it",
}
ABSENT = {"missing", "broken-link", "not-a-file", "unreadable"}
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "fine_label", "class", "class_name", "category", "cls", "target")
WITH_COMMA = re.compile(r"\s*[+-]?[0-9]+(,[0-9]+)+(\.[0-9]*)?\s*$")
LARGEST_FLOAT = 3.4028234663852886e38  # of float32, the type of stored float labels

Label = int | tuple[float, ...]
Locator = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """A column of the store, and the source of its values. Text is the argument of `--fields`."""

    column: Column  # what is stored, before text becomes tokens
    listed: bool = False  # whether the inputs have the values, in `values`; if not, a worker reads them: they are not in the plan
    ending: str = ""  # of the file, or the member of a tar, with an input's name, that holds the value
    path: tuple[str, ...] = ()  # else the names of the column of a table or archive that does, and of what is nested in it
    layout: str = ""  # how boxes and keypoints are given: "xyxy", "xywh", "cxcywh" or "xy"
    fractions: bool = False  # whether they are fractions of the sides of the upright image, not pixels
    typed: bool = True  # whether the caller gave the type; if not, `column` is text until the files tell another

    def __str__(self) -> str:
        return ".".join(self.path) + (f"={self.ending}" if self.ending else "")


@dataclass(frozen=True)
class Source:
    """One input."""

    name: str  # relative to the root, as Python decodes file names (surrogateescape)
    label: Label  # -1 if it has none
    size: int  # bytes, with its companions and the files of its fields; -1 if the file could not be examined
    problem: str = ""  # the reason why it cannot be used, if that is already known, perhaps with ": " and details
    locator: Locator = ()  # in an archive: the kind of archive, its path relative to the root, and the position in it
    values: tuple[Any, ...] = ()  # of listed fields; then for each member of a tar that is a field, its offset and size, or None
    companions: tuple[Source, ...] = ()  # its other images, then its mask, whose names are relative to further roots of the plan

    def __reduce__(self) -> Any:
        return type(self), tuple(trimmed(self))

    @property
    def container(self) -> str:
        """The file of which it is a part, relative to the root; "": none."""
        return str(self.locator[1]) if self.locator and self.locator[0] != "python" else ""


@dataclass(frozen=True)
class SourceList:
    """All inputs, in the order of the store, and the meaning of their labels."""

    root: AnyPath
    labels: Labels
    sources: Sequence[Source]
    skipped: Counter[str] = field(default_factory=Counter)  # how many files have other extensions, by extension
    labelled_by: str = ""  # what the labels were read from
    notes: tuple[str, ...] = ()  # lines to show to the user
    fields: tuple[Field, ...] = ()  # what belongs to each input
    selected: bool = False  # whether a table names the inputs, so that what belongs to others is no reject

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is stored of the fields."""
        return tuple(field.column for field in self.fields)


def is_image(name: str) -> bool:
    """Return whether a file name has the extension of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def is_number(text: str) -> bool:
    """Return whether a text is a number, such as "-1.5" or "nan". Python also reads 1_2 as one, which is a name in a table."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def to_float(text: str) -> float:
    """Return a number as a float. Raise ValueError if it is too large to be one."""
    number = float(text)
    if math.isinf(number) and any(map(str.isdigit, text)):
        raise ValueError(f"{text} is too large for a float")
    return number


def parse_json(text: str | bytes) -> Any:
    """Return a value of JSON. Raise ValueError if there is none, a number is too large for a float, or a key is there twice."""
    return json.loads(text, parse_float=to_float, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return found


def have_commas(texts: Collection[str]) -> bool:
    """Return whether there are texts, and all are numbers with commas, such as 1,5 or 1,234,567.8."""
    return bool(texts) and all(map(WITH_COMMA.match, texts))


def look(path: StrPath) -> tuple[int, str]:
    """Return the size of a file in bytes and ""; or -1 and why it cannot be used."""
    if isinstance(path, UrlPath):
        return path.look()
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return -1, "broken-link" if os.path.islink(path) else "missing"
    except ValueError:  # a name in a table with a zero byte
        return -1, "unreadable"
    except OSError as error:
        if not may_pass(error):
            return -1, "unreadable"
        raise PrepError(f"{os.fspath(path)} cannot be examined: {error.strerror}: is its disk there?") from error
    return (info.st_size, "") if stat.S_ISREG(info.st_mode) else (-1, "not-a-file")  # reading a pipe might never end


def nfc(text: str) -> str:
    """Return text in the form of Unicode in which names are compared: macOS writes "é" as two characters."""
    return unicodedata.normalize("NFC", text)


def path_key(name: str) -> str:
    """Return the form in which paths are compared: as by `nfc`, with separators of any system."""
    return os.path.normpath(nfc(name.replace("\\", "/")))


def as_spelled(root: AnyPath, name: str) -> str:
    """Return a path below a root as it exists: in its own form of Unicode, or else in another one."""
    if name.isascii():
        return name
    folder, slash, last = name.rpartition("/")
    ends = [slash + nfc(last), slash + unicodedata.normalize("NFD", last)]
    forms = [name, *(start + end for start in (folder, nfc(folder), unicodedata.normalize("NFD", folder)) for end in ends)]
    return next((form for form in forms if look(join(root, form))[1] != "missing"), name)


def read_bytes(path: AnyPath) -> bytes:
    """Read a file that lies beside the inputs. Raise OSError if it is no ordinary file: reading a pipe might never end."""
    if look(path)[1] == "not-a-file":
        raise OSError(errno.EINVAL, "it is no ordinary file")
    return path.read_bytes()


def read_json(path: AnyPath) -> Any:
    """Return what a file of JSON beside the inputs says; None if there is none, or it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(read_bytes(path))
    return None


class SplitsError(PrepError):
    """A SOURCE holds several splits, which would be mixed. The message lists the commands to type for each.

    splits: what to give as SOURCE for each, by its name. column: whether they are of a column of a table. classes: whether there
    may be classes, which all must share. beside: an input that belongs to none, or "".
    """

    def __init__(
        self, source: AnyPath, splits: dict[str, str], *, column: bool = False, classes: bool = True, beside: str = ""
    ) -> None:
        names = sorted(splits, key=lambda name: not name.lower().startswith("train"))  # the others reuse the classes of train
        self.splits, self.column, self.beside = {name: splits[name] for name in names}, column, beside
        self.stem = source.stem if column else source.absolute().name
        more = f", and beside them {beside}" if beside else ""
        text = f"{source} holds {' and '.join(names)} side by side{more}, which would be mixed; "
        text += "prepare each by itself, with your options:"
        for name in names:
            command = ["fastdata-prep", splits[name], f"{self.stem}-{name}.fds", *["--split", name] * column]
            command += ["--classes", f"{self.stem}-{names[0]}.fds"] * (classes and name != names[0])
            text += f"\n  {shlex.join(command)}"
        super().__init__(text)


# Columns of tables


def find_column(columns: Iterable[str], names: Sequence[str]) -> str:
    """Return the first column with the first of these names, in any case; "": there is none."""
    lower = {str(column).lower(): column for column in reversed([*columns])}
    return next((lower[name] for name in names if name in lower), "")


def choose_label(columns: Sequence[str], wanted: str, where: object, likely: Sequence[str] = ()) -> str:
    """Return the column of labels: the one that the caller names, a usual one, or the only likely one; "": there is none."""
    if wanted not in ("", NO_LABELS, *columns):
        raise PrepError(f"--label-column {wanted}: {where} has no such column; it has {', '.join(map(str, columns))}")
    if wanted:
        return wanted if wanted in columns else ""
    return find_column(columns, LABELS) or (likely[0] if len(likely) == 1 else "")


# What a run tells of its inputs


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def not_stored(columns: Sequence[str], stored: str) -> str:
    """Return a note that columns are left out. stored: which columns are stored."""
    count = len(columns)
    return f"{count} column{'s are' if count > 1 else ' is'} not stored: {listed(columns)} ({stored})"


def label_notes(inputs: SourceList, *, masks: bool, no_labels: bool) -> Iterator[str]:
    """Yield notes on the labels. masks: inputs have masks, and so need no labels. no_labels: the caller asked for none."""
    by, names = f" from {inputs.labelled_by}" if inputs.labelled_by else "", inputs.labels.names
    if inputs.labels.kind == "vector":
        yield f"labels: {number_of(len(names), 'float')}{by}: {listed(names)}"
    elif inputs.labels.kind == "class":
        used = Counter(s.label for s in inputs.sources if isinstance(s.label, int) and not s.problem)
        yield f"labels: {number_of(len(names), 'class')}{by}: {listed(names)}"
        if empty := [name for k, name in enumerate(names) if not used[k]]:
            yield f"classes without a sample: {len(empty)} ({listed(empty)})"
        if len(used) == 1 and used.total() > 1:
            more = f" One folder for each class, {FLAT} would give more" if inputs.labelled_by == FOLDERS else ""
            yield f"all samples have one class, {names[next(iter(used))]}: is this intended?{more}"
    elif not masks:
        archive = "--label-column COLUMN, if the archive has columns, or --label-from '([a-z]+)_', whose group is the class"
        how = archive if any(source.locator for source in inputs.sources) else f"one folder for each class, {FLAT}"
        yield "labels: none, so targets will be -1" + ("" if no_labels else f". To add labels: {how}")


def reason_of(problem: str) -> str:
    """Return the reason of a problem, which may have details."""
    return problem.partition(": ")[0]


def detail_of(problem: str) -> str:
    """Return the details of a problem, or a sentence for its reason. They contain no path: a store is the same everywhere."""
    return problem.partition(": ")[2] or DETAILS.get(problem, "it was found so when the inputs were listed")


def tried_path(root: AnyPath, reason: str, name: str) -> str:
    """Return where a missing input was looked for, to add to its reason; "" for other reasons."""
    return f" (tried {join(root, name).absolute()})" if reason in ABSENT else ""


def nothing_kept(inputs: int, rejected: Mapping[str, int], first: str) -> PrepError:
    """Make the error of a run that keeps no input. first: the first input and why it was rejected."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(rejected.items(), key=lambda item: -item[1]))
    hint = "; the paths of a table are relative to its folder, or to --root FOLDER" if rejected.keys() <= ABSENT else ""
    return PrepError(f"none of {inputs} inputs can be used ({reasons}), so no store was made; the first: {first}{hint}")
