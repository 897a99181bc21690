"""prep: images, arrays or text become a store. Plan, run the shards that are not there yet, finish."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.machine import available_cores
from fastdata.prepare import kinds
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.folder import PLAN, claimed, clear, is_finished
from fastdata.prepare.in_python import as_path
from fastdata.prepare.planned import Planned, check_positive, planned
from fastdata.prepare.progress import MODES, Progress
from fastdata.prepare.reasons import tried_path
from fastdata.prepare.run import run_shards
from fastdata.prepare.worker import shard_table
from fastdata.store.files import WORK, shard_file, write_atomic
from fastdata.store.info_lines import number_of
from fastdata.store.store import Store

__all__ = ["Summary", "prep"]


@dataclass(frozen=True)
class Summary:
    """What a run made. inputs_per_s and seconds are of this run; the other figures of the whole store.

    Attributes:
        out: the store.
        inputs: images, documents or rows that were found.
        kept: of these, in the store.
        rejected: count by reason; each input stands in rejects.jsonl.
        resumed: inputs that an earlier run had done.
        bytes_before: of the kept images, or of the files of text, or of the table.
        bytes_after: of all records of all sizes.
        skipped: files that by their ending are none of these, by ending.
        notes: what the labels are and where they come from, and what of the source is not stored, or otherwise than asked.
        first_reject: the first of the rejects and its reason; empty, if there is none.
        tokens: in a store of tokens.
        originals: with codec "original", how many images of each size kept their bytes; the others were encoded.
        kind: of data: "images", "tokens", "arrays" or "table".
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
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_reject: str = ""

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
    labels: Any = None,
    classes: str | os.PathLike[str] | None = None,
    label_from: str | None = None,
    label_column: str | Sequence[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    split: str | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_suffix: str = "",
    mask_bits: int = 8,
    palette: str | os.PathLike[str] | None = None,
    tokenizer: str | None = None,
    train_bpe: int | None = None,
    end_token: str | None = None,
    split_lines: bool = False,
    split_on: str | None = None,
    field: str = "text",
    kind: str | None = None,
    chunk: int | Sequence[int] | None = None,
    channels: str = "none",
    key: str | None = None,
    dtype: str | None = None,
    max_bytes: int = 1 << 32,
    target: str | Sequence[str] | None = None,
    category: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: str = "off",
) -> Summary:
    r"""Make a store of images, of arrays, of text, or of a table. Run again after an interruption, it goes on.

    Args:
        source: of images, a folder (one folder per class, or flat), a CSV/TSV file of `path,label`, or archives: WebDataset tars,
            Parquet, .arrow, idx, CIFAR's batches, HDF5 ("file.h5::dataset"), LMDB; several as "shards-{000..099}.tar"; or a
            sequence in Python: of arrays (uint8 or uint16, [H, W] or [H, W, 3]), of images of Pillow's, or of pairs of one and its
            label, such as a dataset of torchvision's. Of arrays, a folder, a table or one file: .npy, .npz, NIfTI, DICOM series. Of
            text (with tokenizer or train_bpe), a folder or a file: .txt, one document each, or .jsonl or .parquet; all but the last
            also as .gz or .zst. Of a table (with target), a .parquet, .arrow, .csv or .tsv file; or a DataFrame (pandas, or
            whatever exports Arrow's stream).
        out: the store to make; None: the source's name + ".fds", in the current folder.
        size: side in pixels, or several; None keeps each image's own.
        resize: what becomes `size`: the "short" side, the "long" side, "crop" (a centre square) or "stretch" (both sides).
        upscale: enlarge smaller images, which otherwise keep their size.
        codec: "jpeg" (on a restart grid), "rgb" (bare pixels), "png" or "yuv420" (bare planes of luma and halved colours; an odd
            last row or column is repeated). "original": JPEG files that need no change (sound, upright, of the wanted size and
            channels) keep their bytes, with all that is in them, such as EXIF; others become "jpeg".
        quality: of JPEG, 1 to 100.
        gray: keep one channel.
        bits: 8, or 16 for uint16 pixels, with codec "rgb" or "png".
        background: RGB colour beneath transparent pixels.
        max_pixels: larger images are rejected before they are decoded.
        labels: CSV/TSV of paths relative to `source` and their labels: numbers are floats, names are classes. Of a sequence in
            Python, one for each image: the number or the name of its class, or floats.
        classes: a store whose class list to use.
        label_from: a regular expression, whose one group finds the class in each path, such as r"(n\d+)_".
        label_column: of a CSV/TSV, Parquet or HDF5: which column holds the class; several of a CSV: floats; "none": no labels.
        root: the folder that the paths of a CSV/TSV are relative to; None: the one that it lies in.
        split: of a CSV/TSV with a column `split`: take these rows.
        masks: a folder with a mask of classes for each image, a PNG of the same name but for the ending. As with images, what tells
            an input from another are its name and size: for masks that were drawn anew, overwrite.
        mask_suffix: what the masks' names have behind the images', before the ending.
        mask_bits: 8 for classes up to 255, 16 beyond.
        palette: of masks in colours: a file with a line for each class, red, green, blue and a name.
        tokenizer: of text: a tokenizer.json of Hugging Face's, a SentencePiece .model, an encoding of tiktoken's by its name, a
            store whose tokenizer to use, "bytes", or "chars": each character of the text, in the order of code points, has an id.
        train_bpe: train a byte-level BPE of so many tokens on the text, and keep it in the store, instead.
        end_token: what stands behind each document: a token, its id, or "none"; None: what the tokenizer says.
        split_lines: each line of a .txt file is a document; else the whole file is one.
        split_on: this text stands between the documents of a .txt file.
        field: of .jsonl and .parquet: what holds the text.
        kind: "images", "arrays" (then TIFF and PNG too), "tokens" or "table"; None: what the options and the files' endings say.
        chunk: of arrays: sides of the boxes that they are stored in, which crops read whole; one number for all axes.
        channels: of arrays: "first" or "last" if that axis is of channels; it is stored first and never cut.
        key: of .npz files: which of their arrays; None: each is a sample.
        dtype: of all arrays; None: the first one's. Integers that do not fit are rejects, as are floats that are not whole; floats
            are rounded to a smaller float only if this is given.
        max_bytes: larger arrays are rejected before they are read.
        target: the column of a table that is to be learnt: names or booleans are classes, whole numbers are themselves, others a
            vector of floats; or several columns of numbers. A DataFrame may go without.
        category: columns whose values are names, though they look like numbers.
        drop: columns to leave out.
        limit: prepare that many images or arrays only, evenly spaced; of text, the first documents, and of a table, the first rows.
        workers: processes; None: one a core.
        overwrite: replace a store, or a begun one, of other options.
        timeout: seconds after which an image counts as one that hangs its decoder.
        progress: "auto", "plain", "json" or "off".

    Raises:
        PrepError: it cannot start or go on. What is finished is kept.
        StoreError: the store cannot be written, because of a full disk or missing rights, say. What is finished is kept.
        ValueError: a wrong argument.
    """
    check_positive(workers=workers, timeout=timeout)
    if progress not in MODES:
        raise ValueError(f"--progress is {progress}, but must be one of {', '.join(MODES)}")
    with as_path(source, out, labels) as (path, labels):
        work = planned(
            path,
            out,
            size=size,
            labels=labels,
            classes=classes,
            label_from=label_from,
            label_column=label_column,
            root=root,
            split=split,
            masks=masks,
            mask_suffix=mask_suffix,
            mask_bits=mask_bits,
            palette=palette,
            tokenizer=tokenizer,
            train_bpe=train_bpe,
            end_token=end_token,
            split_lines=split_lines,
            split_on=split_on,
            field=field,
            kind=kind,
            chunk=chunk,
            channels=channels,
            key=key,
            dtype=dtype,
            max_bytes=max_bytes,
            target=target,
            category=category,
            drop=drop,
            limit=limit,
            resize=resize,
            upscale=upscale,
            codec=codec,
            quality=quality,
            gray=gray,
            bits=bits,
            background=background,
            max_pixels=max_pixels,
        )
        started, notes = time.monotonic(), work.notes
        try:
            with claimed(work.out):
                resumed: int | None = None  # all of it
                if not is_finished(work.out, work.plan, overwrite):
                    resumed = _run(work, workers or available_cores(), timeout, progress)
                    notes += finish(work.plan, work.out)
        except OSError as error:
            raise StoreError(f"cannot write {work.out}: {error}\nWhat is finished is kept; run the same command again.") from error
    return _summary(work, resumed, time.monotonic() - started, notes)


