"""The fastest arguments of a loader, found by trying."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.bench.harness import stream
from fastdata.diagnosis.batches import count
from fastdata.diagnosis.conditions import Conditions
from fastdata.diagnosis.subject import Subject
from fastdata.diagnosis.trials import rows_of

__all__ = ["Tuned", "tune"]

AS_FAST = 0.97  # share of the best rate with which fewer workers, or fewer batches ahead, are preferred
AHEAD = (1, 4)  # tried besides the loader's own
MOST_ROWS = 512


@dataclass(frozen=True)
class Tuned:
    """The result.

    Attributes:
        rates: samples/s for each (num_workers, prefetch_factor).
        workers, prefetch: the smallest that are about as fast as the fastest.
        call: a line that makes the loader with them.
    """

    rates: dict[tuple[int, int], float]
    workers: int
    prefetch: int
    call: str


def tune(subject: Subject, conditions: Conditions, seconds: float) -> Tuned:
    """Measure a loader, with batches as large as its own, for several numbers of workers and of batches ahead.

    Raises:
        TypeError: the loader cannot be made again with other arguments.
    """
    if not subject.parallel:
        raise TypeError(f"--tune tries other numbers of workers, which {subject.name} cannot have")
    cores, rows, rates = conditions.cores, rows_of(subject, max(MOST_ROWS, subject.batch_size)), dict[tuple[int, int], float]()
    counts = sorted({0, subject.workers, cores, max(cores - 1, 1), 2 * cores, *(2**k for k in range(cores.bit_length()))})
    turn = seconds / (len(counts) + len(AHEAD))

    def measure(workers: int, prefetch: int) -> None:
        with subject.batches(workers, rows, prefetch=prefetch) as batches:
            run = stream(map(count, batches), workers * (prefetch + 1), turn / 2)
        rates[workers, prefetch] = run.images / run.seconds

    own = max(subject.prefetch, 1)
    for workers in counts:
        measure(workers, own)
    best = _least({workers: rate for (workers, _), rate in rates.items()})
    for prefetch in AHEAD if best else ():
        measure(best, prefetch)
    ahead = _least({prefetch: rate for (workers, prefetch), rate in rates.items() if workers == best})
    arguments = {"num_workers": best} | ({"prefetch_factor": ahead} if best else {})
    return Tuned(rates, best, ahead, subject.call(**arguments))


def _least(rates: dict[int, float]) -> int:
    """Return the smallest number whose rate is about the best."""
    return min(number for number, rate in rates.items() if rate >= AS_FAST * max(rates.values()))
