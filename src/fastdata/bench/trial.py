"""The contestants of `fastdata bench`: each runs alone once and is checked, then all take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from fastdata.bench.by_hand import by_hand
from fastdata.bench.harness import Run, interleave, tree_pss
from fastdata.bench.loaders import Bare, Check, Contestant, Task, agree, loader
from fastdata.bench.watch import Failed, Watched
from fastdata.data.ram import RAMDataset
from fastdata.errors import LoaderError
from fastdata.machine import available_cores, free_memory, free_shared_memory

__all__ = ["Trial"]


class Trial:
    """All contestants of one store; a context manager that ends them.

    Args:
        task: the work of each contestant.
        about: the description of the store by `fastdata.bench.report.describe`.
        seconds: length of one measurement.
        limit: seconds after which a contestant that does not answer is ended.
        total: steps of the progress bar in a terminal.

    Attributes:
        found: results of each contestant besides its rate, by name.
        failed: why a contestant dropped out, by name.
    """

    def __init__(self, task: Task, about: dict[str, Any], seconds: float, limit: float, *, total: int) -> None:
        self._task = task
        self._about = about
        self._seconds = seconds
        self._limit = limit
        self._bar = tqdm(total=total, disable=None, leave=False, bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed}")
        self._stack = ExitStack()
        self._contestants: list[Watched] = []
        self._rates: dict[str, float] = {}
        self._checks: dict[str, Check] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._bar.close()

    def enter(self, counts: Sequence[int], ram: bool) -> str:
        """Let each contestant run alone once, to measure its memory and its first batch, and to check its batches.

        The best number of workers is then used for the other variants of the Loader.

        Args:
            counts: numbers of workers to try.
            ram: whether to include a copy of the store in memory.

        Returns:
            The name of the decode limit.

        Raises:
            LoaderError: contestants disagree, or the decode limit or every Loader failed.
        """
        task, size, cores = self._task, self._about["image_bytes"], available_cores()
        dataset = task.dataset()
        limit = self._attempt(Bare(task, cores, size))
        ours = [self._attempt(loader(task, dataset, count, size)) for count in counts]
        self._require_any({limit.name}, "the decode limit")
        self._require_any({one.name for one in ours}, "every Loader")
        best = max(ours, key=lambda one: self._rates.get(one.name, 0.0)).workers
        self._attempt(by_hand(task, cores, size))
        if torch.cuda.is_available():
            self._attempt(loader(task, dataset, best, size, pin_memory=True))
        if ram:
            self._attempt(loader(task, task.dataset(partial(RAMDataset, masks=False)), best, size))
        agree(self._checks)
        return limit.name

    def _require_any(self, names: set[str], what: str) -> None:
        if names <= set(self.failed):
            raise LoaderError(f"there is nothing to compare: {what} failed: " + "; ".join(f"{n}: {self.failed[n]}" for n in names))

    def _attempt(self, contestant: Contestant) -> Contestant:
        watched = Watched(contestant, self._limit)
        self._stack.callback(watched.close)
        try:
            self._step(contestant.name)
            first_ms = watched.start()
            check = watched.check(max(2 * self._seconds, 1.0))
            run = watched.measure(min(self._seconds, 1.0))
        except Failed as error:
            self.failed[contestant.name] = str(error)
            return contestant
        finally:
            memory = tree_pss()
            watched.close()
        self.found[contestant.name] = {
            "kind": contestant.kind,
            "workers": contestant.workers,
            "first_batch_ms": first_ms,
            "pss_bytes": memory,
            "images_checked": len(check.means),
            "whole_pass_checked": check.complete,
        }
        self._contestants.append(watched)
        self._checks[contestant.name] = check
        self._rates[contestant.name] = run.images / run.seconds
        return contestant

    def rounds(self, repeats: int) -> dict[str, list[Run]]:
        """Let all take turns. If their processes do not fit at once, each restarts for its turn, outside the timed region."""
        need = sum(one.workers for one in self._contestants) * self._about["worker_bytes"]
        keep = need < 0.5 * free_memory() and need < 0.8 * (free_shared_memory() or 0)
        measures = {one.name: self._measure(one, keep) for one in self._contestants}
        runs = interleave(measures, seconds=self._seconds, repeats=repeats, failure=Failed)
        self._require_any({self._contestants[0].name}, "the decode limit")
        self._require_any({one.name for one in self._contestants if one.kind == "ours"}, "every Loader")
        return runs

    def _measure(self, one: Watched, keep: bool) -> Callable[[float], Run]:
        def measure(seconds: float) -> Run:
            self._step(one.name)
            try:
                return one.measure(seconds)
            except Failed as error:
                self.failed[one.name] = str(error)
                one.close()
                raise
            finally:
                if not keep:
                    one.close()

        return measure

    def _step(self, name: str) -> None:
        self._bar.set_description_str(name)
        self._bar.update()