def _run(work: Planned, workers: int, timeout: float, progress: str) -> int:
    """Make what is missing. Returns the number of inputs that were done before."""
    plan, out = work.plan, work.out
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
            run_shards(plan, work.roots, out, missing, workers=workers, timeout_s=timeout, report=bar.update)
    finally:
        for left in (out / WORK).glob("*.tmp"):
            left.unlink()
    return sum(len(table["rejects"]) + kinds.of(plan.options.kind).kept(table) for table in have.values())


def _first_reject(work: Planned, rejected: list[dict[str, Any]]) -> str:
    if not rejected:
        return ""
    place, name, reason, detail = (rejected[0][key] for key in ("source", "name", "reason", "detail"))
    in_archive = work.plan.options.kind == "images" and bool(work.plan.sources[place].place)
    return f"{name}: {reason}: {detail}{'' if in_archive else tried_path(work.roots[0], reason, name)}"


def _small(store: Store) -> Iterator[str]:
    """Which images are smaller than a size that was asked for."""
    options = store.manifest.options
    if store.manifest.kind != "images" or options["upscale"]:
        return
    for variant in store.manifest.variants:
        if variant.size is not None and not variant.is_mask:
            height, width = (store.samples[f"{variant.name}/{side}"] for side in ("height", "width"))
            side = np.maximum(height, width) if options["resize"] == "long" else np.minimum(height, width)
            if count := int((side < variant.size).sum()):
                are = "are smaller than --size {} and keep their size; --upscale enlarges them"
                one = "is smaller than --size {} and keeps its size; --upscale enlarges it"
                yield f"{count} of {number_of(len(store), 'image')} {(are if count > 1 else one).format(variant.size)}"


