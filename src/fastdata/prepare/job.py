"""prep: a folder of images becomes a store. Plan, run the shards that are not there yet, finish."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from fastdata.errors import PrepError, StoreError
from fastdata.machine import available_cores
from fastdata.prepare.archives.patterns import locate
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.images import ImageOptions
from fastdata.prepare.masks import MaskOptions, read_palette
from fastdata.prepare.pairs import with_masks
from fastdata.prepare.plan import Plan, describe_difference, difference, make_plan
from fastdata.prepare.progress import MODES, Progress
from fastdata.prepare.run import Roots, run_shards
from fastdata.prepare.sources import list_sources
from fastdata.prepare.worker import shard_table
from fastdata.store.format import MANIFEST, WORK, has_foreign, own_files, own_folders, read_manifest, shard_file, write_atomic
from fastdata.store.store import Store

__all__ = ["Summary", "as_sizes", "check_positive", "mask_options", "prep", "resolve"]

PLAN = "plan.json"


@dataclass(frozen=True)
class Summary:
    """What a run made. images_per_s and seconds are of this run; the other figures of the whole store.

    Attributes:
        out: the store.
        images: inputs in the plan.
        kept: samples in the store.
        rejected: count by reason; each input stands in rejects.jsonl.
        resumed: inputs that an earlier run had done.
        bytes_before: of the kept inputs.
        bytes_after: of all records of all sizes.
        skipped: files that are no images by their ending, by ending.
    """

    out: Path
    images: int
    kept: int
    rejected: dict[str, int]
    resumed: int
    bytes_before: int
    bytes_after: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def images_per_s(self) -> float:
        return (self.images - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def reject_rate(self) -> float:
        return sum(self.rejected.values()) / self.images


def prep(
    source: str | os.PathLike[str],
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
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: str = "off",
) -> Summary:
    """Make a store of a folder of images, of a CSV/TSV file of `path,label`, or of archives. Run again after an interruption, it
    goes on.

    Args:
        source: a folder (one folder per class, or flat), a table, or archives: WebDataset tars, Parquet, idx, CIFAR's batches,
            HDF5 ("file.h5::dataset") or LMDB; several as "shards-{000..099}.tar" or "part-*.parquet".
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
    mask = mask_options(masks, mask_suffix, mask_bits, palette)
    options = ImageOptions(as_sizes(size), resize, upscale, codec, quality, gray, bits, background, max_pixels, mask)
    check_positive(limit=limit, workers=workers, timeout=timeout)
    if progress not in MODES:
        raise ValueError(f"progress is {progress!r}, but must be one of {', '.join(MODES)}")
    root, target = resolve(source, out)
    found = list_sources(source, labels=labels, classes=classes)
    if masks is not None:
        found = with_masks(found, Path(masks), mask_suffix)
    plan = make_plan(found, options, limit)
    started = time.monotonic()
    try:
        with _claimed(target):
            resumed = len(plan.sources)
            if not _finished(target, plan, overwrite):
                resumed = _run(
                    plan, (root, Path(masks or root).absolute()), target, workers or available_cores(), timeout, progress
                )
                finish(plan, target)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error}\nWhat is finished is kept; run the same command again.") from error
    return _summary(target, plan, resumed, time.monotonic() - started, dict(found.skipped))


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
    root, name = locate(source)
    target = Path(out) if out is not None else Path(f"{name}.fds")
    if Path(source).is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {source}, and would be an input of the next run; put it elsewhere")
    return root.absolute(), target.absolute()


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Hold the folder alone: two runs at once would work against each other. The lock ends with the process."""
    if out.exists() and not (out.is_dir() and _ours(out)):
        raise PrepError(f"OUT {out} exists and is not a store; choose another name, or remove it yourself")
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrepError(f"another fastdata-prep is making {out} right now") from None
        yield
    finally:
        os.close(descriptor)


def _ours(out: Path) -> bool:
    """Whether a folder is empty, or holds shards, a manifest or a plan that were made here: many a project has a manifest.json."""
    own = own_files(out)
    if not has_foreign(out) and (any(path.suffix == ".mdb" for path in own) or all(path.parent != out for path in own)):
        return True
    marks = (out / MANIFEST, b'"format": "fastdata"'), (out / WORK / PLAN, b'"fingerprint": "')
    return any(path.is_file() and mark in path.read_bytes() for path, mark in marks)


def _clear(out: Path, keep: set[Path]) -> None:
    """Remove what earlier runs made, the manifest first: what is left then is no store. Nobody else's files are touched."""
    for path in own_files(out):
        if path not in keep:
            path.unlink()
    for folder in own_folders(out):
        with suppress(OSError):  # not empty
            folder.rmdir()


def _finished(out: Path, plan: Plan, overwrite: bool) -> bool:
    """Whether this very store is finished already. Makes way for the plan if `overwrite` says so, else refuses another's folder."""
    if overwrite and not _begun(out, plan):
        _clear(out, set())
    elif (out / MANIFEST).exists():
        old = read_manifest(out)
        if old.fingerprint == plan.fingerprint:
            shutil.rmtree(out / WORK, ignore_errors=True)  # a run that was killed at its very end leaves it
            return True
        _refuse(out, describe_difference({"options": old.options, "libraries": old.libraries}, plan.body()))
    elif (out / WORK / PLAN).exists() and (changed := difference(out / WORK / PLAN, plan)):
        _refuse(out, changed)
    return False


def _begun(out: Path, plan: Plan) -> bool:
    """Whether an unfinished run of this very plan is there: the command that was interrupted goes on, `overwrite` in it or not."""
    try:
        fingerprint = json.loads((out / WORK / PLAN).read_bytes())["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(fingerprint == plan.fingerprint and not (out / MANIFEST).exists())


def _refuse(out: Path, changed: str) -> NoReturn:
    raise PrepError(
        f"{out} was made, or begun, otherwise:\n{changed}\nGive the same options and inputs, another OUT, or --overwrite."
    )


def _run(plan: Plan, roots: Roots, out: Path, workers: int, timeout: float, progress: str) -> int:
    """Make what is missing. Returns the number of inputs that were done before."""
    names = [name for name, _, _ in plan.options.variants()]
    have = finished_shards(plan, out, thorough=True)
    files = {out / shard_file(name, k) for name in names for k in have}
    _clear(out, files | {shard_table(out, k) for k in have} | {out / WORK / PLAN})
    for folder in (WORK, *names):
        (out / folder).mkdir(exist_ok=True)
    if not (out / WORK / PLAN).exists():
        write_atomic(out / WORK / PLAN, plan.to_json())
    before = sum(plan.bounds[k + 1] - plan.bounds[k] for k in have)
    missing = [k for k in range(plan.num_shards) if k not in have]
    try:
        with Progress(len(plan.sources), before, progress) as bar:
            run_shards(plan, roots, out, missing, workers=workers, timeout_s=timeout, report=bar.update)
    finally:
        for left in (out / WORK).glob("*.tmp"):
            left.unlink()
    return before


def _summary(out: Path, plan: Plan, resumed: int, seconds: float, skipped: dict[str, int]) -> Summary:
    store = Store(out)
    after = sum(int(store.samples[f"{v.name}/bytes"].sum()) for v in store.manifest.variants)
    return Summary(
        out=out,
        images=len(plan.sources),
        kept=len(store),
        rejected=dict(Counter(r["reason"] for r in store.rejects())),
        resumed=resumed,
        bytes_before=sum(plan.sources[k].size for k in store.samples["source"].tolist()),
        bytes_after=after,
        seconds=seconds,
        skipped=skipped,
    )
