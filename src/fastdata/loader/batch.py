"""What a Loader yields and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Batch", "Stats", "to_device"]

Array = np.ndarray[Any, np.dtype[Any]]


class Batch(tuple[Any, ...]):
    """What a Loader yields: it unpacks as `images, targets = batch`.

    Attributes:
        valid: rows that are real. Fewer than the rows only at the end of an epoch over several ranks.
        ids: the dataset's indices of the rows, int64 numpy.
        position: (epoch, samples of it consumed by all ranks, this batch included): where a run would resume.
    """

    valid: int
    ids: Array
    position: tuple[int, int]


@dataclass
class Stats:
    """What a loader has done so far, in this process. wait_s: seconds the consumer waited for a batch; work_s: seconds that
    workers spent making them."""

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0


def to_device(data: Any, device: torch.device) -> Any:
    """Copy the tensors of a collated batch to a device."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(to_device(value, device) for value in data)
    return data
