"""From what a user asks for to a plan, whatever kind of data it is."""

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
    """What there is to do.

    Attributes:
        kind: of data.
        plan: the shards.
        out: the store that they are for.
        roots: the folders of the inputs, and of what lies next to them, such as masks.
        skipped: files that were left out, by ending.
        notes: what the caller shall know of the inputs.
    """

    kind: Kind
    plan: Plan
    out: Path
    roots: Roots
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


def build_plan(source: StrPath, out: StrPath | None = None, *, limit: int | None = None, **given: Any) -> Work:
    """Decide what `prep` would do with these arguments.

    Raises:
        PrepError: there is nothing to prepare, or it does not fit together.
        ValueError: a wrong argument, or one for another kind of data.
    """
    refuse_store(Path(source))
    kind = choose_kind(source, given)
    options = own_options(kind, source, given)
    root, target = _resolve(source, out, getattr(options, "root", None), getattr(options, "split", None))
    check_positive(limit=limit)
    made = kind.plan(source, target, options, limit)
    return Work(kind, made.plan, target, (root, (made.beside or root).absolute()), made.skipped, made.notes)


def check_positive(**arguments: float | None) -> None:
    """Raise ValueError for the first that is given and not positive."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise ValueError(f"{as_option(name)} is {value}, but must be positive")


def _resolve(source: StrPath, out: StrPath | None, told: StrPath | None, split: str | None) -> tuple[Path, Path]:
    """The folder that names are relative to, if nobody told it, and the store's folder. split: the one of SOURCE that is wanted."""
    root, name = locate(source)
    root = root if told is None else Path(told)
    target = Path(out) if out is not None else Path(f"{name}{'' if split is None else f'-{split}'}.fds")
    if Path(source).is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {source}, and would be an input of the next run; put it elsewhere")
    return root.absolute(), target.absolute()
