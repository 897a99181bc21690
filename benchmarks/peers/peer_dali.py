"""DALI on the CPU: decodes the part of a JPEG that a crop needs. variant: "" for plain bilinear, "antialias"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from contestant import Batches, Spec, main
from nvidia.dali import fn, pipeline_def, types


def make(spec: Spec) -> Batches:
    given = None if spec.boxes is None else np.load(spec.boxes).astype(np.int32)
    batches = -(-spec.count // spec.batch)

    def decoded(data: Any) -> Any:
        if not spec.train:
            return fn.decoders.image_crop(data, crop=(spec.side, spec.side))
        if given is None:
            return fn.decoders.image_random_crop(data, random_area=list(spec.scale), random_aspect_ratio=list(spec.ratio))
        start, size = fn.external_source(lambda at: np.split(given[at.idx_in_epoch % spec.count], 2), num_outputs=2, batch=False)
        parts = {"start": start, "shape": size, "axis_names": "HW"}
        return fn.decoders.image_slice(data, **parts)

    @pipeline_def(batch_size=spec.batch, num_threads=spec.workers, device_id=None, seed=spec.seed, prefetch_queue_depth=2)
    def pipeline() -> Any:
        numbers = list(range(spec.count))
        shuffled = given is None  # boxes come in the order of the files
        data, number = fn.readers.file(files=spec.paths(), labels=numbers, shuffle_after_epoch=shuffled, pad_last_batch=True)
        images = decoded(data)
        if spec.train:
            images = fn.resize(images, size=(spec.side, spec.side), interp_type=types.INTERP_LINEAR, antialias=spec.variant != "")
        return images, number

    pipe: Any = pipeline()
    pipe.build()

    def epoch() -> Iterator[tuple[Any, Any]]:
        for _ in range(batches):
            images, numbers = pipe.run()
            yield np.asarray(images.as_tensor()), np.asarray(numbers.as_tensor())

    return epoch


if __name__ == "__main__":
    main(make, ("nvidia-dali-cuda120", "numpy"))
