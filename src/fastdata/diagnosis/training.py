"""A training step: what a user gives for it, its time on one repeated batch, and the copy of a batch to the device."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from fastdata.diagnosis.load import queued_s
from fastdata.gpu.copies import Copier

__all__ = ["Step", "load", "move", "time_copy", "time_step"]

WARMUP = 2  # calls that are not timed: they allocate, choose kernels and compile


class Step:
    """One step of training: forward and backward on a batch.

    Args:
        given: a function of a batch, which does everything itself; or (model, loss_fn), of which ``loss_fn(model, batch)`` returns
            losses in any form that a Trainer takes, or their mean. Gradients are dropped, and no optimizer runs.
        device: where the batches are.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, given: Any, device: torch.device) -> None:
        pair = isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], nn.Module) and callable(given[1])
        if not (pair or callable(given)):
            found = type(given).__name__
            raise TypeError(f"a step is a function of a batch, or (model, loss_fn) with loss_fn(model, batch); found a {found}")
        self._run: Callable[[Any], Any] = _training(given[0].to(device), given[1]) if pair else given

    def __call__(self, batch: Any) -> None:
        self._run(batch)


def _training(model: nn.Module, loss_fn: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    def train(batch: Any) -> None:
        result = loss_fn(model, batch)
        losses = result[0] if isinstance(result, tuple | list) else result
        losses.sum().backward()
        model.zero_grad(set_to_none=True)

    return train


def load(name: str, option: str) -> Any:
    """Call the function that `name` means, as "module:function", and return its result. The working folder is searched too.

    Raises:
        ValueError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    if module.endswith(".py") or not module or not function.isidentifier():
        hint = f"; try {module.removesuffix('.py').replace('/', '.')}:{function or 'FUNCTION'}" if module.endswith(".py") else ""
        raise ValueError(f"{option} is {name!r}, but must be MODULE:FUNCTION, such as train:make_loader{hint}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # the module is there, but imports one that is not
        raise ValueError(f"{option} is {name!r}, but there is no module {module!r} in {here} or on Python's path") from None
    if not callable(found):
        raise ValueError(f"{option} is {name!r}, but the module {module!r} has no function {function!r}")
    return found()


def _wait(device: torch.device) -> None:
    """Wait until a GPU is idle (host sync)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_step(step: Callable[[Any], object], batch: Any, device: torch.device, seconds: float) -> float:
    """Return the median seconds of a step on one batch, again and again."""
    for _ in range(WARMUP):
        step(batch)
    return _repeat(lambda: step(batch), device, seconds)


def time_copy(batch: Any, device: torch.device, seconds: float) -> float:
    """Return the seconds to copy a batch to the device. Objects with a `.to` move themselves, on any device."""
    copier = Copier(device, pin=False)
    copier.start(batch).take()
    return _repeat(lambda: copier.start(batch).take(), device, seconds)


def _repeat(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the median seconds of a call, without those in which this thread waited for a core."""
    _wait(device)
    times, end = list[float](), time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        started, queued = time.perf_counter(), queued_s()
        run()
        _wait(device)
        times.append(time.perf_counter() - started - (queued_s() - queued))
    return max(median(times), 1e-9)  # the kernel counts waiting more coarsely than a short call


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch on the device."""
    return Copier(device, pin=False).start(batch).take()
