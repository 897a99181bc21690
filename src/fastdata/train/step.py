"""One update of the weights: the losses of its micro-batches, one gradient, clipped, finite or skipped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from fastdata.optim.ema import EMA
from fastdata.parallel.totals import Totals
from fastdata.parallel.world import World
from fastdata.train.losses import check_values, losses_of

__all__ = ["Step"]

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Step:
    """Makes one update of any number of micro-batches.

    The gradient is (sum of all losses) / (sum of all counts), over the micro-batches and over the ranks, so that it equals that
    of one big batch. Each loss is divided by the count of the first micro-batch on all ranks, and the gradient, at the end, by
    what is left; with one micro-batch that is nothing. DistributedDataParallel takes the mean over ranks, hence the `size`.

    A gradient that is not finite, on any rank, changes neither the weights nor the optimizer's state nor the average of the
    weights. Fused optimizers look at the flag on the device (`found_inf`, as for torch's GradScaler); for others, and until the
    first update that is not skipped, the host reads it, once an update.

    Attributes:
        totals: losses, their counts, and updates skipped.
        span: what marks a part of the step for a profiler: a context for a name.
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
        clip_value: float | None,
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.device, self.world = model, loss_fn, optimizer, device, world
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}, but must be one of {', '.join(PRECISIONS)}")
        self._ema, self._dtype, self._clip_norm, self._clip_value = ema, PRECISIONS[precision], clip_norm, clip_value
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
        """Forget what was added to an update that was left, by an error say, and gradients of before."""
        self._weights = list(self.model.parameters())  # Module.zero_grad would look for them at every update
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

    def add(self, batch: Any, *, valid: int | None, last: bool, check: bool = False) -> None:
        """Forward and backward of one micro-batch; the ranks exchange gradients on the last one of an update.

        Args:
            check: look at the values that loss_fn returns too, for which the host waits.
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
        """That of the sum / the count by each loss: a backward pass of those two operations would take longer."""
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
        """Of this update so far, over all ranks; 1 instead of 0, for a batch may have nothing but ignored tokens."""
        total = sum(self._counts)
        if self.world.size == 1 and not isinstance(total, Tensor):
            return total or 1
        total = self.world.sum(self.totals.number(total))
        return torch.where(total == 0, 1, total)

    def update(self) -> None:
        """Change the weights by the micro-batches added since the last time."""
        with self.span("optimizer"), torch.no_grad():
            found = self._finish_gradient()
            self._step(found)
            if self._ema is not None:
                self._ema.update(found)
            self.totals.add(self._losses, self._counts, found)
        self._last = self._losses, self._counts
        self._clear()

    def loss(self) -> Tensor | None:
        """The mean loss of the last update, of this rank's samples, [] on the device, without a wait; None: there was none yet."""
        losses, counts = self._last
        if not losses:
            return None
        return torch.stack([self.totals.number(loss) for loss in losses]).sum() / sum(map(self.totals.number, counts))

    def _finish_gradient(self) -> Tensor:
        """Unscale, divide and clip it. Returns whether it is not finite, bool [] on the device."""
        self.scaler.unscale_(self.optimizer)
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in weights if p.grad is not None]
        if len(self._losses) > 1 and grads:
            factor = self._unit / self._sum_of_counts()
            for group in [grads] if self._alike else [[grad] for grad in grads]:
                torch._foreach_mul_(group, factor.to(group[0]) if isinstance(factor, Tensor) else factor)
        norm = self._norm(grads)
        found = (norm * 0 != 0).to(self.device)  # not finite; torch.isfinite is four operations
        if self.world.size > 1:
            found = self.world.most(found.to(torch.float32)).bool()
        if self.scaler.is_enabled():
            for flag in self.scaler._found_inf_per_device(self.optimizer).values():
                flag.copy_(found)  # all ranks change their scale alike
        if self._clip_norm is not None:
            clip_grads_with_norm_(weights, self._clip_norm, norm)
        if self._clip_value is not None:
            clip_grad_value_(weights, self._clip_value)
        return found

    def _norm(self, grads: list[Tensor]) -> Tensor:
        if self._alike and grads:  # what get_total_norm does, which looks for groups of devices in 25 us
            norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            return norm
        norm = get_total_norm(grads)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _step(self, found: Tensor) -> None:
        if self._fused:
            self.optimizer.grad_scale, self.optimizer.found_inf = None, found.to(torch.float32)  # type: ignore[attr-defined]
        if not (self._fused and self._stepped):  # torch's fused SGD leaves its buffers unset if its first step is skipped
            if found.item():  # the host waits here
                self.optimizer.zero_grad()  # torch's optimizers leave weights without a gradient alone
            else:
                self._stepped = True
        self.optimizer.step()
        if self._fused:
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]
        self.scaler.update()
