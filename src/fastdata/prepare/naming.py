"""What messages call an option: `--mask-bits`, as the command has it, which is how all of them are written; or `mask_bits`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fastdata.errors import FastDataError

__all__ = ["as_arguments", "as_option"]

OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
COMMAND = "fastdata-prep "  # a line of these is to be typed as it stands

P = ParamSpec("P")
R = TypeVar("R")


def as_option(name: str) -> str:
    """An argument as the command has it."""
    return "--" + name.replace("_", "-")


def as_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The same function; its errors name its arguments where they name options of the command."""
    known = set(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> R:
        try:
            return function(*args, **given)
        except (FastDataError, ValueError) as error:
            error.args = tuple(_in_python(text, known) if isinstance(text, str) else text for text in error.args)
            raise

    return called


def _in_python(text: str, known: set[str]) -> str:
    def renamed(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return name if name in known else found[0]

    return "\n".join(line if COMMAND in line else OPTION.sub(renamed, line) for line in text.split("\n"))
