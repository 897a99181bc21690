"""Choose the kind of data of a source, and make its options from the arguments of `prep`."""

from __future__ import annotations

import os
from typing import Any

from fastdata import kinds
from fastdata.kinds import Kind
from fastdata.options import as_option, build, options_of

__all__ = ["choose_kind", "own_options"]


def choose_kind(source: str | os.PathLike[str], arguments: dict[str, Any]) -> Kind:
    """Return the kind that the arguments ask for, by name or by an option that only it has; else the kind of the files."""
    name = arguments.get("kind")
    if name is not None:
        if name not in kinds.names():
            raise ValueError(f"--kind is {name}, but must be one of {', '.join(kinds.names())}")
        return kinds.find(name)
    known = reversed([kinds.find(name) for name in kinds.names()])  # images are last, since they claim every source
    return next(kind for kind in known if kind.claims(source, arguments))


def own_options(kind: Kind, source: str | os.PathLike[str], arguments: dict[str, Any]) -> Any:
    """Make the options of a kind.

    Raises:
        TypeError: there is no such option.
        ValueError: an option belongs to another kind, or has a wrong value.
    """
    known = {name: options_of(kinds.find(name).options) for name in kinds.names()}
    for name, value in arguments.items():
        owners = [other for other, options in known.items() if name in options]
        if not owners and name != "kind":
            raise TypeError(f"prep has no argument {name!r}")
        others = [kinds.find(other) for other in owners if _is_set(value, known[other][name].default)]
        if name not in known[kind.name] and others:
            if files := others[0].suggest(source):
                raise ValueError(
                    f"{as_option(name)} is about {others[0].says}, which is a file, but SOURCE {source} is a folder: "
                    f"give {' or '.join(files)}"
                )
            hint = others[0].hint if arguments.get("kind") is None else ""
            raise ValueError(
                f"{as_option(name)} is about {others[0].says}, but SOURCE {source} is {kind.says} here: leave it out{hint}"
            )
    return build(kind.options, arguments)


def _is_set(value: Any, default: Any) -> bool:
    """Return whether an option has a value other than its default, None or (). Arrays cannot be compared as a whole."""
    return not any(isinstance(value, type(other)) and value == other for other in (default, None, ()))
