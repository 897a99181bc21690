"""Warnings, once each, of leftovers from debugging that slow a run down or let its memory grow."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import warn_user
from fastdata.torch_private import profiles

__all__ = ["Habits"]

MARKED = 3  # the update whose graph is marked
CHECKED = 5  # the update after which this graph must be gone


class _Mark:
    """Lives as long as the graph node to which it is attached."""


class Habits:
    """Checks torch's switches at the start of a run, and its first few updates.

    Args:
        looks: False turns all checks off; one rank is enough.
    """

    def __init__(self, *, looks: bool) -> None:
        self._looks = looks
        self._updates = 0
        self._marks: list[weakref.ref[_Mark]] = []
        self._calls = 0  # of empty_cache
        self._empty_cache: Any = None  # torch's own function, while ours replaces it

    def begin(self) -> None:
        """Before the first update, warn of switches of torch that were probably left on by mistake."""
        if self._updates or not self._looks:
            return
        for on, text in (
            (torch.is_anomaly_enabled(), "anomaly detection is on and records a traceback for each operation"),
            (profiles(), "a profiler is on and records each operation"),
            (
                torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
                "a deterministic mode is on (torch.use_deterministic_algorithms or cudnn.deterministic)",
            ),
        ):
            if on:
                warn_user(f"{text}, so the run is slower. Switch it off when you have finished debugging")

    def see(self, losses: Tensor) -> None:
        """Take the losses of a batch, before their backward pass. Marks the whole graph of one update."""
        if self._updates != MARKED - 1 or not self._looks:
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
        if not self._looks:
            return
        if self._updates == 1:
            self._watch_empty_cache()
        if self._updates == CHECKED:
            self.close()
            if self._calls >= CHECKED - 2:
                warn_user(
                    "torch.cuda.empty_cache() is called in the loop: it waits for the GPU, and the next update has to "
                    "allocate the memory again. Remove the call: it makes no more memory available to this process"
                )
            if self._kept() and gc.collect() >= 0 and self._kept():  # not only kept by a reference cycle
                warn_user(
                    f"the graph of update {MARKED} still exists after update {CHECKED}: the code collects losses or outputs with "
                    "their graphs, so memory grows with every batch. Collect loss.detach() instead"
                )
            self._marks.clear()

    def _kept(self) -> bool:
        return any(mark() is not None for mark in self._marks)

    def _watch_empty_cache(self) -> None:
        own = torch.cuda.empty_cache

        def counted() -> None:
            self._calls += 1
            own()

        self._empty_cache, torch.cuda.empty_cache = own, counted

    def close(self) -> None:
        """Stop watching."""
        if self._empty_cache is not None:
            torch.cuda.empty_cache, self._empty_cache = self._empty_cache, None
