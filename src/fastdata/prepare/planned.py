"""From what a user asks for to a plan, whatever kind of data it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError
from fastdata.prepare.archives.patterns import locate
from fastdata.prepare.arguments import own_arguments, what_is_asked
from fastdata.prepare.arrays.planning import plan_arrays
from fastdata.prepare.folder import refuse_store
from fastdata.prepare.images import ImageOptions
from fastdata.prepare.inputs import NO_LABELS, SourceList, SourceOptions
from fastdata.prepare.masks import MaskOptions, read_palette
from fastdata.prepare.naming import as_option
from fastdata.prepare.notes import label_notes, table_notes
from fastdata.prepare.pairs import with_masks
from fastdata.prepare.path_table import is_path_table
from fastdata.prepare.plan import Plan, make_plan
from fastdata.prepare.reasons import refuse_unusable
from fastdata.prepare.run import Roots
from fastdata.prepare.sources import list_sources
from fastdata.prepare.table.options import TableOptions, plan_table
from fastdata.prepare.text.documents import Cutting
from fastdata.prepare.text.planning import plan_text

__all__ = ["Planned", "check_positive", "planned"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Planned:
    """A plan, the store that it is for, the folders of its inputs and of their masks, files that were left out, by ending, and what
    the caller shall know of the inputs."""

    plan: Plan
    out: Path
    roots: Roots
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()


def planned(source: StrPath, out: StrPath | None = None, **given: Any) -> Planned:
    """What `prep` would do with these arguments.

    Raises:
        PrepError: there is nothing to prepare, or it does not fit together.
        ValueError: a wrong argument, or one for another kind of data.
    """
    refuse_store(Path(source))
    kind = what_is_asked(source, given)
    own = own_arguments(kind, source, given)
    root, target = _resolve(source, out, own.get("root"), own.get("split"))
    roots = root, Path(own.get("masks") or root).absolute()
    found: SourceList | None = None
    skipped: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    check_positive(limit=own.get("limit"))
    if kind == "arrays":
        plan, found = plan_arrays(source, _source_options(own), **own)
    elif kind == "tokens":
        cutting = _cutting(own.pop("split_lines"), own.pop("split_on"), own.pop("field"))
        plan, text = plan_text(source, target, cutting=cutting, **own)
        skipped, notes = dict(text.skipped), text.notes
    elif kind == "table":
        chosen = TableOptions(_as_names(own["target"]), _as_names(own["category"]), _as_names(own["drop"]))
        plan = plan_table(Path(source), chosen, None if own["classes"] is None else Path(own["classes"]), own["limit"])
    else:
        plan, found = _plan_images(source, _source_options(own), **own)
    if found is not None:
        taken = replace(found, sources=list(plan.sources))
        meant = _as_names(given.get("label_column")) == (NO_LABELS,)
        said = label_notes(taken, masks=own["masks"] is not None, meant=meant)
        skipped, notes = dict(found.skipped), (*said, *found.notes)
    elif kind == "table":
        notes = tuple(table_notes(plan.shared, sum(piece.rows for piece in plan.sources)))
    return Planned(plan, target, roots, skipped, notes)


def _source_options(own: dict[str, Any]) -> SourceOptions:
    """Take what is about inputs and labels out of the arguments."""
    given = {option.name: own.pop(option.name) for option in fields(SourceOptions)}
    return SourceOptions(**{**given, "label_column": _as_names(given["label_column"])})


def _plan_images(
    source: StrPath,
    asked: SourceOptions,
    *,
    size: int | Sequence[int] | None,
    masks: StrPath | None,
    mask_suffix: str,
    mask_bits: int,
    palette: StrPath | None,
    limit: int | None,
    **images: Any,
) -> tuple[Plan, SourceList]:
    mask = _mask_options(masks, mask_suffix, mask_bits, palette)
    options = ImageOptions(_as_sizes(size), **images, mask=mask)
    found = list_sources(source, asked)
    if masks is not None:
        found = with_masks(found, Path(masks), mask_suffix)
    plan = make_plan(found, options, limit)
    refuse_unusable(plan.sources, found.root, table=is_path_table(Path(source)), told=asked.root is not None)
    return plan, found


def _as_sizes(size: int | Sequence[int] | None) -> tuple[int | None, ...]:
    """The `size` argument as a tuple."""
    return (None,) if size is None else (size,) if isinstance(size, int) else tuple(size)


def _as_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _cutting(split_lines: bool, split_on: str | None, field: str) -> Cutting:
    """The arguments about documents as one."""
    if (split_lines and split_on is not None) or split_on == "":
        raise ValueError("give --split-lines, or --split-on with some text, or neither")
    return Cutting("\n" if split_lines else split_on or "", field)


def _mask_options(
    masks: str | os.PathLike[str] | None, suffix: str, bits: int, palette: str | os.PathLike[str] | None
) -> MaskOptions | None:
    """What the arguments about masks come to; None: there are none."""
    if masks is None:
        if suffix or bits != 8 or palette is not None:
            raise ValueError("--mask-suffix, --mask-bits and --palette are about masks: give --masks too")
        return None
    return MaskOptions(bits, *(((), ()) if palette is None else read_palette(palette)))


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
