"""Where the arrays of a batch come from, and how long making it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Allocate", "Timing"]

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]


@dataclass
class Timing:
    """Seconds that a batch took: waiting for the bytes of its images, decoding, and resizing and flipping."""

    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
