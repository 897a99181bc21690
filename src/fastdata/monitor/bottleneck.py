"""What limits a run, and the first thing to change. Reported only when it changes, and only advice that can help."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from fastdata.machine import available_cores

__all__ = ["Bottleneck", "untried"]

WORTH = 1.02  # speed-up by a perfect loader from which it is worth advising on the loader
LIMIT = 2.0  # speed-up from which the loader is the bottleneck
MOST = 100.0  # the largest speed-up that is reported
SEVERAL_CORES = 2


class Bottleneck:
    """Names the bottleneck of each epoch.

    Args:
        switch: what to try if the model is the bottleneck; "" if there is nothing.
    """

    def __init__(self, switch: str) -> None:
        self._switch = switch
        self._last = ""
        self._loader: Any = None
        self._before: Any = None

    def begin(self, loader: Any) -> None:
        """Start an epoch. `loader` may have `stats()` with `advice(before)`, like fastdata's Loader."""
        self._loader = loader
        self._before = loader.stats() if hasattr(loader, "stats") else None

    def end(self, wait: float) -> str:
        """Return what limited the epoch, or "" if that has not changed. `wait` is the share of time spent waiting for data."""
        gain = 1 / max(1 - wait, 1 / MOST)
        advice = self._advice() if gain >= WORTH else self._switch
        found = f"{gain >= WORTH} {gain >= LIMIT} {advice}"
        if found == self._last:
            return ""
        self._last = found
        if gain < WORTH:
            return f"The model is the bottleneck: a perfect loader would bring {gain:.2f} x.{f' {advice}.' if advice else ''}"
        tried = f"{f': try {advice}' if advice else ''}."
        if gain < LIMIT:
            return f"A perfect loader would bring {gain:.2f} x{tried}"
        return f"The loader is the bottleneck: a perfect one would bring {'over ' if gain == MOST else ''}{gain:.2f} x{tried}"

    def _advice(self) -> str:
        if hasattr(self._before, "advice"):
            return str(self._loader.stats().advice(self._before))
        cores = available_cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        if isinstance(workers := getattr(self._loader, "num_workers", None), int):
            return "more workers" if workers < cores else ""
        return "a loader with worker processes" if cores >= SEVERAL_CORES else ""


def untried(model: nn.Module, device: torch.device, *, precision: str, channels_last: bool, compile: bool) -> str:
    """Return the first thing to change if the model is the bottleneck; "" if nothing is left."""
    gpu = device.type == "cuda"
    if gpu and precision == "fp32":
        old = torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
        return f'precision="{"fp16" if old else "bf16"}" is quicker'
    if gpu and not channels_last and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return "channels_last=True is quicker for convolutions"
    if not (compile or hasattr(model, "_orig_mod")) and _compiles(device):
        return "compile=True may be quicker"
    return "A larger batch may be quicker" if gpu else ""


def _compiles(device: torch.device) -> bool:
    """Return whether torch.compile finds Triton, or on the CPU a C++ compiler."""
    if device.type == "cuda":
        return find_spec("triton") is not None
    return any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++")))
