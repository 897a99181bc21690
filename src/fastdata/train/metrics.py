"""Metrics of an evaluation: functions of a batch, and objects that are updated with all batches, like torchmetrics'."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.train.world import World

__all__ = ["Metrics"]

METHODS = ("update", "compute", "reset")


class Metrics:
    """The metrics of a run, {name: metric}, as `Trainer` describes them.

    Attributes:
        functions: those that are functions of (outputs, batch).
        names: all names.

    Raises:
        TypeError: a metric is neither a function, nor an object with update, compute and reset, nor a pair.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self.functions = dict[str, Any]()
        self._objects = dict[str, tuple[Any, Any]]()  # and the function that returns the arguments of its update
        self.names = tuple(metrics)
        self._batches = 0
        for name, metric in dict(metrics).items():
            target, arguments = metric if isinstance(metric, tuple) and len(metric) == 2 else (metric, None)
            if all(hasattr(target, method) for method in METHODS) and not isinstance(target, type):
                self._objects[name] = target, arguments or self._scores_and_targets
            elif callable(metric) and not isinstance(metric, type):
                self.functions[name] = metric
            else:
                raise TypeError(
                    f"metrics[{name!r}] is {metric!r}; a metric is a function, an object with {', '.join(METHODS)}, or a pair"
                )

    @staticmethod
    def _scores_and_targets(outputs: Any, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return outputs, batch[1]
        raise TypeError(
            f"a metric is updated with (outputs, batch[1]), but a batch is a {type(batch).__name__} of {len(batch)} parts: "
            "pass the pair (metric, function(outputs, batch) -> (predictions, targets))"
        )

    def reset(self, device: torch.device) -> None:
        """Start an evaluation."""
        self._batches = 0
        for metric, _ in self._objects.values():
            if hasattr(metric, "to"):
                metric.to(device)
            metric.reset()

    def pairs(self, outputs: Any, batch: Any, rows: int) -> list[tuple[Any, Any]]:
        """Return (sum, count) of each function for a batch of `rows` rows."""
        return [_pair(name, function(outputs, batch), rows) for name, function in self.functions.items()]

    def update(self, outputs: Any, batch: Any) -> None:
        """Update the objects; floats have at least 32 bits."""
        self._batches += 1
        for metric, arguments in self._objects.values():
            values = arguments(outputs, batch)
            if isinstance(values, Mapping):
                metric.update(**{key: _wide(value) for key, value in values.items()})
            else:
                metric.update(*map(_wide, values if isinstance(values, tuple | list) else (values,)))

    def results(self, world: World) -> dict[str, float]:
        """Return what the objects compute from all batches, the same on every rank. Several results of one object are `name/part`.

        Raises:
            FastDataError: a rank had no batch, or an object does not sum over the ranks.
        """
        batches = world.gather(self._batches) if self._objects else [1]
        if not any(batches):
            return dict.fromkeys(self._objects, math.nan)
        if not all(batches):  # compute() would wait for this rank forever, or leave out the others
            raise FastDataError(
                f"rank {batches.index(0)} has no rows of this dataset to update {', '.join(self._objects)}: use smaller batches"
            )
        found = dict[str, float]()
        for name, (metric, _) in self._objects.items():
            _flatten(found, name, metric.compute())
        ranks = world.gather(found)
        for name, *values in zip(found, *(rank.values() for rank in ranks), strict=True):
            # sums on a GPU may be taken in another order
            if not torch.tensor(values).isclose(torch.tensor(values[0]), rtol=1e-4, equal_nan=True).all():
                raise FastDataError(
                    f"metrics {name!r} is {values}, rank by rank: its compute() does not sum over the ranks, as torchmetrics' does"
                )
        return dict(ranks[0])


def _flatten(found: dict[str, float], name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.dim() == 1 and len(value) > 1:
        value = dict(enumerate(value.tolist()))
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(found, f"{name}/{key}", part)
    else:
        found[name] = float(value)


def _pair(name: str, value: Any, rows: int) -> tuple[Any, Any]:
    """Return the result of a function as (sum, count)."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    if isinstance(value, Tensor) and value.dim():
        return value.sum(), value.numel()
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value * rows, rows
    raise TypeError(
        f"metrics[{name!r}] returned {value!r}; return (sum, count), a tensor with a value per row, or the batch's mean as a float"
    )


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value
