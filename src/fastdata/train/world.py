"""The ranks of a run, and sums over them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["World"]


class World(NamedTuple):
    """This process's rank, the number of ranks, and `hosts`, a process group that does not use GPUs."""

    rank: int = 0
    size: int = 1
    hosts: Any = None

    @classmethod
    def join(cls, device: torch.device | None) -> World:
        """Return the world that `torchrun` describes in the environment; make the process group unless there is one."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            gpus = device is not None and device.type == "cuda"
            dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        hosts = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.get_rank(), dist.get_world_size(), hosts)

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all ranks, in place. The host does not wait for a GPU."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def max(self, value: Tensor) -> Tensor:
        """Take the largest value over all ranks, in place. The host does not wait for a GPU."""
        if self.size > 1:
            dist.all_reduce(value, dist.ReduceOp.MAX)
        return value

    def largest(self, value: int) -> int:
        """Return the largest value over all ranks, by way of the hosts."""
        if self.size == 1:
            return value
        shared = torch.tensor(value)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.hosts)
        return int(shared)

    def broadcast(self, values: Iterable[Tensor]) -> None:
        """Copy the values of rank 0, such as running statistics, to every rank, in place."""
        for value in values if self.size > 1 else ():
            dist.broadcast(value, 0)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's object, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.hosts)
        return values

    def leave(self) -> None:
        """Wait for all ranks before the process ends: the threads of one would take the end of another for a failure."""
        if self.size > 1:
            dist.barrier(group=self.hosts)
            dist.destroy_process_group()
