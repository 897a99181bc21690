"""Arrays held in memory."""

from __future__ import annotations

from collections.abc import Sequence

from fastdata.arrays.chunked import hold
from fastdata.arrays.dataset import ArrayDataset
from fastdata.data.ram import RAMDataset, StrPath
from fastdata.images.crops import Crop

__all__ = ["RAMArrays"]


class RAMArrays(RAMDataset, ArrayDataset):
    """Arrays, and their masks, held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath,
        *,
        crop: Crop | None = None,
        flips: float | Sequence[float] = 0.0,
        ignore_index: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__(source, crop=crop, flips=flips, ignore_index=ignore_index)
        hold([self._arrays] if self._masks is None else [self._arrays, self._masks], max_bytes)
