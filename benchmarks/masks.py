"""Raw masks beside PNG ones, and their images: bytes on disk, and microseconds to read one random crop. Behind docs/design.md.

python benchmarks/masks.py [--camvid ../shared/data/camvid] [--rounds 9]

One core, warm page cache. Masks of short side 180 are smaller than the crop, so that all of them is read; those of 512 are
enlarged as nearest neighbours, which PNG packs better than masks drawn at that size. The images beside them are JPEG of quality
90; of these, the box is cut out and decoded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np

from fastdata.bench.harness import machine
from fastdata.images.form import PixelFormat
from fastdata.images.image_file import SourceImage
from fastdata.images.jpeg import encode_jpeg
from fastdata.images.mask_file import decode_mask
from fastdata.images.mask_recipe import resize_mask
from fastdata.images.pixels import Window, decode_record, decode_window
from fastdata.images.resize import resize, target_shape
from fastdata.store.shards import ShardReader, ShardWriter

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[int, int, int, int]
_memory: Array = np.empty(1 << 24, np.uint8)

SIZES, CROP, BOXES = (180, 360, 512), 224, 20
IMAGE, JPEG = "its image, JPEG", PixelFormat("jpeg", 3, "uint8")
FORMS: dict[str, Callable[[Array], bytes]] = {
    "raw": lambda mask: mask.tobytes(),
    "PNG": lambda mask: cv2.imencode(".png", mask)[1].tobytes(),
    "PNG, level 9": lambda mask: cv2.imencode(".png", mask, [cv2.IMWRITE_PNG_COMPRESSION, 9])[1].tobytes(),
}


def write(path: Path, records: list[bytes]) -> tuple[int, ShardReader]:
    """A shard: bytes of its file, and access to it."""
    writer = ShardWriter(path.with_suffix(".tmp"))
    for record in records:
        writer.append(record)
    total = writer.finish(path).bytes
    return total, ShardReader([path], [len(records)], [total])


def read(reader: ShardReader, form: str, k: int, shape: tuple[int, int], box: Box) -> Array:
    """One crop of mask k, or of its image."""
    record, (top, left, h, w) = reader.get(k), box
    if form == IMAGE:
        (region,) = decode_window(record, JPEG, *shape, Window(*box), lambda size: _memory[:size])
        whole, top, left = region.pixels, top - region.top, left - region.left
    else:
        data = np.frombuffer(record, np.uint8)
        whole = data.reshape(shape) if form == "raw" else cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    return whole[top : top + h, left : left + w].copy()  # as into a batch


def boxes(shape: tuple[int, int], rng: np.random.Generator) -> list[Box]:
    """Random places of the crop; the whole mask where that is smaller."""
    if min(shape) < CROP:
        return [(0, 0, *shape)] * BOXES
    return [(int(rng.integers(shape[0] - CROP + 1)), int(rng.integers(shape[1] - CROP + 1)), CROP, CROP) for _ in range(BOXES)]


def measure(masks: list[Array], images: list[Array], folder: Path, rounds: int) -> list[tuple[str, ...]]:
    """Rows of the table: form, kB a mask and in the file, microseconds with their spread, and how many times those of raw."""
    rng, encoded = np.random.default_rng(0), [encode_jpeg(image, quality=90) for image in images]
    stored = {form: [encode(mask) for mask in masks] for form, encode in FORMS.items()} | {IMAGE: encoded}
    files = {form: write(folder / f"{form}.mdb", records) for form, records in stored.items()}
    work = [(k, mask.shape, box) for k, mask in enumerate(masks) for box in boxes(mask.shape, rng)]
    decoded = [decode_record(data, JPEG, *mask.shape) for data, mask in zip(encoded, masks, strict=True)]
    for form, (_, reader) in files.items():
        for k, shape, (top, left, h, w) in work:
            whole = decoded[k] if form == IMAGE else masks[k]
            found = read(reader, form, k, shape, (top, left, h, w))
            assert np.array_equal(found, whole[top : top + h, left : left + w]), (form, k)
    times: dict[str, list[float]] = {form: [] for form in files}
    for _ in range(rounds):
        for form, (_, reader) in files.items():
            started = time.perf_counter()
            for k, shape, box in work:
                read(reader, form, k, shape, box)
            times[form].append((time.perf_counter() - started) / len(work) * 1e6)
    rows = []
    for form, (total, _) in files.items():
        ratio = statistics.median(mine / raw for mine, raw in zip(times[form], times["raw"], strict=True))
        rows.append(
            (
                form,
                f"{statistics.mean(map(len, stored[form])) / 1e3:.1f}",
                f"{total / len(masks) / 1e3:.1f}",
                f"{statistics.median(times[form]):,.1f}",
                f"{min(times[form]):,.1f} - {max(times[form]):,.1f}",
                f"{ratio:.1f}",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--camvid", type=Path, default=Path("../shared/data/camvid"))
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    cv2.setNumThreads(1)
    files = sorted((given.camvid / "masks").iterdir())
    masks = [decode_mask(file.read_bytes()) for file in files]
    images = [SourceImage((given.camvid / "images" / file.name).read_bytes()).decode() for file in files]
    print(f"{len(masks)} CamVid masks, {given.rounds} interleaved rounds of {BOXES} crops of each\n")
    print("| short side | read | stored as | kB each | kB in the file | us a crop | least - greatest | of raw |")
    print("|--:|---|---|--:|--:|--:|--:|--:|")
    for size in SIZES:
        shape = target_shape(*masks[0].shape, size, "short", True)
        with TemporaryDirectory() as folder:
            resized = [resize_mask(mask, shape) for mask in masks]
            rows = measure(resized, [resize(image, shape) for image in images], Path(folder), given.rounds)
        what = "whole" if size < CROP else f"{CROP} x {CROP}"
        print("\n".join(f"| {size} | {what} | {' | '.join(row)} |" for row in rows), flush=True)
    print("\n" + "\n".join(f"- {name}: {value}" for name, value in machine().items() if name != "command"))


if __name__ == "__main__":
    main()
