"""Labels as archives have them, as a store has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastdata.errors import PrepError
from fastdata.sources.inputs import Label, fits_float
from fastdata.store.format import Labels

__all__ = ["Value", "number_labels", "text_label"]

Value = int | str | tuple[float, ...] | None
MOST_CLASSES = 1 << 16  # that get a name only because a larger number is there


def text_label(text: str) -> Value:
    """A number where the text is one, else the name of a class."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text or None


def number_labels(values: Sequence[Value], names: Sequence[str] = ()) -> tuple[Labels, list[Label], list[str]]:
    """What the labels mean, the label of each input, and the problem of those that have none among others that have.

    Numbers of classes stay what they are; below 0 they stand for no label. Names are numbered in their order, vectors must have the
    same length, and finite values. `names`: of the numbered classes, or of the values in a vector.

    Raises:
        PrepError: vectors among others, or a number that has no name.
    """
    values = [None if isinstance(value, int) and value < 0 else value for value in values]
    there = [value for value in values if value is not None]
    if not there:
        return Labels("none"), [-1] * len(values), [""] * len(values)
    problems = ["no-label" if value is None else "" for value in values]
    if any(isinstance(value, tuple) for value in there):
        meaning, nothing = _vectors(there, names)
        problems = [
            "not-finite" if isinstance(v, tuple) and not fits_float(*v) else p for v, p in zip(values, problems, strict=True)
        ]
        return meaning, [value if isinstance(value, tuple) else nothing for value in values], problems
    number, names = _classes(there, tuple(names))
    if unknown := [value for value in there if value not in number]:
        raise PrepError(f"the label {unknown[0]!r} has no name: there are {len(names)} classes, {', '.join(names[:5])} and so on")
    return Labels("class", names), [-1 if value is None else number[value] for value in values], problems


def _classes(there: Sequence[Value], names: tuple[str, ...]) -> tuple[dict[Value, int], tuple[str, ...]]:
    """The number of each label, and the names of the numbers."""
    found = set(there)
    numbers = [value for value in found if isinstance(value, int)]
    if len(numbers) == len(found) and (names or max(numbers) < MOST_CLASSES):
        names = names or tuple(map(str, range(max(numbers) + 1)))
        return {k: k for k in range(len(names))}, names
    if not names and not numbers and all(_is_number(value) for value in found):
        raise PrepError(f"the labels are numbers that are not all whole, such as {min(map(str, found))!r}: no classes")
    order = names or (sorted(numbers) if len(numbers) == len(found) else sorted(map(str, found)))
    names = tuple(map(str, order))
    place = {name: k for k, name in enumerate(names)}
    return {value: place[str(value)] for value in found if str(value) in place}, names


def _vectors(there: Sequence[Value], names: Sequence[str]) -> tuple[Labels, tuple[float, ...]]:
    """The columns, and what stands for an input without values."""
    lengths = {len(value) if isinstance(value, tuple) else -1 for value in there}
    if len(lengths) > 1 or not min(lengths):
        raise PrepError(f"the labels are not all lists of numbers of one length: {_said(lengths)}")
    count = lengths.pop()
    if len(names) != count:
        names = [f"label{k}" for k in range(1, count + 1)]
    return Labels("vector", tuple(names)), (math.nan,) * count


def _said(lengths: set[int]) -> str:
    return ", ".join(f"some have {length} numbers" if length >= 0 else "some are classes" for length in sorted(lengths))


def _is_number(value: Value) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
