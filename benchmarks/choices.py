"""The small measurements behind decisions in docs/design.md and LOG.md, on real photos.

python benchmarks/choices.py [--photos ../shared/data/photos]
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

from fastdata.images.image_file import SourceImage
from fastdata.images.jpeg import encode_jpeg
from fastdata.images.jpeg_planes import encode_jpeg_planes
from fastdata.images.resize import resize, target_shape
from fastdata.loader.order import EpochOrder

Array = np.ndarray[Any, np.dtype[Any]]

ROUNDS = 7


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


def _scaled_difference(data: bytes) -> float:
    """Mean absolute difference of the two ways to a short side of 128; 0 for photos too small to be scaled."""
    source = SourceImage(data)
    shape = target_shape(source.height, source.width, 128, "short", False)
    full, scaled = resize(source.decode(), shape), resize(source.decode(at_least=shape), shape)
    return float(np.abs(full.astype(np.int16) - scaled).mean())


def _areas(before: int, after: int) -> Array:
    """[after, before]: how much of each pixel lies in each of `after` equal parts of a side."""
    edges = np.arange(after + 1) * before / after
    shared = np.minimum(edges[1:, None], np.arange(before) + 1) - np.maximum(edges[:-1, None], np.arange(before))
    return np.maximum(shared, 0) * after / before


def _resize_error(pixels: Array, side: int) -> float:
    shape = target_shape(*pixels.shape[:2], side, "short", False)
    down, across = _areas(pixels.shape[0], shape[0]), _areas(pixels.shape[1], shape[1])
    exact = np.einsum("yh,hwc,xw->yxc", down, pixels, across, optimize=True)
    return float(np.abs(resize(pixels, shape) - exact).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=Path("../shared/data/photos"))
    files = sorted(p for p in parser.parse_args().photos.rglob("*") if p.is_file())[:100]
    cv2.setNumThreads(1)
    small = []
    for file in files:
        image = SourceImage(file.read_bytes()).decode()
        small.append(resize(image, target_shape(*image.shape[:2], 256, "short", False)))
    quality = [cv2.IMWRITE_JPEG_QUALITY, 90]
    encoders: dict[str, Callable[[Any], Any]] = {
        "plain": lambda image: cv2.imencode(".jpg", image, quality)[1].tobytes(),
        "optimised tables": lambda image: cv2.imencode(".jpg", image, [*quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1])[1].tobytes(),
        "grid": lambda image: cv2.imencode(".jpg", image, [*quality, cv2.IMWRITE_JPEG_RST_INTERVAL, 1])[1].tobytes(),
        "grid and index (ours)": lambda image: encode_jpeg(image, quality=90),
        "a scan for each plane (jpeg-yuv420)": lambda image: encode_jpeg_planes(image, quality=90),
    }
    print(f"JPEG, {len(files)} photos, short side 256, quality 90")
    for name, ms in rates(encoders, small).items():
        print(f"  {name}: {ms:.3f} ms, {statistics.mean(len(encoders[name](image)) for image in small):.0f} bytes")
    work: dict[str, Callable[[Any], Any]] = {
        "decode": lambda image: SourceImage(image[0]).decode(),
        "resize to 256": lambda image: resize(image[1], image[2]),
        "OpenCV's area filter to 256": lambda image: cv2.resize(image[1], image[2][::-1], interpolation=cv2.INTER_AREA),
        "OpenCV's bilinear to 256": lambda image: cv2.resize(image[1], image[2][::-1], interpolation=cv2.INTER_LINEAR),
    }
    photos = [
        (data, pixels := SourceImage(data).decode(), target_shape(*pixels.shape[:2], 256, "short", False))
        for data in map(Path.read_bytes, files)
    ]
    print("Steps of preparing, ms a photo: " + ", ".join(f"{name} {ms:.2f}" for name, ms in rates(work, photos).items()))
    for side in (192, 256, 320, 384):
        errors = sorted(_resize_error(pixels, side) for _, pixels, _ in photos if side < min(pixels.shape[:2]) < 2 * side)
        print(
            f"Resize to {side}, photos that shrink to more than half ({len(errors)}): mean difference from exact areas, in codes: "
            f"median photo {statistics.median(errors):.2f}, worst {errors[-1]:.2f}"
        )
    differences = sorted(_scaled_difference(file.read_bytes()) for file in files)
    print(
        f"Scaled decode, then areas, to 128: mean difference from full decode and areas, in codes: "
        f"median photo {statistics.median(differences):.2f}, worst {differences[-1]:.2f}"
    )
    order = EpochOrder(1_281_167, 0, shuffle=True)
    print("Order of 1,281,167 samples, microseconds per 64 of them")
    for count in (64, 4096):
        ms = rates({"order": lambda n: order.at(0, np.arange(n))}, [count] * 20)["order"]
        print(f"  {count} at a time: {ms * 1e3 * 64 / count:.0f}")


if __name__ == "__main__":
    main()