def _summary(work: Planned, resumed: int | None, seconds: float, notes: tuple[str, ...]) -> Summary:
    store, sources = Store(work.out, kind=None), work.plan.sources
    rejected, tokens, variants = store.rejects(), store.manifest.tokens, store.manifest.variants
    if store.manifest.table is not None:
        before, after = sum(source.size for source in sources), sum(shard.bytes for shard in variants[0].shards)
    elif tokens is None:
        before = sum(sources[k].size for k in store.samples["source"].tolist())
        after = sum(int(store.samples[f"{v.name}/bytes"].sum()) for v in variants)
    else:
        before = sum(max(source.size, 0) for source in sources)
        after = sum(tokens.counts) * np.dtype(variants[0].form.dtype).itemsize
    return Summary(
        out=work.out,
        inputs=len(store) + len(rejected),
        kept=len(store),
        rejected=dict(Counter(r["reason"] for r in rejected)),
        resumed=len(store) + len(rejected) if resumed is None else resumed,
        bytes_before=before,
        bytes_after=after,
        seconds=seconds,
        skipped=work.skipped,
        notes=(*notes, *_small(store)),
        first_reject=_first_reject(work, rejected),
        tokens=0 if tokens is None else sum(tokens.counts),
        kind=store.manifest.kind,
        originals={v.name: v.originals for v in variants if v.originals is not None},
    )
