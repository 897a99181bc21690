"""Where and how a model runs: ranks, and sums over them; device, precision and memory layout."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.gpu.copies import map_tensors
from fastdata.gpu.ragged import Ragged
from fastdata.system.torch_private import pytree

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class World(NamedTuple):
    """This process's rank, the number of ranks, and `hosts`, a process group that does not use GPUs."""

    rank: int = 0
    size: int = 1
    hosts: Any = None

    @classmethod
    def join(cls, device: torch.device | None) -> World:
        """Return the world that `torchrun` describes in the environment; make the process group unless there is one."""
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            gpus = device is not None and device.type == "cuda"
            dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        hosts = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.get_rank(), dist.get_world_size(), hosts)

    def sum(self, value: Tensor, operation: Any = dist.ReduceOp.SUM, group: Any = None) -> Tensor:
        """Sum over all ranks, in place, or take the largest with ReduceOp.MAX. The host does not wait for a GPU."""
        if self.size > 1:
            dist.all_reduce(value, operation, group)
        return value

    def largest(self, value: int) -> int:
        """Return the largest value over all ranks, by way of the hosts."""
        return value if self.size == 1 else int(self.sum(torch.tensor(value), dist.ReduceOp.MAX, self.hosts))

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


@dataclass(frozen=True)
class Compute:
    """Where and how a model runs: `dtype` is the type of autocast, or None; `channels_last` the memory layout of 4-D tensors."""

    world: World
    device: torch.device
    dtype: torch.dtype | None
    channels_last: bool

    def number(self, value: Any) -> Tensor:
        """Return a copy of a number on the device, in float64, without waiting."""
        if isinstance(value, Tensor):
            return value.detach().to(self.device, torch.float64, copy=True)
        return torch.full((), value, dtype=torch.float64, device=self.device)  # torch.tensor would copy it, and wait

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is None and not torch.is_autocast_enabled(self.device.type):
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def to_device(self, batch: Any) -> tuple[Any, int | None]:
        """Return the batch on the device without its filling rows, and its number of real rows, or None if it does not say.

        If no row is real, all stay, since every rank has to run the model.
        """
        is_plain = type(batch) in (tuple, list) and not self.channels_last
        if is_plain and all(type(part) is Tensor and part.device == self.device for part in batch):
            return batch, None
        valid, ids = getattr(batch, "valid", None), getattr(batch, "ids", None)
        rows = len(ids) if valid and ids is not None else 0
        spare = rows - (valid or rows)  # rows that repeat samples
        is_cut = not spare

        def refuse(what: str) -> FastDataError:
            return FastDataError(
                f"the batch repeats {spare} of {rows} samples, but {what} does not have one row per sample: use drop_last=True"
            )

        def change(part: Any) -> Any:
            nonlocal is_cut
            if spare and (_has_rows(part) or (isinstance(part, Tensor) and part.dim())):
                if len(part) != rows:
                    raise refuse(f"{type(part).__name__} of {len(part)}")
                part, is_cut = Ragged.of(part.unbind()[:valid]) if isinstance(part, Ragged) else part[:valid], True
            if isinstance(part, list):
                return part
            part = part.to(self.device, non_blocking=True)
            as_image = self.channels_last and isinstance(part, Tensor) and part.dim() == 4
            return part.contiguous(memory_format=torch.channels_last) if as_image else part

        batch = map_tensors(batch, change, is_part=_has_rows)
        if not is_cut:  # an object whose tensors nobody knows
            raise refuse(type(batch).__name__)
        if ids is not None and hasattr(batch, "__dict__"):
            batch.ids = ids[: valid or len(ids)]
        return batch, valid


def _has_rows(part: Any) -> bool:
    """Return whether an object that is no tensor has a row for each sample: a Ragged, or a list of text or other values."""
    return isinstance(part, Ragged) or (
        isinstance(part, list) and bool(part) and not any(hasattr(leaf, "to") for leaf in pytree.tree_leaves(part))
    )
