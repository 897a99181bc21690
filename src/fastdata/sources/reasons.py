"""Reasons why an input cannot be used that are known before it is read, and the error of a run that keeps nothing."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, look
from fastdata.sources.urls import AnyPath, join

__all__ = ["detail_of", "nothing_kept", "reason_of", "refuse_unusable", "tried_path"]

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
ENDING = re.compile(r"\.[A-Za-z]\w*$")
ABSENT = ("missing", "broken-link", "not-a-file", "unreadable")


def reason_of(problem: str) -> str:
    """Return the reason of a problem, which may have details."""
    return problem.partition(": ")[0]


def detail_of(problem: str) -> str:
    """Return the details of a problem, or a sentence for its reason. They contain no path: a store is the same everywhere."""
    if detail := problem.partition(": ")[2]:
        return detail
    return DETAILS.get(problem, "it was found so when the inputs were listed")


def tried_path(root: AnyPath, reason: str, name: str) -> str:
    """Return where a missing input was looked for, to add to its reason; "" for other reasons."""
    return f" (tried {join(root, name).absolute()})" if reason in ABSENT else ""


def refuse_unusable(sources: Sequence[Source], root: AnyPath, *, table: bool, told: bool) -> None:
    """Raise PrepError if every input has a problem. table: a table names the inputs. told: the caller gave `root`."""
    if not sources or not all(source.problem for source in sources):
        return
    first = sources[0]
    message = f"{first.name}: {reason_of(first.problem)}: {detail_of(first.problem)}"
    message += "" if first.place else tried_path(root, first.problem, first.name)
    if table and first.problem in ABSENT:
        message += f"; paths are relative to --root {root}" if told else _other_roots(first.name)
        if not ENDING.search(first.name):
            message += "; a table without paths is not prepared: TableDataset reads it"
    raise nothing_kept(len(sources), Counter(reason_of(source.problem) for source in sources), message)


def _other_roots(name: str) -> str:
    here = f", and --root {os.curdir} would find this one" if not look(name)[1] else ""
    return f"; paths are relative to the folder of the table, or to --root FOLDER{here}"


def nothing_kept(inputs: int, rejected: Mapping[str, int], first: str) -> PrepError:
    """Make the error of a run that keeps no input. first: the first input and why it was rejected."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(rejected.items(), key=lambda item: -item[1]))
    return PrepError(f"none of {inputs} inputs can be used ({reasons}), so no store was made; the first: {first}")
