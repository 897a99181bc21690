"""Losses, metrics and outputs over a whole set. Each sample counts once, however many ranks share the set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from fastdata.errors import FastDataError, warn_user
from fastdata.train.compute import Compute
from fastdata.train.epoch import check_rank, first_tensor
from fastdata.train.losses import losses_of
from fastdata.train.metrics import Metrics
from fastdata.train.states import random_state, restore_random

__all__ = ["evaluate", "predict"]


class _Recorded:
    """A model that keeps its outputs, so that loss and metrics need only one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs = None
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.outputs = self._model(*args, **kwargs)
        self.calls += 1
        return self.outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]  # type: ignore[index]


def evaluate(model: nn.Module, loader: Any, loss_fn: Any, metrics: Metrics, compute: Compute) -> dict[str, float]:
    """Return the mean loss and the metrics: sums over all ranks divided by the counts, and what metric objects compute."""
    metrics.reset(compute.device)
    totals = torch.zeros(1 + len(metrics.functions), 2, dtype=compute.wide, device=compute.device)
    with _evaluating(model, compute):
        for batch, valid in _batches(loader, compute):
            recorded = _Recorded(model)
            with compute.autocast():
                losses = losses_of(loss_fn(recorded, batch))
                if metrics.names and recorded.calls != 1:
                    raise FastDataError(
                        f"loss_fn called the model {recorded.calls} times, so metrics do not know which outputs to take: let it "
                        "call a module once, whose forward does all of it and returns the outputs for the metrics"
                    )
                results = [(losses.total, losses.number), *metrics.pairs(recorded.outputs, batch, _rows(batch))]
            if valid != 0:
                metrics.update(recorded.outputs, batch)
                totals += torch.stack([compute.number(value) for pair in results for value in pair]).view_as(totals)
    pairs = zip(("loss", *metrics.functions), compute.world.sum(totals).tolist(), strict=True)
    means = {name: value / count if count else math.nan for name, (value, count) in pairs}
    return means | metrics.results(compute.world)


def predict(model: nn.Module, loader: Any, forward: Callable[[Any, Any], Tensor], compute: Compute) -> Tensor:
    """Return the outputs on the CPU, one row per sample, on every rank: in the order of `ids` if batches have them."""
    ids = list[Any]()
    outputs = list[Tensor]()
    with _evaluating(model, compute):
        for batch, valid in _batches(loader, compute):
            with compute.autocast():
                output = forward(model, batch)
            if valid != 0:
                outputs.append((output.float() if output.dtype in (torch.float16, torch.bfloat16) else output).cpu())
                ids.extend(() if getattr(batch, "ids", None) is None else batch.ids)
    parts = compute.world.gather((ids, torch.cat(outputs) if outputs else None))
    rows = torch.cat([part for _, part in parts if part is not None])
    numbers = torch.tensor([number for found, _ in parts for number in found], dtype=torch.int64)
    if compute.world.size > 1 and len(numbers) != len(rows):
        raise FastDataError("predict on several ranks needs batches with .ids, to put them in order: use fastdata's Loader")
    return rows[numbers.argsort(stable=True)] if len(numbers) else rows


@contextmanager
def _evaluating(model: nn.Module, compute: Compute) -> Iterator[None]:
    compute.world.broadcast(model.buffers())
    modes, random = [(module, module.training) for module in model.modules()], random_state()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        restore_random(random)  # even a DataLoader that does not shuffle draws a seed
        for module, mode in modes:
            module.training = mode


def _batches(loader: Any, compute: Compute) -> Iterator[tuple[Any, int | None]]:
    check_rank(loader, compute.world)
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler) and (spare := sampler.total_size - len(sampler.dataset)) > 0:  # type: ignore[arg-type]
        warn_user(
            f"the DistributedSampler repeats {spare} of {sampler.total_size - spare} samples, so that all ranks have as many, and "
            "they count twice here: use fastdata's Loader"
        )
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(0)  # the same random crops each time
    count = 0
    for count, batch in enumerate(loader, 1):  # noqa: B007
        yield compute.place(batch)
    if not compute.world.largest(count):  # a rank alone may have none
        raise FastDataError(
            "the loader gave no batches to evaluate: with drop_last it leaves out a set that is smaller than a batch; a generator "
            "can be read only once: pass an iterable that starts again"
        )


def _rows(batch: Any) -> int:
    """Return the number of rows of a batch that is cut to its real rows; 1 if it has no tensor with rows."""
    tensor = first_tensor(batch)
    return len(tensor) if tensor is not None and tensor.dim() else 1
