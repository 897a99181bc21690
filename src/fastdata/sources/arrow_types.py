"""Columns for the types of Arrow. Needs pyarrow, which the caller has loaded."""

from __future__ import annotations

from typing import Any

from fastdata.sources.fields import field_error, make_column
from fastdata.store.column import NUMBERS, Column

__all__ = ["column_of"]

NAMES = {"halffloat": "float16", "float": "float32", "double": "float64", "uint64": "int64", "bool": "bool"}
TEXTS = {"string": "text", "large_string": "text", "string_view": "text"}
BYTES = {"binary": "bytes", "large_binary": "bytes", "binary_view": "bytes"}
JSON = ("struct<", "map<", "list<", "large_list<", "fixed_size_list<", "null")


def column_of(name: str, kind: Any, names: tuple[str, ...] = ()) -> Column:
    """Return the column that suits an Arrow type: fixed-size lists of numbers become arrays, other lists of them lists.

    Args:
        name: of the column.
        kind: the type.
        names: of the classes that whole numbers stand for.

    Raises:
        PrepError: no column holds such values.
    """
    if kind.__class__.__name__ == "DictionaryType":
        kind = kind.value_type
    many, inner, shape = False, kind, list[int]()
    if str(kind).startswith(("list<", "large_list<")):
        many, inner = True, kind.value_type
    while str(inner).startswith("fixed_size_list<"):
        shape.append(inner.list_size)
        inner = inner.value_type
    text = NAMES.get(str(inner), str(inner))
    if text in (*NUMBERS, "bool"):
        return make_column(name, text, tuple(shape), many=many, names=names)
    text = (TEXTS | BYTES).get(str(kind), "json" if str(kind).startswith(JSON) else "")
    if not text:
        raise field_error(name, f"it is of Arrow's type {kind}, which no column holds; write it as a number, or as text")
    return make_column(name, text)
