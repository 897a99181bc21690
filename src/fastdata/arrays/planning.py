"""From a source of arrays to a plan: what the first readable input is decides what the store is of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastdata.arrays.convert import natural
from fastdata.arrays.listing import list_arrays
from fastdata.arrays.options import ArrayOptions
from fastdata.arrays.readers import checked, open_array
from fastdata.arrays.recipe import ArrayRecipe, default_chunk, laid_out
from fastdata.arrays.source import ArraySource, needed_packages
from fastdata.errors import PrepError
from fastdata.kinds import Planned
from fastdata.prepare.plan import make_plan
from fastdata.sources.inputs import SourceList
from fastdata.sources.notes import label_notes
from fastdata.sources.path_table import is_path_table
from fastdata.sources.reasons import detail_of, refuse_unusable
from fastdata.store.format import NUMBERS

__all__ = ["plan_arrays"]

LEAST = 1, 1 << 20  # samples and bytes of a shard: a volume is work enough
StrPath = str | os.PathLike[str]


def plan_arrays(source: StrPath, asked: ArrayOptions, limit: int | None) -> Planned:
    """List the inputs and decide how they are stored.

    Raises:
        PrepError: there is nothing to prepare, or nothing that can be read.
        ValueError: a wrong argument.
    """
    masks, channels, key, dtype, max_bytes = asked.masks, asked.channels, asked.key, asked.dtype, asked.max_bytes
    ArrayRecipe(dtype or "uint8", False, (1,), channels, key or "", max_bytes, asked.mask_bits)  # its mistakes precede the list's
    found = list_arrays(source, asked, masks=masks, mask_suffix=asked.mask_suffix, key=key)
    refuse_unusable(found.sources, found.root, table=is_path_table(Path(source)), told=asked.root is not None)
    first, axes, count = _first(found, channels, key, dtype, max_bytes)
    name = dtype or first
    sides = default_chunk(axes, count * np.dtype(name).itemsize) if asked.chunk is None else _sides(asked.chunk, axes)
    files = [s.name + s.ending for s in found.sources if isinstance(s, ArraySource) and s.ending]
    options = ArrayRecipe(
        dtype=name,
        rounded=dtype is not None,
        chunk=sides,
        channels=channels,
        key=key or "",
        max_bytes=max_bytes,
        mask_bits=0 if masks is None else asked.mask_bits,
        libraries=needed_packages([*files, *(s.mask for s in found.sources if s.mask)]),
    )
    plan = make_plan(found, options, limit, least=LEAST)
    said = label_notes(replace(found, sources=list(plan.sources)), masks=masks is not None, meant=asked.no_labels)
    return Planned(plan, dict(found.skipped), (*said, *found.notes), None if masks is None else Path(masks))


def _first(found: SourceList, channels: str, key: str | None, dtype: str | None, max_bytes: int) -> tuple[str, int, int]:
    """The dtype, the number of axes and the number of channels of the first input that can be read."""
    problem = ""
    for source in found.sources:
        try:
            if not isinstance(source, ArraySource) or source.problem:
                continue
            opened = checked(open_array(found.root, source, key), max_bytes)
            count, sides = laid_out(opened.shape, channels)
            if dtype is None and natural(opened.dtype) not in NUMBERS:
                raise PrepError(f"it holds {opened.dtype}: choose what to store with --dtype, such as --dtype int64")
            return natural(opened.dtype), len(sides), count
        except Exception as error:  # noqa: BLE001  the run itself will reject it
            problem = problem or f"{source.name}: {error}"
    raise PrepError(f"nothing in {found.root} can be read; the first input: {problem or detail_of(found.sources[0].problem)}")


def _sides(chunk: int | Sequence[int], axes: int) -> tuple[int, ...]:
    sides = (chunk,) * axes if isinstance(chunk, int) else tuple(chunk)
    if len(sides) != axes:
        raise ValueError(f"--chunk is {','.join(map(str, sides))}, but the arrays have {axes} axes, channels aside")
    return sides
