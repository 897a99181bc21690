"""Convert the labels of an archive to those of a store."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastdata.errors import PrepError
from fastdata.sources.inputs import Label, fits_float, is_number
from fastdata.store.format import Labels

__all__ = ["Value", "number_labels", "text_label"]

Value = int | str | tuple[float, ...] | None
MOST_CLASSES = 1 << 16  # with a larger number, only the numbers that occur become classes


def text_label(text: str) -> Value:
    """Return an int if the text is one, else the text as the name of a class; None if it is blank."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text or None


def number_labels(values: Sequence[Value], names: Sequence[str] = ()) -> tuple[Labels, list[Label], list[str]]:
    """Convert labels to those of a store.

    Class numbers are kept; those below 0 mean no label. Class names are numbered in sorted order. Vectors must have one length.

    Args:
        values: the label of each input.
        names: of the numbered classes, or of the values in a vector.

    Returns:
        The meaning of the labels; the label of each input; and its problem: an input without a label is a problem if others have
        one, and so is a vector that is not finite.

    Raises:
        PrepError: only some labels are vectors, their lengths differ, or a class number has no name.
    """
    values = [None if isinstance(value, int) and value < 0 else value for value in values]
    known = [value for value in values if value is not None]
    if not known:
        return Labels("none"), [-1] * len(values), [""] * len(values)
    problems = ["no-label" if value is None else "" for value in values]
    if any(isinstance(value, tuple) for value in known):
        lengths = {len(value) if isinstance(value, tuple) else -1 for value in known}
        count = lengths.pop()
        if lengths or count < 1:
            which = [f"some have {n} numbers" if n >= 0 else "some are classes" for n in sorted({*lengths, count})]
            raise PrepError(f"the labels are not all lists of numbers of one length: {', '.join(which)}")
        columns = tuple(names) if len(names) == count else tuple(f"label{k}" for k in range(1, count + 1))
        problems = [
            "not-finite" if isinstance(v, tuple) and not fits_float(*v) else p for v, p in zip(values, problems, strict=True)
        ]
        vectors: list[Label] = [value if isinstance(value, tuple) else (math.nan,) * count for value in values]
        return Labels("vector", columns), vectors, problems
    number, names = _classes(set(known), tuple(names))
    if unknown := [value for value in known if value not in number]:
        raise PrepError(f"the label {unknown[0]!r} has no name: there are {len(names)} classes, {', '.join(names[:5])} and so on")
    return Labels("class", names), [-1 if value is None else number[value] for value in values], problems


def _classes(values: set[Value], names: tuple[str, ...]) -> tuple[dict[Value, int], tuple[str, ...]]:
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
