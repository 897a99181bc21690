"""This process's rank, and how many workers it may start next to the other ranks of its machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from fastdata.errors import LoaderError, warn_user
from fastdata.loader.order import RankShard
from fastdata.system.machine import available_cores

PATIENCE_S = 30.0  # before the user is told what is waited for
WAITS = (
    "waits for the other ranks at the first pass of a Loader: iterate over it on every rank, or give split=False to a Loader that "
    "only some ranks use"
)
SAME_SAMPLES = "gives each of the {} ranks the same samples: use a DistributedSampler, or no sampler (the Loader splits samples)"


@dataclass
class Ranks:
    """The arguments of a Loader that say which rank it reads for. With `blocks`, ranks take blocks of a batch: see RankShard."""

    split: bool
    rank: int | None
    world_size: int | None
    blocks: bool = False

    def find(self) -> RankShard:
        """Return this process's part of a batch, by the arguments, torch.distributed, or RANK and WORLD_SIZE; else the whole.

        Raises:
            ValueError: the arguments are out of range, or only one of them is given.
            LoaderError: torch.distributed contradicts the environment, or nothing says which of several ranks this is.
        """
        if not self.split:
            return RankShard(0, 1, self.blocks)
        if (self.rank is None) != (self.world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        if self.rank is not None and self.world_size is not None:
            if not 0 <= self.rank < self.world_size:
                raise ValueError(f"rank is {self.rank} of world_size {self.world_size}, but must be from 0 to world_size - 1")
            return RankShard(self.rank, self.world_size, self.blocks)
        number, size = _number("RANK"), _number("WORLD_SIZE") or 1
        if dist.is_available() and dist.is_initialized():
            rank, ranks = dist.get_rank(), dist.get_world_size()
            if "WORLD_SIZE" in os.environ and number is not None and (number, size) != (rank, ranks):
                raise LoaderError(
                    f"torch.distributed says that this is rank {rank} of {ranks}, but RANK and WORLD_SIZE in the environment say "
                    f"rank {number} of {size}: give the Loader rank= and world_size="
                )
            return RankShard(rank, ranks, self.blocks)
        if number is None and size > 1:
            raise LoaderError(
                f"WORLD_SIZE is {size}, but nothing says which rank this process is: all processes would read the same samples. "
                "Initialize torch.distributed before the loader is used, set RANK, or give the Loader rank= and world_size="
            )
        if not 0 <= (number or 0) < size:
            raise LoaderError(f"the environment says RANK {number} and WORLD_SIZE {size}, but ranks count from 0 to WORLD_SIZE - 1")
        return RankShard(number or 0, size, self.blocks)

    @property
    def comparable(self) -> bool:
        """Whether torch.distributed's ranks split the samples."""
        return self.split and self.rank is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def compare(self, state: Mapping[str, Any], drawn: tuple[int, int] | None) -> None:
        """Raise a LoaderError if the ranks of torch.distributed have different states, or if their samplers drew the same indices.

        drawn: the number of indices that the user's sampler drew, and their checksum, or None without a sampler.
        """
        states: list[Any] = [None] * dist.get_world_size()
        waiting = threading.Timer(PATIENCE_S, warn_user, [f"rank {dist.get_rank()} {WAITS}"])
        waiting.daemon = True
        waiting.start()
        try:
            group = None if "gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")
            dist.all_gather_object(states, {**state, "drawn": drawn}, group=group)
        finally:
            waiting.cancel()
        if group is not None:
            dist.destroy_process_group(group)
        for name in [name for name in state if name != "num_samples" or not state["sampler"]]:
            values = [each.get(name) for each in states]
            if len(set(values)) > 1:
                raise LoaderError(
                    f"{name} is {', '.join(map(str, values))} on the ranks of torch.distributed, but must be equal: "
                    "give their Loaders the same arguments, or split=False for a Loader that only some ranks use "
                    "(a dataset is shown as a checksum of its stores, subset, classes and targets)"
                )
        if drawn is not None and drawn[0] > 1 and all(each["drawn"] == drawn for each in states):
            raise LoaderError(f"the sampler {SAME_SAMPLES.format(len(states))}. split=False lets each rank read all samples")


def _number(name: str) -> int | None:
    """Return an environment variable that is a whole number, or None if it is not set."""
    text = os.environ.get(name)
    try:
        return int(text) if text else None
    except ValueError as error:
        raise LoaderError(f"the environment variable {name} is {text!r}, but must be a whole number") from error


def default_workers(shard: RankShard, batches: int) -> int:
    """Return the number of workers: one for each core of this rank, at most one for each batch of an epoch."""
    gpus = torch.cuda.device_count() or shard.world_size
    ranks = _number("LOCAL_WORLD_SIZE") or min(shard.world_size, gpus)  # unset: a rank for each GPU
    return min(max(1, available_cores() // ranks), max(1, batches))
