"""The labels of a store: one rule that turns labels of any source into classes or numbers."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fastdata.errors import PrepError
from fastdata.sources.files import LARGEST_FLOAT, have_commas, is_number, nfc
from fastdata.sources.inputs import Label, Packed, Source, SourceList
from fastdata.sources.options import LabelOptions
from fastdata.store.manifest import Labels, read_current
from fastdata.types import StrPath

Value = Any  # as a source has it: a number, text, numbers in a list or array, or None: the input has no label
Values = Sequence[Value]
Encode = Callable[[Value], tuple[Label, str]]  # returns the label and the problem of the input
Type = Literal["folders", "values", "numbers"]

MAX_CLASS = 65_534  # the largest class number that is kept
CLASSES_PER_USED_CLASS = 10  # a class number may be so many times the count of those that occur
BOOLEANS = ("False", "True")
WHOLE, BELOW = re.compile(r"0|[1-9][0-9]*"), re.compile(r"-[1-9][0-9]*")


class NoClassesError(PrepError):
    """Classes are given for inputs that have no labels."""


class UnknownClassError(PrepError):
    """Labels have a class that is not among the given ones."""


def encode_labels(
    values: Iterable[Value], type: Type, classes: Sequence[str] | None = None, *, names: Sequence[str] = (), by: str = ""
) -> tuple[Labels, Encode]:
    """Return the meaning of labels (docs/inputs.md), and a function that returns a value's label, and its problem or "".

    type: "folders": digits are names too, sorted as text; "numbers": float32 targets. names: the classes that the source gives
    for whole numbers, or the names of a target's numbers. by: what the labels were read from, for messages.
    """
    by = by or "the source"
    if type == "numbers":
        if classes is not None:
            raise PrepError("--classes names classes, but --regression asks for numbers to predict: give only one of the two")
        return _encode_numbers(values, names, by)
    clean = partial(_clean, by)
    used = dict.fromkeys(map(clean, values))
    used.pop(None, None)
    below = {value for value in used if BELOW.fullmatch(str(value))}
    if names or (classes is None and len(below) == len(used)):
        used = dict.fromkeys(value for value in used if value not in below)
    if not used:
        if classes is not None:
            raise NoClassesError(f"--classes names classes, but {by} gives no labels: leave out --classes")
        return Labels("none"), lambda value: (-1, "")
    if len({isinstance(value, str) for value in used}) > 1:
        whole, text = (next(repr(value) for value in used if isinstance(value, kind)) for kind in (int, str))
        raise PrepError(f"labels of {by} are partly whole numbers, such as {whole}, partly text, such as {text}: write all as text")
    known = {*names}
    named: dict[object, str] = {value: _name(value, names, by) if names and value not in known else str(value) for value in used}
    order = tuple(names) or _ordered(named, by, whole=type == "values") if classes is None else tuple(classes)
    if twice := [name for name, count in Counter(map(nfc, order)).items() if count > 1]:
        raise PrepError(f"the class {twice[0]!r} comes more than once in {by if classes is None else '--classes'}: name each once")
    number = {form(name): k for form in (str.strip, nfc) for k, name in enumerate(order)}
    found = {value: number.get(nfc(name), -1) for value, name in named.items()}
    if unknown := sorted({named[value] for value, k in found.items() if k < 0}):
        has = f"--classes has {len(order)}: {', '.join(order[:5])}"
        raise UnknownClassError(f"{by} has classes that --classes does not have: {', '.join(unknown[:5])}; {has}")

    def encode(value: Value) -> tuple[Label, str]:
        label = found.get(clean(value), -1)
        return label, "" if label >= 0 else "no-label"

    return Labels("class", order), encode


def _clean(by: str, value: Value) -> int | str | None:
    """Return the value of a label as a class, or None for values that mean no label."""
    if type(value) is str:  # of most inputs
        return sys.intern(value.strip()) or None
    value = _plain(value, by)
    if isinstance(value, tuple) and any(isinstance(one, str) for one in value):
        raise _no_label(by, value)
    if isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float | tuple):  # also 1.0, which equals 1
        raise _no_classes(by, value)
    return value if isinstance(value, str) else int(value)


def _plain(value: Value, by: str) -> Any:
    """Return a label as a value of Python: text without blanks around it, a number, a tuple of these, or None."""
    if isinstance(value, str):
        return sys.intern(str(value).strip()) or None
    value = value.tolist() if hasattr(value, "tolist") else value  # of numpy or torch
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(one, by) for one in value)
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    raise _no_label(by, value)


def _no_label(by: str, value: object) -> PrepError:
    wanted = "labels are numbers, lists of numbers, or text; name another column, or give --label-column none"
    return PrepError(f"{by} holds a {type(value).__name__}, but {wanted}")


def _no_classes(by: str, value: object) -> PrepError:
    classes = "for classes, use whole numbers >= 0, or text that --classes lists"
    found = f"{by}: some labels are numbers that cannot stand for classes, such as {value!r}"
    return PrepError(f"{found}: to predict numbers, name their column with --regression; {classes}")


def _name(value: object, names: Sequence[str], by: str) -> str:
    """Return the class name at the index that a label gives."""
    text = str(BOOLEANS.index(value)) if value in BOOLEANS else str(value)
    if not WHOLE.fullmatch(text) or int(text) >= len(names):
        raise PrepError(f"the label {value!r} has no name: {by} has {len(names)} classes, such as {', '.join(names[:5])}")
    return names[int(text)]


def _ordered(named: Mapping[object, str], by: str, *, whole: bool) -> tuple[str, ...]:
    """Return the names of all classes in their order. whole: integers are the class numbers."""
    texts = named.values()
    if whole and {*texts} <= {*BOOLEANS}:
        return BOOLEANS
    if whole and all(map(WHOLE.fullmatch, texts)):
        count = max(map(int, texts)) + 1
        if count > (limit := min(MAX_CLASS + 1, CLASSES_PER_USED_CLASS * len(named))):
            found = f"{by}: {len(named)} different whole numbers occur as labels, the largest is {count - 1}"
            raise PrepError(f"{found}. Without --classes FILE or STORE, labels must be below {limit}")
        return tuple(map(str, range(count)))
    odd = [value for value, text in named.items() if not (text.isascii() and text.isdigit())]
    if whole and ((odd and all(map(is_number, texts))) or have_commas(texts)):
        raise _no_classes(by, min(odd))  # type: ignore[type-var]
    return tuple(sorted({*map(nfc, texts)}))


def _encode_numbers(values: Iterable[Value], names: Sequence[str], by: str) -> tuple[Labels, Encode]:
    """Encode float32 targets. The numbers of several columns come as one sequence for each input."""
    lengths = {len(target) for value in values if (target := _target(value, by)) is not None}
    if not lengths:
        raise PrepError(f"--regression {' and '.join(names)}: there are no numbers in {by}")
    if len(lengths) > 1 or 0 in lengths:
        which = ", ".join(f"some have length {count}" for count in sorted(lengths))
        raise PrepError(f"the targets of {by} must be lists of numbers of equal length > 0, but {which}")
    (count,) = lengths

    def encode(value: Value) -> tuple[Label, str]:
        target = _target(value, by)
        if target is None:
            return (math.nan,) * count, "no-label"
        return target, "" if all(abs(number) <= LARGEST_FLOAT for number in target) else "not-finite"  # nor is NaN

    return Labels("vector", tuple(names) if len(names) == count else tuple(f"label{k}" for k in range(1, count + 1))), encode


def _target(value: Value, by: str) -> tuple[float, ...] | None:
    """Return the numbers to predict, or None if any of them is missing."""
    value = _plain(value, by)
    cells = value if isinstance(value, tuple) else (value,)
    if None in cells:
        return None
    if odd := [cell for cell in cells if not isinstance(cell, int | float) and not is_number(str(cell))]:
        raise PrepError(f"--regression: {by} holds {odd[0]!r}, which is no number; for classes, use --label-column")
    return tuple(map(float, cells))


def read_classes(classes: StrPath | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of classes in their order, from a store, from a text file with one on each line, or as they are given."""
    if classes is None:
        return None
    if not isinstance(classes, str | os.PathLike):
        names = tuple(map(str, classes))
    elif (path := Path(classes)).is_dir():
        labels = read_current(path)[1].labels
        if labels.kind != "class":
            raise PrepError(f"--classes {path}: the store has no classes: its labels are of kind {labels.kind!r}")
        return labels.names
    else:
        try:
            names = tuple(filter(None, map(str.strip, path.read_text("utf-8-sig").splitlines())))
        except (OSError, ValueError) as error:
            raise PrepError(f"--classes {path} is neither a store, nor a text file with a name on each line: {error}") from None
    if not names:
        raise PrepError("--classes names no class")
    return names


