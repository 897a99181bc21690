"""A model on its devices: moved, laid out, compiled, wrapped for many ranks."""

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
    """The model as it keeps its keys, the same as it is to be called, and the average of its weights, all on their devices."""
    _warn(model)
    if device is not None:
        model.to(device)
    if channels_last and wrap is None:  # FSDP takes no weights of another layout
        for weight in model.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    average = None if ema is None else copy.deepcopy(_inside(model))
    kinds = _kinds(recompute, model)
    for module in model.modules():
        if isinstance(module, kinds) and not hasattr(module, "recomputes"):
            module.__class__ = _recomputing(type(module))  # type: ignore[arg-type]  # it is hashable
    if compile:
        model.compile(mode=compile if isinstance(compile, str) else None)  # in place: the keys stay as they are
    called = _parallel(model, world) if wrap is None else wrap(model)
    if average is not None and wrap is not None:
        average = _inside(wrap(average))
    model = _inside(called)
    return model, called, None if average is None or ema is None else EMA(model, average, ema)


def _kinds(recompute: Iterable[type[nn.Module]], model: nn.Module) -> tuple[type[nn.Module], ...]:
    """The classes of `recompute`.

    Raises:
        TypeError: it is something else than classes of modules.
        ValueError: a class has no modules in the model, or all.
    """
    kinds = () if isinstance(recompute, type | nn.Module) else tuple(recompute)
    if isinstance(recompute, type | nn.Module) or not all(isinstance(kind, type) for kind in kinds):
        raise TypeError(f"recompute is {recompute!r:.80}, but must be a tuple of classes of modules, such as (Block,)")
    found = {type(module).__name__ for module in model.modules()}
    for kind in kinds:
        if not issubclass(kind, nn.Module) or kind is nn.Module or not any(isinstance(m, kind) for m in model.modules()):
            raise ValueError(
                f"recompute has {kind.__name__}, but must have classes of some of the model's modules: {', '.join(sorted(found))}"
            )
    return kinds


def _warn(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel):
        warnings.warn("nn.DataParallel copies the model at every step: one process a GPU, by torchrun, is faster", stacklevel=4)
    if names := [name for name, _ in dead_biases(model)]:
        text = f"{len(names)} convolutions in front of a BatchNorm have a bias that it takes out again, {names[0]} the first"
        warnings.warn(f"{text}: drop_dead_bias(model) removes them, with the same output", stacklevel=4)


def _parallel(model: nn.Module, world: World) -> nn.Module:
    if world.size == 1 or isinstance(model, DistributedDataParallel):
        return model
    devices = list({p.device for p in model.parameters()})
    gpu = devices if len(devices) == 1 and devices[0].type == "cuda" else None  # None: its author laid it over several
    return DistributedDataParallel(model, device_ids=gpu, gradient_as_bucket_view=True)


def _inside(model: nn.Module) -> nn.Module:
    """Without the wrappers that change the keys of a state_dict."""
    while isinstance(model, DistributedDataParallel | nn.DataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # type: ignore[assignment]
    return model


@functools.cache
def _recomputing(base: Any) -> type[nn.Module]:
    """A class of modules that keep their inputs only, and run again in the backward pass."""

    @functools.wraps(base, updated=())
    class Recomputing(base):  # type: ignore[misc]
        recomputes = True

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return super().forward(*args, **kwargs)
            return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)

    return Recomputing
