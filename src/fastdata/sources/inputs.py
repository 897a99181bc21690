"""Inputs, which are files or parts of archives; lists of inputs, in little memory; and notes on inputs."""

from __future__ import annotations

import pickle
import shlex
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.urls import AnyPath, join
from fastdata.store.columns import Column
from fastdata.store.manifest import Labels
from fastdata.types import Array
from fastdata.words import number_of

T = TypeVar("T")

BLOCK = 32  # items that are compressed together: reading one of them out of order unpacks them all
SHUFFLE_SEED = 0  # it determines the bytes of a store, so it must never change


class Packed(Sequence[T]):
    """A compressed sequence of values that can be pickled. Do not change the values that it returns."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._data = bytearray()
        self._ends = array("Q", [0])  # of the blocks
        self._last: list[T] = []  # items that do not fill a block yet
        self._read: tuple[int, list[T]] = -1, []  # the block that was read last, and its number
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
        return (len(self._ends) - 1) * BLOCK + len(self._last)

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return self._item(found) if isinstance(found, int) else tuple(map(self._item, found))

    def __iter__(self) -> Iterator[T]:
        return (item for number in range(len(self._ends)) for item in self._block(number))

    def _item(self, index: int) -> T:
        return self._block(index // BLOCK)[index % BLOCK]

    def _block(self, number: int) -> list[T]:
        if number == len(self._ends) - 1:
            return self._last
        read = self._read
        if read[0] != number:
            begin, end = self._ends[number : number + 2]
            self._read = read = number, pickle.loads(zlib.decompress(memoryview(self._data)[begin:end]))
        return read[1]

    def taken(self, indices: Array) -> Packed[T]:
        """Return the items at some indices. This is slow if the indices lie far apart."""
        return Packed(map(self._item, indices.tolist()))


def shuffled(sources: Packed[Any], *, remote: bool = False) -> Packed[Any]:
    """Return inputs in an order that depends on their count alone: by the checksum of each one's index."""
    kind, file = getattr(sources[0], "locator", ())[:2] or ("", "") if sources else ("", "")  # an archive is not mixed with others
    if kind == "parquet" or (kind == "arrow" and remote):
        instead = "prepare it with --order listed, export the store (fastdata export), and prepare the export with --order shuffled"
        raise PrepError(f"shuffling {file} would read a large part of it for each input: {instead}")
    keys = (xxhash.xxh3_64_intdigest(k.to_bytes(8, "little"), SHUFFLE_SEED) for k in range(len(sources)))
    return sources.taken(np.argsort(np.fromiter(keys, np.uint64, len(sources)), kind="stable"))


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


SPLITS = frozenset("train training val valid validation test testing dev eval".split())
FOLDERS = "the folders"  # the `labelled_by` of inputs in class folders
SHOWN = 5
FLAT = "a .csv with columns path,label (as SOURCE or --labels), or --label-from '(n\\d+)_', whose group is the class"
DETAILS = {
    "missing": "there is no such file",
    "broken-link": "it is a link to a file that is not there",
    "unreadable": "it cannot be examined: its name or permissions forbid it",
    "not-a-file": "it is no ordinary file",
    "no-label": "it has no label, unlike other inputs",
    "not-finite": "its label is not a finite number, or is too large for float32",
    "no-image": "it has no image",
    "two-images": "it has more than one image",
    "not-listed": "the table of --labels does not list it",
    "not-annotated": "the annotations do not list it",
}
ABSENT = {"missing", "broken-link", "not-a-file", "unreadable"}

Label = int | tuple[float, ...]
Locator = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """A column of the store, and the source of its values. `str()` gives the argument of `--fields` without the type."""

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
        """The archive that holds the input, relative to the root, or ""."""
        return str(self.locator[1]) if self.locator and self.locator[0] != "python" else ""


@dataclass(frozen=True)
class SourceList:
    """All inputs, in their listed order, and the meaning of their labels."""

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
        """The columns of the fields."""
        return tuple(field.column for field in self.fields)


class SplitsError(PrepError):
    """A SOURCE holds several splits, which would be mixed. The message lists the commands to type for each.

    splits: what to give as SOURCE for each, by its name. column: whether a table's column names them. classes: whether
    splits may have classes, which have to be the same. beside: an input that belongs to no split, or "".
    """

    def __init__(
        self, source: AnyPath, splits: dict[str, str], *, column: bool = False, classes: bool = True, beside: str = ""
    ) -> None:
        names = sorted(splits, key=lambda name: not name.lower().startswith("train"))  # the others reuse the classes of train
        self.splits, self.column, self.beside = {name: splits[name] for name in names}, column, beside
        self.stem = source.stem if column else source.absolute().name
        more = f" (beside them: {beside})" if beside else ""
        text = f"{source} holds {' and '.join(map(shlex.quote, names))} side by side{more}, which would be mixed; "
        text += "prepare each split by itself, with your options:"
        for name in names:
            command = ["fastdata-prep", splits[name], f"{self.stem}-{name}.fds", *["--split", name] * column]
            command += ["--classes", f"{self.stem}-{names[0]}.fds"] * (classes and name != names[0])
            text += f"\n  {shlex.join(command)}"
        super().__init__(text)


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
            more = f" One folder for each class, {FLAT}, would give more classes" if inputs.labelled_by == FOLDERS else ""
            yield f"all samples have the same class, {names[next(iter(used))]}: is this intended?{more}"
    elif not masks:
        archive = "--label-column COLUMN, if SOURCE has columns, or --label-from '([a-z]+)_', whose group is the class"
        how = archive if any(source.locator for source in inputs.sources) else f"one folder for each class, {FLAT}"
        yield "labels: none, so targets will be -1" + ("" if no_labels else f". To add labels: {how}")


def reason_of(problem: str) -> str:
    """Return the reason of a problem, without its details."""
    return problem.partition(": ")[0]


def detail_of(problem: str) -> str:
    """Return a problem's details, or a sentence for its reason. Neither has an absolute path: a store is the same everywhere."""
    return problem.partition(": ")[2] or DETAILS.get(problem, "this problem was found when inputs were listed")


def tried_path(root: AnyPath, reason: str, name: str) -> str:
    """Return where a missing input was looked for, to add to its reason; "" for other reasons."""
    return f" (tried {join(root, name).absolute()})" if reason in ABSENT else ""
