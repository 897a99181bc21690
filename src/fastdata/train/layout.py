"""Preparing a model, its average and its optimizer: moving to a device, compiling, wrapping for several ranks."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fastdata.gpu.bias import dead_biases
from fastdata.optim import need
from fastdata.train.world import World


class EMA:
    """Does ``average += (1 - decay) * (weights - average)`` after each update that was not skipped; counters are copied."""

    def __init__(self, model: nn.Module, average: nn.Module, decay: float) -> None:
        need(0 <= decay < 1, "ema", decay, "a decay from 0 on and below 1, such as 0.999")
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

    Without a name, the model moves to this GPU if there is one, and if all of it is on the CPU, neither wrapped nor sharded.
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
        text = f"the following BatchNorm cancels the bias of convolutions: {len(names)}, the first is {names[0]}"
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
        need(bool(chosen), "recompute", kind.__name__, "classes of some of the model's modules")
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
        raise TypeError(f"optimizer is a {found}, but must be, or make, one optimizer; several, or LBFGS, need a loop of your own")
    own = {id(p) for p in model.parameters()}
    if not all(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the optimizer has parameters that are not the model's: give a function, as partial(AdamW, lr=1e-3)")
    return optimizer
