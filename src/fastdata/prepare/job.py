"""prep: a folder of images becomes a store. Plan, run the shards that are not there yet, finish."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import PrepError, StoreError
from fastdata.machine import available_cores
from fastdata.prepare import kinds
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.folder import PLAN, claimed, clear, is_finished
from fastdata.prepare.images import ImageOptions
from fastdata.prepare.kinds import kind_of
from fastdata.prepare.masks import MaskOptions, read_palette
from fastdata.prepare.pairs import with_masks
from fastdata.prepare.plan import Plan, make_plan
from fastdata.prepare.progress import MODES, Progress
from fastdata.prepare.run import Roots, run_shards
from fastdata.prepare.sources import list_sources
from fastdata.prepare.worker import shard_table
from fastdata.store.files import WORK, shard_file, write_atomic
from fastdata.store.store import Store

__all__ = ["Summary", "as_sizes", "check_positive", "mask_options", "prep", "resolve"]


@dataclass(frozen=True)
class Summary:
    """What a run made. inputs_per_s and seconds are of this run; the other figures of the whole store.

    Attributes:
        out: the store.
        inputs: images, documents or rows that were found.
        kept: of these, in the store.
        rejected: count by reason; each input stands in rejects.jsonl.
        resumed: inputs that an earlier run had done.
        bytes_before: of the kept images, or of the files of text.
        bytes_after: of all records of all sizes.
        skipped: files that by their ending are none of these, by ending.
        tokens: in a store of tokens.
        kind: of data: "images", "tokens" or "table".
    """

    out: Path
    inputs: int
    kept: int
    rejected: dict[str, int]
    resumed: int
    bytes_before: int
    bytes_after: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    kind: str = "images"

    @property
    def inputs_per_s(self) -> float:
        return (self.inputs - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def reject_rate(self) -> float:
        return sum(self.rejected.values()) / self.inputs if self.inputs else 0.0


def prep(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    size: int | Sequence[int] | None = None,
    resize: str = "short",
    upscale: bool = False,
    codec: str = "jpeg",
    quality: int = 90,
    gray: bool = False,
    bits: int = 8,
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = 1 << 28,
    labels: str | os.PathLike[str] | None = None,
    classes: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_suffix: str = "",
    mask_bits: int = 8,
    palette: str | os.PathLike[str] | None = None,
    target: str | Sequence[str] | None = None,
    category: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: str = "off",
) -> Summary:
    """Make a store of a folder of images, or of a CSV/TSV file of `path,label`, or of a table. Run again after an interruption, it
    goes on.

    Args:
        source: a folder (one folder per class, or flat) or a CSV/TSV of images; with `target`, a Parquet, CSV or TSV file of any
            columns; or a DataFrame (pandas, or whatever exports Arrow's stream), with or without a target.
        out: the store to make; None: the source's name + ".fds", in the current folder.
        size: side in pixels, or several; None keeps each image's own.
        resize: what becomes `size`: the "short" side, the "long" side, "crop" (a centre square) or "stretch" (both sides).
        upscale: enlarge smaller images, which otherwise keep their size.
        codec: "jpeg" (on a restart grid), "rgb" (bare pixels), "png" or "yuv420" (bare planes of luma and halved colours; an odd
            last row or column is repeated).
        quality: of JPEG, 1 to 100.
        gray: keep one channel.
        bits: 8, or 16 for uint16 pixels, with codec "rgb" or "png".
        background: RGB colour beneath transparent pixels.
        max_pixels: larger images are rejected before they are decoded.
        labels: CSV/TSV of a path and float columns, one row an image.
        classes: a store whose class list to use.
        masks: a folder with a mask of classes for each image, a PNG of the same name but for the ending. As with images, what tells
            an input from another are its name and size: for masks that were drawn anew, overwrite.
        mask_suffix: what the masks' names have behind the images', before the ending.
        mask_bits: 8 for classes up to 255, 16 beyond.
        palette: of masks in colours: a file with a line for each class, red, green, blue and a name.
        target: the column of a table to be learnt: names or booleans are classes, whole numbers are themselves, others a vector of
            floats; or several columns of numbers.
        category: columns whose values are names, though they look like numbers.
        drop: columns to leave out.
        limit: prepare that many inputs only, evenly spaced.
        workers: processes; None: one a core.
        overwrite: replace a store, or a begun one, of other options.
        timeout: seconds after which an image counts as one that hangs its decoder.
        progress: "auto", "plain", "json" or "off".

    Raises:
        PrepError: it cannot start or go on. What is finished is kept.
        StoreError: the store cannot be written, because of a full disk or missing rights, say. What is finished is kept.
        ValueError: a wrong argument.
    """
    given = dict(locals())
    check_positive(limit=limit, workers=workers, timeout=timeout)
    if progress not in MODES:
        raise ValueError(f"progress is {progress!r}, but must be one of {', '.join(MODES)}")
    if kind_of(source, target, category, drop) == "table":
        from fastdata.prepare.table.job import prep_table, table_arguments

        return prep_table(**table_arguments(prep, given))
    mask = mask_options(masks, mask_suffix, mask_bits, palette)
    options = ImageOptions(as_sizes(size), resize, upscale, codec, quality, gray, bits, background, max_pixels, mask)
    root, folder = resolve(source, out)
    found = list_sources(source, labels=labels, classes=classes)
    if masks is not None:
        found = with_masks(found, Path(masks), mask_suffix)
    return carry_out(
        make_plan(found, options, limit),
        (root, Path(masks or root).absolute()),
        folder,
        workers=workers,
        overwrite=overwrite,
        timeout=timeout,
        progress=progress,
        skipped=dict(found.skipped),
    )


def carry_out(
    plan: Plan,
    roots: Roots,
    out: Path,
    *,
    workers: int | None,
    overwrite: bool,
    timeout: float,
    progress: str,
    skipped: dict[str, int],
) -> Summary:
    """Make the store of a plan, of any kind of data, or what is missing of it."""
    started = time.monotonic()
    try:
        with claimed(out):
            resumed: int | None = None  # all of it
            if not is_finished(out, plan, overwrite):
                resumed = _run(plan, roots, out, workers or available_cores(), timeout, progress)
                finish(plan, out)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error}\nWhat is finished is kept; run the same command again.") from error
    return _summary(out, plan, resumed, time.monotonic() - started, skipped)


def as_sizes(size: int | Sequence[int] | None) -> tuple[int | None, ...]:
    """The `size` argument as a tuple."""
    return (None,) if size is None else (size,) if isinstance(size, int) else tuple(size)


def mask_options(
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


def resolve(source: str | os.PathLike[str], out: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """The folder that names are relative to, and the store's folder."""
    given = Path(source)
    root = given if given.is_dir() else given.parent
    target = Path(out) if out is not None else Path(f"{given.resolve().stem if given.is_file() else given.resolve().name}.fds")
    if given.is_dir() and target.resolve().is_relative_to(given.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {given}, and would be an input of the next run; put it elsewhere")
    return root.absolute(), target.absolute()


def _run(plan: Plan, roots: Roots, out: Path, workers: int, timeout: float, progress: str) -> int:
    """Make what is missing. Returns the number of inputs that were done before."""
    names = [name for name, _, _ in plan.options.variants()]
    have = finished_shards(plan, out, thorough=True)
    files = {out / shard_file(name, k) for name in names for k in have}
    clear(out, files | {shard_table(out, k) for k in have} | {out / WORK / PLAN})
    for folder in (WORK, *names):
        (out / folder).mkdir(exist_ok=True)
    for name, data in plan.files.items():
        write_atomic(out / name, data)
    if not (out / WORK / PLAN).exists():
        write_atomic(out / WORK / PLAN, plan.to_json())
    total, before = (sum(plan.work(k) for k in shards) for shards in (range(plan.num_shards), have))
    missing = [k for k in range(plan.num_shards) if k not in have]
    try:
        with Progress(total, before, progress, plan.options.unit) as bar:
            run_shards(plan, roots, out, missing, workers=workers, timeout_s=timeout, report=bar.update)
    finally:
        for left in (out / WORK).glob("*.tmp"):
            left.unlink()
    return sum(len(table["rejects"]) + kinds.of(plan.options.kind).kept(table) for table in have.values())


def _summary(out: Path, plan: Plan, resumed: int | None, seconds: float, skipped: dict[str, int]) -> Summary:
    store = Store(out, kind=None)
    rejected, tokens, variants = store.rejects(), store.manifest.tokens, store.manifest.variants
    if store.manifest.table is not None:
        before, after = sum(source.size for source in plan.sources), sum(s.bytes for s in variants[0].shards)
    elif tokens is None:
        before = sum(plan.sources[k].size for k in store.samples["source"].tolist())
        after = sum(int(store.samples[f"{v.name}/bytes"].sum()) for v in variants)
    else:
        before = sum(max(source.size, 0) for source in plan.sources)
        after = sum(tokens.counts) * np.dtype(variants[0].form.dtype).itemsize
    return Summary(
        out=out,
        inputs=len(store) + len(rejected),
        kept=len(store),
        rejected=dict(Counter(r["reason"] for r in rejected)),
        resumed=len(store) + len(rejected) if resumed is None else resumed,
        bytes_before=before,
        bytes_after=after,
        seconds=seconds,
        skipped=skipped,
        tokens=0 if tokens is None else sum(tokens.counts),
        kind=store.manifest.kind,
    )
