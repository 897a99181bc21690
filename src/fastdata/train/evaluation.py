"""Losses, metrics and outputs over a whole set. Each sample counts once, however many ranks share the set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastdata.errors import FastDataError
from fastdata.monitor.logged import NOTHING, Logged
from fastdata.monitor.metrics import Metrics
from fastdata.train.batches import check_part, first_tensor, to_device
from fastdata.train.losses import losses_of
from fastdata.train.step import Step

__all__ = ["Evaluation"]

HALVES = (torch.float16, torch.bfloat16)


class _Recorded:
    """A model that keeps its last outputs, so that loss and metrics need only one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.outputs = self._model(*args, **kwargs)
        return self.outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]  # type: ignore[index]


class Evaluation:
    """Runs a model over a set in eval mode, without gradients, in the precision of training.

    Args:
        step: gives the precision, the device and the ranks.
        loss_fn: a loss function, as for training.
        metrics: metrics, as for `Metrics`.
        logged: gets the numbers that the user logs.
    """

    def __init__(self, step: Step, loss_fn: Any, metrics: Mapping[str, Any], logged: Logged, *, channels_last: bool) -> None:
        self._step = step
        self._loss_fn = loss_fn
        self._metrics = Metrics(metrics)
        self._channels_last = channels_last
        self._logged = logged

    def run(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """Return the mean loss and the metrics: sums over all ranks divided by the counts, and what metric objects compute."""
        step = self._step
        number = step.totals.number
        self._metrics.reset(step.device)
        totals = torch.zeros(1 + len(self._metrics.functions), 2, dtype=step.totals.dtype, device=step.device)
        with self._evaluating(model):
            for batch, valid in self._batches(loader):
                recorded = _Recorded(model)
                with step.autocast():
                    losses = losses_of(self._loss(recorded, batch))
                    results = [(losses.total, losses.number)]
                    results += self._metrics.pairs(recorded.outputs, batch, _rows(batch))
                if valid != 0:
                    self._metrics.see(recorded.outputs, batch)
                    totals += torch.stack([number(value) for pair in results for value in pair]).view_as(totals)
        pairs = zip(("loss", *self._metrics.functions), step.world.sum(totals).tolist(), strict=True)
        means = {name: value / count if count else math.nan for name, (value, count) in pairs}
        return means | self._metrics.results(step.world)

    def _loss(self, model: Any, batch: Any) -> Any:
        try:
            return self._loss_fn(model, batch)
        except RuntimeError as error:
            if "not require grad" not in str(error):
                raise
            raise FastDataError(
                "the loss function takes a gradient, as a gradient penalty does, but an evaluation has none: leave it out unless "
                "model.training, or put `with torch.enable_grad():` around that part, with the call of the model that it needs"
            ) from error

    def predict(self, model: nn.Module, loader: Any, forward: Callable[[Any, Any], Tensor]) -> Tensor:
        """Return the outputs on the CPU, one row per sample, on every rank: in the order of `ids` if batches have them."""
        ids = list[Any]()
        outputs = list[Tensor]()
        with self._evaluating(model):
            for batch, valid in self._batches(loader):
                with self._step.autocast():
                    output = forward(model, batch)
                if valid != 0:
                    outputs.append((output.float() if output.dtype in HALVES else output).cpu())
                    ids.extend(getattr(batch, "ids", ()))
        world = self._step.world
        parts = world.gather((ids, torch.cat(outputs) if outputs else None))
        rows = torch.cat([part for _, part in parts if part is not None])
        numbers = torch.tensor([number for found, _ in parts for number in found], dtype=torch.int64)
        if world.size > 1 and len(numbers) != len(rows):
            raise FastDataError("predict on several ranks needs batches with .ids, to put them in order: use fastdata's Loader")
        return rows[numbers.argsort(stable=True)] if len(numbers) else rows

    @contextmanager
    def _evaluating(self, model: nn.Module) -> Iterator[None]:
        self._step.world.broadcast(model.buffers())
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    def _batches(self, loader: Any) -> Iterator[tuple[Any, int | None]]:
        check_part(loader, self._step.world, training=False)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(0)  # the same random crops each time
        count = 0
        for batch in loader:
            count += 1
            self._logged.kind = NOTHING if getattr(batch, "valid", None) == 0 else "eval"
            yield to_device(batch, self._step.device, channels_last=self._channels_last)
        if not max(self._step.world.gather(count)):  # a rank alone may have none
            raise FastDataError(
                "the loader gave no batches to evaluate; a generator can be read only once: pass an iterable that starts again"
            )


def _rows(batch: Any) -> int:
    """Return the number of rows of a batch that is cut to its real rows; 1 if it has no tensor with rows."""
    tensor = first_tensor(batch)
    return len(tensor) if tensor is not None and tensor.dim() else 1
