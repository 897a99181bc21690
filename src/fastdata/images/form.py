"""How pixels are stored: codec, channels and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.images.options import CODECS
from fastdata.store.format import Form

__all__ = ["CODECS", "PixelFormat"]


@dataclass(frozen=True)
class PixelFormat(Form):
    """What the records of a variant hold: the codec, 1 or 3 channels, "uint8" or "uint16"."""

    @property
    def jpegs(self) -> bool:
        """Whether records are JPEGs."""
        return self.codec in ("jpeg", "original")

    @property
    def planes(self) -> bool:
        """Whether samples are planes, one of luma and one of colours, and not [H, W, C]."""
        return self.codec == "yuv420"

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Of a sample: [H, W, C]; of planes, which lie one behind the other, [H * 3/2, W, 1]. Their sides are even."""
        return (height * 3 // 2, width, 1) if self.planes else (height, width, self.channels)

    def nbytes(self, pixels: Any) -> Any:
        """Of a sample of that many pixels (an int, or an array of them)."""
        return pixels * 3 // 2 if self.planes else pixels * (self.channels * np.dtype(self.dtype).itemsize)
