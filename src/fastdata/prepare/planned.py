"""From what a user asks for to a plan, whatever kind of data it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError
from fastdata.prepare.archives.patterns import locate
from fastdata.prepare.images import ImageOptions
from fastdata.prepare.masks import MaskOptions, read_palette
from fastdata.prepare.pairs import with_masks
from fastdata.prepare.plan import Plan, make_plan
from fastdata.prepare.run import Roots
from fastdata.prepare.sources import list_sources
from fastdata.prepare.table.options import TableOptions, holds_table, plan_table
from fastdata.prepare.text.documents import Cutting
from fastdata.prepare.text.planning import plan_text
from fastdata.prepare.text.sources import holds_tokens

__all__ = ["Planned", "check_positive", "planned"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Planned:
    """A plan, the store that it is for, the folders of its inputs and of their masks, and files that were left out, by ending."""

    plan: Plan
    out: Path
    roots: Roots
    skipped: dict[str, int]


def planned(
    source: StrPath,
    out: StrPath | None = None,
    *,
    size: int | Sequence[int] | None = None,
    labels: StrPath | None = None,
    classes: StrPath | None = None,
    masks: StrPath | None = None,
    mask_suffix: str = "",
    mask_bits: int = 8,
    palette: StrPath | None = None,
    tokenizer: str | None = None,
    train_bpe: int | None = None,
    end_token: str | None = None,
    split_lines: bool = False,
    split_on: str | None = None,
    field: str = "text",
    target: str | Sequence[str] | None = None,
    category: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    limit: int | None = None,
    **images: Any,
) -> Planned:
    """What `prep` would do with these arguments.

    Raises:
        PrepError: there is nothing to prepare, or it does not fit together.
        ValueError: a wrong argument, or one for another kind of data.
    """
    check_positive(limit=limit)
    mask = _mask_options(masks, mask_suffix, mask_bits, palette)
    options = ImageOptions(_as_sizes(size), **images, mask=mask)
    cutting = _cutting(split_lines, split_on, field)
    root, folder = _resolve(source, out)
    chosen = TableOptions(_as_names(target), _as_names(category), _as_names(drop))
    text = tokenizer is not None or train_bpe is not None
    if not text and holds_table(source, chosen):
        if (options, cutting, end_token, labels, limit) != (ImageOptions(), Cutting(), None, None, None):
            raise ValueError(
                "SOURCE is a table; size, codec, labels, masks, limit, field and so on are for other data: leave them out"
            )
        plan, skipped = plan_table(Path(source), chosen, None if classes is None else Path(classes)), dict[str, int]()
        return Planned(plan, folder, (root, root), skipped)
    if chosen != TableOptions():
        raise ValueError(
            f"target, category and drop are for tables, a .parquet, .csv or .tsv file; SOURCE is {source}: leave them out"
        )
    if text or holds_tokens(source):
        if options != ImageOptions() or (labels, classes, limit) != (None, None, None):
            raise ValueError(
                "SOURCE is text, or tokens; size, codec, labels, masks, limit and so on are for images: leave them out"
            )
        plan, skipped = plan_text(source, folder, tokenizer=tokenizer, train_bpe=train_bpe, end_token=end_token, cutting=cutting)
    else:
        if end_token is not None or cutting != Cutting():
            raise ValueError(
                "end_token, split_lines, split_on and field are for text: give tokenizer or train_bpe (--tokenizer NAME)"
            )
        found = list_sources(source, labels=labels, classes=classes)
        if masks is not None:
            found = with_masks(found, Path(masks), mask_suffix)
        plan, skipped = make_plan(found, options, limit), dict(found.skipped)
    return Planned(plan, folder, (root, Path(masks or root).absolute()), skipped)


def _as_sizes(size: int | Sequence[int] | None) -> tuple[int | None, ...]:
    """The `size` argument as a tuple."""
    return (None,) if size is None else (size,) if isinstance(size, int) else tuple(size)


def _as_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _cutting(split_lines: bool, split_on: str | None, field: str) -> Cutting:
    """The arguments about documents as one."""
    if (split_lines and split_on is not None) or split_on == "":
        raise ValueError("give split_lines, or split_on with some text, or neither")
    return Cutting("\n" if split_lines else split_on or "", field)


def _mask_options(
    masks: str | os.PathLike[str] | None, suffix: str, bits: int, palette: str | os.PathLike[str] | None
) -> MaskOptions | None:
    """What the arguments about masks come to; None: there are none."""
    if masks is None:
        if suffix or bits != 8 or palette is not None:
            raise ValueError("mask_suffix, mask_bits and palette are about masks: give masks too (--masks FOLDER)")
        return None
    return MaskOptions(bits, *(((), ()) if palette is None else read_palette(palette)))


def check_positive(**arguments: float | None) -> None:
    """Raise ValueError for the first that is given and not positive."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}, but must be positive")


def _resolve(source: str | os.PathLike[str], out: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """The folder that names are relative to, and the store's folder."""
    root, name = locate(source)
    target = Path(out) if out is not None else Path(f"{name}.fds")
    if Path(source).is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {source}, and would be an input of the next run; put it elsewhere")
    return root.absolute(), target.absolute()
