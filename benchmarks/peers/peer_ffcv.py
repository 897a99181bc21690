"""FFCV: its RGBImageField with JPEG, or with raw pixels. It enlarges and shrinks with OpenCV's area filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from contestant import TOKENS, Batches, Spec, caption, main
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, NDArrayDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

QUALITY = 90


class Pixels:
    """The stored pixels before any JPEG, so that the .beton holds first-generation JPEGs, as everybody's files are."""

    def __init__(self, spec: Spec) -> None:
        self.images = [np.load(path) for path in sorted(Path(spec.pixels).glob("*.npy"))]
        self.count = spec.count
        self.captions = spec.captions

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        image = self.images[index % len(self.images)]
        return (image, index, caption(index)) if self.captions else (image, index)


def prepare(spec: Spec) -> None:
    image = RGBImageField(write_mode="raw") if spec.raw else RGBImageField(write_mode="jpg", jpeg_quality=QUALITY)
    tokens = {"tokens": NDArrayField(np.dtype(np.uint16), (TOKENS,))} if spec.captions else {}
    writer = DatasetWriter(spec.store, {"image": image, "number": IntField(), **tokens}, num_workers=spec.workers)
    writer.from_indexed_dataset(Pixels(spec))


def make(spec: Spec) -> Batches:
    side = (spec.side, spec.side)
    crop: Any
    if spec.train:
        crop = RandomResizedCropRGBImageDecoder(side, scale=tuple(spec.scale), ratio=tuple(spec.ratio))
    else:
        crop = CenterCropRGBImageDecoder(side, ratio=spec.side / spec.size)
    loader = Loader(
        spec.store,
        batch_size=spec.batch,
        num_workers=spec.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        seed=spec.seed,
        pipelines={"image": [crop], "number": [IntDecoder()], **({"tokens": [NDArrayDecoder()]} if spec.captions else {})},
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    main(make, ("ffcv", "numba", "torch", "numpy"), prepare)
