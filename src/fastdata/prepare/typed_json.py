"""Frozen dataclasses, tuples and bytes as JSON, and back. A plan is read by other processes, and a pickle could run anything."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from msgspec import Struct

from fastdata.sources.packed import trimmed

__all__ = ["decode", "decode_rows", "encode", "encode_rows"]

PLAIN = (type(None), bool, int, float, str)


def encode(value: Any) -> Any:
    """Return JSON values for a value of numbers, text, bytes, tuples, lists, dicts and dataclasses. Arrays of JSON are tuples.

    Raises:
        TypeError: the value holds anything else.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple:
        return [encode(inner) for inner in value]
    if kind is list:
        return {"list": [encode(inner) for inner in value]}
    if kind is dict:
        return {"dict": [[encode(key), encode(inner)] for key, inner in value.items()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if is_dataclass(kind) or issubclass(kind, Struct):
        names = [one.name for one in fields(kind)] if is_dataclass(kind) else kind.__struct_fields__
        return {"class": _name_of(kind), "fields": [encode(getattr(value, name)) for name in names]}
    for plain in (bool, int, float, str):
        if isinstance(value, plain):  # numpy.float64 is a float
            return plain(value)
    raise TypeError(f"a plan cannot hold {value!r:.80}, a {kind.__name__}")


def decode(value: Any) -> Any:
    """Return the value that `encode` was given.

    Raises:
        ValueError, KeyError, TypeError, ImportError, AttributeError: `encode` did not make this.
    """
    if type(value) is list:
        return tuple(decode(inner) for inner in value)
    if type(value) is not dict:
        return value
    if "class" in value:
        return _class(value["class"])(*(decode(inner) for inner in value["fields"]))
    ((kind, inner),) = value.items()
    if kind == "list":
        return [decode(one) for one in inner]
    if kind == "dict":
        return {decode(key): decode(one) for key, one in inner}
    if kind == "bytes":
        return base64.b64decode(inner)
    raise ValueError(f"unknown type {kind!r}")


def encode_rows(values: Sequence[Any]) -> dict[str, Any]:
    """Return JSON values for many dataclasses: a list of the fields of each, without defaults at its end."""
    classes = dict[type[Any], int]()
    rows = []
    for value in values:
        kind: Any = type(value)
        rows.append([classes.setdefault(kind, len(classes)), *(v if type(v) in PLAIN else encode(v) for v in trimmed(value))])
    return {"classes": [_name_of(kind) for kind in classes], "rows": rows}


def decode_rows(body: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values that `encode_rows` was given. Errors are those of `decode`."""
    classes = [_class(name) for name in body["classes"]]
    return tuple(classes[row[0]](*(v if type(v) in PLAIN else decode(v) for v in row[1:])) for row in body["rows"])


def _name_of(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _class(name: str) -> type[Any]:
    module, _, qualname = name.partition(":")
    found = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Struct)):
        raise TypeError(f"{name} is no dataclass")
    return found
