"""Checks of the first updates of a run: graphs that are kept alive, and inputs of many shapes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import warn_user

__all__ = ["CudnnBenchmark", "GraphCheck"]

MARKED_UPDATE = 3  # the update whose graph is marked
CHECKED_UPDATE = 5  # the update after which this graph must be gone
MAX_SHAPES = 3


class _Mark:
    """Lives as long as the graph node to which it is attached."""


class GraphCheck:
    """Warns, once, if losses or outputs are collected with their graphs, so that memory grows with every batch."""

    def __init__(self) -> None:
        self._updates = 0
        self._marks: list[weakref.ref[_Mark]] = []

    def see(self, losses: Tensor) -> None:
        """Take the losses of a batch, before their backward pass. Marks the whole graph of one update."""
        if self._updates != MARKED_UPDATE - 1:
            return
        nodes, seen = [losses.grad_fn], set[Any]()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen and type(node).__name__ != "AccumulateGrad":  # lives with its weight
                seen.add(node)
                mark = _Mark()
                node.metadata["fastdata"] = mark  # type: ignore[index]  # a dict that lives as long as the node
                self._marks.append(weakref.ref(mark))
                nodes.extend(next_node for next_node, _ in node.next_functions)

    def updated(self) -> None:
        """After each update."""
        self._updates += 1
        if self._updates == CHECKED_UPDATE:
            if self._alive() and gc.collect() >= 0 and self._alive():  # not only by a reference cycle
                warn_user(
                    f"the graph of update {MARKED_UPDATE} still exists after update {CHECKED_UPDATE}: the code collects losses or "
                    "outputs with their graphs, so memory grows with every batch. Collect loss.detach() instead"
                )
            self._marks.clear()

    def _alive(self) -> bool:
        return any(mark() is not None for mark in self._marks)


class CudnnBenchmark:
    """Lets cuDNN measure its algorithms, which it does again for each shape of input, and switches this off after three shapes.

    A second number of rows with the same size is the short batch at the end of an epoch, and does not count.
    """

    def __init__(self) -> None:
        self._rows: dict[torch.Size, set[int]] = {}  # by size: the numbers of rows seen
        self._on = torch.backends.cudnn.benchmark = True

    def see(self, tensor: Tensor) -> None:
        """Take the first tensor of a batch."""
        if self._on and len(tensor) not in (rows := self._rows.setdefault(tensor.shape[1:], set())):
            rows.add(len(tensor))
            if sum(max(len(seen) - 1, 1) for seen in self._rows.values()) > MAX_SHAPES:
                self._on = torch.backends.cudnn.benchmark = False
                warn_user(f"inputs have more than {MAX_SHAPES} shapes: cudnn.benchmark is off from here on")
