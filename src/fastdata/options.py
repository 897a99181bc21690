"""Options of `fastdata-prep`, as fields of dataclasses: they define the command, the arguments in Python and the messages.

Messages use the command's names, `--mask-bits`; `as_arguments` turns them into Python's, `mask_bits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import Field, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fastdata.errors import FastDataError

OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
COMMAND = "fastdata-prep "  # a line that contains it is a command, and is not translated

P = ParamSpec("P")
R = TypeVar("R")


def option(
    help: str,
    default: Any = None,
    *,
    type: str = "",
    choices: tuple[Any, ...] = (),
    multiple: bool = False,
    metavar: str | None = None,
    group: str | None = None,
) -> Any:
    """Make a field of a dataclass of options, with these arguments as its metadata.

    type: "text", "int", "flag", "file", "folder" (both must exist), "path" or "sides"; empty: the type of the default, or text.
    multiple: whether the option may repeat. group: the title above it in help, by default that of its class.
    """
    type = type or {bool: "flag", int: "int"}.get(default.__class__, "text")
    info = {"help": help, "type": type, "choices": choices, "multiple": multiple, "metavar": metavar, "group": group}
    return field(default=default, metadata=info)


def options_of(cls: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are options, by name."""
    return {one.name: one for one in fields(cls) if "help" in one.metadata}


def build(cls: type[R], arguments: Mapping[str, Any]) -> R:
    """Make options of class `cls` from its part of the arguments. None stands for the default.

    Raises:
        ValueError: a value is not among the choices, or not positive.
        TypeError: a value has a wrong type.
    """
    known = options_of(cls)
    used = {name: value for name, value in arguments.items() if name in known and value is not None}
    return cls(**{name: _checked(name, value, **known[name].metadata) for name, value in used.items()})


def _checked(name: str, value: Any, *, type: str, choices: tuple[Any, ...], multiple: bool, **_: Any) -> Any:
    if multiple:
        return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if choices and value not in choices:
        raise ValueError(f"{as_option(name)} is {value}, but must be one of {', '.join(map(str, choices))}")
    expected = {"int": int, "flag": bool, "text": str}.get(type)
    if expected and not (isinstance(value, expected) or (expected is int and hasattr(value, "__index__"))):
        raise TypeError(f"{as_option(name)} is {value!r}, but must be {'an' if expected is int else 'a'} {expected.__name__}")
    if type == "int" and value < 1:
        raise ValueError(f"{as_option(name)} is {value}, but must be positive")
    return value


def as_option(name: str) -> str:
    """Return the name of an argument as the command has it."""
    return "--" + name.replace("_", "-")


def as_arguments(function: Callable[P, R], known: Container[str]) -> Callable[P, R]:
    """Wrap a function so that its errors name Python's arguments instead of the command's options. known: the arguments."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (FastDataError, TypeError, ValueError) as error:
            error.args = tuple(_in_python(text, known) if isinstance(text, str) else text for text in error.args)
            raise

    return wrapper


def _in_python(text: str, known: Container[str]) -> str:
    def translated(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        positive = name.removeprefix("no_")
        return name if name in known else f"{positive}=False" if positive in known else found[0]

    return "\n".join(line if COMMAND in line else OPTION.sub(translated, line) for line in text.split("\n"))
