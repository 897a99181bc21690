"""Measures of pictures that deserve a look: dark, bright, of one colour, blurred, and pairs that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fastdata.errors import needs

__all__ = ["BLURRED", "Look", "alike", "look_at", "perceptual_hash"]

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 256  # pixels: larger pictures are reduced to this, so that sharpness can be compared
DARK, BRIGHT = 32, 224  # of 255
MOST = 0.95  # share of the pixels that must be dark or bright
FLAT = 3.0  # of 255: standard deviation of a picture of one colour
BLURRED = 0.05  # share of the median sharpness
BITS = 4  # of 64: pictures whose hashes differ by so few look alike
ROWS = 512  # hashes that are compared with all others at once
COUNTS = np.array([bin(k).count("1") for k in range(256)], np.uint8)


@dataclass(frozen=True)
class Look:
    """What one picture measures.

    Attributes:
        dark: whether 95 % of the pixels are darker than 32 of 255.
        bright: whether 95 % are brighter than 224.
        flat: whether the standard deviation of the luma is below 3, and the picture neither dark nor bright.
        sharpness: variance of the Laplacian of the luma, of at most 256 pixels a side.
        luma: the mean, 0 to 255.
        hash: its perceptual hash, uint64; None: imagehash is not installed, or the picture is of one colour.
    """

    dark: bool
    bright: bool
    flat: bool
    sharpness: float
    luma: float
    hash: int | None


def look_at(pixels: Array, *, hashed: bool) -> Look:
    """Measure a picture, uint8 RGB [H, W, 3]. hashed: compute the perceptual hash."""
    gray = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)
    scale = SIDE / max(gray.shape)
    if scale < 1:
        height, width = (max(1, round(side * scale)) for side in gray.shape)
        gray = cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)
    counts = np.bincount(gray.ravel(), minlength=256) / gray.size
    dark, bright = bool(counts[:DARK].sum() >= MOST), bool(counts[BRIGHT + 1 :].sum() >= MOST)
    deviation = float(gray.std())
    sharpness = float(cv2.Laplacian(gray, cv2.CV_64F).var())
    found = perceptual_hash(gray) if hashed and deviation >= FLAT else None
    return Look(dark, bright, deviation < FLAT and not dark and not bright, sharpness, float(gray.mean()), found)


def perceptual_hash(gray: Array) -> int:
    """Return imagehash's phash of a picture, uint8 [H, W], as 64 bits.

    Raises:
        MissingExtraError: imagehash is not installed.
    """
    with needs("imagehash"):
        import imagehash
    from PIL import Image

    return int.from_bytes(np.packbits(imagehash.phash(Image.fromarray(gray)).hash).tobytes(), "big")


def alike(hashes: Sequence[int]) -> list[list[int]]:
    """Return groups of places whose hashes differ by at most 4 bits from that of another of the group, the largest groups first."""
    values = np.array(hashes, np.uint64)
    parent = list(range(len(values)))

    def top(k: int) -> int:
        while parent[k] != k:
            parent[k] = k = parent[parent[k]]
        return k

    for start in range(0, len(values), ROWS):
        part = values[start : start + ROWS, None] ^ values[None, start:]
        differing = COUNTS[part.view(np.uint8).reshape(*part.shape, 8)].sum(axis=2, dtype=np.uint8)
        for one, other in np.argwhere(differing <= BITS).tolist():
            if one < other:
                parent[top(start + other)] = top(start + one)
    groups = dict[int, list[int]]()
    for k in range(len(values)):
        groups.setdefault(top(k), []).append(k)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)
