"""Make a plan from a source of arrays. The first readable input decides the dtype and the number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastdata.arrays.convert import default_dtype
from fastdata.arrays.listing import list_arrays
from fastdata.arrays.options import ArrayOptions
from fastdata.arrays.readers import checked, open_array
from fastdata.arrays.recipe import ArrayRecipe, default_chunk, laid_out
from fastdata.arrays.source import ArraySource, needed_packages
from fastdata.errors import PrepError, RemoteError
from fastdata.kinds import Planned, StrPath
from fastdata.prepare.plan import make_plan
from fastdata.sources.inputs import SourceList
from fastdata.sources.notes import label_notes
from fastdata.sources.reasons import detail_of, refuse_unusable
from fastdata.sources.tables import is_path_table
from fastdata.sources.urls import to_path
from fastdata.store.format import NUMBERS

__all__ = ["plan_arrays"]

LEAST = 1, 1 << 20  # samples and bytes of a shard


def plan_arrays(source: StrPath, options: ArrayOptions, limit: int | None) -> Planned:
    """List the inputs and decide how to store them.

    Raises:
        PrepError: if there is nothing to prepare, or nothing that can be read.
        MissingExtraError: if the library that reads some of the files is not installed.
        ValueError: if an option is wrong.
    """
    recipe = ArrayRecipe(  # checks the options before the inputs are listed
        dtype=options.dtype or "uint8",
        rounded=options.dtype is not None,
        chunk=(1,),
        channels=options.channels,
        key=options.key or "",
        max_bytes=options.most_bytes,
        mask_bits=options.mask_bits,
        order=options.order or "listed",
        shard_samples=options.shard_samples,
    )
    masks = options.masks
    found = list_arrays(source, options, masks=masks, key=options.key)
    refuse_unusable(
        found.sources, found.root, table=is_path_table(to_path(source), options.path_column), told=options.root is not None
    )
    files = [s.file for s in found.sources if isinstance(s, ArraySource)]
    libraries = needed_packages([*files, *(mask.name for s in found.sources for mask in s.companions)])
    dtype, axes, channels = _first(found, options)
    cell = channels * np.dtype(dtype).itemsize
    recipe = replace(
        recipe,
        dtype=dtype,
        chunk=default_chunk(axes, cell) if options.chunk is None else _sides(options.chunk, axes),
        mask_bits=0 if masks is None else options.mask_bits,
        libraries=libraries,
    )
    plan = make_plan(found, recipe, limit, least=LEAST)
    notes = label_notes(replace(found, sources=plan.sources), masks=masks is not None, meant=options.no_labels)
    return Planned(plan, dict(found.skipped), (*notes, *found.notes), companions=() if masks is None else (to_path(masks),))


def _first(found: SourceList, options: ArrayOptions) -> tuple[str, int, int]:
    """Return the dtype to store, and the numbers of axes and channels, from the first input that can be read."""
    problem = ""
    for source in found.sources:
        try:
            if not isinstance(source, ArraySource) or source.problem:
                continue
            opened = checked(open_array(found.root, source, options.key), options.most_bytes)
            channels, sides = laid_out(opened.shape, options.channels)
            dtype = options.dtype or default_dtype(opened.dtype)
            if dtype not in NUMBERS:
                raise PrepError(f"it holds {opened.dtype}: choose what to store with --dtype, such as --dtype int64")
            return dtype, len(sides), channels
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001  the run will reject it
            problem = problem or f"{source.name}: {error}"
    raise PrepError(f"nothing in {found.root} can be read; the first input: {problem or detail_of(found.sources[0].problem)}")


def _sides(chunk: int | Sequence[int], axes: int) -> tuple[int, ...]:
    sides = (chunk,) * axes if isinstance(chunk, int) else tuple(chunk)
    if len(sides) != axes:
        raise ValueError(f"--chunk is {','.join(map(str, sides))}, but the arrays have {axes} axes, channels aside")
    return sides
