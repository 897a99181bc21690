"""Batches of images before decoding, for decoders that take whole batches of JPEGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.codecs.jpeg_crop import Cut
from fastdata.data.dataset import Timing
from fastdata.images.records import Images
from fastdata.images.rendering import render_batch
from fastdata.images.view import Sample, View

__all__ = ["EncodedBatch"]

Array = np.ndarray[Any, np.dtype[Any]]


class EncodedBatch:
    """A batch of JPEGs, and the plan of their samples.

    Attributes:
        plan: the plan for each image.
        jpegs: for each image, a JPEG that contains its window, and its place in the image; None: only `render` can decode it.
        targets: as `read_batch` returns them.
        shape: [H, W, C] of each sample.

    Raises:
        LoaderError: if the samples would have several shapes.
    """

    def __init__(self, images: Images, view: View, rows: Array, plan: Sequence[Sample], targets: Any) -> None:
        self._images = images
        self._view = view
        self._rows = rows
        self.plan = plan
        shapes = {sample.shape for sample in plan}
        if len(shapes) > 1:
            raise view.unequal(shapes)
        self.shape = (*plan[0].shape, images.form.channels)
        self.targets = targets
        self.jpegs = [self._jpeg(row, sample) for row, sample in zip(rows.tolist(), plan, strict=True)]

    def _jpeg(self, row: int, sample: Sample) -> Cut | None:
        return None if sample.window.empty else self._images.jpeg(row, self._images.get(row), sample.window)

    def render(self, places: Sequence[int], timing: Timing) -> Array:
        """Return some samples of the batch, [n, H, W, C], as `read_batch` makes them."""
        plan = [self.plan[k] for k in places]
        (pixels,) = render_batch(self._images, [self._view], self._rows[list(places)], [plan], np.empty, timing)
        return pixels
