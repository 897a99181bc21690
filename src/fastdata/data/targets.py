"""Targets on their way from a worker to the consumer: arrays that pickle small become tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.gpu.ragged import Ragged

__all__ = ["Lists", "to_tensors"]

Array = np.ndarray[Any, np.dtype[Any]]


class Lists(NamedTuple):
    """Lists of different lengths: all their items, [total, ...], and where each begins, and the last ends, int64 [n + 1]."""

    values: Array
    offsets: Array

    @property
    def of(self) -> Array:
        """The list that each item belongs to, int64 [total]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def select(self, chosen: Array) -> Lists:
        """Return the lists with these of their items, bool [total], only."""
        counts = np.bincount(self.of[chosen], minlength=len(self.offsets) - 1)
        return Lists(self.values[chosen], np.concatenate([[0], np.cumsum(counts)]))


def to_tensors(targets: Any) -> Any:
    """Return targets as a Loader delivers them: tensors, `Ragged` for lists, and Python's lists of text as they are."""
    if isinstance(targets, dict):
        return {name: to_tensors(value) for name, value in targets.items()}
    if isinstance(targets, Lists):
        return Ragged(torch.from_numpy(targets.values), torch.from_numpy(targets.offsets))
    return torch.from_numpy(targets) if isinstance(targets, np.ndarray) else targets
