"""What boxes and tokens cost a Loader, and what views save beside one pass for each. Behind benchmarks/LOG.md.

python benchmarks/fields_and_views.py [--photos FOLDER] [--images 2048] [--rounds 9] [--size 256] [--border]

In each round, Loaders with two workers take turns over the same photos, in shuffled order: images alone; with boxes, categories
and 77 tokens; MultiCrop's ten views; and two views for SimCLR. Ten views are compared with two passes of the global crop and eight
of the local one, two with two passes. What they deliver is compared with the dataset's own batches first. `--border` measures
instead, on one core, for which views it pays to decode what they share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import torch
from prep_inputs import photos

from fastdata import LMDBDataset, Loader, MultiCrop, RAMDataset, RandomResizedCrop, prep
from fastdata.bench.harness import machine
from fastdata.images import sharing

BATCH, TOKENS = 64, 77
GLOBAL, LOCAL = MultiCrop()[0], MultiCrop()[-1]
ALONE, FIELDS, DINO, TWO, ONE_GLOBAL, ONE_LOCAL = "images alone", "boxes and tokens", "ten views", "two views", "global", "local"
SIMCLR = [RandomResizedCrop(224)] * 2
SETTINGS = {"alone": (-1e9, 0), "half": (0.5, 0), "pixels": (1.0, 0), "chosen": (sharing.SHARE, sharing.START), "all": (1e9, 0)}


def store(folder: Path, work: Path, count: int, size: int) -> Path:
    """Make a store of photos with 1 to 20 boxes each, as COCO has 7 on average, and 77 tokens."""
    rng = np.random.default_rng(0)
    found = photos(folder, work / "unique")
    (work / "images").mkdir()
    images, annotations, rows = list[dict[str, Any]](), list[dict[str, Any]](), ["path,tokens"]
    for k in range(count):
        name = f"{k:06d}.jpg"
        os.link(found[k % len(found)], work / "images" / name)
        height, width = cv2.imread(str(found[k % len(found)]), cv2.IMREAD_IGNORE_ORIENTATION).shape[:2]
        images.append({"id": k, "file_name": f"images/{name}", "height": height, "width": width})
        for _ in range(min(20, 1 + int(rng.exponential(6)))):
            corner, sides = rng.random(2) * 0.8 * (width, height), rng.uniform(0.05, 0.2, 2) * (width, height)
            box = [*corner.tolist(), *sides.tolist()]
            annotations.append({"id": len(annotations), "image_id": k, "category_id": int(rng.integers(80)), "bbox": box})
        rows.append(f'images/{name},"{rng.integers(49_408, size=TOKENS).tolist()}"')
    categories = [{"id": k, "name": str(k)} for k in range(80)]
    (work / "coco.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    (work / "rows.csv").write_text("\n".join(rows) + "\n")
    made = prep(
        work / "rows.csv",
        work / "photos.fds",
        size=size,
        fields=f"tokens:uint16[{TOKENS}]",
        coco=work / "coco.json",
        progress="off",
    )
    assert made.kept == count, made
    return made.out


def check(loader: Loader, dataset: Any) -> None:
    """Compare the first batch with the dataset's own."""
    batch = next(iter(loader))
    images, targets = dataset.read_batch(batch.ids, seed=0, epoch=0)
    for found, wanted in zip(*((each if isinstance(each, tuple) else (each,)) for each in (batch[0], images)), strict=True):
        assert np.array_equal(found.permute(0, 2, 3, 1), wanted)
    if isinstance(targets, dict):
        assert np.array_equal(batch[1]["boxes"].values, targets["boxes"].values)
        assert np.array_equal(batch[1]["tokens"], targets["tokens"])


def seconds(loader: Loader) -> float:
    """Deliver an epoch; each batch is touched."""
    started = time.perf_counter()
    for images, _ in loader:
        first = images[0] if isinstance(images, tuple) else images
        int(first[::16, :, ::32, ::32].sum())
    return time.perf_counter() - started


def compare(path: Path, count: int, rounds: int) -> None:
    crop = RandomResizedCrop(224)
    fields = ("boxes", "category", "tokens")
    datasets = {
        ALONE: LMDBDataset(path, crop=crop, hflip=0.5),
        FIELDS: LMDBDataset(path, crop=crop, hflip=0.5, fields=fields, min_visible=0.1),
        DINO: LMDBDataset(path, crop=MultiCrop(), hflip=0.5),
        TWO: LMDBDataset(path, crop=SIMCLR, hflip=0.5),
        ONE_GLOBAL: LMDBDataset(path, crop=GLOBAL, hflip=0.5),
        ONE_LOCAL: LMDBDataset(path, crop=LOCAL, hflip=0.5),
    }
    loaders = {name: Loader(dataset, BATCH, shuffle=True, num_workers=2) for name, dataset in datasets.items()}
    for name, loader in loaders.items():
        check(loader, datasets[name])
        loader.close()
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            with loader:  # workers of one loader at a time
                next(iter(loader))
                taken = seconds(loader)
            if number:
                times[name].append(taken)
    print("| | images/s | least - greatest |\n|---|--:|--:|")
    for name, taken in times.items():
        rates = [count / each for each in taken]
        print(f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} - {max(rates):,.0f} |")
    passes = [2 * a + 8 * b for a, b in zip(times[ONE_GLOBAL], times[ONE_LOCAL], strict=True)]
    print()
    print(f"- boxes and tokens: {_ratio(times[ALONE], times[FIELDS]):.3f} of the rate of images alone")
    print(f"- ten views: {_ratio(passes, times[DINO]):.2f} times the rate of ten passes")
    print(f"- two views: {_ratio([2 * taken for taken in times[ALONE]], times[TWO]):.2f} times the rate of two passes")


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def border(path: Path, rounds: int) -> None:
    """Measure the rate of batches with settings of images/sharing.py, beside decoding each view alone."""
    works = {
        "two views": SIMCLR,
        "ten views": MultiCrop(),
        "eight local views": MultiCrop(num_global=0),
        "two local views": MultiCrop(num_global=0, num_local=2),
        "four small views": [RandomResizedCrop(64, scale=(0.01, 0.05))] * 4,
    }
    print(f"| | {' | '.join(SETTINGS)} |\n|---|{'--:|' * len(SETTINGS)}")
    for name, crop in works.items():
        dataset = RAMDataset(path, crop=crop)
        rows = np.arange(min(len(dataset), 256)).reshape(-1, 32)
        times: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
        for epoch in range(rounds):
            for setting, (sharing.SHARE, sharing.START) in SETTINGS.items():  # type: ignore[misc]
                started = time.process_time()
                for chunk in rows:
                    dataset.read_batch(chunk, seed=0, epoch=epoch)
                times[setting].append(time.process_time() - started)
        ratios = [f"{_ratio(times['alone'], taken):.2f}" for taken in times.values()]
        print(f"| {name} | {' | '.join(ratios)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(__file__).resolve().parents[2] / "shared/data/photos")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=256, help="short side of the stored images")
    parser.add_argument("--border", action="store_true")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    with TemporaryDirectory() as work:
        path = store(args.photos, Path(work), args.images, args.size)
        print(f"{args.images} images of short side {args.size}, {args.rounds} rounds\n")
        if args.border:
            border(path, args.rounds)
        else:
            compare(path, args.images, args.rounds)
    print("\n" + "\n".join(f"- {name}: {value}" for name, value in machine().items() if name != "command"))


if __name__ == "__main__":
    main()
