"""The contestants of `fastdata bench`: each runs alone once and is looked at, then all take turns."""

from __future__ import annotations

import shutil
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
from fastdata.machine import available_cores, free_memory

__all__ = ["Trial"]


class Trial:
    """All contestants of one store, from their start to their end; a context manager that ends them.

    Args:
        task: what each has to do.
        about: the store, as `fastdata.bench.report.describe` has it.
        seconds: of one measurement.
        limit: seconds after which a contestant that does not answer is ended.
        total: steps of the progress bar, which a terminal shows.

    Attributes:
        found: what is known of each contestant beside its rate, by name.
        failed: why a contestant takes no further part, by name.
    """

    def __init__(self, task: Task, about: dict[str, Any], seconds: float, limit: float, *, total: int) -> None:
        self._task, self._about, self._seconds, self._limit = task, about, seconds, limit
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
        """Let each contestant run alone once: that shows its memory, its first batch, and whether it delivers what it should.

        The number of workers that does best then is used for what is compared with it.

        Args:
            counts: numbers of workers to try.
            ram: whether a copy of the store in memory takes part.

        Returns:
            The name of the decode limit.

        Raises:
            LoaderError: contestants disagree; the decode limit failed, or every Loader did.
        """
        task, size, cores, dataset = self._task, self._about["image_bytes"], available_cores(), self._task.dataset()
        limit = self._attempt(Bare(task, cores, size))
        ours = [self._attempt(loader(task, dataset, count, size)) for count in counts]
        self._needed({limit.name}, "the decode limit")
        self._needed({one.name for one in ours}, "no Loader")
        best = max(ours, key=lambda one: self._rates.get(one.name, 0.0)).workers
        self._attempt(by_hand(task, cores, size))
        if torch.cuda.is_available():
            self._attempt(loader(task, dataset, best, size, pin_memory=True))
        if ram:
            self._attempt(loader(task, task.dataset(partial(RAMDataset, masks=False)), best, size))
        agree(self._checks)
        return limit.name

    def _needed(self, names: set[str], what: str) -> None:
        if names <= set(self.failed):
            raise LoaderError(f"nothing to compare, as {what} could run: " + "; ".join(f"{n}: {self.failed[n]}" for n in names))

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
        self._checks[contestant.name], self._rates[contestant.name] = check, run.images / run.seconds
        return contestant

    def rounds(self, repeats: int) -> dict[str, list[Run]]:
        """Let all take turns. Where their processes don't fit at once, they start anew each time, outside the timed region."""
        need = sum(one.workers for one in self._contestants) * self._about["worker_bytes"]
        keep = need < 0.5 * free_memory() and need < 0.8 * shutil.disk_usage("/dev/shm").free
        measures = {one.name: self._measure(one, keep) for one in self._contestants}
        runs = interleave(measures, seconds=self._seconds, repeats=repeats, failure=Failed)
        self._needed({self._contestants[0].name}, "the decode limit")
        self._needed({one.name for one in self._contestants if one.kind == "ours"}, "no Loader")
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
