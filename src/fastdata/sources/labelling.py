"""Labels that do not lie beside their inputs: from paths by a pattern, none at all, or numbered as in another store."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.inputs import SourceList
from fastdata.sources.path_table import class_names
from fastdata.store.format import Labels, read_manifest

__all__ = ["with_classes", "with_pattern", "without_labels"]


def with_pattern(found: SourceList, pattern: str) -> SourceList:
    """The same inputs, each with the class that the pattern's group finds in its path. Where it finds nothing, there is no label.

    Raises:
        PrepError: it is no pattern with one group, or finds nothing anywhere.
    """
    option = f"--label-from '{pattern}'"
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise PrepError(f"{option} is no regular expression: {error}") from None
    if regex.groups != 1:
        raise PrepError(
            f"{option} has {regex.groups} groups, but needs one pair of parentheses around what the class is, such as '(n\\d+)_'; "
            "others can be written (?:...)"
        )
    matches = [regex.search(source.name) for source in found.sources]
    classes = [(match[1] or "") if match else "" for match in matches]
    if not any(classes):
        example = f", such as {found.sources[0].name}" if found.sources else ""
        raise PrepError(f"{option} finds a class in none of {len(classes)} paths{example}")
    names = class_names(option, {name for name in classes if name})
    number = {name: k for k, name in enumerate(names)}
    sources = [
        replace(source, label=number.get(name, -1), problem=_problem(source.problem, has_label=bool(name)))
        for source, name in zip(found.sources, classes, strict=True)
    ]
    return replace(found, labels=Labels("class", names), sources=sources, labelled_by=option)


def without_labels(found: SourceList) -> SourceList:
    """The same inputs; none needs a label."""
    sources = [replace(source, label=-1, problem=_problem(source.problem, has_label=True)) for source in found.sources]
    return replace(found, labels=Labels("none"), sources=sources, labelled_by="")


def _problem(problem: str, *, has_label: bool) -> str:
    if problem not in ("", "no-label"):
        return problem
    return "" if has_label else "no-label"


def with_classes(found: SourceList, store: Path) -> SourceList:
    if found.labels.kind != "class":
        raise PrepError(f"--classes {store} needs classes in SOURCE, which has labels of kind {found.labels.kind!r}")
    wanted = read_manifest(store).labels
    if wanted.kind != "class":
        raise PrepError(f"--classes {store}: that store has no classes, its labels are of kind {wanted.kind!r}")
    used = {found.labels.names[s.label] for s in found.sources if isinstance(s.label, int) and s.label >= 0}
    if unknown := sorted(used - set(wanted.names)):
        raise PrepError(
            f"SOURCE has classes that {store} does not have: {', '.join(unknown[:5])}; it has {len(wanted.names)} classes"
        )
    number = {name: k for k, name in enumerate(wanted.names)}
    sources = [
        replace(s, label=number[found.labels.names[s.label]] if isinstance(s.label, int) and s.label >= 0 else -1)
        for s in found.sources
    ]
    return replace(found, labels=wanted, sources=sources)
