"""Strict decoding of JSON values into dataclasses: every key is there, no other one is, and every value has its type."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

__all__ = ["Count", "from_json"]

Count = Annotated[int, "0 or more"]


def from_json(kind: Any, value: Any) -> Any:
    """Return a JSON value as this type: a dataclass, text, a number, a tuple[X, ...], a dict[str, X], X | None, or Any.

    Raises:
        TypeError, ValueError: it is none.
    """
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return None if value is None else from_json(inner[0], value)
    if origin is tuple:
        return tuple(from_json(inner[0], one) for one in _plain(list, value))
    if origin is dict:
        return {name: from_json(inner[1], one) for name, one in _plain(dict, value).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        if missing := types.keys() - _plain(dict, value).keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        if unknown := value.keys() - types.keys():
            raise ValueError(f"unknown keys {', '.join(sorted(unknown)):.80}")
        return kind(**{name: from_json(one, value[name]) for name, one in types.items()})
    if origin is Annotated and _plain(int, value) < 0:
        raise ValueError(f"found {value}, expected a number of 0 or more")
    return _plain(inner[0] if origin is Annotated else kind, value)


def _plain(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"found {value!r:.80}, expected a {kind.__name__}")
    return value


@cache
def _types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}
