"""The form in which pixels are stored: codec, channels and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.images.options import PLANES
from fastdata.store.format import Form

__all__ = ["PixelFormat"]


@dataclass(frozen=True)
class PixelFormat(Form):
    """The records of a variant: the codec, 1 or 3 channels, "uint8" or "uint16"."""

    @property
    def jpegs(self) -> bool:
        """Whether records are JPEGs that decode to [H, W, C]."""
        return self.codec in ("jpeg", "original")

    @property
    def indexed(self) -> bool:
        """Whether records may have an index of parts that can be decoded alone."""
        return self.jpegs or self.codec == "jpeg-yuv420"

    @property
    def planes(self) -> bool:
        """Whether samples are a plane of luma and one of colours, instead of [H, W, C]."""
        return self.codec in PLANES

    def emitted(self, *, rgb: bool) -> PixelFormat:
        """Return the form of samples. rgb: planes become RGB pixels."""
        return PixelFormat("rgb", 3, "uint8") if rgb and self.planes else self

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return a sample's shape: [H, W, C], or [H * 3/2, W, 1] for planes, one after the other. Their sides are even."""
        return (height * 3 // 2, width, 1) if self.planes else (height, width, self.channels)

    def nbytes(self, pixels: Any) -> Any:
        """Return the bytes of a sample of that many pixels (an int, or an array of them)."""
        return pixels * 3 // 2 if self.planes else pixels * (self.channels * np.dtype(self.dtype).itemsize)
