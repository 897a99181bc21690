"""What a diagnosis finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastdata.diagnosis.advice import Advice, Memory
from fastdata.diagnosis.conditions import Conditions
from fastdata.diagnosis.pipeline import Loop
from fastdata.diagnosis.storage import Storage
from fastdata.diagnosis.variants import Variant

__all__ = ["Findings"]


@dataclass(frozen=True)
class Findings:
    """Why a training loop is as fast as it is.

    Attributes:
        subject: what was measured.
        samples: of the dataset; None: unknown.
        batch_size, workers: of the loader.
        verdict: what limits the loop: "storage", "CPU", "copy", "model"; "nothing", if no single one does; or "memory", if the run
            would be killed.
        gain: how many times as fast the loop would be if this were infinitely fast, at most 100.
        shares: of the loop's time, by resource.
        loop: costs in seconds per sample, the machine, and the measured samples/s of the loader by its number of workers.
        together: samples/s of the loader and the model together, measured; None: not measured.
        rates: samples/s of the loader alone by its number of workers, measured or fitted (see `loop.measured`).
        needed: how many workers, each as fast as one alone, would keep up with the model; None: no model, or not measured.
        storage: what the disk does; None: unknown.
        memory: what batches and workers take.
        variants: stores that could be made of the data.
        left_out: codecs of stores for which there was no time.
        rejected: count of the tried images that cannot be prepared, by reason.
        advice: what to change, the most effective first.
        sure: "sure", "fairly sure" or "not sure".
        doubts: why not.
    """

    subject: str
    samples: int | None
    batch_size: int
    workers: int
    verdict: str
    gain: float
    shares: dict[str, float]
    loop: Loop
    together: float | None
    rates: dict[int, float]
    needed: float | None
    storage: Storage | None
    memory: Memory
    variants: tuple[Variant, ...] = ()
    left_out: tuple[str, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    sure: str = "sure"
    doubts: tuple[str, ...] = ()

    @property
    def conditions(self) -> Conditions:
        """The machine."""
        return self.loop.conditions

    @property
    def rate(self) -> float:
        """Samples/s of the loop, as predicted from its parts."""
        return 1 / self.loop.seconds(self.workers)
