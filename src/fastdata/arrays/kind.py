"""The kind of data "arrays", for the packages that serve every kind; and the options of `fastdata-prep` for arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastdata.kinds import Modality
from fastdata.options import option
from fastdata.sources.options import LabelOptions, PairOptions, SizeOptions
from fastdata.types import StrPath


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
        "Dtype of all arrays. Default: that of the first. Arrays with values that the dtype does not hold exactly are rejected; "
        "if you give a float dtype, values are rounded instead."
    )

    def __post_init__(self) -> None:
        LabelOptions.__post_init__(self)
        PairOptions.__post_init__(self)


class ArrayModality(Modality):
    """Signals, volumes and other arrays of numbers, cut into chunks."""

    name = "arrays"
    item = "array"
    options = ArrayOptions
    exports = ("npy",)
    datasets = "ArrayDataset", "RAMArrays"

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether there are files of arrays and no images."""
        from fastdata.arrays.files import ENDINGS
        from fastdata.sources.files import is_image
        from fastdata.sources.folder import some_names
        from fastdata.sources.urls import to_path

        found = False
        for name in some_names(to_path(source)):
            if is_image(name):
                return False
            found = found or name.lower().endswith(ENDINGS)
        return found


KIND = ArrayModality()
