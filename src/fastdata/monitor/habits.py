"""Habits from debugging that make a run slow or let its memory grow. Each is said once."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import warn_user
from fastdata.torch_private import profiles

__all__ = ["Habits"]

MARKED, LOOKED = 3, 5  # the update whose graph is marked, and the one after which it has to be gone


class _Mark:
    """Lives as long as the node of a graph that it is put on."""


class Habits:
    """Looks at torch's switches when a run begins, and at what happens in its first few updates.

    Args:
        looks: whether it does: one rank is enough to say it.
    """

    def __init__(self, *, looks: bool) -> None:
        self._looks, self._updates = looks, 0
        self._marks: list[weakref.ref[_Mark]] = []
        self._calls = 0
        self._empty_cache: Any = None  # torch's own, while it is watched

    def begin(self) -> None:
        """Before the first update: which of torch's switches are on that nobody leaves on."""
        if self._updates or not self._looks:
            return
        for on, text in (
            (torch.is_anomaly_enabled(), "anomaly detection is on, for which each operation records its traceback"),
            (profiles(), "a profiler is on, for which each operation is recorded"),
            (
                torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
                "a deterministic mode is on (torch.use_deterministic_algorithms or cudnn.deterministic), with slower operations",
            ),
        ):
            if on:
                warn_user(f"{text}: the run is slower. Switch it off once you have found what you look for")

    def see(self, losses: Tensor) -> None:
        """The losses of a batch, before their backward pass: that of one update is marked in all its graph."""
        if self._updates != MARKED - 1 or not self._looks:
            return
        nodes, seen = [losses.grad_fn], set[Any]()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen and type(node).__name__ != "AccumulateGrad":  # those live with the weights
                seen.add(node)
                mark = _Mark()
                node.metadata["fastdata"] = mark  # type: ignore[index]  # it is a dict, which lives with the node
                self._marks.append(weakref.ref(mark))
                nodes.extend(next_node for next_node, _ in node.next_functions)

    def updated(self) -> None:
        """After each update."""
        self._updates += 1
        if not self._looks:
            return
        if self._updates == 1:
            self._watch_empty_cache()
        if self._updates == LOOKED:
            self.close()
            if self._calls >= LOOKED - 2:
                warn_user(
                    "torch.cuda.empty_cache() is called in the loop: it waits for the GPU, and the next update has to "
                    "allocate anew what it gave back. Take it out: it makes no more memory available to this process"
                )
            if self._kept() and gc.collect() >= 0 and self._kept():  # not only by a cycle
                warn_user(
                    f"the graph of update {MARKED} still exists after update {LOOKED}: something collects losses or outputs with "
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
        """Watch no longer."""
        if self._empty_cache is not None:
            torch.cuda.empty_cache, self._empty_cache = self._empty_cache, None
