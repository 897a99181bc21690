"""What `fastdata-prep` can be asked for of arrays."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.options import option
from fastdata.sources.options import LabelOptions, PairOptions

__all__ = ["CHANNELS", "ArrayOptions"]

CHANNELS = ("none", "first", "last")


@dataclass(frozen=True)
class ArrayOptions(PairOptions, LabelOptions):
    """Arrays"""

    chunk: int | tuple[int, ...] | None = option(
        "Sides of the boxes that arrays are stored in. Crops read them whole. Such as 64,64,64; or one for all axes.",
        type="sides",
    )
    channels: str = option("Which axis is of channels; it is stored first and never cut.", "none", choices=CHANNELS)
    key: str | None = option("Which array of .npz files. Default: each is a sample.")
    dtype: str | None = option(
        "Of all arrays. Default: the first one's. Integers that do not fit are rejects, as are floats that are not whole; floats "
        "are rounded to a smaller float only if this is given."
    )
    max_bytes: int = option("Reject larger arrays before reading them.", 1 << 32)

    def __post_init__(self) -> None:
        LabelOptions.__post_init__(self)
        PairOptions.__post_init__(self)
