"""What the caller shall know of a list of inputs: what its labels are, and what of it is not stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from fastdata.errors import PrepError
from fastdata.sources.inputs import FOLDERS, SourceList
from fastdata.sources.options import NO_LABELS

__all__ = ["label_notes", "listed", "not_stored", "refuse_captions"]

SHOWN = 5
CAPTION_WORDS, CAPTION_CHARS = 4, 40  # at least one of these, in half of the texts
MANY_CLASSES, FEW_EACH = 20, 2
FLAT = "a .csv file of path,label as SOURCE or as --labels FILE, or --label-from '(n\\d+)_', whose group is the class"


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def not_stored(columns: Sequence[str], stored: str) -> str:
    """That columns are left out. stored: what is not."""
    count = len(columns)
    return f"{count} column{'s are' if count > 1 else ' is'} not stored: {listed(columns)} ({stored})"


def refuse_captions(texts: Sequence[str], by: str) -> None:
    """Raise PrepError where the names of classes are long texts that hardly ever come twice. by: what they were read from."""
    names = set(texts)
    if len(names) < 2 or len(names) * 2 <= len(texts):
        return
    if median(len(name.split()) for name in names) < CAPTION_WORDS and median(map(len, names)) < CAPTION_CHARS:
        return
    raise PrepError(
        f'{by} holds {len(names)} different texts in {len(texts)} rows, such as "{texts[0]:.60}": they read as captions, and each '
        f"would become a class. Name the column of labels with --label-column (this one too, if these are classes), or prepare "
        f"without labels: --label-column {NO_LABELS}"
    )


def label_notes(found: SourceList, *, masks: bool, meant: bool) -> Iterator[str]:
    """What the labels are. masks: each input has one, and needs no label. meant: the caller asked for none."""
    by = f" from {found.labelled_by}" if found.labelled_by else ""
    if found.labels.kind == "class":
        yield from _class_notes(found, by)
    elif found.labels.kind == "vector":
        count = len(found.labels.names)
        yield f"labels: {count} float{'s' * (count != 1)}{by}: {listed(found.labels.names)}"
    elif not masks:
        yield "labels: none, so that targets will be -1" + (f". What gives labels: {_remedies(found)}" if not meant else "")


def _remedies(found: SourceList) -> str:
    if any(source.place for source in found.sources):
        return "--label-column COLUMN, where the archive has columns, or --label-from '([a-z]+)_', whose group is the class"
    return f"one folder for each class, {FLAT}"


def _class_notes(found: SourceList, by: str) -> Iterator[str]:
    names = found.labels.names
    used = Counter(s.label for s in found.sources if isinstance(s.label, int) and not s.problem)
    images = sum(used.values())
    yield f"labels: {len(names)} class{'es' * (len(names) != 1)}{by}: {listed(names)}"
    if empty := [name for k, name in enumerate(names) if not used[k]]:
        yield f"classes without a sample: {len(empty)} ({listed(empty)})"
    if len(used) == 1 and images > 1:
        more = f" One folder for each class, {FLAT} would give more" if found.labelled_by == FOLDERS else ""
        yield f"all samples are of one class, {names[next(iter(used))]}: is this meant?{more}"
    if len(used) >= MANY_CLASSES and images < FEW_EACH * len(used):
        yield f"{images} samples of {len(used)} classes are {images / len(used):.1f} for each: are these labels?"
