"""One update of the weights from its micro-batches: one gradient, clipped, and skipped unless it is finite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fastdata.optim.ema import EMA
from fastdata.parallel.totals import Totals
from fastdata.parallel.world import World
from fastdata.train.losses import check_values, losses_of

__all__ = ["Step"]

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Step:
    """Makes one update from any number of micro-batches.

    The gradient is (sum of all losses) / (sum of all counts) over the micro-batches and the ranks, so it equals that of one big
    batch. Each loss is divided by the count of the first micro-batch on all ranks; at the end, the gradient is divided by the
    rest, which is 1 for a single micro-batch. DistributedDataParallel takes the mean over ranks, hence the factor `size`.

    A gradient that is not finite on any rank changes neither the weights nor the optimizer's state nor the average of the weights.
    Fused optimizers read the flag on the device (`found_inf`, as with torch's GradScaler). For others, and until the first update
    that is not skipped, the host reads it once per update.

    Attributes:
        totals: losses, their counts, and skipped updates.
        span: returns a context that marks a named part of the step for a profiler.
        see_losses: is called with the losses of each micro-batch, before its backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        optimizer: torch.optim.Optimizer,
        world: World,
        device: torch.device,
        ema: EMA | None,
        precision: str,
        clip_norm: float | None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}, but must be one of {', '.join(PRECISIONS)}")
        self.model = model
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.device = device
        self.world = world
        self._ema = ema
        self._dtype = PRECISIONS[precision]
        self._clip_norm = clip_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        self.totals = Totals(world, device)
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        self._alike = len({(p.device, p.dtype) for p in weights}) == 1 and not any(isinstance(p, DTensor) for p in weights)
        self.span: Callable[[str], AbstractContextManager[Any]] = lambda name: nullcontext()
        self.see_losses: Callable[[Tensor], None] = lambda losses: None
        self._last: tuple[list[Tensor], list[Tensor | float]] = [], []
        self._stepped = False

    def begin(self) -> None:
        """Drop old gradients, and micro-batches of an update that was not finished, for instance after an error."""
        self._weights = list(self.model.parameters())  # Module.zero_grad would collect them at every update
        self._clear()

    def _clear(self) -> None:
        for weight in self._weights:
            weight.grad = None
        self._losses: list[Tensor] = []
        self._counts: list[Tensor | float] = []

    def autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None and not torch.is_autocast_enabled(self.device.type):
            return nullcontext()
        return torch.autocast(self.device.type, self._dtype, enabled=self._dtype is not None)

    def add(self, batch: Any, *, valid: int | None, last: bool, check: bool) -> None:
        """Run forward and backward of one micro-batch. The ranks exchange gradients on the last one of an update.

        Args:
            check: also check the values that loss_fn returns, for which the host waits.
        """
        with self._exchange(last):
            with self.span("forward"), self.autocast():
                result = self.loss_fn(self.model, batch)
                losses, total, count = losses_of(result)
            if check:
                check_values(result)
            self.see_losses(losses)
            if valid == 0:  # this rank has nothing left in this epoch
                losses, total, count = losses * 0, total * 0, count * 0
            self._losses.append(total)
            self._counts.append(count)
            if len(self._losses) == 1:
                self._unit = self._sum_of_counts()
            with self.span("backward"):
                torch.autograd.backward(losses, self._gradient(losses))

    def _gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of (sum / count) by each loss. A backward pass through these two operations would take longer."""
        each = self.world.size / self._unit
        if not isinstance(each, Tensor) and not self.scaler.is_enabled():
            return torch.full_like(losses, each)
        return self.scaler.scale(self.totals.number(each)).to(losses.dtype).expand_as(losses)

    def _exchange(self, last: bool) -> AbstractContextManager[Any]:
        model: Any = self.model
        if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
            model.set_requires_gradient_sync(last)
        return model.no_sync() if not last and hasattr(model, "no_sync") else nullcontext()

    def _sum_of_counts(self) -> Any:
        """Return the count of this update so far over all ranks; 1 instead of 0, since a batch may have only ignored tokens."""
        total = sum(self._counts)
        if self.world.size == 1 and not isinstance(total, Tensor):
            return total or 1
        total = self.world.sum(self.totals.number(total))
        return torch.where(total == 0, 1, total)

    def update(self) -> None:
        """Update the weights from the micro-batches added since the last update."""
        with self.span("optimizer"), torch.no_grad():
            skip = self._finish_gradient()
            self._step(skip)
            if self._ema is not None:
                self._ema.update(skip)
            self.totals.add(self._losses, self._counts, skip)
        self._last = self._losses, self._counts
        self._clear()

    def loss(self) -> Tensor | None:
        """Return the mean loss of the last update over this rank's samples, [] on the device, without waiting. None before it."""
        losses, counts = self._last
        if not losses:
            return None
        return torch.stack([self.totals.number(loss) for loss in losses]).sum() / sum(map(self.totals.number, counts))

    def _finish_gradient(self) -> Tensor:
        """Unscale, divide and clip the gradient. Returns whether it is not finite, bool [] on the device."""
        self.scaler.unscale_(self.optimizer)
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in weights if p.grad is not None]
        if len(self._losses) > 1 and grads:
            factor = self._unit / self._sum_of_counts()
            for group in [grads] if self._alike else [[grad] for grad in grads]:
                torch._foreach_mul_(group, factor.to(group[0]) if isinstance(factor, Tensor) else factor)
        norm = self._norm(grads)
        skip = (norm * 0 != 0).to(self.device)  # not finite; torch.isfinite takes four operations
        if self.world.size > 1:
            skip = self.world.max(skip.to(torch.float32)).bool()
        if self.scaler.is_enabled():
            for flag in self.scaler._found_inf_per_device(self.optimizer).values():
                flag.copy_(skip)  # so that all ranks change their scale alike
        if self._clip_norm is not None:
            clip_grads_with_norm_(weights, self._clip_norm, norm)
        return skip

    def _norm(self, grads: list[Tensor]) -> Tensor:
        if self._alike and grads:  # as get_total_norm, which spends 25 us on grouping by device
            norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            return norm
        norm = get_total_norm(grads)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _step(self, skip: Tensor) -> None:
        if self._fused:
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.found_inf = skip.to(torch.float32)  # type: ignore[attr-defined]
        if not (self._fused and self._stepped):  # torch's fused SGD leaves its buffers unset if its first step is skipped
            if skip.item():  # the host waits here
                self.optimizer.zero_grad()  # torch's optimizers ignore weights without a gradient
            else:
                self._stepped = True
        self.optimizer.step()
        if self._fused:
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]
        self.scaler.update()
