"""A model of a training loop, as seconds per sample: what limits it, and how fast it would be if something changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fastdata.diagnosis.conditions import Conditions

__all__ = ["BALANCED", "MOST_WORKERS", "RESOURCES", "Costs", "Loop"]

MOST = 100.0  # the largest gain that is reported
MOST_WORKERS = 32  # of the numbers that are tried and advised
BALANCED = 1.1  # gain from which a resource counts as the limit

RESOURCES = {  # the costs that vanish if a resource were infinitely fast
    "storage": ("waiting", "floor"),
    "CPU": ("read", "decode", "resize", "transform", "collate", "handover", "receive"),
    "copy": ("copy",),
    "model": ("step", "step_cpu"),
}


@dataclass(frozen=True)
class Costs:
    """Seconds per sample.

    Attributes:
        read: CPU time to read bytes that are in memory.
        decode, resize, transform, collate: CPU time; transform is the rest of the dataset's work.
        waiting: the time for which one reader waits for the disk, the network or a lock.
        floor: the least time per sample that storage allows, however many readers there are.
        handover: CPU time of all processes to hand a batch from a worker to the loop.
        receive: the least time per sample in which the loop can take batches from workers, however fast they make them.
        copy: the copy to the device.
        step: a step of the model on a batch that is there.
        step_cpu: CPU time of a step, over all cores.
    """

    read: float = 0.0
    decode: float = 0.0
    resize: float = 0.0
    transform: float = 0.0
    collate: float = 0.0
    waiting: float = 0.0
    floor: float = 0.0
    handover: float = 0.0
    receive: float = 0.0
    copy: float = 0.0
    step: float = 0.0
    step_cpu: float = 0.0

    @property
    def work(self) -> float:
        """CPU time to make a sample."""
        return self.read + self.decode + self.resize + self.transform + self.collate

    def without(self, resource: str) -> Costs:
        """Return the costs if a resource of RESOURCES were infinitely fast."""
        return replace(self, **dict.fromkeys(RESOURCES[resource], 0.0))


@dataclass(frozen=True)
class Loop:
    """A training loop, or a loader alone if nothing is known of a model.

    Attributes:
        costs: what a sample costs.
        conditions: the machine.
        measured: samples/s of the loader alone, by its number of workers. The model is scaled to agree with these; numbers
            between are interpolated, and larger ones scaled as the largest.
        overlap: whether the copy to the device runs while the model computes.
    """

    costs: Costs
    conditions: Conditions
    measured: Mapping[int, float] = field(default_factory=dict)
    overlap: bool = False

    def rate(self, workers: int) -> float:
        """Return samples/s of the loader alone; 0 workers: in the process of the loop."""
        return min(_ideal(self.costs, self.conditions, workers) * self._efficiency(workers), 1 / max(self.costs.floor, 1e-12))

    def _efficiency(self, workers: int) -> float:
        known = {
            k: rate / _ideal(self.costs, self.conditions, k) for k, rate in self.measured.items() if (k == 0) == (workers == 0)
        }
        return float(np.interp(workers, sorted(known), [known[k] for k in sorted(known)])) if known else 1.0

    @property
    def step(self) -> float:
        """Seconds per sample of a step of the model, next to other programs."""
        if not self.costs.step_cpu:
            return self.costs.step
        threads = self.costs.step_cpu / self.costs.step
        return self.costs.step * threads / min(threads, self.conditions.cores_for(threads))

    @property
    def model(self) -> float:
        """Seconds per sample of the copy and the step, if batches are there."""
        return max(self.costs.copy, self.step) if self.overlap else self.costs.copy + self.step

    def seconds(self, workers: int) -> float:
        """Return the seconds per sample of the whole loop."""
        costs, loader = self.costs, 1 / self.rate(workers)
        if not workers:
            return loader + self.model
        threads = workers + (costs.step_cpu / costs.step if costs.step else 0.0)
        cpu = (costs.work + costs.handover) / self._efficiency(workers) + costs.step_cpu
        return max(loader, self.model, cpu / self.conditions.cores_for(threads))

    def changed(self, **costs: float) -> Loop:
        """Return the loop with other costs."""
        return self.what_if(costs=replace(self.costs, **costs))

    def what_if(self, *, costs: Costs | None = None, conditions: Conditions | None = None) -> Loop:
        """Return the loop with other costs, or on another machine. What was measured above or below the model stays so."""
        after = replace(self, costs=costs or self.costs, conditions=conditions or self.conditions, measured={})
        scaled = {k: _ideal(after.costs, after.conditions, k) * self._efficiency(k) for k in self.measured}
        return replace(after, measured=scaled)

    def gain(self, resource: str, workers: int) -> float:
        """Return how much faster the loop would be if a resource were infinitely fast, at most MOST."""
        after = self.what_if(costs=self.costs.without(resource)).seconds(workers)
        return min(self.seconds(workers) / max(after, 1e-12), MOST)

    def verdict(self, workers: int) -> tuple[str, float]:
        """Return the resource that limits the loop, and the gain if it were infinitely fast; "nothing" if none stands out."""
        gains = {resource: self.gain(resource, workers) for resource in RESOURCES}
        best = max(gains, key=lambda resource: gains[resource])
        return (best if gains[best] >= BALANCED else "nothing"), gains[best]

    def shares(self, workers: int) -> dict[str, float]:
        """Return each resource's share of the time of the loop. Time without a batch is what storage and the CPU cost, in
        proportion to what a sample takes of each."""
        costs, whole = self.costs, self.seconds(workers)
        step = self.step / whole
        copy = (max(costs.copy - self.step, 0.0) if self.overlap else costs.copy) / whole
        rest, waiting = max(1 - step - copy, 0.0), max(costs.waiting, costs.floor)
        part = waiting / max(waiting + costs.work + (costs.handover if workers else 0.0), 1e-12)
        return {"storage": rest * part, "CPU": rest * (1 - part), "copy": copy, "model": step}

    @property
    def most_workers(self) -> int:
        """The largest number of workers that may help: one for each core, and more if they wait for storage."""
        waiting = 1 + self.costs.waiting / max(self.costs.work + self.costs.handover, 1e-12)
        return min(math.ceil(self.conditions.cores * waiting), max(MOST_WORKERS, self.conditions.cores))

    def best_workers(self, most: int) -> int:
        """Return the smallest number of workers whose loop is within 3 % of the fastest one."""
        times = [self.seconds(k) for k in range(most + 1)]
        return next(k for k, seconds in enumerate(times) if seconds <= 1.03 * min(times))

    def needed(self) -> float | None:
        """Return how many workers would keep up with the model, each as fast as one alone; None: no model is known."""
        return 1 / self.model / self.rate(1) if self.costs.step else None


def _ideal(costs: Costs, conditions: Conditions, workers: int) -> float:
    """Return samples/s of the loader by its costs alone."""
    if not workers:
        return 1 / max(costs.work / conditions.cores_for(1) + costs.waiting, 1e-12)
    cpu = costs.work + costs.handover
    busy = conditions.cores_for(workers) / max(cpu, 1e-12)
    return min(workers / max(cpu + costs.waiting, 1e-12), busy, 1 / max(costs.receive, 1e-12))
