"""The ranks of a run, and sums over them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["World", "device_for"]


class World(NamedTuple):
    """Which rank this process is, of how many. `hosts`: a group whose sums don't go through GPUs."""

    rank: int = 0
    size: int = 1
    hosts: Any = None

    @classmethod
    def join(cls, device: torch.device | None) -> World:
        """What `torchrun` says in the environment; the process group is made unless there is one."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            gpus = device is not None and device.type == "cuda"
            dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        hosts = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.get_rank(), dist.get_world_size(), hosts)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks, in place; the host does not wait for a GPU."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def most(self, value: Tensor, *, on_hosts: bool = False) -> Tensor:
        """The largest over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self.hosts if on_hosts else None)
        return value

    def agree(self, values: Iterable[Tensor]) -> None:
        """Those of rank 0, on every rank, in place: running statistics, say."""
        for value in values if self.size > 1 else ():
            dist.broadcast(value, 0)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's object, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.hosts)
        return values


def device_for(device: str | torch.device | None) -> torch.device | None:
    """The device of that name; "cuda" means the GPU that torchrun gave to this rank."""
    chosen = None if device is None else torch.device(device)
    if chosen is not None and chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if chosen.index is None else chosen
        torch.cuda.set_device(chosen)
    return chosen
