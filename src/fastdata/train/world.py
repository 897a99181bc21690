"""Ranks, and sums over them; and the device and layout of a model, its average and its optimizer."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fastdata.errors import FastDataError
from fastdata.gpu.batch import Ragged
from fastdata.gpu.bias import dead_biases
from fastdata.gpu.copies import map_tensors
from fastdata.optim import need
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
        """Wait for all ranks before this process ends: threads of other ranks would take its end for a failure."""
        if self.size > 1:
            dist.barrier(group=self.hosts)
            dist.destroy_process_group()


@dataclass(frozen=True)
class Compute:
    """The device and layout of a model: `dtype` is the type of autocast, or None; `channels_last` the layout of 4-D tensors."""

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
        torch.clear_autocast_cache()  # which an autocast of the caller keeps, with weights of earlier updates
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def to_device(self, batch: Any) -> tuple[Any, int | None]:
        """Return the batch on the device without padding rows, and its number of real rows, or None if that is unknown.

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
                f"of {rows} rows, {spare} are repeats, which cannot be cut from a {what}: give batch_size and drop_last=True"
            )

        def change(part: Any) -> Any:
            nonlocal is_cut
            if spare and (_has_rows(part) or (isinstance(part, Tensor) and part.dim())):
                if len(part) != rows:
                    raise refuse(f"{type(part).__name__} of length {len(part)}")
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


class EMA:
    """Does ``average += (1 - decay) * (weights - average)`` after each update that was not skipped; counters are copied."""

    def __init__(self, model: nn.Module, average: nn.Module, decay: float) -> None:
        need(0 <= decay < 1, "ema", decay, "a decay, at least 0 and below 1, such as 0.999")
        self._decay = decay
        self.model = average.eval().requires_grad_(False)
        pairs = zip((*average.parameters(), *average.buffers()), (*model.parameters(), *model.buffers()), strict=True)
        self._groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        for mean, weight in pairs:
            means, weights = self._groups.setdefault((mean.device, mean.dtype), ([], []))
            means.append(mean)
            weights.append(weight)

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """Move the average, unless `skipped`: 1 or 0 on the device, so that the host need not wait for it."""
        for (device, dtype), (means, weights) in self._groups.items():
            if not dtype.is_floating_point:
                torch._foreach_copy_(means, weights)
                continue
            moves = list(torch._foreach_sub(weights, means))
            torch._foreach_mul_(moves, (1 - skipped).to(device, dtype) * (1 - self._decay))
            torch._foreach_add_(means, moves)


def device_for(device: str | torch.device | None, model: nn.Module) -> torch.device | None:
    """Return the device to move the model to, or None to leave it. "cuda" is the GPU that torchrun gave to this rank.

    If `device` is None, a model all on the CPU, neither wrapped nor sharded, moves to this GPU, if there is one.
    """
    rank, count = int(os.environ.get("LOCAL_RANK") or 0), torch.cuda.device_count()
    if device is None:
        movable = all(type(weight.data) is Tensor and weight.device.type == "cpu" for weight in model.parameters())
        if not movable or isinstance(model, DistributedDataParallel) or rank >= count:
            return None
    chosen = torch.device(device or "cuda")
    if chosen.type == "cuda":
        chosen = torch.device("cuda", rank if chosen.index is None else chosen.index)
        torch.cuda.set_device(chosen)
    return chosen


def lay_out(
    model: nn.Module,
    device: torch.device | None,
    world: World,
    *,
    channels_last: bool = False,
    compile: bool | str = False,
    ema: float | None = None,
    recompute: Iterable[type[nn.Module]] = (),
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> tuple[nn.Module, nn.Module, EMA | None]:
    """Return the model with the keys of its state_dict unchanged, the (wrapped) module to call, and the average, if any."""
    if names := [name for name, _ in dead_biases(model)]:
        text = f"a following BatchNorm cancels the bias of convolutions ({len(names)} in all, such as {names[0]})"
        warnings.warn(f"{text}. drop_dead_bias(model) removes these biases, with the same output", stacklevel=3)
    if device is not None:
        model.to(device)
    if channels_last and wrap is None:  # FSDP accepts no weights in this layout
        for weight in model.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    average = None if ema is None else copy.deepcopy(_inside(model))
    for kind in recompute:
        chosen = [module for module in model.modules() if isinstance(module, kind)]
        need(bool(chosen), "recompute", kind.__name__, "a class of modules in the model")
        for module in chosen:
            if "forward" not in vars(module):  # a second Trainer does not wrap it again
                module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    if compile:
        model.compile(mode=compile if isinstance(compile, str) else None)  # in place, so the keys stay
    called = model
    if wrap is not None:
        called = wrap(model)
        average = average and _inside(wrap(average))
    elif world.size > 1 and not isinstance(model, DistributedDataParallel):
        called = DistributedDataParallel(model, gradient_as_bucket_view=True)
    model = _inside(called)
    return model, called, None if average is None or ema is None else EMA(model, average, ema)


def _inside(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers that change the keys of a state_dict."""
    while isinstance(model, DistributedDataParallel | nn.DataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # type: ignore[assignment]
    return model


def build_optimizer(optimizer: Any, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer, or the one that a function makes from the model's parameters, fused on a GPU if possible."""
    if callable(optimizer):
        defaults = {name: argument.default for name, argument in inspect.signature(optimizer).parameters.items()}
        fuse = device.type == "cuda" and "fused" in defaults and defaults["fused"] is None and not defaults.get("foreach")
        optimizer = optimizer(model.parameters(), **({"fused": True} if fuse else {}))
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        found = type(optimizer).__name__
        raise TypeError(f"give one optimizer or its factory, not a {found}; LBFGS or several optimizers need your own loop")
    own = {id(p) for p in model.parameters()}
    if not all(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the optimizer has parameters that are not the model's: give a function, such as partial(AdamW, lr=1e-3)")
    return optimizer
