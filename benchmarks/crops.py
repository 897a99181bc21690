"""What a random crop costs, step by step, and how far its pixels are from Pillow's: behind docs/design.md and LOG.md.

python benchmarks/crops.py [--photos ../shared/data/photos] [--short 256]

One core. Times are medians of interleaved rounds over the same boxes, drawn as RandomResizedCrop(224) draws them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

from fastdata.codecs import jpeg_grid
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_batch import jpeg_batches
from fastdata.codecs.jpeg_crop import cut_jpeg
from fastdata.codecs.jpeg_grid import encode_jpeg
from fastdata.codecs.pixels import Window, decode_window
from fastdata.data.random import uniforms
from fastdata.images.crops import CenterCrop, RandomResizedCrop, Resize
from fastdata.images.resample import resample
from fastdata.images.resize import resize, target_shapes
from fastdata.images.view import View
from fastdata.store.manifest import Form

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 224
RGB = Form("jpeg", 3, "uint8")
PLAIN = [cv2.IMWRITE_JPEG_QUALITY, 90, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
ROUNDS = 7
FACTORS = (1.3, 2, 3, 4, 6, 8, 12, 16)
_memory: Array = np.empty(1 << 24, np.uint8)


def scratch(_: int) -> Array:
    return _memory


def rates(contestants: dict[str, Callable[[Any], Any]], inputs: list[Any]) -> dict[str, float]:
    """Milliseconds per input, median of interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, work in contestants.items():
            started = time.perf_counter()
            for item in inputs:
                work(item)
            times[name].append((time.perf_counter() - started) / len(inputs) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def steps(records: list[bytes], seed: int = 0) -> None:
    """Time and bytes of each step of a crop."""
    sizes = np.array([simplejpeg.decode_jpeg_header(record)[:2] for record in records])
    crop, everything = RandomResizedCrop(SIDE), np.arange(len(records))
    boxes = [tuple(box) for box in crop.boxes(uniforms(seed, 0, everything, crop.draws), sizes[:, 0], sizes[:, 1]).tolist()]
    cuts = [cut_jpeg(record, *box) for record, box in zip(records, boxes, strict=True)]
    pixels = [simplejpeg.decode_jpeg(record) for record in records]
    shrinking = [k for k, box in enumerate(boxes) if max(box[2:]) > SIDE]
    narrow = [k for k, cut in enumerate(cuts) if cut.width % 32 == 16]
    out: Array = np.empty((SIDE, SIDE, 3), np.uint8)
    batch: Array = np.empty((64, SIDE, SIDE, 3), np.uint8)

    def view(k: int) -> Array:
        top, left, h, w = boxes[k]
        return pixels[k][top : top + h, left : left + w]

    def line(title: str, indices: Any, **contestants: Any) -> None:
        times = rates(contestants, list(indices))
        print(f"  {title}: " + ", ".join(f"{name.replace('_', ' ')} {1e3 * ms:.1f}" for name, ms in times.items()) + " us")

    share = sum(len(cut.data) for cut in cuts) / sum(map(len, records))
    print(f"{len(records)} photos; a cut has {share:.2f} of the bytes")
    print(f"{len(shrinking)} boxes shrink; {len(narrow)} cuts end at a 16th pixel")
    line(
        "JPEG to pixels",
        everything,
        decode_all=lambda k: simplejpeg.decode_jpeg(records[k], buffer=_memory),
        cut=lambda k: cut_jpeg(records[k], *boxes[k]),
        decode_the_cut=lambda k: decode_window(records[k], RGB, *sizes[k].tolist(), Window(*boxes[k]), scratch),
    )
    together(records, sizes, boxes)
    line(
        "cuts that end at a 16th pixel, decoded",
        narrow,
        RGB=lambda k: simplejpeg.decode_jpeg(cuts[k].data, "RGB", buffer=_memory),
        RGBA=lambda k: simplejpeg.decode_jpeg(cuts[k].data, "RGBA", buffer=_memory),
        grey=lambda k: simplejpeg.decode_jpeg(cuts[k].data, "GRAY", buffer=_memory),
    )

    def made(k: int, space: str, *, repacked: bool = False) -> None:
        top, left, h, w = boxes[k]
        decoded = simplejpeg.decode_jpeg(cuts[k].data, space, buffer=_memory)
        if repacked:
            decoded = cv2.cvtColor(decoded, cv2.COLOR_RGBA2RGB)
        resample(decoded, (top - cuts[k].top, left - cuts[k].left, h, w), out, antialias=True)

    line(
        "cuts decoded and resized",
        everything,
        RGB=lambda k: made(k, "RGB"),
        RGBA=lambda k: made(k, "RGBA"),
        RGBA_repacked_before=lambda k: made(k, "RGBA", repacked=True),
    )
    for title, indices in (("resize of boxes that shrink", shrinking), ("of all boxes", everything)):
        line(
            title,
            indices,
            antialiased=lambda k: resample(pixels[k], boxes[k], out, antialias=True),
            bilinear=lambda k: resample(pixels[k], boxes[k], out, antialias=False),
            OpenCV_area=lambda k: cv2.resize(view(k), (SIDE, SIDE), dst=out, interpolation=cv2.INTER_AREA),
        )
    images = torch.from_numpy(batch).permute(0, 3, 1, 2)
    line(
        "a flip",
        range(64),
        in_the_slot=lambda k: cv2.flip(batch[k], 1, dst=batch[k]),
        by_torch_in_a_batch_of_64=lambda k: images.flip(3) if k == 0 else None,
    )


def together(records: list[bytes], sizes: Array, boxes: list[tuple[int, ...]]) -> None:
    """Decoding in batches of 64, which are drawn anew from the photos: one box after another, or boxes of equal width at once."""
    rng, windows, views = np.random.default_rng(0), [Window(*box) for box in boxes], [memoryview(record) for record in records]
    batches = [rng.integers(0, len(records), 64).tolist() for _ in range(32)]
    shapes = [tuple(size) for size in sizes.tolist()]

    def alone(batch: list[int]) -> None:
        for k in batch:
            decode_window(views[k], RGB, *shapes[k], windows[k], scratch)

    def in_batches(batch: list[int]) -> int:
        chosen = ([of[k] for k in batch] for of in (views, shapes, windows))
        together, rest = jpeg_batches(*chosen)
        for each in together:
            each.decode(each.join(), gray=False, scratch=scratch)
        alone([batch[k] for k in rest])
        return len(together) + len(rest)

    times = rates({"alone": alone, "together": in_batches}, batches)
    each = statistics.mean(64 / in_batches(batch) for batch in batches)
    print(
        "  cut and decoded: " + ", ".join(f"{name} {1e3 * ms / 64:.1f}" for name, ms in times.items()) + f" us; {each:.1f} together"
    )


def cells(photos: list[Array]) -> None:
    """Bytes and decoding of crops for cells of other sizes."""
    sizes, everything, stored = np.array([photo.shape[:2] for photo in photos]), np.arange(len(photos)), {}
    for side in (16, 32, 64):
        jpeg_grid.MIN_CELL = side
        stored[f"{side} pixels"] = [encode_jpeg(photo) for photo in photos]
    jpeg_grid.MIN_CELL = 16
    plain = sum(len(cv2.imencode(".jpg", photo[:, :, ::-1], PLAIN)[1]) for photo in photos)
    print(
        "cells of so many pixels: "
        + ", ".join(f"{name} {sum(map(len, r)) / plain:.3f}" for name, r in stored.items())
        + " of plain"
    )
    for crop in (RandomResizedCrop(SIDE), CenterCrop(SIDE)):
        boxes = crop.boxes(uniforms(0, 0, everything, crop.draws), sizes[:, 0], sizes[:, 1]).tolist()

        def decode(records: list[bytes], boxes: list[list[int]] = boxes) -> Any:
            return lambda k: decode_window(records[k], RGB, *sizes[k].tolist(), Window(*boxes[k]), scratch)

        times = rates({name: decode(records) for name, records in stored.items()}, everything.tolist())
        print(f"  {type(crop).__name__}: " + ", ".join(f"{name} {1e3 * ms:.0f} us" for name, ms in times.items()))


def errors(photos: list[Array]) -> None:
    """Mean absolute difference of whole photos shrunk by the Loader from Pillow's BILINEAR of the decoded photo, in codes."""
    records = [encode_jpeg(photo) for photo in photos]
    for antialias in (True, False):
        print(f"antialias={antialias}: median photo / worst photo / largest difference of a pixel, in codes")
        for factor in FACTORS:
            found = [_error(record, factor, antialias) for record in records]
            means, largest = [mean for mean, _, _ in found], max(worst for _, worst, _ in found)
            scales = sorted({shrink for _, _, shrink in found})
            print(
                f"  {factor:4} times smaller, decoded at 1/{scales}: "
                f"{statistics.median(means):.2f} / {max(means):.2f} / {largest:.0f}"
            )


def _error(record: bytes, factor: float, antialias: bool) -> tuple[float, float, int]:
    height, width = simplejpeg.decode_jpeg_header(record)[:2]
    shape = round(height / factor), round(width / factor)
    view = View(Resize(shape, antialias=antialias))
    (sample,) = view.plan(np.zeros((2, 1)), np.array([height]), np.array([width]))
    out: Array = np.empty((*shape, 3), np.uint8)
    view.render(sample, decode_window(record, RGB, height, width, sample.window, scratch), out)
    whole = Image.fromarray(simplejpeg.decode_jpeg(record))
    apart = np.abs(out.astype(float) - np.asarray(whole.resize(shape[::-1], Image.Resampling.BILINEAR)))
    return float(apart.mean()), float(apart.max()), sample.window.shrink


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path("../shared/data/photos"))
    parser.add_argument("--short", type=int, default=256)
    options = parser.parse_args()
    files = sorted(p for p in options.photos.rglob("*") if p.is_file())[:200]
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    photos = []
    for file in files:
        image = SourceImage(file.read_bytes()).decode()
        height, width = target_shapes(np.array([image.shape[:2]]), options.short, "short", upscale=True)[0].tolist()
        photos.append(resize(image, (height, width)))
    steps([encode_jpeg(photo) for photo in photos])
    cells(photos)
    errors(photos)


if __name__ == "__main__":
    main()
