"""The form in which pixels are stored: codec, channels and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.store.format import Form

__all__ = ["PixelFormat"]


@dataclass(frozen=True)
class PixelFormat(Form):
    """The records of a variant: the codec, 1 or 3 channels, "uint8" or "uint16"."""

    @property
    def jpegs(self) -> bool:
        """Whether records are JPEGs, which may have an index of cells that can be decoded alone."""
        return self.codec in ("jpeg", "original")

    def nbytes(self, pixels: Any) -> Any:
        """Return the bytes of a sample of that many pixels (an int, or an array of them)."""
        return pixels * (self.channels * np.dtype(self.dtype).itemsize)
