"""Notes to the user on a list of inputs: what its labels are, and which columns are not stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from fastdata.errors import PrepError
from fastdata.sources.inputs import FOLDERS, SourceList
from fastdata.sources.options import NO_LABELS
from fastdata.words import number_of

__all__ = ["label_notes", "listed", "not_stored", "refuse_captions"]

SHOWN = 5
CAPTION_WORDS, CAPTION_CHARS = 4, 40  # captions reach one of these medians
MANY_CLASSES, FEW_EACH = 20, 2
FLAT = "a .csv file of path,label as SOURCE or as --labels FILE, or --label-from '(n\\d+)_', whose group is the class"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def not_stored(columns: Sequence[str], stored: str) -> str:
    """Return a note that columns are left out. stored: which columns are stored."""
    count = len(columns)
    return f"{count} column{'s are' if count > 1 else ' is'} not stored: {listed(columns)} ({stored})"


def refuse_captions(texts: Iterable[str], by: str) -> None:
    """Raise PrepError if the names of the classes are long texts that rarely repeat. by: what they were read from."""
    names = Counter(texts)
    if len(names) < 2 or len(names) * 2 <= names.total():
        return
    if median(len(name.split()) for name in names) < CAPTION_WORDS and median(map(len, names)) < CAPTION_CHARS:
        return
    raise PrepError(
        f'{by} holds {len(names)} different texts in {names.total()} rows, such as "{next(iter(names)):.60}": they look like '
        "captions, and each would become a class. Name the column of labels with --label-column (this one too, if these are "
        f"classes), or prepare without labels: --label-column {NO_LABELS}"
    )


def label_notes(inputs: SourceList, *, masks: bool, meant: bool) -> Iterator[str]:
    """Yield notes on the labels. masks: inputs have masks, and so need no labels. meant: the caller asked for no labels."""
    by = f" from {inputs.labelled_by}" if inputs.labelled_by else ""
    if inputs.labels.kind == "class":
        yield from _class_notes(inputs, by)
    elif inputs.labels.kind == "vector":
        yield f"labels: {number_of(len(inputs.labels.names), 'float')}{by}: {listed(inputs.labels.names)}"
    elif not masks:
        yield "labels: none, so targets will be -1" + (f". To add labels: {_remedies(inputs)}" if not meant else "")


def _remedies(inputs: SourceList) -> str:
    if any(source.place for source in inputs.sources):
        return "--label-column COLUMN, if the archive has columns, or --label-from '([a-z]+)_', whose group is the class"
    return f"one folder for each class, {FLAT}"


def _class_notes(inputs: SourceList, by: str) -> Iterator[str]:
    names = inputs.labels.names
    used = Counter(s.label for s in inputs.sources if isinstance(s.label, int) and not s.problem)
    images = sum(used.values())
    yield f"labels: {number_of(len(names), 'class')}{by}: {listed(names)}"
    if empty := [name for k, name in enumerate(names) if not used[k]]:
        yield f"classes without a sample: {len(empty)} ({listed(empty)})"
    if len(used) == 1 and images > 1:
        more = f" One folder for each class, {FLAT} would give more" if inputs.labelled_by == FOLDERS else ""
        yield f"all samples have one class, {names[next(iter(used))]}: is this intended?{more}"
    if len(used) >= MANY_CLASSES and images < FEW_EACH * len(used):
        yield f"{images} samples have {len(used)} classes, {images / len(used):.1f} samples each: are these labels?"
