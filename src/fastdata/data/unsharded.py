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
    """Warn if torch's DataLoader is drawing the order of a dataset on one of several ranks, without anything that splits it.

    A dataset calls this in its `len`, which torch's own samplers ask for whenever an epoch begins. Where something stands between
    such a sampler and the DataLoader (Accelerate's BatchSamplerShard, for instance), that splits the data, and there is no warning.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return
    if not _drawn_by_dataloader(sys._getframe(2)):
        return
    ranks = distributed.get_world_size()
    warn_user(
        f"this DataLoader reads the whole dataset on each of the {ranks} ranks: an epoch of training has every sample {ranks} "
        "times. Use fastdata.Loader, which splits it, or DataLoader(sampler=DistributedSampler(dataset)). For evaluation on one "
        "rank, or of everything on each rank, it is fine as it is"
    )


def _drawn_by_dataloader(frame: FrameType | None) -> bool:
    """Whether `frame` is a pass over one of torch's plain samplers that the DataLoader draws from, with nothing in between."""
    if frame is None or not _is_pass_over(frame, (RandomSampler, SequentialSampler)):
        return False
    caller = frame.f_back
    if caller is not None and _is_pass_over(caller, (BatchSampler,)):
        caller = caller.f_back
    return caller is not None and caller.f_globals.get("__name__") == "torch.utils.data.dataloader"


def _is_pass_over(frame: FrameType, kinds: tuple[Any, ...]) -> bool:
    return frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")) in kinds
