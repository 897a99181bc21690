"""Metrics of an evaluation: functions of a batch, and objects that are updated with all batches, like torchmetrics'."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError

__all__ = ["RESERVED", "Metrics"]

RESERVED = ("loss", "kind", "update", "epoch", "time")  # the log uses these names itself
METHODS = ("update", "compute", "reset")
HALVES = (torch.float16, torch.bfloat16)
CLOSE = 1e-4  # relative tolerance between ranks: sums on a GPU may be taken in another order


class Metrics:
    """The metrics of a run, by name.

    Args:
        metrics: {name: metric}. A metric is one of these:
            - a function(outputs, batch) that returns (sum, count), a tensor with a value for each row or token, or the batch's
              mean as a float;
            - an object with `update`, `compute` and `reset`, which is updated with the outputs and the second part of the batch;
            - (object, function(outputs, batch)), where the function returns the arguments of `update`.
            On several ranks, `compute` must sum over them, as in torchmetrics.

    Raises:
        TypeError: a metric is none of these.
        ValueError: the log uses one of the names itself.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._functions = dict[str, Any]()
        self._objects = dict[str, Any]()
        self._arguments = dict[str, Any]()  # by name of an object: the function that returns the arguments of its update
        self._batches = 0
        self._warned = set[str]()
        for name, metric in dict(metrics).items():
            if name in RESERVED:
                raise ValueError(f"metrics has a {name!r}, but the log uses this name itself: choose another")
            target, arguments = metric if isinstance(metric, tuple) and len(metric) == 2 else (metric, None)
            if not isinstance(target, type) and all(callable(getattr(target, method, None)) for method in METHODS):
                self._objects[name] = target
                self._arguments[name] = arguments
            elif callable(metric) and not isinstance(metric, type):
                self._functions[name] = metric
            else:
                found = f"the class {metric.__name__}: pass an object" if isinstance(metric, type) else f"a {type(metric).__name__}"
                raise TypeError(
                    f"metrics[{name!r}] is {found}; a metric is a function, an object with {', '.join(METHODS)}, or a pair"
                )

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the metrics that are functions."""
        return tuple(self._functions)

    def reset(self, device: torch.device) -> None:
        """Start an evaluation."""
        self._batches = 0
        for metric in self._objects.values():
            if hasattr(metric, "to"):
                metric.to(device)
            metric.reset()

    def pairs(self, outputs: Any, batch: Any, rows: int) -> list[tuple[Any, Any]]:
        """Return (sum, count) of each function for a batch of `rows` rows."""
        return [_pair(name, function(outputs, batch), rows) for name, function in self._functions.items()]

    def see(self, outputs: Any, batch: Any) -> None:
        """Update the objects; floats have at least 32 bits."""
        self._batches += 1
        for name, metric in self._objects.items():
            arguments = self._update_arguments(name, outputs, batch)
            if isinstance(arguments, Mapping):
                metric.update(**{key: _wide(value) for key, value in arguments.items()})
            else:
                metric.update(*map(_wide, arguments))

    def _update_arguments(self, name: str, outputs: Any, batch: Any) -> Any:
        if (function := self._arguments[name]) is not None:
            arguments = function(outputs, batch)
            return arguments if isinstance(arguments, tuple | list | Mapping) else (arguments,)
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return outputs, batch[1]
        parts = f"of {len(batch)} parts" if isinstance(batch, tuple | list) else "without an order"
        raise TypeError(
            f"metrics[{name!r}] is updated with (outputs, batch[1]), but a batch is a {type(batch).__name__} {parts}: "
            "pass the pair (metric, function(outputs, batch) -> (predictions, targets))"
        )

    def results(self, world: Any) -> dict[str, float]:
        """Return what the objects compute from all batches, the same on every rank. Several results of one object are `name/part`.

        Raises:
            FastDataError: a rank had no batch, or an object does not sum over the ranks.
        """
        if not self._objects:
            return {}
        batches = world.gather(self._batches)
        if not any(batches):
            return dict.fromkeys(self._objects, math.nan)
        if not all(batches):  # compute() would wait for this rank forever, or leave out the others
            raise FastDataError(
                f"rank {batches.index(0)} has no rows of this dataset to update {', '.join(self._objects)}: use smaller batches"
            )
        found: dict[str, float] = {}
        for name, metric in self._objects.items():
            self._add(found, name, metric.compute())
        ranks = world.gather(found)
        for name in ranks[0]:
            values = [rank[name] for rank in ranks]
            if not all(_same(value, values[0]) for value in values):
                raise FastDataError(
                    f"metrics {name!r} is {', '.join(f'{value:.4g} on rank {rank}' for rank, value in enumerate(values))}: "
                    "its compute() does not sum over the ranks, as torchmetrics' does"
                )
        return dict(ranks[0])

    def _add(self, found: dict[str, float], name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._add(found, f"{name}/{key}", part)
        elif isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()):
            found[name] = float(value)
        elif isinstance(value, Tensor) and value.dim() == 1:
            for place, part in enumerate(value.tolist()):
                found[f"{name}/{place}"] = float(part)
        elif name not in self._warned:
            self._warned.add(name)
            kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            warnings.warn(
                f"metrics {name!r} computes {kind}, not a number, so it is not logged; read it from the object", stacklevel=2
            )


def _pair(name: str, value: Any, rows: int) -> tuple[Any, Any]:
    """Return the result of a function as (sum, count)."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    if isinstance(value, Tensor) and value.dim():
        return value.sum(), value.numel()
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value * rows, rows
    kind = f"an integer, {value}" if isinstance(value, int | Tensor) else f"a {type(value).__name__}"
    raise TypeError(
        f"metrics[{name!r}] returned {kind}; return (sum, count), a tensor with a value per row, or the batch's mean as a float"
    )


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=CLOSE) or (math.isnan(a) and math.isnan(b))
