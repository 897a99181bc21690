"""SPDL with threads over JPEG files, decoded with cv2; a task takes 16 images, which is faster than one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from contestant import Batches, Spec, cv2_sampler, main, read
from spdl.pipeline import PipelineBuilder

TASK = 16


def make(spec: Spec) -> Batches:
    paths, sample, batches = spec.paths(), cv2_sampler(spec), -(-spec.count // spec.batch)
    rng = random.Random(spec.seed)

    def numbers() -> Iterator[int]:
        while True:
            yield from rng.sample(range(spec.count), spec.count)

    def render(chosen: list[int]) -> list[tuple[Any, int]]:
        return [(sample(read(paths[number]), number), number) for number in chosen]

    def collate(parts: list[list[tuple[Any, int]]]) -> tuple[Any, Any]:
        images, chosen = zip(*(item for part in parts for item in part), strict=True)
        return np.stack(images), np.array(chosen)

    builder = PipelineBuilder().add_source(numbers()).aggregate(TASK).pipe(render, concurrency=spec.workers, output_order="input")
    builder = builder.aggregate(spec.batch // TASK).pipe(collate).add_sink(2)
    pipeline = builder.build(num_threads=spec.workers, max_failures=0)
    pipeline.start()
    endless = iter(pipeline)

    def epoch() -> Iterator[tuple[Any, Any]]:
        return (next(endless) for _ in range(batches))

    return epoch


if __name__ == "__main__":
    main(make, ("spdl-core", "opencv-python-headless", "numpy"))
