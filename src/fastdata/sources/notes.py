"""What a run tells of its inputs: what their labels are, which columns are not stored, and why inputs cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fastdata.errors import PrepError
from fastdata.sources.inputs import FOLDERS, SourceList
from fastdata.sources.urls import AnyPath, join
from fastdata.words import number_of

__all__ = ["detail_of", "label_notes", "listed", "not_stored", "nothing_kept", "reason_of", "tried_path"]

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
    "item-error": "reading it raised an error",
    "two-images": "it has more than one image",
    "no-field": "it has no such column; --field names it",
    "not-listed": "the table of --labels does not list it",
    "not-annotated": "the annotations do not list it",
    "annotated-size": "the annotations are of an image of another size",
}
ABSENT = {"missing", "broken-link", "not-a-file", "unreadable"}


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def not_stored(columns: Sequence[str], stored: str) -> str:
    """Return a note that columns are left out. stored: which columns are stored."""
    count = len(columns)
    return f"{count} column{'s are' if count > 1 else ' is'} not stored: {listed(columns)} ({stored})"


def label_notes(inputs: SourceList, *, masks: bool, meant: bool) -> Iterator[str]:
    """Yield notes on the labels. masks: inputs have masks, and so need no labels. meant: the caller asked for no labels."""
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
        how = archive if any(source.place for source in inputs.sources) else f"one folder for each class, {FLAT}"
        yield "labels: none, so targets will be -1" + ("" if meant else f". To add labels: {how}")


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
