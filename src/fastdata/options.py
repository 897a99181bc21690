"""Options of `fastdata-prep`: said once, as fields of dataclasses, for the command, for Python, and for messages.

Messages are written with the command's names, `--mask-bits`; `as_arguments` turns them into Python's, `mask_bits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fastdata.errors import FastDataError

__all__ = ["Said", "as_arguments", "as_option", "build", "option", "options_of"]

OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
COMMAND = "fastdata-prep "  # a line of these is to be typed as it stands

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Said:
    """What is said of an option besides its name, its type and its default.

    Attributes:
        help: a sentence.
        type: of a value: "text", "int", "flag", "file", "folder" (both exist), "path", "color" or "sides".
        choices: that it has to be one of.
        several: it may repeat.
        metavar: what stands for the value.
        group: the title above it in help; None: that of its class.
        common: the short help has it.
    """

    help: str
    type: str
    choices: tuple[Any, ...] = ()
    several: bool = False
    metavar: str | None = None
    group: str | None = None
    common: bool = False


def option(help: str, default: Any = None, *, type: str = "", several: bool = False, **said: Any) -> Any:
    """Make a field of a dataclass of options. The type is that of the default, or text."""
    found = type or {bool: "flag", int: "int"}.get(default.__class__, "text")
    return field(default=default, metadata={"said": Said(help, found, several=several, **said)})


def options_of(made: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are options, by name."""
    return {one.name: one for one in fields(made) if "said" in one.metadata}


def build(made: type[R], given: Mapping[str, Any]) -> R:
    """Make options of what was given; None stands for the default.

    Raises:
        ValueError: a value is not among the choices.
        TypeError: a value is of another type.
    """
    known = options_of(made)
    told = {name: value for name, value in given.items() if name in known and value is not None}
    return made(**{name: _value(name, value, known[name].metadata["said"]) for name, value in told.items()})


def _value(name: str, value: Any, said: Said) -> Any:
    if said.several:
        return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if said.choices and value not in said.choices:
        raise ValueError(f"{as_option(name)} is {value}, but must be one of {', '.join(map(str, said.choices))}")
    wanted = {"int": int, "flag": bool, "text": str}.get(said.type)
    if wanted and not (isinstance(value, wanted) or (wanted is int and hasattr(value, "__index__"))):
        raise TypeError(f"{as_option(name)} is {value!r}, but must be {'an' if wanted is int else 'a'} {wanted.__name__}")
    return value


def as_option(name: str) -> str:
    """An argument as the command has it."""
    return "--" + name.replace("_", "-")


def as_arguments(function: Callable[P, R], known: Callable[[], Container[str]]) -> Callable[P, R]:
    """Make a function whose errors name arguments where they name options of the command. known: gives the names of all."""

    @wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> R:
        try:
            return function(*args, **given)
        except (FastDataError, TypeError, ValueError) as error:
            error.args = tuple(_in_python(text, known()) if isinstance(text, str) else text for text in error.args)
            raise

    return called


def _in_python(text: str, known: Container[str]) -> str:
    def renamed(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return name if name in known else found[0]

    return "\n".join(line if COMMAND in line else OPTION.sub(renamed, line) for line in text.split("\n"))
