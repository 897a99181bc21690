"""What a few huge images do to the Loader: the share of bare processes' rate that it keeps when 1 % of a store is 50 times larger.

python benchmarks/balance.py [--photos ../shared/data/photos] [--images 2000] [--seconds 3] [--rounds 5]

RandomResizedCrop(224) and a flip, batches of 64, shuffled, one worker or bare process a core. Bare processes wait for nobody;
workers hand over batches in order, so one that takes longer may let the others wait. Contestants take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
from prep_inputs import photos

import fastdata
from fastdata.bench.harness import interleave, summarize
from fastdata.bench.loaders import Bare, Task, loader
from fastdata.images.image_file import SourceImage
from fastdata.images.resize import resize, target_shape
from fastdata.machine import available_cores

SIDE, TIMES, SHARE = 256, 50, 100


def store(files: list[Path], folder: Path, count: int, huge: int) -> Path:
    """A store of `count` photos of short side 256, of which every `huge`-th has 50 times as many pixels; 0: none."""
    source = folder / f"in-{huge}"
    source.mkdir()
    small, large = ([_scaled(file, side) for file in files[:20]] for side in (SIDE, round(SIDE * TIMES**0.5)))
    for k in range(count):
        data = (large if huge and k % huge == 0 else small)[k % len(small)]
        (source / f"{k:05d}.jpg").write_bytes(data)
    return fastdata.prep(source, folder / f"{huge}.fds").out


def _scaled(file: Path, side: int) -> bytes:
    image = SourceImage(file.read_bytes()).decode()
    scaled = resize(image, target_shape(*image.shape[:2], side, "short", upscale=True))
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(scaled, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 95])[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path("../shared/data/photos"))
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cores = available_cores()
    with tempfile.TemporaryDirectory() as folder:
        files = photos(options.photos, Path(folder) / "photos")
        for title, huge in (("equal images", 0), (f"1 % are {TIMES} times larger", SHARE)):
            task = Task(str(store(files, Path(folder), options.images, huge)), None, 224, 64)
            dataset = task.dataset()
            mean = float(np.mean([len(dataset._images.get(k)) for k in range(len(dataset))]))
            contestants = [Bare(task, cores, mean), loader(task, dataset, cores, mean)]
            runs = interleave({c.name: c.measure for c in contestants}, seconds=options.seconds, repeats=options.rounds)
            for row in summarize(runs, reference=contestants[0].name):
                rate, ratio = row["images_per_s"], row["ratio"]
                print(
                    f"{title}, {row['name']}: {rate['median']:,.0f} images/s, {ratio['median']:.2f} of bare "
                    f"({ratio['min']:.2f} - {ratio['max']:.2f}), {row['cores_busy']:.2f} of {cores} cores busy"
                )
            for contestant in contestants:
                contestant.close()


if __name__ == "__main__":
    main()
