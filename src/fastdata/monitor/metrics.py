"""Metrics of an evaluation: functions of a batch, and objects that see all batches, as torchmetrics has them."""

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

RESERVED = ("loss", "kind", "update", "epoch", "time")  # the log has these already
METHODS = ("update", "compute", "reset")
HALVES = (torch.float16, torch.bfloat16)
CLOSE = 1e-4  # of two ranks' values, relative: sums on a GPU may be taken in another order


class Metrics:
    """The metrics of a run, by name.

    Args:
        metrics: {name: metric}. A metric is a function(outputs, batch), which returns (sum, count), or a tensor with a value for
            each row or token, or one float, the mean of the batch; or an object with `update`, `compute` and `reset`, which is
            updated with the outputs and with the second part of the batch; or (object, function(outputs, batch)): the function
            returns what the object is updated with. Over several ranks `compute` is to sum over them, as torchmetrics' does.

    Raises:
        TypeError: a metric is none of these.
        ValueError: a name is one that the log uses.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._functions, self._objects, self._arguments = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        self._batches, self._told = 0, set[str]()
        for name, metric in dict(metrics).items():
            if name in RESERVED:
                raise ValueError(f"metrics has a {name!r}, but the log uses this name itself: choose another")
            given, arguments = metric if isinstance(metric, tuple) and len(metric) == 2 else (metric, None)
            if not isinstance(given, type) and all(callable(getattr(given, method, None)) for method in METHODS):
                self._objects[name], self._arguments[name] = given, arguments
            elif callable(metric) and not isinstance(metric, type):
                self._functions[name] = metric
            else:
                found = f"the class {metric.__name__}: make one of it" if isinstance(metric, type) else f"a {type(metric).__name__}"
                raise TypeError(
                    f"metrics[{name!r}] is {found}; a metric is a function, an object with {', '.join(METHODS)}, or a pair"
                )

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of those that are functions."""
        return tuple(self._functions)

    def reset(self, device: torch.device) -> None:
        """Before the first batch of an evaluation."""
        self._batches = 0
        for metric in self._objects.values():
            if hasattr(metric, "to"):
                metric.to(device)
            metric.reset()

    def pairs(self, outputs: Any, batch: Any, rows: int) -> list[tuple[Any, Any]]:
        """Sum and count of each function, of a batch of so many rows."""
        return [_pair(name, function(outputs, batch), rows) for name, function in self._functions.items()]

    def see(self, outputs: Any, batch: Any) -> None:
        """Update the objects, with floats of at least 32 bits."""
        self._batches += 1
        for name, metric in self._objects.items():
            given = self._given(name, outputs, batch)
            if isinstance(given, Mapping):
                metric.update(**{key: _wide(value) for key, value in given.items()})
            else:
                metric.update(*map(_wide, given))

    def _given(self, name: str, outputs: Any, batch: Any) -> Any:
        if (arguments := self._arguments[name]) is not None:
            given = arguments(outputs, batch)
            return given if isinstance(given, tuple | list | Mapping) else (given,)
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return outputs, batch[1]
        parts = f"of {len(batch)} parts" if isinstance(batch, tuple | list) else "without an order"
        raise TypeError(
            f"metrics[{name!r}] is updated with (outputs, batch[1]), but a batch is a {type(batch).__name__} {parts}: "
            "pass the pair (metric, function(outputs, batch) -> (predictions, targets))"
        )

    def results(self, world: Any) -> dict[str, float]:
        """What the objects compute of all batches, the same on every rank. One that has several numbers gives `name/part`.

        Raises:
            FastDataError: a rank had no batch, or an object does not sum over the ranks.
        """
        if not self._objects:
            return {}
        seen = world.gather(self._batches)
        if not any(seen):
            return dict.fromkeys(self._objects, math.nan)
        if not all(seen):  # compute() would wait for this rank for ever, or forget the others
            raise FastDataError(
                f"rank {seen.index(0)} has no rows of this set, and so nothing for {self._list()}: use smaller batches"
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

    def _list(self) -> str:
        return ", ".join(self._objects)

    def _add(self, found: dict[str, float], name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._add(found, f"{name}/{key}", part)
        elif isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()):
            found[name] = float(value)
        elif isinstance(value, Tensor) and value.dim() == 1:
            for place, part in enumerate(value.tolist()):
                found[f"{name}/{place}"] = float(part)
        elif name not in self._told:
            self._told.add(name)
            kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            warnings.warn(
                f"metrics {name!r} computes {kind}, which is no number: it is not logged; ask the object for it", stacklevel=2
            )


def _pair(name: str, value: Any, rows: int) -> tuple[Any, Any]:
    """What a function returned, as a sum and a count."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    if isinstance(value, Tensor) and value.dim():
        return value.sum(), value.numel()
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value * rows, rows
    kind = f"an integer, {value}" if isinstance(value, int | Tensor) else f"a {type(value).__name__}"
    raise TypeError(
        f"metrics[{name!r}] returned {kind}; return (sum, count), a tensor of a value for each row, or the batch's mean as a float"
    )


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=CLOSE) or (math.isnan(a) and math.isnan(b))
