"""The options of `fastdata-prep` for arrays."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.options import option
from fastdata.sources.options import LabelOptions, PairOptions, SizeOptions

__all__ = ["ArrayOptions"]


@dataclass(frozen=True)
class ArrayOptions(SizeOptions, PairOptions, LabelOptions):
    """Arrays"""

    chunk: int | tuple[int, ...] | None = option(
        "Sides of the chunks that arrays are stored in, such as 64,64,64, or one side for all axes. Crops read whole chunks.",
        type="sides",
        metavar="N,N,N",
    )
    channels: str = option("Axis of channels; it is stored first and never cut.", "none", choices=("none", "first", "last"))
    key: str | None = option("Name of the array to take from .npz files. Default: each array is a sample.")
    dtype: str | None = option(
        "Dtype of all arrays. Default: that of the first. Arrays with values that it does not hold exactly are rejected; if you "
        "give a float dtype, floats are rounded instead."
    )

    def __post_init__(self) -> None:
        LabelOptions.__post_init__(self)
        PairOptions.__post_init__(self)
        SizeOptions.__post_init__(self)
