"""Preparing a model: moving it to its device, compiling it, and wrapping it for several ranks."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fastdata.gpu.bias import dead_biases
from fastdata.optim.ema import EMA
from fastdata.parallel.world import World

__all__ = ["lay_out"]


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
    """Prepare a model for training.

    Returns the model with the keys of its state_dict unchanged, the (possibly wrapped) module to call, and the average of the
    weights, or None without `ema`; all on their devices.
    """
    _warn(model)
    if device is not None:
        model.to(device)
    if channels_last and wrap is None:  # FSDP accepts no weights in this layout
        for weight in model.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    average = None if ema is None else copy.deepcopy(_inside(model))
    classes = tuple(recompute)
    if unknown := [kind.__name__ for kind in classes if not any(isinstance(module, kind) for module in model.modules())]:
        raise ValueError(f"recompute has {unknown[0]}, but must have classes of some of the model's modules")
    for module in model.modules():
        if isinstance(module, classes) and not hasattr(module, "recomputes"):
            module.__class__ = _recomputing(type(module))  # type: ignore[arg-type]  # it is hashable
    if compile:
        model.compile(mode=compile if isinstance(compile, str) else None)  # in place, so the keys stay
    called = _parallel(model, world) if wrap is None else wrap(model)
    if average is not None and wrap is not None:
        average = _inside(wrap(average))
    model = _inside(called)
    return model, called, None if average is None or ema is None else EMA(model, average, ema)


def _warn(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel):
        warnings.warn("nn.DataParallel copies the model at every step: one process per GPU, by torchrun, is faster", stacklevel=4)
    if names := [name for name, _ in dead_biases(model)]:
        text = f"convolutions whose bias the following BatchNorm cancels: {len(names)}, the first is {names[0]}"
        warnings.warn(f"{text}. drop_dead_bias(model) removes these biases, with the same output", stacklevel=4)


def _parallel(model: nn.Module, world: World) -> nn.Module:
    if world.size == 1 or isinstance(model, DistributedDataParallel):
        return model
    devices = list({p.device for p in model.parameters()})
    gpu = devices if len(devices) == 1 and devices[0].type == "cuda" else None  # None: its author spread it over several
    return DistributedDataParallel(model, device_ids=gpu, gradient_as_bucket_view=True)


def _inside(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers that change the keys of a state_dict."""
    while isinstance(model, DistributedDataParallel | nn.DataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # type: ignore[assignment]
    return model


@functools.cache
def _recomputing(base: Any) -> type[nn.Module]:
    """Return a subclass whose modules keep only their inputs, and run again in the backward pass."""

    @functools.wraps(base, updated=())
    class Recomputing(base):  # type: ignore[misc]
        recomputes = True

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return super().forward(*args, **kwargs)
            return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)

    return Recomputing
