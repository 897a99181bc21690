"""Grain with threads over JPEG files, decoded with cv2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from contestant import Batches, Spec, cv2_sampler, main, read


def make(spec: Spec) -> Batches:
    paths, sample, batches = spec.paths(), cv2_sampler(spec), -(-spec.count // spec.batch)

    def render(number: int) -> tuple[Any, int]:
        return sample(read(paths[number]), number), number

    dataset = grain.MapDataset.source(np.arange(spec.count)).seed(spec.seed).shuffle().repeat().map(render)
    options = grain.ReadOptions(num_threads=spec.workers, prefetch_buffer_size=2 * spec.batch)
    endless = iter(dataset.to_iter_dataset(options).batch(spec.batch))

    def epoch() -> Iterator[tuple[Any, Any]]:
        return (next(endless) for _ in range(batches))

    return epoch


if __name__ == "__main__":
    main(make, ("grain", "opencv-python-headless", "numpy"))
