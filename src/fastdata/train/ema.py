"""An exponential moving average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["EMA"]


class EMA:
    """Does ``average += (1 - decay) * (weights - average)`` after each update that was not skipped, also for float buffers.

    Other buffers, such as counters, are copied. `average` is a copy of the model, on the same devices.
    """

    def __init__(self, model: nn.Module, average: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"ema is {decay}, but a decay lies between 0 and 1, such as 0.999")
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
