"""The memory of a batch, and the time to make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Allocate", "Timing"]

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]


@dataclass
class Timing:
    """Seconds that a batch took to read its images' bytes, to decode, and to resize and flip."""

    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
