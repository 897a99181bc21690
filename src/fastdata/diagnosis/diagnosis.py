"""The result of a diagnosis, and its report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from fastdata.bench.harness import table
from fastdata.words import number_of

__all__ = ["Diagnosis"]

CLEAR = 1.1  # ratio of the times of two sides from which the slower one is the limit
SEEN = 0.01  # share of the time from which the copy is shown
PARTS = {"waiting": "waiting for storage", "transform": "transform, other"}  # titles that are not the name
MEANING = {
    "storage": "the loop waits for the disk, or whatever else samples are read from",
    "CPU": "the loop waits for batches, which cost CPU time to make",
    "loader": "the loop waits for batches",
    "copy": "the loop waits for copies to the device",
    "model": "the step is the limit, and batches are there in time",
    "nothing": "the loader and the step take about the same time",
}


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of a training loop; ``str(...)`` is a report.

    Attributes:
        subject: what was measured.
        samples: of the dataset; None: unknown.
        batch_size, workers: of the loader.
        cores: of this process.
        parts: seconds to make a sample, by part, in one process; empty if only whole batches could be measured.
        rates: samples/s of the loader alone, by its number of workers.
        copy_s: seconds to copy a sample to the device.
        step_s: seconds of a step on a batch that is there, for a sample; None: no step.
        overlap: whether the loader copies the next batch during a step.
        together: samples/s of the loader and the step together; None: not measured.
        findings: what else was seen, as sentences.
    """

    subject: str
    samples: int | None
    batch_size: int
    workers: int
    cores: int
    parts: Mapping[str, float]
    rates: Mapping[int, float]
    copy_s: float
    step_s: float | None
    overlap: bool
    together: float | None
    findings: tuple[str, ...]

    @property
    def limit(self) -> str:
        """What limits the loop: "storage"; "CPU", which makes batches; "loader", which is one of these, if the parts are unknown;
        "copy", to the device; "model"; or "nothing", if the loader and the step take the same time."""
        step_s, loader_s = self.step_s or 0.0, 1 / self.rates[self.workers]
        slower, slower_s = ("copy", self.copy_s) if self.copy_s > step_s else ("model", step_s)
        device_s = slower_s if self.overlap or not self.workers else self.copy_s + step_s  # without workers, all take turns
        if self.workers and self.step_s and device_s / CLEAR < loader_s < device_s * CLEAR:
            return "nothing"
        if loader_s < device_s:
            return slower
        waiting = self.parts.get("waiting", 0.0)
        return "loader" if not self.parts else "storage" if waiting > sum(self.parts.values()) - waiting else "CPU"

    def json(self) -> str:
        """Return all numbers as JSON."""
        return json.dumps(asdict(self) | {"limit": self.limit}, indent=1, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(found: Diagnosis) -> Iterator[str]:
    """Yield the lines of a report."""
    samples = "" if found.samples is None else f": {found.samples:,} samples"
    workers = f"{number_of(found.workers, 'worker')}, batches of {found.batch_size}"
    yield f"{found.subject}{samples}; {workers}; {number_of(found.cores, 'core')}"
    yield ""
    yield f"limit      {found.limit}: {MEANING[found.limit]}"
    yield from (f"           {finding}" for finding in found.findings)
    if whole := sum(found.parts.values()):
        yield ""
        rows = [[PARTS.get(name, name), f"{1e3 * s:.3f}", f"{s / whole:.0%}"] for name, s in found.parts.items()]
        yield from table(["part of a sample, in one process", "ms", "share"], rows)
    yield ""
    names = {number: f"{number}{'  <- yours' * (number == found.workers)}" for number in found.rates}
    yield from table(["workers", "loader alone, samples/s"], [[names[k], f"{rate:,.0f}"] for k, rate in found.rates.items()])
    yield ""
    if found.step_s is not None:
        yield f"step alone, on one batch: {1 / max(found.step_s, 1e-12):,.0f} samples/s"
    if found.copy_s * found.rates[found.workers] > SEEN:
        yield f"copy to the device alone: {1 / found.copy_s:,.0f} samples/s"
    if found.together is not None:
        yield f"loader and step together: {found.together:,.0f} samples/s"
