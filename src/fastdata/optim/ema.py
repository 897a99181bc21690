"""An exponential moving average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["EMA"]


class EMA:
    """Does ``average += (1 - decay) * (weights - average)`` after each update that was not skipped, also for float buffers.

    Other buffers, such as counters, are copied.

    Args:
        model: the model whose weights are averaged.
        average: a copy of the model, on the same devices.
        decay: 0 to below 1, such as 0.999.
    """

    def __init__(self, model: nn.Module, average: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"ema is {decay}, but a decay lies between 0 and 1, such as 0.999")
        self.decay = decay
        self.model = average.eval().requires_grad_(False)
        pairs = list(zip((*average.parameters(), *average.buffers()), (*model.parameters(), *model.buffers()), strict=True))
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
        for pair in pairs:
            if pair[0].is_floating_point():
                groups.setdefault((pair[0].device, pair[0].dtype), []).append(pair)
        self._averaged = {kind: ([a for a, _ in group], [w for _, w in group]) for kind, group in groups.items()}

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """Move the average, unless `skipped`: bool [] on the device, so that the host need not wait for it."""
        for (device, dtype), (averages, weights) in self._averaged.items():
            moves = list(torch._foreach_sub(weights, averages))
            torch._foreach_mul_(moves, (~skipped).to(device, dtype) * (1 - self.decay))
            torch._foreach_add_(averages, moves)
        for copied, source in self._copied:
            copied.copy_(source)
