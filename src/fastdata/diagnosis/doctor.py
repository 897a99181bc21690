"""Diagnose a training loop: measure each part alone, then together, predict, and advise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from fastdata.bench.harness import settle, stream
from fastdata.diagnosis.advice import HELD, Change, Memory, advise
from fastdata.diagnosis.batches import count, first_image
from fastdata.diagnosis.conditions import Conditions, OtherLoad, look
from fastdata.diagnosis.diagnosis import Diagnosis
from fastdata.diagnosis.pipeline import BALANCED, MOST_WORKERS, Costs, Loop
from fastdata.diagnosis.storage import Storage, measure_storage
from fastdata.diagnosis.subject import Ours, Subject, probe, subject_of
from fastdata.diagnosis.training import Step, move, time_copy, time_step, time_step_of_store
from fastdata.diagnosis.trials import dataset_trials, rows_of, step_trials
from fastdata.diagnosis.variants import Variant, try_variants
from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from fastdata.monitor.bottleneck import untried
from fastdata.words import number_of

__all__ = ["diagnose", "doctor"]

WHOLE_S = 30.0  # what the seconds below add up to, about
LOOK_S, PROBE_S, STORAGE_S, RATE_S, HANDOVER_S = 0.5, 3.0, 1.5, 1.2, 0.6
STEP_S, TOGETHER_S, TRIALS_S, VARIANTS_S = 2.0, 2.5, 3.0, 9.0
LEAST_S = 0.2  # of looking: the kernel counts in steps of 0.01 s
SLICES = 3  # of a rate, of which the median counts
MOST_ROWS = 2000  # samples that are drawn
FILES = 24  # images that are prepared, at most
READ = 200  # samples whose bytes are read
BATCH_S = 0.03  # a batch that is measured takes about so long to make
FAR, NEAR = 1.4, 1.15  # ratios of measurements from which a diagnosis is not sure, or fairly sure
BUSY, SOME = 0.25, 0.1  # the same, for the share of the cores that other programs keep busy


def doctor(loader: Any, step: Any = None, *, device: str | torch.device | None = None, seconds: float = WHOLE_S) -> Diagnosis:
    """Find out what limits a training loop, and what to do about it.

    Measures reading, decoding, resizing, transforms, collating, the copy to the device and a step of the model, each alone and then
    together; and the cores, memory and storage of this machine, with the load of other programs. From these it predicts what each
    remedy would bring. It writes temporary files only.

    Samples are made in child processes and in new workers, and at the end in this process. A step really trains: it draws random
    numbers, updates statistics and, if it steps an optimizer, weights. So give it a model that can be thrown away.

    Args:
        loader: torch's DataLoader, a Loader, or another iterable of batches, of which only whole batches are measured.
        step: a function of a batch on the device, which does a training step; or (model, loss_fn), for a step without an optimizer,
            where ``loss_fn(model, batch)`` returns losses. None: the loader alone.
        device: of the model; None: the Loader's; else a GPU if there is one, else the CPU.
        seconds: about how long this takes. Predictions are less exact with less.

    Raises:
        TypeError: `loader` or `step` is something else.
        ValueError: `seconds` is not positive.

    Other exceptions of the dataset, the loader or the step propagate.
    """
    return diagnose(subject_of(loader), step, device=device, seconds=seconds)


def diagnose(
    subject: Subject,
    step: Any = None,
    *,
    device: str | torch.device | None = None,
    seconds: float = WHOLE_S,
    conditions: Conditions | None = None,
) -> Diagnosis:
    """Diagnose a subject. conditions: of the machine; None: as they are found."""
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--seconds is {seconds}, but must be positive")
    target = torch.device(device or subject.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = None if step is None else Step(step, target)
    unit = seconds / WHOLE_S
    here = look(max(LOOK_S * unit, LEAST_S)) if conditions is None else conditions
    return _Examination(subject, run, target, unit, here).diagnosis()


class _Examination:
    """One diagnosis. unit: the factor of all times."""

    def __init__(self, subject: Subject, step: Step | None, device: torch.device, unit: float, conditions: Conditions) -> None:
        self.subject, self.step, self.device, self.unit = subject, step, device, unit
        self.conditions = conditions
        self.rows = rows_of(subject, MOST_ROWS)
        self.files = list[str]()
        self.storage: Storage | None = None
        self.size = 1  # of the batches with which rates are measured
        self.store_step: tuple[float, float] | None = None  # seconds, and CPU seconds, of a step on a sample from a store
        self.noise = 1.0  # the largest ratio of rates with the same workers
        self.ratios = dict[str, float]()  # of measurements that should be equal

    def diagnosis(self) -> Diagnosis:
        """Measure. This process makes samples itself only when no workers are forked any more, which would share its open files."""
        subject, load = self.subject, OtherLoad()
        loop, memory = self._parts()
        loop = self._rates(loop, memory)
        if not subject.workers:
            loop = self._in_this_process(loop)
        workers = subject.workers if subject.workers in loop.measured else 0
        with subject.batches(workers, self.rows) as batches:
            batch = next(batches)
            loop, together, changes = self._whole(loop, batch, batches)
        if subject.workers:
            loop = self._in_this_process(loop)
        changes += dataset_trials(subject, loop, self.rows, TRIALS_S * self.unit)
        image = first_image(batch)
        crop = None if image is None else min(image.shape[2:])
        variants, left_out, rejected = self._variants(loop, crop)
        advice = advise(
            subject,
            loop,
            memory,
            variants,
            changes,
            self.storage,
            store_step=self.store_step,
            crop=crop,
            is_float=image is not None and image.is_floating_point(),
            gpu=self.device.type == "cuda",
            noise=self.noise,
            untried=self._untried(),
        )
        verdict, gain = ("memory", 1.0) if memory.missing(self.conditions) else loop.verdict(subject.workers)
        sure, doubts = self._sure(max(self.conditions.others, load.cores()))
        most = max(2 * self.conditions.cores, loop.most_workers, subject.workers)
        shown = {*range(min(most, 4) + 1), *(2**k for k in range(most.bit_length())), most, *loop.measured, subject.workers}
        return Diagnosis(
            subject=subject.name,
            samples=subject.samples,
            batch_size=subject.batch_size,
            workers=subject.workers,
            verdict=verdict,
            gain=gain,
            shares=loop.shares(subject.workers),
            loop=loop,
            together=together,
            rates={k: loop.rate(k) for k in (sorted(shown) if subject.parallel else [subject.workers])},
            needed=loop.needed() if subject.parallel else None,
            storage=self.storage,
            memory=memory,
            variants=tuple(variants),
            left_out=tuple(left_out),
            rejected=rejected,
            advice=tuple(advice),
            sure=sure,
            doubts=tuple(doubts),
        )

    def _parts(self) -> tuple[Loop, Memory]:
        """Measure the parts of a sample: as the data are found, and again, when they are in memory."""
        subject, unit = self.subject, self.unit
        held = HELD if isinstance(subject, Ours) else 1
        if not subject.parts_known:
            return Loop(Costs(), self.conditions), Memory(0, 0, 0, held, in_shm=False)
        first, read = probe(subject, self.rows, PROBE_S * unit / 2)
        self.files = [*first.files]
        self.rows = self.rows[: max(read, min(subject.batch_size, len(self.rows)))]
        parts, _ = probe(subject, self.rows[:read], PROBE_S * unit / 2)
        costs, size = parts.costs(), parts.batch_bytes // parts.samples * subject.batch_size
        spans, data_bytes = subject.spans(self.rows[:READ], self.files, read)
        self.storage = measure_storage(spans, data_bytes, STORAGE_S * unit)
        if self.storage is not None:
            warm = 0.0 if costs.read else min(self.storage.warm_s, costs.decode)  # decoders read the file themselves
            whole = (data_bytes or 0) / (subject.samples or 1)
            waiting, floor = self.storage.misses(self.conditions.memory, whole, data_bytes)
            waiting += costs.waiting
            costs = replace(costs, read=costs.read + warm, decode=costs.decode - warm, waiting=waiting, floor=floor)
        return Loop(costs, self.conditions), Memory(subject.workers, subject.prefetch, size, held, subject.in_shm)

    def _rates(self, loop: Loop, memory: Memory) -> Loop:
        """Measure the loader alone with several numbers of workers."""
        subject, costs = self.subject, loop.costs
        if not subject.parts_known:
            rate = self._rate(subject.workers, None)
            return replace(loop, costs=Costs(transform=1 / rate), measured={subject.workers: rate})
        self.size = max(1, min(subject.batch_size, round(BATCH_S / max(costs.work + costs.waiting, 1e-9))))

        def fits(workers: int) -> bool:
            small = replace(memory, workers=workers, batch_bytes=memory.batch_bytes * self.size // max(subject.batch_size, 1))
            return workers <= MOST_WORKERS and not small.missing(self.conditions)

        def measure(loop: Loop, workers: int) -> Loop:
            return replace(loop, measured={**loop.measured, workers: self._rate(workers, self.size)})

        for workers in sorted({1, 2, self.conditions.cores, subject.workers} - {0}) if subject.parallel else []:
            loop = measure(loop, workers) if fits(workers) else loop
        best = loop.best_workers(loop.most_workers)
        if best > max(loop.measured, default=best) and fits(best):  # many that wait: too far from what was measured
            loop = measure(loop, best)
        return loop

    def _rate(self, workers: int, size: int | None) -> float:
        """Return the median samples/s of the loader alone, and keep how much it varies."""
        with self.subject.batches(workers, self.rows, size) as batches:
            ahead, samples = workers * (self.subject.prefetch + 1), map(count, batches)
            runs = [stream(samples, ahead * (k == 0), RATE_S * self.unit / SLICES) for k in range(SLICES)]
        low, middle, high = sorted(run.images / run.seconds for run in runs)
        self.ratios[f"with {number_of(workers, 'worker')} the rate was {low:,.0f} to {high:,.0f}/s"] = high / low
        self.noise = max(self.noise, high / low if workers else 1.0)
        return middle

    def _whole(self, loop: Loop, batch: Any, batches: Iterator[Any]) -> tuple[Loop, float | None, list[Change]]:
        """Measure the copy and the step of one batch, again and again, and then the whole loop."""
        subject, unit, samples = self.subject, self.unit, count(batch)
        settle()  # workers make batches ahead
        copy = time_copy(batch, self.device, 0.3 * unit, pinned=subject.pins) / samples
        loop = replace(loop.changed(copy=copy), overlap=subject.device is not None and subject.device.type == "cuda")
        if self.step is None:
            return loop, None, []
        there = move(batch, self.device)
        step_s, cpu_s = time_step(self.step, there, self.device, STEP_S * unit)
        loop = loop.changed(step=step_s / samples, step_cpu=cpu_s / samples)
        if of_store := time_step_of_store(self.step, there, self.device, STEP_S * unit / 2):
            self.store_step = of_store[0] / samples, of_store[1] / samples
        changes = list[Change]()
        if loop.gain("model", subject.workers) >= BALANCED:
            changes += step_trials(self.step, there, self.device, loop, subject.workers, TRIALS_S * unit)
        return loop, self._together(loop, self.step, batches), changes

    def _together(self, loop: Loop, step: Step, batches: Iterator[Any]) -> float | None:
        """Return samples/s of the loader and the model together; None: it would take too long, or the workers do not fit."""
        subject, limit = self.subject, TOGETHER_S * self.unit
        ahead, predicted = subject.workers * (subject.prefetch + 1), 1 / loop.seconds(subject.workers)
        if (subject.workers and subject.workers not in loop.measured) or (ahead + 2) * subject.batch_size > 4 * limit * predicted:
            return None

        def steps() -> Iterator[int]:
            for batch in batches:
                step(move(batch, self.device))
                yield count(batch)

        run = stream(steps(), ahead + 1, limit)
        rate = run.images / run.seconds
        text = f"together {rate:,.0f}/s were measured, where the parts predict {predicted:,.0f}"
        self.ratios[text] = max(rate / predicted, predicted / rate)
        return rate

    def _in_this_process(self, loop: Loop) -> Loop:
        """Measure the loader without workers, and what handing over costs."""
        subject = self.subject
        if not subject.parts_known:
            return loop
        if subject.parallel:
            spent, receive = subject.handover(self.rows, subject.batch_size, max(HANDOVER_S * self.unit, LEAST_S))
            rates = loop.measured
            loop = replace(loop.changed(handover=max(spent - loop.costs.collate, 0.0), receive=receive), measured=rates)
        return replace(loop, measured={**loop.measured, 0: self._rate(0, self.size)})

    def _variants(self, loop: Loop, crop: int | None) -> tuple[list[Variant], list[str], dict[str, int]]:
        subject, seconds = self.subject, VARIANTS_S * self.unit
        if crop is None or subject.samples is None:
            return [], [], {}
        number = max(6, min(FILES, int(seconds / 25 / max(loop.costs.decode, 1e-4))))
        images = subject.images(self.rows[:number], self.files)
        sides = [min(header.height, header.width) for header in map(_header, images) if header is not None]
        if not sides:
            return [], [], {}
        return try_variants(images, subject.samples, crop, int(median(sides)), subject.stored, self.conditions, seconds)

    def _untried(self) -> str:
        model = None if self.step is None else self.step.model
        return "" if model is None else untried(model, self.device, precision="bf16", channels_last=True, compile=False)

    def _sure(self, others: float) -> tuple[str, list[str]]:
        """Return how sure the diagnosis is, and why not."""
        share = others / self.conditions.cores
        doubts = [text for text, ratio in self.ratios.items() if ratio > NEAR]
        if share > SOME:
            doubts.insert(0, f"other programs keep {others:.1f} of {self.conditions.cores} cores busy")
        worst = max(self.ratios.values(), default=1.0)
        level = "not sure" if worst > FAR or share > BUSY else "fairly sure" if doubts else "sure"
        return level, doubts


def _header(data: bytes) -> SourceImage | None:
    try:
        return SourceImage(data)
    except CodecError:
        return None
