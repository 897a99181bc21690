"""What the programs of all peers share. Needs numpy only; cv2 where a peer decodes with it. Knows nothing of fastdata.

    python peer_NAME.py prepare SPEC      store the images in the peer's own format
    python peer_NAME.py serve SPEC        be a contestant: one JSON line when ready, then one for each line on stdin
        epoch                             deliver every image once; the answer has the images and the seconds
        check FILE                        the same, and write the first images with their numbers and boxes to an .npz

SPEC is a JSON file with the fields of `Spec`. A sample's label is its number, so that "every sample exactly once" can be checked.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 256  # images that a check writes, at least
TOKENS, VOCABULARY = 77, 49_408  # of CLIP

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[int, int, int, int]  # top, left, height, width
Batches = Callable[[], Iterator[Any]]  # one epoch of (images, numbers), or (images, numbers, tokens)


@dataclass(frozen=True)
class Spec:
    """What a contestant shall do.

    Attributes:
        variant: of the peer, such as how it resizes.
        train: RandomResizedCrop, else CenterCrop.
        raw: pixels instead of JPEG.
        captions: also deliver the `caption` of each image.
        files: folder of 000000.jpg and so on. pixels: folder of 000.npy and so on, image k is number k modulo their count.
        store: the peer's own format, made by `prepare`.
        boxes: .npy of int64 [count, 4], instead of random boxes; for checks.
    """

    variant: str
    train: bool
    raw: bool
    count: int
    size: int
    side: int
    batch: int
    workers: int
    seed: int
    files: str
    pixels: str
    store: str
    captions: bool = False
    boxes: str | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def paths(self) -> list[str]:
        return [f"{self.files}/{k:06d}.jpg" for k in range(self.count)]


def caption(number: int) -> Array:
    """The tokens of an image's caption, uint16 [77]."""
    return ((number * 7919 + np.arange(TOKENS) * 104_729) % VOCABULARY).astype(np.uint16)


def main(make: Callable[[Spec], Batches], packages: tuple[str, ...], prepare: Callable[[Spec], None] | None = None) -> None:
    """Be the program: `make` gives what delivers an epoch, `packages` are those whose versions are reported."""
    spec = Spec(**json.loads(Path(sys.argv[2]).read_text()))
    if sys.argv[1] == "prepare":
        if prepare is not None:
            prepare(spec)
        return
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    epoch = make(spec)
    print(json.dumps({"versions": {name: metadata.version(name) for name in packages}}), file=replies)
    for line in sys.stdin:
        _, _, path = line.strip().partition(" ")
        print(json.dumps(_deliver(epoch, spec, path)), file=replies)


def _deliver(epoch: Batches, spec: Spec, path: str) -> dict[str, Any]:
    """One epoch, from the request to the last batch. With a path, images are kept."""
    numbers: list[Array] = []
    kept: list[Array] = []
    captions: list[Array] = []
    first, touched, started = 0.0, 0, time.perf_counter()
    images: Any = None
    for images, labels, *tokens in epoch():
        first = first or time.perf_counter() - started
        touched += int(images[::16, ::32, ::32].sum())
        numbers.append(np.array(labels).reshape(-1))  # a copy: some reuse their memory
        captions.extend(map(np.array, tokens))
        if path and sum(map(len, kept)) < KEPT:
            kept.append(np.array(images))
    seconds = time.perf_counter() - started
    seen = np.concatenate(numbers)
    if path:
        pixels = np.concatenate(kept)
        which = seen[: len(pixels)]
        extra = {} if spec.boxes is None else {"boxes": np.load(spec.boxes)[which]}
        np.savez(path, **({"numbers": which, "images": pixels} | extra))
    return {
        "images": len(seen),
        "seconds": seconds,
        "first_ms": 1e3 * first,
        "once": bool(np.array_equal(np.sort(seen), np.arange(spec.count))),
        "captions": bool(captions) and np.array_equal(np.concatenate(captions), [caption(k) for k in seen.tolist()]),
        "shape": list(images.shape[1:]),
        "dtype": str(images.dtype).removeprefix("torch."),
        "touched": touched,
    }


# For the peers that leave decoding and cropping to their user


def chooser(spec: Spec) -> Callable[[int, int, int], Box]:
    """A function of (number, height, width) that gives the box of a sample."""
    if not spec.train:
        return lambda _, height, width: (round((height - spec.side) / 2), round((width - spec.side) / 2), spec.side, spec.side)
    if spec.boxes is not None:
        given = np.load(spec.boxes).tolist()
        return lambda number, height, width: tuple(given[number])
    return lambda _, height, width: random_box(height, width, spec.scale, spec.ratio)


def random_box(height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """torchvision.transforms.RandomResizedCrop.get_params."""
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        shape = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def cv2_sampler(spec: Spec) -> Callable[[bytes, int], Array]:
    """What a person writes: encoded bytes and a number become uint8 [side, side, 3], by a full decode and plain bilinear."""
    import cv2

    choose, side = chooser(spec), (spec.side, spec.side)
    cv2.setNumThreads(1)

    def sample(data: bytes, number: int) -> Array:
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        top, left, h, w = choose(number, *image.shape[:2])
        part: Array = image[top : top + h, left : left + w]
        return cv2.resize(part, side, interpolation=cv2.INTER_LINEAR) if (h, w) != side else part

    return sample


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
