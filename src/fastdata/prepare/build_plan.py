"""Make a plan from the arguments of `prep`, for every kind of data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError
from fastdata.kinds import Kind
from fastdata.options import as_option
from fastdata.prepare.arguments import choose_kind, own_options
from fastdata.prepare.folder import refuse_store
from fastdata.prepare.plan import Plan
from fastdata.prepare.run import Roots
from fastdata.sources.patterns import locate

__all__ = ["Work", "build_plan", "check_positive"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Work:
    """A plan and its surroundings.

    Attributes:
        kind: the kind of data.
        plan: the shards to make.
        out: the store to make.
        roots: the folder of the inputs, and that of their companions, such as masks.
        skipped: count of files left out, by extension.
        notes: lines about the inputs to show to the user.
    """

    kind: Kind
    plan: Plan
    out: Path
    roots: Roots
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


def build_plan(source: StrPath, out: StrPath | None = None, *, limit: int | None = None, **arguments: Any) -> Work:
    """Decide what `prep` would do with these arguments.

    Raises:
        PrepError: there is nothing to prepare, or the inputs do not fit together.
        ValueError: an argument is wrong, or belongs to another kind of data.
    """
    refuse_store(Path(source))
    kind = choose_kind(source, arguments)
    options = own_options(kind, source, arguments)
    root, target = _resolve(source, out, getattr(options, "root", None), getattr(options, "split", None))
    check_positive(limit=limit)
    planned = kind.plan(source, target, options, limit)
    return Work(kind, planned.plan, target, (root, (planned.beside or root).absolute()), planned.skipped, planned.notes)


def check_positive(**arguments: float | None) -> None:
    """Raise ValueError for the first argument that is neither None nor positive."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise ValueError(f"{as_option(name)} is {value}, but must be positive")


def _resolve(source: StrPath, out: StrPath | None, own_root: StrPath | None, split: str | None) -> tuple[Path, Path]:
    """Return the folder that names are relative to (`own_root`, if it is set) and the folder of the store."""
    root, name = locate(source)
    root = root if own_root is None else Path(own_root)
    target = Path(out) if out is not None else Path(f"{name}{'' if split is None else f'-{split}'}.fds")
    if Path(source).is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {source}, and would be an input of the next run; put it elsewhere")
    return root.absolute(), target.absolute()
