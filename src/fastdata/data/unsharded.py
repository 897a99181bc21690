"""The warning that a torch DataLoader reads a whole dataset on every rank."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import distributed
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from fastdata.errors import warn_user

__all__ = ["warn_if_unsharded"]


def warn_if_unsharded() -> None:
    """Warn if torch's DataLoader draws the order of a dataset on one of several ranks, and nothing splits it.

    A dataset calls this in its `len`, which torch's own samplers call at the beginning of an epoch. There is no warning if another
    object, such as Accelerate's BatchSamplerShard, which splits the data, stands between the sampler and the DataLoader.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return
    if not _drawn_by_dataloader(sys._getframe(2)):
        return
    ranks = distributed.get_world_size()
    warn_user(
        f"this DataLoader reads the whole dataset on each of the {ranks} ranks: an epoch of training has every sample {ranks} "
        "times. Use fastdata.Loader, which splits it, or DataLoader(sampler=DistributedSampler(dataset)). To evaluate on one "
        "rank, or everything on each rank, it is fine as it is"
    )


def _drawn_by_dataloader(frame: FrameType | None) -> bool:
    """Return whether `frame` iterates one of torch's plain samplers, and the DataLoader draws from it directly."""
    if frame is None or not _iterates(frame, (RandomSampler, SequentialSampler)):
        return False
    caller = frame.f_back
    if caller is not None and _iterates(caller, (BatchSampler,)):
        caller = caller.f_back
    return caller is not None and caller.f_globals.get("__name__") == "torch.utils.data.dataloader"


def _iterates(frame: FrameType, kinds: tuple[Any, ...]) -> bool:
    return frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")) in kinds
