"""fastdata's Loader. Knows the store that the harness has prepared.

variant: "", "plain" (antialias=False), "fast", or "alone": without the captions that the store has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from contestant import Batches, Spec, main

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from fastdata.data.random import uniforms
from fastdata.images.view import plan_views


def make(spec: Spec) -> Batches:
    train = RandomResizedCrop(
        spec.side, scale=tuple(spec.scale), ratio=tuple(spec.ratio), antialias=spec.variant != "plain", fast=spec.variant == "fast"
    )
    crop = train if spec.train else CenterCrop(spec.side, fast=spec.variant == "fast")
    captions = spec.captions and spec.variant != "alone"
    dataset = LMDBDataset(spec.store, crop=crop, fields=("tokens", "number") if captions else None)
    loader = Loader(dataset, spec.batch, shuffle=True, num_workers=spec.workers, seed=spec.seed)

    def epoch() -> Iterator[Any]:
        if captions:
            return ((images, found["number"], found["tokens"]) for images, found in loader)
        return ((batch[0], batch.ids) for batch in loader)

    if spec.boxes is not None:  # it draws its own: those of the epoch to come take the place of the given ones
        everything = np.arange(spec.count)
        u, sides = uniforms(spec.seed, loader.epoch, everything, dataset.draws), dataset._images.sides(everything)
        (plan,) = plan_views(dataset.views, u, *sides)
        np.save(spec.boxes, np.array([sample.box for sample in plan]))
    return epoch


if __name__ == "__main__":
    main(make, ("fastdata-torch", "torch", "simplejpeg", "lmdb"))
