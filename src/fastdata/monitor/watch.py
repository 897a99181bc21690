"""Warnings, once each, of what silently slows down a run: changing shapes, pageable memory, waits for the GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Watch"]

MOST_SHAPES = 3
CALL = 3  # the call of the loss function that is checked: the first ones set things up


class Watch:
    """Checks the inputs and the loss function of a run on a GPU; does nothing on the CPU.

    Args:
        device: the device of the run.
        benchmark: let cuDNN measure its algorithms. It does so again for each shape of input, so this is switched off after three
            shapes. A second number of rows with the same size is the short batch at the end of an epoch, and does not count.
    """

    def __init__(self, device: torch.device, *, benchmark: bool) -> None:
        self._gpu = device.type == "cuda"
        self._benchmark = benchmark and self._gpu
        self._rows: dict[torch.Size, set[int]] = {}  # by size: the numbers of rows seen
        self._pageable = False
        if self._benchmark:
            torch.backends.cudnn.benchmark = True

    def see(self, tensor: Tensor) -> None:
        """Check the first tensor of a batch, as the loader made it."""
        if self._benchmark and len(tensor) not in (rows := self._rows.setdefault(tensor.shape[1:], set())):
            rows.add(len(tensor))
            if sum(max(len(seen) - 1, 1) for seen in self._rows.values()) > MOST_SHAPES:
                self._benchmark = torch.backends.cudnn.benchmark = False
                warnings.warn(f"inputs have more than {MOST_SHAPES} shapes: cudnn.benchmark is off from here on", stacklevel=4)
        if self._gpu and not self._pageable and tensor.device.type == "cpu" and not tensor.is_pinned():
            self._pageable = True
            warnings.warn("batches lie in pageable memory, so the host waits for each copy: use pin_memory=True", stacklevel=4)

    def loss(self, loss_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap the loss function so that one of its calls is checked for waits."""
        if not self._gpu:
            return loss_fn
        calls = 0

        def watched(model: Any, batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls != CALL:
                return loss_fn(model, batch)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    result = loss_fn(model, batch)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            waits = sorted({f"{wait.filename}:{wait.lineno}" for wait in caught if "synchronizing" in str(wait.message)})
            if waits:
                text = "the loss function, or the model in it, makes the host wait for the GPU, as .item() does, at"
                warnings.warn(f"{text} {', '.join(waits)}; fastdata.profile(loss_fn, model, batch) shows more", stacklevel=2)
            return result

        return watched
