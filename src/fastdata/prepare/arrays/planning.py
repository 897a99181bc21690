"""From a source of arrays to a plan: what the first readable input is decides what the store is of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastdata.errors import PrepError
from fastdata.prepare.arrays.convert import natural
from fastdata.prepare.arrays.listing import list_arrays
from fastdata.prepare.arrays.options import ArrayOptions, default_chunk, laid_out
from fastdata.prepare.arrays.readers import checked, open_array
from fastdata.prepare.arrays.source import ArraySource, needed_packages
from fastdata.prepare.inputs import SourceList, SourceOptions
from fastdata.prepare.path_table import is_path_table
from fastdata.prepare.plan import Plan, make_plan
from fastdata.prepare.reasons import detail_of, refuse_unusable
from fastdata.store.format import NUMBERS

__all__ = ["plan_arrays"]

LEAST = 1, 1 << 20  # samples and bytes of a shard: a volume is work enough
StrPath = str | os.PathLike[str]


def plan_arrays(
    source: StrPath,
    asked: SourceOptions,
    *,
    masks: StrPath | None,
    mask_suffix: str,
    mask_bits: int,
    chunk: int | Sequence[int] | None,
    channels: str,
    key: str | None,
    dtype: str | None,
    max_bytes: int,
    limit: int | None,
) -> tuple[Plan, SourceList]:
    """List the inputs and decide how they are stored: a plan, and the list. Arguments as for `prep`.

    Raises:
        PrepError: there is nothing to prepare, or nothing that can be read.
        ValueError: a wrong argument.
    """
    if masks is None and (mask_suffix or mask_bits != 8):
        raise ValueError("--mask-suffix and --mask-bits are about masks: give --masks too")
    ArrayOptions(dtype or "uint8", False, (1,), channels, key or "", max_bytes, mask_bits)  # their mistakes come before the list's
    found = list_arrays(source, asked, masks=masks, mask_suffix=mask_suffix, key=key)
    refuse_unusable(found.sources, found.root, table=is_path_table(Path(source)), told=asked.root is not None)
    first, axes, count = _first(found, channels, key, dtype, max_bytes)
    name = dtype or first
    sides = default_chunk(axes, count * np.dtype(name).itemsize) if chunk is None else _sides(chunk, axes)
    files = [s.name + s.ending for s in found.sources if isinstance(s, ArraySource) and s.ending]
    options = ArrayOptions(
        dtype=name,
        rounded=dtype is not None,
        chunk=sides,
        channels=channels,
        key=key or "",
        max_bytes=max_bytes,
        mask_bits=0 if masks is None else mask_bits,
        libraries=needed_packages([*files, *(s.mask for s in found.sources if s.mask)]),
    )
    return make_plan(found, options, limit, least=LEAST), found


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
