"""Ranked advice: what to change, what it would bring, and what to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastdata.bench.report import PROCESS_BYTES
from fastdata.diagnosis.conditions import Conditions
from fastdata.diagnosis.pipeline import Loop
from fastdata.diagnosis.storage import Storage
from fastdata.diagnosis.subject import Ours, Subject
from fastdata.diagnosis.variants import Variant, duration
from fastdata.words import human_bytes, number_of

__all__ = ["Advice", "Change", "Memory", "advise"]

WORTH = 1.05  # gain from which a change is worth advising
HELD = 4  # batches that a Loader has room for besides those in flight; a DataLoader has one


@dataclass(frozen=True)
class Advice:
    """Something to change.

    Attributes:
        title: what.
        gain: how many times as fast the loop would be; None: not measured, or not a matter of speed.
        rate: samples/s of the loop then; None as for `gain`.
        paste: commands and lines of code.
        how: what the gain comes from.
    """

    title: str
    gain: float | None
    rate: float | None
    paste: str
    how: str


@dataclass(frozen=True)
class Memory:
    """The memory that batches and workers take.

    Attributes:
        workers, prefetch: arguments of the loader.
        batch_bytes: of one batch.
        spare: batches besides those in flight.
        in_shm: whether the batches lie in /dev/shm.
    """

    workers: int
    prefetch: int
    batch_bytes: int
    spare: int
    in_shm: bool

    @property
    def batches_bytes(self) -> int:
        """The bytes of all batches that exist at once."""
        return (self.workers * self.prefetch + self.spare) * self.batch_bytes

    def missing(self, conditions: Conditions) -> str:
        """Return what is too small for it; "" if all fits."""
        if self.workers and self.in_shm and conditions.shm is not None and self.batches_bytes > conditions.shm:
            return "/dev/shm"
        return "memory" if self.batches_bytes + self.workers * PROCESS_BYTES > conditions.memory else ""

    def line(self, conditions: Conditions) -> str:
        """Return the arithmetic."""
        batches = f"{number_of(self.workers, 'worker')} x {self.prefetch} ahead + {self.spare}"
        where = " in /dev/shm" if self.in_shm and self.workers else ""
        free = f"; free: {human_bytes(conditions.memory)}"
        free += f", in /dev/shm {human_bytes(conditions.shm)}" if conditions.shm is not None else ""
        return (
            f"({batches}) x {human_bytes(self.batch_bytes)} a batch = {human_bytes(self.batches_bytes)}{where}, and "
            f"{self.workers} x about {human_bytes(PROCESS_BYTES)} for processes{free}"
        )


@dataclass(frozen=True)
class Change:
    """A change, and the loop after it. workers: of the loop then."""

    title: str
    paste: str
    after: Loop
    workers: int
    how: str

    def advice(self, before: float) -> Advice:
        seconds = self.after.seconds(self.workers)
        return Advice(self.title, before / seconds, 1 / seconds, self.paste, self.how)


def advise(
    subject: Subject,
    loop: Loop,
    memory: Memory,
    variants: Sequence[Variant],
    measured: Sequence[Change],
    storage: Storage | None,
    *,
    crop: int | None,
    is_float: bool,
    gpu: bool,
    noise: float,
    untried: str,
    store_step: tuple[float, float] | None = None,
) -> list[Advice]:
    """Return what to change, the most effective first.

    Args:
        subject: the loader.
        loop: the loop with it.
        memory: what it takes.
        variants: stores that could be made.
        measured: changes that were tried.
        storage: how fast it is; None: unknown.
        crop: side of the batch's images.
        is_float: whether they are floats.
        gpu: whether batches go to a GPU.
        noise: largest ratio of rates that were measured with the same number of workers.
        untried: what else to try if the model is the limit.
        store_step: seconds per sample, and CPU seconds, of a step on images from a store; None: as those of `loop`.
    """
    now = loop.seconds(subject.workers)
    changes = [
        *_workers(subject, loop, noise),
        *_stores(subject, loop, variants, storage, store_step, crop, is_float),
        *_loading(subject, loop, is_float, gpu),
        *measured,
    ]
    changes += _others(subject, loop)
    found = [change.advice(now) for change in changes]
    found = sorted((one for one in found if one.gain and one.gain >= WORTH), key=lambda one: -(one.gain or 0))
    if missing := memory.missing(loop.conditions):
        found.insert(0, _too_large(subject, memory, missing, loop.conditions))
    elif (fewer := loop.best_workers(subject.workers)) < subject.workers and not any("num_workers" in one.title for one in found):
        saved = (subject.workers - fewer) * (PROCESS_BYTES + memory.prefetch * memory.batch_bytes)
        title = f"num_workers={fewer} is as fast, and saves {human_bytes(saved)}"
        found.append(Advice(title, 1.0, 1 / loop.seconds(fewer), subject.call(num_workers=fewer), _fitted(loop, fewer)))
    if untried and loop.verdict(subject.workers)[0] == "model":
        found.append(Advice(untried, None, None, "", "not measured"))
    return found


def _workers(subject: Subject, loop: Loop, noise: float) -> Iterator[Change]:
    if not subject.parallel:
        return
    best = loop.best_workers(max(loop.most_workers, subject.workers))
    if best != subject.workers and loop.seconds(subject.workers) > noise * loop.seconds(best):
        title, line = f"num_workers={best} in place of {subject.workers}", subject.call(num_workers=best)
        yield Change(title, line, loop, best, _fitted(loop, best))


def _fitted(loop: Loop, workers: int) -> str:
    return "measured with so many workers" if workers in loop.measured else "predicted from other numbers of workers"


def _stores(
    subject: Subject,
    loop: Loop,
    variants: Sequence[Variant],
    storage: Storage | None,
    store_step: tuple[float, float] | None,
    crop: int | None,
    is_float: bool,
) -> Iterator[Change]:
    """Yield the smallest store among those with which the loop is about as fast as with the fastest."""
    cores = loop.conditions.cores
    shrinks = 4 if is_float else 1  # uint8 in place of float32
    step, step_cpu = store_step or (loop.costs.step, loop.costs.step_cpu)
    options, same = [], isinstance(subject, Ours)  # the same kind of loader, so that what was measured of it holds
    for variant in variants:
        alone = loop.what_if(costs=variant.costs) if same else Loop(variant.costs, loop.conditions, overlap=loop.overlap)
        sample_bytes = variant.disk_bytes / max(subject.samples or 1, 1)
        waiting, floor = storage.misses(loop.conditions.memory, sample_bytes, variant.disk_bytes) if storage else (0.0, 0.0)
        costs = {"copy": loop.costs.copy / shrinks, "step": step, "step_cpu": step_cpu}
        after = alone.changed(waiting=waiting, floor=floor, **costs)
        options.append((variant, after))
    if not options:
        return
    fastest = min(after.seconds(cores) for _, after in options)
    variant, after = min((one for one in options if one[1].seconds(cores) <= 1.05 * fastest), key=lambda one: one[0].disk_bytes)
    source = subject.source or "SOURCE"
    out = f"{Path(subject.source).name.partition('.')[0] if subject.source else 'data'}.fds"
    command = f"fastdata-prep {shlex.quote(source)} {out}{' ' * bool(variant.options)}{variant.options}"
    dataset = f'LMDBDataset("{out}", crop=RandomResizedCrop({crop}), hflip=0.5)'
    lines = f"loader = Loader({dataset}, batch_size={subject.batch_size}, shuffle=True)"
    if is_float:
        lines += "\nmodel = nn.Sequential(GPUNormalize(mean, std), model)  # batches are uint8"
    size = "in their own size" if variant.size is None else f"with short side {variant.size}"
    title = f"prepare a store of {variant.codec} {size} ({human_bytes(variant.disk_bytes)}, about {duration(variant.minutes)})"
    yield Change(title, f"{command}\n{lines}", after, cores, "predicted from a few images that were prepared and read")


def _loading(subject: Subject, loop: Loop, is_float: bool, gpu: bool) -> Iterator[Change]:
    costs, workers = loop.costs, subject.workers
    if costs.waiting or costs.floor:
        after = loop.changed(waiting=0.0, floor=0.0)
        if costs.waiting > costs.work:  # rates of workers that mostly wait say nothing of workers that do not
            after = replace(after, measured={})
        arguments = "...)  # with the arguments of LMDBDataset" if isinstance(subject, Ours) else "files, targets, crop=...)"
        paste = f"dataset = RAMDataset({arguments}"
        yield Change("keep the bytes in memory", paste, after, workers, "predicted, if no sample waits for storage")
    if costs.transform > 0.2 * costs.work and not isinstance(subject, Ours):
        after = loop.changed(transform=0.0)
        paste = "images = Augment(transform, seed=0)(batch)  # on the device, or make the transform cheaper"
        title, how = "do the transform on the device, in one call for a batch", "predicted, if workers do not do it"
        yield Change(title, paste, after, workers, how)
    if is_float and (costs.copy or costs.handover):
        after = loop.changed(copy=costs.copy / 4, handover=costs.handover / 4, receive=costs.receive / 4, collate=costs.collate / 4)
        paste = "model = nn.Sequential(GPUNormalize(mean, std), model)  # and leave ToTensor and Normalize out of the transform"
        yield Change("send uint8 in place of float32", paste, after, workers, "predicted, if the batch has a quarter of the bytes")
    if gpu and costs.copy and not loop.overlap and costs.step:
        after = replace(loop, overlap=True)
        paste = 'for batch in Prefetcher(loader, "cuda"):  # with pin_memory=True in the loader'
        yield Change("copy the next batch while the model computes", paste, after, workers, "predicted, if it is hidden")


def _others(subject: Subject, loop: Loop) -> Iterator[Change]:
    if loop.conditions.others:
        quiet = loop.what_if(conditions=replace(loop.conditions, others=0.0))
        title = f"end other programs, which keep {loop.conditions.others:.1f} of {number_of(loop.conditions.cores, 'core')} busy"
        yield Change(title, "top  # shows them", quiet, subject.workers, "predicted from the cores that they would leave")


def _too_large(subject: Subject, memory: Memory, missing: str, conditions: Conditions) -> Advice:
    """Return what to do about a run that would be killed."""
    fits = next((k for k in range(memory.workers, 0, -1) if not replace(memory, workers=k).missing(conditions)), 0)
    if missing == "/dev/shm":
        need, free = human_bytes(memory.batches_bytes), human_bytes(conditions.shm or 0)
        title = f"workers need {need} in /dev/shm, where {free} are free: they would die of a bus error"
        paste = f"{subject.call(num_workers=fits)}\ndocker run --shm-size={-(-memory.batches_bytes * 2 // (1 << 30))}g ...\n"
        paste += "fastdata's Loader  # whose memory for batches is not in /dev/shm"
    else:
        need = human_bytes(memory.batches_bytes + memory.workers * PROCESS_BYTES)
        title = f"workers need {need} of memory, and {human_bytes(conditions.memory)} are free: they would be killed"
        paste = subject.call(num_workers=fits, prefetch_factor=1) if fits else subject.call(num_workers=0)
    return Advice(title, None, None, paste, "from the memory that batches and workers take")
