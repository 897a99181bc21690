"""How arrays are stored: their dtype, and the chunks that they are cut into."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from fastdata.arrays.chunks import MAX_AXES
from fastdata.errors import CodecError
from fastdata.store.manifest import MASK, Form

__all__ = ["ArrayRecipe", "default_chunk", "laid_out"]

CHUNK_BYTES = 1 << 20  # most bytes of a chunk, all channels included
# A 64^3 crop touches at most 3^3 chunks of 32^3: 3.4 times its bytes. In two axes, chunks fill LMDB's pages.
SIDES = {1: (32_752,), 2: (127, 128), 3: (32, 32, 32), 4: (16, 16, 16, 16), 5: (8, 8, 8, 8, 8)}


@dataclass(frozen=True)
class ArrayRecipe:
    """How arrays are stored.

    Attributes:
        dtype: dtype of all arrays. Arrays of another dtype are converted if every value stays the same.
        rounded: whether the user chose the dtype; if it is a float, floats are then rounded to it.
        chunk: sides of the chunks, one for each axis except channels.
        channels: "none", or the axis of channels, "first" or "last". It is stored first and never cut.
        key: name of the array to take from .npz files; empty: all arrays.
        max_bytes: larger arrays are rejected before they are read.
        mask_bits: 8 or 16, bits of the classes of masks; 0: there are no masks.
        libraries: packages that read the files.
        order: "listed" or "shuffled", of the arrays in the store.
        shard_samples: the most in a shard; None: as `make_plan` chooses.
    """

    kind: ClassVar[str] = "arrays"
    unit: ClassVar[str] = "B"

    dtype: str
    rounded: bool
    chunk: tuple[int, ...]
    channels: str
    key: str
    max_bytes: int
    mask_bits: int
    libraries: tuple[str, ...] = ()
    order: str = field(default="listed", metadata={"newer": True})
    shard_samples: int | None = field(default=None, metadata={"newer": True})

    def __post_init__(self) -> None:
        if self.mask_bits not in (0, 8, 16):
            raise ValueError(f"--mask-bits is {self.mask_bits}, but must be 8 or 16")
        if not 1 <= len(self.chunk) <= MAX_AXES or any(side < 1 for side in self.chunk):
            raise ValueError(
                f"--chunk is {','.join(map(str, self.chunk))}, but must be one to {MAX_AXES} positive numbers, such as 64,64,64"
            )

    def variants(self) -> list[tuple[str, int | None, Form]]:
        """Return (name, size, form) of each variant."""
        found: list[tuple[str, int | None, Form]] = [("array", None, Form("chunks", 1, self.dtype))]
        if self.mask_bits:
            found.append((f"{MASK}array", None, Form("chunks", 1, f"uint{self.mask_bits}")))
        return found


def default_chunk(axes: int, cell: int) -> tuple[int, ...]:
    """Return the sides of chunks for arrays with this many axes. cell: bytes at each place, all channels together."""
    sides = list(SIDES[axes])
    while math.prod(sides) * cell > CHUNK_BYTES and max(sides) > 1:
        sides = [max(1, side // 2) for side in sides]
    return tuple(sides)


def laid_out(shape: tuple[int, ...], channels: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of channels (1 without such an axis) and the sides of the other axes.

    Raises:
        CodecError: if the array has too few or too many axes, or is empty.
    """
    if channels != "none" and shape:
        count, sides = (shape[0], shape[1:]) if channels == "first" else (shape[-1], shape[:-1])
    else:
        count, sides = 1, shape
    if not 1 <= len(sides) <= MAX_AXES:
        raise CodecError(f"its shape is {shape}: one to {MAX_AXES} axes are stored, and one of channels if you say so", "axes")
    if not math.prod(shape):
        raise CodecError(f"its shape is {shape}: there is nothing in it", "empty")
    return count, sides
