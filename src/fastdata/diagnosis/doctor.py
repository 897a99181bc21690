"""Diagnose a training loop: measure the loader and the step, each alone and then together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fastdata.bench.harness import settle, stream
from fastdata.diagnosis.batches import count
from fastdata.diagnosis.diagnosis import Diagnosis
from fastdata.diagnosis.load import OtherLoad
from fastdata.diagnosis.subject import Subject, probe, subject_of
from fastdata.diagnosis.training import Step, move, time_copy, time_step
from fastdata.machine import available_cores
from fastdata.words import number_of

__all__ = ["TOTAL_S", "doctor"]

TOTAL_S = 15.0  # what the seconds below add up to, about
PROBE_S, RATE_S, COPY_S, STEP_S, TOGETHER_S = 3.0, 1.2, 0.3, 2.0, 2.5
SLICES = 3  # of a rate, of which the median counts
MAX_ROWS = 2000  # samples that are drawn for a measurement
BATCH_S = 0.03  # a batch with which rates are measured takes about so long to make
NOISY = 1.15  # ratio of the rates of the slices from which it is said
BUSY = 0.1  # share of the cores that other programs keep busy from which it is said
SLOWER = 0.8  # ratio of the rate together to that of the slower side alone below which it is said
FASTER, EQUAL = 1.1, 0.97  # ratios of rates with other numbers of workers to the loader's own from which they are named


def doctor(loader: Any, step: Any = None, *, device: str | torch.device | None = None, seconds: float = TOTAL_S) -> Diagnosis:
    """Find out what limits a training loop.

    Measures the loader alone, with several numbers of workers, and the parts of a sample: reading, decoding, resizing, transforms
    and collating; the copy to the device and a step of the model on one batch; and then the loader and the step together.

    Samples are made in a child process and in new workers, and at the end in this process. A step really trains: it draws random
    numbers, updates statistics and, if it steps an optimizer, weights. So give it a model that can be thrown away.

    Args:
        loader: torch's DataLoader, a Loader, or another iterable of batches, of which only whole batches are measured.
        step: a function of a batch on the device, which does a training step; or (model, loss_fn), for a step without an optimizer,
            where ``loss_fn(model, batch)`` returns losses. None: the loader alone.
        device: of the model; None: the Loader's; else a GPU if there is one, else the CPU.
        seconds: about how long this takes. It is less exact with less.

    Raises:
        TypeError: `loader` or `step` is something else.
        ValueError: `seconds` is not positive.

    Other exceptions of the dataset, the loader or the step propagate.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--seconds is {seconds}, but must be positive")
    subject = loader if isinstance(loader, Subject) else subject_of(loader)
    target = torch.device(device or subject.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return _Examination(subject, None if step is None else Step(step, target), target, seconds / TOTAL_S).diagnosis()


class _Examination:
    """One diagnosis. unit: the factor of all times."""

    def __init__(self, subject: Subject, step: Step | None, device: torch.device, unit: float) -> None:
        self.subject, self.step, self.device, self.unit = subject, step, device, unit
        self.rng = np.random.default_rng(0)
        self.findings = list[str]()

    def diagnosis(self) -> Diagnosis:
        """Measure. This process makes samples itself only when no workers are forked any more, which would share its open files."""
        subject, load, cores, parts = self.subject, OtherLoad(), available_cores(), dict[str, float]()
        if subject.parts_known:
            parts = probe(subject, self._rows(), PROBE_S * self.unit).per_sample()
        size = max(1, min(subject.batch_size, round(BATCH_S / max(sum(parts.values()), 1e-9))))
        workers = {1, 2, cores, subject.workers} - {0} if subject.parallel else set()
        rates = {number: self._rate(number, size) for number in sorted(workers)}
        if not subject.workers:
            rates[0] = self._rate(0, size)
        with subject.batches(subject.workers, self._rows(), subject.batch_size) as batches:
            batch = next(batches)
            settle()  # workers make batches ahead
            copy_s = time_copy(batch, self.device, COPY_S * self.unit) / count(batch)
            step_s = together = None
            if self.step is not None:
                there = move(batch, self.device)
                step_s = time_step(self.step, there, self.device, STEP_S * self.unit) / count(batch)
                expected = min(rates[subject.workers], 1 / (copy_s + step_s))
                together = self._together(self.step, batches, expected)
                if subject.workers and together is not None and together < SLOWER * expected:
                    self.findings.append("together, the loader and the step are slower than each alone: they share the cores")
        rates[0] = rates[0] if 0 in rates else self._rate(0, size)
        if (others := load.cores()) > BUSY * cores:
            self.findings.append(f"other programs keep {others:.1f} of {number_of(cores, 'core')} busy")
        self.findings += _other_workers(rates, subject.workers)
        return Diagnosis(
            subject=subject.name,
            samples=subject.samples,
            batch_size=subject.batch_size,
            workers=subject.workers,
            cores=cores,
            parts=parts,
            rates=dict(sorted(rates.items())),
            copy_s=copy_s,
            step_s=step_s,
            overlap=subject.device is not None and subject.device.type == "cuda",
            together=together,
            findings=tuple(self.findings),
        )

    def _rows(self) -> list[int]:
        """Draw samples, each at most once; others at each call, as far as there are others."""
        samples = self.subject.samples or MAX_ROWS
        rows: list[int] = self.rng.choice(samples, min(MAX_ROWS, samples), replace=False).tolist()
        return rows

    def _rate(self, workers: int, size: int) -> float:
        """Return the median samples/s of the loader alone."""
        with self.subject.batches(workers, self._rows(), size) as batches:
            ahead, samples = workers * (self.subject.prefetch + 1), map(count, batches)
            runs = [stream(samples, ahead * (k == 0), RATE_S * self.unit / SLICES) for k in range(SLICES)]
        low, middle, high = sorted(run.images / run.seconds for run in runs)
        if high > NOISY * low:
            self.findings.append(f"with {number_of(workers, 'worker')} the rate varied from {low:,.0f} to {high:,.0f} samples/s")
        return middle

    def _together(self, step: Step, batches: Iterator[Any], expected: float) -> float | None:
        """Return samples/s of the loader and the step together; None: it would take too long. expected: samples/s, about."""
        subject, limit = self.subject, TOGETHER_S * self.unit
        ahead = subject.workers * (subject.prefetch + 1)
        if (ahead + 2) * subject.batch_size > 4 * limit * expected:
            return None

        def steps() -> Iterator[int]:
            for batch in batches:
                step(move(batch, self.device))
                yield count(batch)

        run = stream(steps(), ahead + 1, limit)
        return run.images / run.seconds


def _other_workers(rates: dict[int, float], own: int) -> Iterator[str]:
    """Yield what other numbers of workers did better: the fastest, or the smallest that is as fast."""
    best = max(rates, key=lambda number: rates[number])
    if rates[best] > FASTER * rates[own]:
        yield f"num_workers={best} in place of {own} makes {rates[best] / rates[own]:.2f} times as many samples/s"
    elif (fewer := min(number for number, rate in rates.items() if rate >= EQUAL * rates[own])) < own:
        yield f"num_workers={fewer} is as fast as {own}"
