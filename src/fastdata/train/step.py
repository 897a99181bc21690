"""One update of the weights from its micro-batches: one gradient, clipped, and skipped unless it is finite."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from fastdata.system.torch_private import find_not_finite
from fastdata.train.losses import check_values, losses_of
from fastdata.train.world import EMA, Compute

EMPTY = nullcontext()
CLIP_EPSILON = 1e-6  # as torch's clip_grad_norm_ has it


class Step:
    """Makes one update from any number of micro-batches.

    The gradient is (sum of all losses) / (sum of all counts) over the micro-batches and the ranks. Each loss is divided by the
    count of the first micro-batch on all ranks; at the end, the gradient is scaled by that count / total, 1 for a single
    micro-batch. DistributedDataParallel takes the mean over ranks, hence the factor `size`.

    If the gradient is not finite on some rank, the weights, the optimizer's state and the average of the weights stay unchanged.
    Fused optimizers read the flag on the device (`found_inf`). For others, and until the first update that is not skipped, the
    host reads it once per update.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: Optimizer, compute: Compute, *, clip_norm: float | None, ema: EMA | None
    ) -> None:
        self.model = model
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._compute = compute
        self._world = compute.world
        self._clip_norm = clip_norm
        self._ema = ema
        self._no_sync = getattr(model, "no_sync", None)  # DistributedDataParallel
        self._set_sync = getattr(model, "set_requires_gradient_sync", None)  # FSDP2
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.dtype == torch.float16)
        self._fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        kinds = {(p.device, p.dtype) for p in self._trained}
        self._alike = len(kinds) == 1 and not any(isinstance(p, DTensor) for p in self._trained)
        self._last: tuple[Tensor, Any] | None = None
        self._stepped = False
        self._one = torch.ones((), device=compute.device)
        self._updates = list[tuple[Tensor, Any, Tensor]]()  # losses, counts and whether skipped, on the device until they are read
        self.skipped_in_a_row = 0  # up to the last call of `read_totals`

    def begin(self) -> None:
        """Drop old gradients, and micro-batches of an update that was not finished, for instance after an error."""
        self._weights = list(self.model.parameters())  # Module.zero_grad would collect them at every update
        self._trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._clear()

    def _clear(self) -> None:
        for weight in self._weights:
            weight.grad = None
        self._losses: list[Tensor] = []
        self._counts: list[Any] = []

    def add(self, batch: Any, *, valid: int | None, last: bool) -> None:
        """Run forward and backward of one micro-batch. The ranks exchange gradients on the last one of an update."""
        if self._set_sync is not None:
            self._set_sync(last)
        with EMPTY if last or self._no_sync is None else self._no_sync():
            with self._compute.autocast():
                result = self._loss_fn(self.model, batch)
                losses, total, count = losses_of(result)
            if not self._stepped:  # the host waits for the device then anyway
                check_values(result)
            if valid == 0:  # this rank has nothing left in this epoch
                losses, total, count = losses * 0, total * 0, count * 0
            self._losses.append(total)
            self._counts.append(count)
            if len(self._losses) == 1:
                self._unit = self._sum_of_counts()
            torch.autograd.backward(losses, self._gradient(losses))

    def _gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of (sum / count) by each loss. A backward pass through these two operations would take longer."""
        each = self._world.size / self._unit
        if not isinstance(each, Tensor) and not self.scaler.is_enabled():
            return torch.full_like(losses, each)
        return self.scaler.scale(self._compute.number(each)).to(losses.dtype).expand_as(losses)

    def _sum_of_counts(self) -> Any:
        """Return the count of this update so far over all ranks; 1 instead of 0, since a batch may have only ignored tokens."""
        total = sum(self._counts)
        if self._world.size == 1 and not isinstance(total, Tensor):
            return total or 1
        total = self._world.sum(self._compute.number(total))
        return torch.where(total == 0, 1, total)

    def update(self) -> None:
        """Update the weights from the micro-batches added since the last update."""
        with torch.no_grad():
            skip = self._finish_gradient()
            self._step(skip)
            if self._ema is not None:
                self._ema.update(skip)
        self._last = functools.reduce(operator.add, self._losses), sum(self._counts)
        self._updates.append((*self._last, skip))
        self._clear()

    def loss(self) -> Tensor | None:
        """Return the mean loss of the last update over this rank's samples, [] on the device, without waiting. None at first."""
        if self._last is None:
            return None
        loss, count = map(self._compute.number, self._last)
        return loss / count

    def _finish_gradient(self) -> Tensor:
        """Unscale, divide and clip the gradient. Returns 0 if it is finite on all ranks, else 1, float32 [] on the device."""
        self.scaler.unscale_(self._optimizer)
        grads = self._gradients()
        if len(self._losses) > 1 and grads:
            _scale(grads, self._unit / self._sum_of_counts())
        skip = torch.zeros((), device=self._compute.device)
        norm = None
        if self._clip_norm is None and self._alike and grads and grads[0].is_floating_point():
            find_not_finite(grads, skip, self._one)
        else:
            quick = self._alike and grads  # get_total_norm spends 25 us on grouping by device
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) if quick else get_total_norm(grads)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            skip += (norm * 0 != 0).to(skip.device)
        self._world.sum(skip, dist.ReduceOp.MAX)
        if self.scaler.is_enabled():
            flags = self.scaler._found_inf_per_device(self._optimizer)  # empty if nothing has a gradient
            flags.setdefault(self._compute.device, skip)  # type: ignore[call-overload]
            for flag in flags.values():
                flag.copy_(skip)  # so that all ranks change their scale alike
        if self._clip_norm is not None and norm is not None:
            _scale(grads, (self._clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return skip

    def _gradients(self) -> list[Tensor]:
        """Return the gradients, or the values of sparse gradients, as embeddings have."""
        for p in self._trained:
            if p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad.coalesce()
        found = [p.grad for p in self._trained if p.grad is not None]
        return [grad._values() if grad.is_sparse else grad for grad in found]

    def _step(self, skip: Tensor) -> None:
        optimizer: Any = self._optimizer
        if self._fused:
            optimizer.grad_scale = None
            optimizer.found_inf = skip
        if not (self._fused and self._stepped):  # torch's fused SGD leaves its buffers unset if its first step is skipped
            if skip.item():  # the host waits here
                optimizer.zero_grad()  # torch's optimizers ignore weights without a gradient
            else:
                self._stepped = True
        optimizer.step()
        if self._fused:
            del optimizer.grad_scale, optimizer.found_inf
        self.scaler.update()

    def read_totals(self) -> dict[str, float]:
        """Return totals since the last call: losses and counts of applied updates over all ranks; skipped updates; all updates.

        The host waits here; all ranks must call it together.
        """
        columns = [self._numbers(column) for column in zip(*self._updates, strict=True)]
        updates = list(zip(*columns, strict=True))
        self._updates.clear()
        for _, _, skipped in updates:
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        applied = [(loss, count) for loss, count, skipped in updates if not skipped]
        ranks = self._world.gather((sum(loss for loss, _ in applied), sum(count for _, count in applied)))
        losses, counts = map(sum, zip(*ranks, strict=True))
        return {"losses": losses, "counts": counts, "skipped": len(updates) - len(applied), "updates": len(updates)}

    def _numbers(self, column: Sequence[Any]) -> list[float]:
        if not any(isinstance(value, Tensor) for value in column):
            return [*map(float, column)]
        if not all(isinstance(value, Tensor) and value.device == self._compute.device for value in column):
            column = [*map(self._compute.number, column)]
        return torch.stack([*column]).tolist()


def _scale(grads: list[Tensor], factor: Any) -> None:
    """Multiply the gradients by a number, in place."""
    groups: dict[Any, list[Tensor]] = {}
    for grad in grads:
        groups.setdefault((type(grad), grad.device, grad.dtype), []).append(grad)
    for group in groups.values():
        torch._foreach_mul_(group, factor.to(group[0]) if isinstance(factor, Tensor) else factor)
