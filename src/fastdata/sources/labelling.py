"""Replace the labels of a list of inputs: by a pattern in their paths, by none, or by the numbering of another store."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.inputs import SourceList
from fastdata.sources.packed import PackedInputs
from fastdata.sources.path_table import class_names, relabelled
from fastdata.store.format import Labels, read_current

__all__ = ["with_classes", "with_pattern", "without_labels"]


def with_pattern(inputs: SourceList, pattern: str) -> SourceList:
    """Label each input with the class that the pattern's group matches in its path, or with none if nothing matches.

    Raises:
        PrepError: `pattern` is not a regular expression with one group, or matches no path.
    """
    option = f"--label-from '{pattern}'"
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise PrepError(f"{option} is not a regular expression: {error}") from None
    if regex.groups != 1:
        raise PrepError(
            f"{option} has {regex.groups} groups, but needs one pair of parentheses around what the class is, such as '(n\\d+)_'; "
            "others can be written (?:...)"
        )
    matches = (regex.search(source.name) for source in inputs.sources)
    classes = [sys.intern((match[1] or "") if match else "") for match in matches]
    if not any(classes):
        example = f", such as {inputs.sources[0].name}" if inputs.sources else ""
        raise PrepError(f"{option} finds a class in none of {len(classes)} paths{example}")
    names = class_names(option, {name for name in classes if name})
    number = {name: k for k, name in enumerate(names)}
    sources = PackedInputs(
        relabelled(source, number.get(name, -1), has_label=bool(name)) for source, name in zip(inputs.sources, classes, strict=True)
    )
    return replace(inputs, labels=Labels("class", names), sources=sources, labelled_by=option)


def without_labels(inputs: SourceList) -> SourceList:
    """Remove the labels, so that no input needs one."""
    sources = PackedInputs(relabelled(source, -1, has_label=True) for source in inputs.sources)
    return replace(inputs, labels=Labels("none"), sources=sources, labelled_by="")


def with_classes(inputs: SourceList, store: Path) -> SourceList:
    """Number the classes as in another store.

    Raises:
        PrepError: the inputs or the store have no classes, or the store lacks one of them.
    """
    if inputs.labels.kind != "class":
        raise PrepError(f"--classes {store} needs classes in SOURCE, which has labels of kind {inputs.labels.kind!r}")
    labels = read_current(store)[1].labels
    if labels.kind != "class":
        raise PrepError(f"--classes {store}: that store has no classes, its labels are of kind {labels.kind!r}")
    number = {name: k for k, name in enumerate(labels.names)}
    classes = [inputs.labels.names[s.label] if isinstance(s.label, int) and s.label >= 0 else None for s in inputs.sources]
    if unknown := sorted({name for name in classes if name is not None and name not in number}):
        raise PrepError(
            f"SOURCE has classes that {store} does not have: {', '.join(unknown[:5])}; it has {len(labels.names)} classes"
        )
    sources = PackedInputs(
        replace(source, label=-1 if name is None else number[name]) for source, name in zip(inputs.sources, classes, strict=True)
    )
    return replace(inputs, labels=labels, sources=sources)
