"""Convert the labels of an archive to those of a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fastdata.errors import PrepError
from fastdata.sources.inputs import Label, fits_float, is_number
from fastdata.store.format import Labels

__all__ = ["Convert", "Value", "number_labels", "text_label"]

Value = int | str | tuple[float, ...] | None
Convert = Callable[[Value], tuple[Label, str]]  # returns the label and the problem of the input
MOST_CLASSES = 1 << 16  # with a larger number, only the numbers that occur become classes


def text_label(text: str) -> Value:
    """Return an int if the text is one, else the text as the name of a class; None if it is blank."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text or None


def number_labels(values: Sequence[Value], names: Sequence[str] = ()) -> tuple[Labels, Convert]:
    """Decide how labels become those of a store.

    Class numbers are kept; those below 0 mean no label. Class names are numbered in sorted order. Vectors must have one length.

    Args:
        values: the label of each input.
        names: of the numbered classes, or of the values in a vector.

    Returns:
        The meaning of the labels, and a function that returns for each value the label and the problem of its input: an input
        without a label is a problem if others have one, and so is a vector that is not finite.

    Raises:
        PrepError: only some labels are vectors, their lengths differ, or a class number has no name.
    """
    lengths, classes = set[int](), set[int | str]()
    for value in values:
        if isinstance(value, tuple):
            lengths.add(len(value))
        elif value is not None and not _is_negative(value):
            classes.add(value)
    if lengths:
        return _vectors(sorted({*lengths, *([-1] if classes else [])}), names)
    if not classes:
        return Labels("none"), lambda value: (-1, "")
    number, names = _classes(classes, tuple(names))
    if unknown := classes - number.keys():
        first = next(value for value in values if value in unknown)
        raise PrepError(f"the label {first!r} has no name: there are {len(names)} classes, {', '.join(names[:5])} and so on")
    return Labels("class", names), lambda value: (number[value], "") if value in number else (-1, "no-label")


def _is_negative(value: int | str) -> bool:
    return isinstance(value, int) and value < 0


def _vectors(lengths: Sequence[int], names: Sequence[str]) -> tuple[Labels, Convert]:
    """Do it for vectors. lengths: all of theirs, and -1 if some labels are classes."""
    count = lengths[-1]
    if len(lengths) > 1 or count < 1:
        which = [f"some have {n} numbers" if n >= 0 else "some are classes" for n in lengths]
        raise PrepError(f"the labels are not all lists of numbers of one length: {', '.join(which)}")
    missing = (math.nan,) * count

    def convert(value: Value) -> tuple[Label, str]:
        if not isinstance(value, tuple):
            return missing, "no-label"
        return value, "" if fits_float(*value) else "not-finite"

    return Labels("vector", tuple(names) if len(names) == count else tuple(f"label{k}" for k in range(1, count + 1))), convert


def _classes(values: set[int | str], names: tuple[str, ...]) -> tuple[dict[Value, int], tuple[str, ...]]:
    """Return the number of each value, and the name of each number."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values) and (names or max(numbers) < MOST_CLASSES):
        names = names or tuple(map(str, range(max(numbers) + 1)))
        return {k: k for k in range(len(names))}, names
    if not names and not numbers and all(is_number(str(value)) for value in values):
        raise PrepError(f"the labels are numbers that are not all whole, such as {min(map(str, values))!r}: no classes")
    order = names or (sorted(numbers) if len(numbers) == len(values) else sorted(map(str, values)))
    names = tuple(map(str, order))
    place = {name: k for k, name in enumerate(names)}
    return {value: place[str(value)] for value in values if str(value) in place}, names
