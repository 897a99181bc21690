"""The Loader alone, with each of its backends, beside torchvision and DALI: random crops of JPEG files, as uint8 on the device.

    python benchmarks/gpu/loaders.py [--device cpu] [--quick]

RandomResizedCrop(224), batches of 256, all cores. A contestant that is not installed is left out, and it is said why.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import others
import torch
from part import Result, Run, Setting, Wrong, consume, main, ratios, rows_of
from PIL import Image

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.bench.harness import interleave

BACKENDS = ("torch", "dali")
TORCH = "`Loader`, backend torch"
PILLOW = "torchvision, Pillow in processes"
OTHERS = {
    PILLOW: others.torchvision_pillow,
    "torchvision, decode_jpeg on the device": others.torchvision_nvjpeg,
    "DALI's own reader": others.dali,
}
WRONG_DB = 20.0  # below, these are other pixels; plain bilinear is above, aliasing and all
COMPARED = 64  # images

Array = np.ndarray[Any, np.dtype[Any]]


def measure(setting: Setting) -> Result:
    rows, side = (16, 64) if setting.quick else (256, 224)
    dataset = LMDBDataset(setting.inputs.store, crop=RandomResizedCrop(side))
    paths = [str(setting.inputs.path(k)) for k in range(setting.inputs.count)]
    result = Result(
        [f"RandomResizedCrop({side}), batches of {rows}, {setting.workers} workers or threads, uint8 on {setting.device.type}."]
    )
    batches: dict[str, Iterator[others.Delivered]] = {}
    loaders: list[Loader] = []
    for name, start in starts(setting, dataset, paths, rows, side, loaders).items():
        try:
            batches[name] = started = start()
            check(setting, name, started, rows, side, result)
        except Exception as error:  # whatever another library raises where it can't run; ours has to be right where it does
            if name == TORCH or (isinstance(error, Wrong) and name not in OTHERS):
                raise
            batches.pop(name, None)
            result.left_out[name] = f"{type(error).__name__}: {error}"
    ready = 2 * setting.workers + 1

    def turn(name: str) -> Callable[[float], Run]:
        return lambda seconds: consume(setting, batches[name], rows, ready, seconds)

    calls = {name: turn(name) for name in batches}
    runs = interleave(calls, seconds=setting.seconds(1.5), repeats=setting.rounds, warmup=0)  # `check` has warmed all up
    for loader in loaders:
        loader.close()
    compare(runs, result)
    return result


def starts(
    setting: Setting, dataset: Any, paths: list[str], rows: int, side: int, loaders: list[Loader]
) -> dict[str, Callable[[], Iterator[others.Delivered]]]:
    """What makes each contestant; those with processes come first, before DALI has threads. Our loaders go into `loaders`."""

    def ours(backend: str) -> Iterator[others.Delivered]:
        options = {"num_workers": setting.workers, "device": setting.target, "backend": backend}
        loaders.append(Loader(dataset, rows, shuffle=True, **options))
        return delivered(loaders[-1], dataset)

    def one(backend: str) -> Callable[[], Iterator[others.Delivered]]:
        return lambda: ours(backend)

    def other(make: Any) -> Callable[[], Iterator[others.Delivered]]:
        return lambda: make(setting, paths, rows, side)

    mine = {f"`Loader`, backend {backend}": one(backend) for backend in BACKENDS}
    theirs = {name: other(make) for name, make in OTHERS.items()}
    return {TORCH: mine[TORCH], PILLOW: theirs[PILLOW]} | mine | theirs


def delivered(loader: Loader, dataset: Any) -> Iterator[others.Delivered]:
    """What our Loader makes, with the numbers of the files and the boxes that it drew."""
    numbers = np.array([int(Path(dataset.name(k)).stem) for k in range(len(dataset))])
    while True:
        for batch in loader:
            yield batch[0], numbers[batch.ids], Boxes(dataset, loader.seed, batch.position[0], batch.ids)


class Boxes:
    """Those of a batch, int64 [n, 4], whatever decodes it. Drawn when they are looked at, not in the time of a turn."""

    def __init__(self, dataset: Any, seed: int, epoch: int, ids: Array) -> None:
        self.dataset, self.place = dataset, (seed, epoch, ids)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        seed, epoch, ids = self.place
        _, _, (plan,) = self.dataset._plan_batch(ids, seed, epoch, None)
        return np.array([sample.box for sample in plan])


def check(setting: Setting, name: str, batches: Iterator[others.Delivered], rows: int, side: int, result: Result) -> None:
    """One epoch: shape, dtype, place, every sample once; and the pixels of some images, where the boxes are known."""
    seen, decibels = [], []
    for images, numbers, boxes in itertools.islice(batches, setting.inputs.count // rows):
        last = images.movedim(1, -1) if images.shape[1] == 3 else images
        if last.shape != (rows, side, side, 3) or images.dtype != torch.uint8 or images.device.type != setting.device.type:
            raise Wrong(f"{name} delivers {images.dtype} {list(images.shape)} on {images.device}")
        seen.append(np.asarray(numbers))
        if boxes is not None and len(decibels) < COMPARED:
            found = zip(last.cpu().numpy(), seen[-1], np.asarray(boxes), strict=True)
            decibels += [psnr(image, pillow(setting.inputs.path(int(k)), box, side)) for image, k, box in found]
    if not np.array_equal(np.sort(np.concatenate(seen)), np.arange(setting.inputs.count)):
        raise Wrong(f"{name} does not deliver each sample once")
    if decibels and median(decibels) < WRONG_DB:
        raise Wrong(f"{name} has {median(decibels):.1f} dB PSNR to Pillow's crops")
    pixels = f", {median(decibels):.1f} dB PSNR to Pillow's crops (least {min(decibels):.1f})" if decibels else ", takes no boxes"
    result.checked.append(f"{name}: each sample once{pixels}")


def pillow(path: Path, box: Array, side: int) -> Array:
    """The crop of a file as Pillow makes it, antialiased bilinear."""
    top, left, height, width = map(int, box)
    part = Image.open(path).convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(part.resize((side, side), Image.Resampling.BILINEAR))


def psnr(a: Array, b: Array) -> float:
    """In dB; 99 for equal pixels."""
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return min(99.0, 10 * math.log10(255**2 / max(error, 1e-12)))


def compare(runs: dict[str, list[Run]], result: Result) -> None:
    """Rows, and what is asked: our best against their best."""
    rates = {name: [run.images / run.seconds for run in done] for name, done in runs.items()}
    theirs = max((name for name in rates if name in OTHERS), key=lambda name: median(rates[name]), default=None)
    ours = max((name for name in rates if name not in OTHERS), key=lambda name: median(rates[name]))
    result.about.append(f"The ceiling is the best of ours, {ours}.")
    result.rows = rows_of(runs, ours, "images/s")
    ratio = None if theirs is None else median(ratios(rates[ours], rates[theirs]))
    result.ask(f"best of ours ({ours}) : best of theirs ({theirs})", 1.3, ratio)


if __name__ == "__main__":
    main(measure)