def with_pattern(inputs: SourceList, options: LabelOptions) -> SourceList:
    """Label each input with the class that the group of --label-from matches in its path, or with none if nothing matches."""
    option = f"--label-from '{options.label_from}'"
    try:
        regex = re.compile(nfc(options.label_from or ""))
    except re.error as error:
        raise PrepError(f"{option} is not a regular expression: {error}") from None
    if regex.groups != 1:
        raise PrepError(f"{option} has {regex.groups} groups, but needs one, around the class, such as '(n\\d+)_'")
    matches = (regex.search(nfc(source.name)) for source in inputs.sources)
    found = [sys.intern((match[1] or "") if match else "") for match in matches]
    if not any(found):
        example = f", such as {inputs.sources[0].name}" if inputs.sources else ""
        raise PrepError(f"{option} finds a class in none of {len(found)} paths{example}")
    return with_labels(inputs, found, options, by=option)


def with_labels(
    inputs: SourceList, values: Values, options: LabelOptions, *, type: Type = "values", names: Sequence[str] = (), by: str = ""
) -> SourceList:
    """Return the inputs, each labelled with its value as the options ask; names, by: see `encode_labels`."""
    type, names = ("numbers", names or options.regression) if options.regression else (type, names)
    if options.no_labels:
        labels, encode = encode_labels((), type)
        values = [None] * len(inputs.sources)
    else:
        labels, encode = encode_labels(values, type, read_classes(options.classes), names=names, by=by)

    def labelled(source: Source, value: Value) -> Source:
        label, problem = encode(value)
        own = source.problem not in ("", "no-label")  # which is not about labels
        return replace(source, label=label, problem=source.problem if own else problem)

    return replace(inputs, labels=labels, sources=Packed(map(labelled, inputs.sources, values)), labelled_by=by)
