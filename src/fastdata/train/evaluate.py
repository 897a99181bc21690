"""Losses, metrics and outputs over a whole set. Each sample counts once, however many ranks share the set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from fastdata.errors import FastDataError, warn_user
from fastdata.train.checkpoint import random_state, restore_random
from fastdata.train.epoch import NO_BATCHES, check_rank, first_tensor
from fastdata.train.log import Means
from fastdata.train.losses import losses_of
from fastdata.train.world import Compute, World

Metrics: TypeAlias = tuple[dict[str, Any], dict[str, tuple[Any, Any]]]


def sort_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Split metrics into functions, and pairs of an object and a function that returns its update's arguments."""
    functions, objects = dict[str, Any](), dict[str, tuple[Any, Any]]()
    for name, metric in metrics.items():
        target, arguments = metric if isinstance(metric, tuple) and len(metric) == 2 else (metric, _scores_and_targets)
        if all(hasattr(target, method) for method in ("update", "compute", "reset")) and not isinstance(target, type):
            objects[name] = target, arguments
        elif callable(metric) and not isinstance(metric, type):
            functions[name] = metric
        else:
            expected = "a metric is a function, an object with update, compute and reset, or a pair (object, function)"
            raise TypeError(f"metrics[{name!r}] is {metric!r}; {expected}")
    return functions, objects


class _Recorded:
    """A model that keeps its outputs, so that loss and metrics need only one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs = list[Any]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.outputs.append(self._model(*args, **kwargs))
        return self.outputs[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]  # type: ignore[index]


def evaluate(model: nn.Module, loader: Any, loss_fn: Any, metrics: Metrics, compute: Compute, means: Means) -> dict[str, float]:
    """Return the mean loss, the metrics, and the means of other values that are added to `means` meanwhile, over all ranks."""
    functions, objects = metrics
    for metric, _ in objects.values():
        if hasattr(metric, "to"):
            metric.to(compute.device)
        metric.reset()
    for name in ("loss", *functions):
        means.add(name, 0.0, 0)
    number = 0
    with _evaluating(model, compute):
        for batch, valid in _batches(loader, compute):
            recorded = _Recorded(model)
            with compute.autocast():
                losses = losses_of(loss_fn(recorded, batch))
                if (functions or objects) and (calls := len(recorded.outputs)) != 1:
                    raise FastDataError(f"loss_fn called the model {calls} times, but metrics need one call: call the model once")
                found = {name: _pair(name, function(recorded.outputs[0], batch), batch) for name, function in functions.items()}
            if valid == 0:
                continue
            number += 1
            for name, pair in {"loss": (losses.total, losses.number), **found}.items():
                means.add(name, *pair)
            for metric, arguments in objects.values():
                values = arguments(recorded.outputs[0], batch)
                metric.update(*map(_wide, values if isinstance(values, tuple | list) else (values,)))
    return means.read(compute.world) | (_computed(objects, number, compute.world) if objects else {})


def _scores_and_targets(outputs: Any, batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return outputs, batch[1]
    raise TypeError(
        f"a batch is a {type(batch).__name__}, not (inputs, targets): pass (metric, f) to call metric.update(*f(outputs, batch))"
    )


def _pair(name: str, value: Any, batch: Any) -> tuple[Any, Any]:
    """Return the result of a function as (sum, count)."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    if isinstance(value, Tensor) and value.dim():
        return value.sum(), value.numel()
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        tensor = first_tensor(batch)
        rows = len(tensor) if tensor is not None and tensor.dim() else 1
        return value * rows, rows
    raise TypeError(
        f"metrics[{name!r}] returned {value!r}; return (sum, count), a tensor with a value per row, or the batch's mean as a float"
    )


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _computed(objects: Mapping[str, tuple[Any, Any]], number: int, world: World) -> dict[str, float]:
    """Return the values that metric objects compute from the `number` batches of this rank, the same on every rank."""
    batches = world.gather(number)
    if not all(batches):  # compute() would wait for this rank forever, or leave out the others
        raise FastDataError(f"rank {batches.index(0)} has no rows for metrics {', '.join(objects)}: use smaller batches")
    found = dict[str, float]()
    for name, (metric, _) in objects.items():
        _flatten(found, name, metric.compute())
    ranks = world.gather(found)
    for name in found:
        values = torch.tensor([rank[name] for rank in ranks], dtype=torch.float64)
        if not values.isclose(values[0], rtol=1e-4, equal_nan=True).all():  # sums on a GPU may be taken in another order
            raise FastDataError(f"{name!r} is {values.tolist()}, rank by rank: its compute() must sum over the ranks")
    return dict(ranks[0])


def _flatten(found: dict[str, float], name: str, value: Any) -> None:
    """Add a result by name; if an object has several, each as `name/part`."""
    if isinstance(value, Tensor) and value.dim() == 1 and len(value) > 1:
        value = dict(enumerate(value.tolist()))
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(found, f"{name}/{key}", part)
    else:
        found[name] = float(value)


def predict(model: nn.Module, loader: Any, forward: Callable[[Any, Any], Tensor], compute: Compute) -> Tensor:
    """Return the outputs on the CPU, one row per sample, on every rank: in the order of `ids` if batches have them."""
    ids, outputs = list[Any](), list[Tensor]()
    with _evaluating(model, compute):
        for batch, valid in _batches(loader, compute):
            with compute.autocast():
                output = forward(model, batch)
            if valid != 0:
                outputs.append(_wide(output).cpu())
                ids.extend(() if getattr(batch, "ids", None) is None else batch.ids)
    parts = compute.world.gather((ids, torch.cat(outputs) if outputs else None))
    rows = torch.cat([part for _, part in parts if part is not None])
    numbers = torch.tensor([number for found, _ in parts for number in found], dtype=torch.int64)
    if compute.world.size > 1 and len(numbers) != len(rows):
        raise FastDataError("predict on several ranks needs batches with .ids, to put rows in order: use fastdata's Loader")
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
        warn_user(f"the DistributedSampler repeats {spare} of the samples, which count twice here: use fastdata's Loader")
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(0)  # the same random crops each time
    count = 0
    for count, batch in enumerate(loader, 1):  # noqa: B007
        yield compute.to_device(batch)
    if not compute.world.largest(count):  # a rank alone may have none
        raise FastDataError(f"the loader gave no batches to evaluate: {NO_BATCHES}")
