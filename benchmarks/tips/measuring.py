"""What a tip is, and how its effect is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from prep_inputs import repeated

import fastdata
from fastdata.bench.harness import Measure, Run, interleave

__all__ = ["TIPS", "Endless", "LeftOut", "Repeat", "Setting", "Sides", "Tip", "measure", "same_rows", "tip"]


class LeftOut(Exception):
    """A tip cannot be measured here; the message says why."""


@dataclass
class Setting:
    """What the tips work with.

    Attributes:
        device: where models run.
        quick: tiny inputs and one short round, to see that everything runs.
        work: an empty folder on a local disk.
        files: JPEG files.
    """

    device: torch.device
    quick: bool
    work: Path
    files: list[Path]
    _stores: dict[str, Path] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def seconds(self) -> float:
        return 0.05 if self.quick else 0.5

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 5

    def some(self, full: int, quick: int, cuda: int | None = None) -> int:
        """Return a number of things: `quick` with --quick, `cuda` on a GPU, else `full`."""
        return quick if self.quick else (cuda if self.cuda and cuda is not None else full)

    def wait(self) -> None:
        """Wait until the device has done all work."""
        if self.cuda:
            torch.cuda.synchronize()

    def folder(self, name: str) -> Path:
        path = self.work / name
        path.mkdir()
        return path

    @cached_property
    def classes(self) -> Path:
        """A folder of the files, several times each, in class folders."""
        repeated(self.files, max(self.some(600, 40), len(self.files) if not self.quick else 0), self.work / "classes")
        return self.work / "classes"

    def store(self, name: str, **options: Any) -> Path:
        """Return a store of `classes`, made once."""
        if name not in self._stores:
            self._stores[name] = fastdata.prep(self.classes, self.work / f"{name}.fds", **options).out
        return self._stores[name]


@dataclass(frozen=True)
class Sides:
    """The two sides of a comparison.

    Attributes:
        baseline, tip: measure themselves for a number of seconds. None: the tip is not about speed.
        check: compares what both make, before they are measured; raises an AssertionError, or says what is equal.
        amounts: {what: (of the baseline, of the tip)}, such as bytes.
        scores: {what: for each round, (of the baseline, of the tip)}, such as errors.
        longer: how many times longer they are measured than others.
    """

    baseline: Measure | None = None
    tip: Measure | None = None
    check: Callable[[], str] | None = None
    amounts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    scores: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)
    longer: float = 1.0


@dataclass(frozen=True)
class Tip:
    """A tip that can be measured.

    Attributes:
        name: name of its row in docs/speed.md.
        baseline, tip: what is compared.
        unit: what is counted in a second.
        where: "host": it has nothing to do with the device; "gpu": it needs one; "both": it is measured on either.
        slow: whether --quick leaves it out.
        prepare: yields the two sides, and cleans up.
    """

    name: str
    baseline: str
    tip: str
    unit: str
    where: str
    slow: bool
    prepare: Callable[[Setting], AbstractContextManager[Sides]]

    def fits(self, device: torch.device) -> bool:
        """Return whether it is to be measured with this device."""
        return self.where in ("both", "gpu" if device.type == "cuda" else "host")


TIPS: dict[str, Tip] = {}


def tip(*, baseline: str, tip: str, unit: str = "updates", where: str = "both", slow: bool = False) -> Callable[[Any], Any]:
    """Register a generator function that yields the two sides as a tip of that name."""

    def register(prepare: Callable[[Setting], Iterator[Sides]]) -> Any:
        name = prepare.__name__
        assert name not in TIPS, f"there are two tips {name}"
        TIPS[name] = Tip(name, baseline, tip, unit, where, slow, contextmanager(prepare))
        return prepare

    return register


class Repeat:
    """Calls a function again and again.

    Args:
        setting: whose device is waited for.
        call: does some work.
        items: items of a call.
        before: called before each call, outside the measured time.
    """

    def __init__(
        self, setting: Setting, call: Callable[[], object], items: float = 1, *, before: Callable[[], object] | None = None
    ) -> None:
        self.setting, self.call, self.items, self.before = setting, call, items, before

    def __call__(self, seconds: float) -> Run:
        taken = count = 0.0
        while taken < seconds:
            if self.before:
                self.before()
            self.setting.wait()
            started = time.perf_counter()
            end = started if self.before else started + seconds
            while True:
                self.call()
                count += self.items
                if time.perf_counter() >= end:
                    break
            self.setting.wait()
            taken += time.perf_counter() - started
        return Run(int(count), taken, 0.0)


class Endless:
    """Batches over and over."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batches


def measure(one: Tip, setting: Setting) -> dict[str, Any]:
    """Return what was found for a tip, as plain values. Its state is "measured", or says why it was not."""
    found: dict[str, Any] = {"baseline": one.baseline, "tip": one.tip, "unit": one.unit}
    if not one.fits(setting.device):
        return found | {"state": "waits for a GPU" if one.where == "gpu" else "the same with and without a GPU"}
    try:
        with one.prepare(setting) as sides:
            checked = sides.check() if sides.check else None
            return found | {"state": "measured", "checked": checked} | _numbers(sides, setting)
    except LeftOut as reason:
        return found | {"state": f"left out: {reason}"}


def _numbers(sides: Sides, setting: Setting) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    if sides.baseline and sides.tip:
        both = {"baseline": sides.baseline, "tip": sides.tip}
        runs = interleave(both, seconds=setting.seconds * sides.longer, repeats=setting.rounds)
        rates = {name: [run.images / run.seconds for run in done] for name, done in runs.items()}
        numbers["per_second"] = {name: _spread(found) for name, found in rates.items()}
        numbers["speed"] = _spread([b / a for a, b in zip(rates["baseline"], rates["tip"], strict=True)])
    numbers["amounts"] = {what: {"baseline": a, "tip": b, "ratio": b / a} for what, (a, b) in sides.amounts.items()}
    numbers["scores"] = {
        what: {"baseline": _spread([a for a, _ in pairs]), "tip": _spread([b for _, b in pairs])}
        for what, pairs in sides.scores.items()
    }
    return numbers


def _spread(values: list[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "rounds": values}


def same_rows(a: Any, b: Any) -> None:
    """Raise an AssertionError unless two arrays or tensors are equal."""
    assert np.array_equal(np.asarray(a), np.asarray(b)), "the two sides made different values"
