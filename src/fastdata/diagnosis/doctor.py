"""Diagnose a training loop: measure each part alone, then together, predict, and advise."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import torch

from fastdata.bench.harness import stream
from fastdata.diagnosis.advice import HELD, Change, Memory, advise
from fastdata.diagnosis.conditions import Conditions, OtherLoad, look
from fastdata.diagnosis.diagnosis import Diagnosis
from fastdata.diagnosis.pipeline import BALANCED, MOST_WORKERS, Costs, Loop
from fastdata.diagnosis.storage import Storage, measure_storage
from fastdata.diagnosis.subject import Ours, Subject, batch_bytes, count, probe, subject_of
from fastdata.diagnosis.training import Step, move, time_copy, time_step
from fastdata.diagnosis.trials import dataset_trials, first_image, rows_of, step_trials
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

    Samples of the dataset are made in this process and in new workers. A step really trains: it draws random numbers, updates
    statistics and, if it steps an optimizer, weights. So give it a model that can be thrown away.

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
        self.ratios = dict[str, float]()  # of measurements that should be equal

    def diagnosis(self) -> Diagnosis:
        subject, unit, load = self.subject, self.unit, OtherLoad()
        costs = self._costs() if subject.parts_known else Costs()
        with subject.batches(0, self.rows) as batches:
            batch = next(batches)
        samples = count(batch)
        memory = self._memory(batch_bytes(batch) * max(subject.batch_size, samples) // samples)
        loop = self._rates(Loop(costs, self.conditions), memory)
        copy = time_copy(batch, self.device, 0.3 * unit, pinned=subject.pins) / samples
        loop = replace(loop.changed(copy=copy), overlap=subject.device is not None and subject.device.type == "cuda")
        there, together, changes = move(batch, self.device), None, list[Change]()
        if self.step is not None:
            step_s, cpu_s = time_step(self.step, there, self.device, STEP_S * unit)
            loop = loop.changed(step=step_s / samples, step_cpu=cpu_s / samples)
            together = self._together(loop, self.step)
            if loop.gain("model", subject.workers) >= BALANCED:
                changes += step_trials(self.step, there, self.device, loop, subject.workers, TRIALS_S * unit)
        changes += dataset_trials(subject, loop, self.rows, TRIALS_S * unit)
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
            crop=crop,
            is_float=image is not None and image.is_floating_point(),
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

    def _costs(self) -> Costs:
        """Measure the parts of a sample: as the data are found, and again, when they are in memory."""
        subject, unit = self.subject, self.unit
        first, read = probe(subject, self.rows, PROBE_S * unit / 2)
        self.files = [*first.files]
        self.rows = self.rows[: max(read, min(subject.batch_size, len(self.rows)))]
        costs = probe(subject, self.rows[:read], PROBE_S * unit / 2)[0].costs()
        spans, data_bytes = subject.spans(self.rows[:READ], self.files[:READ], first.samples)
        self.storage = measure_storage(spans, data_bytes, STORAGE_S * unit)
        if self.storage is None:
            return costs
        if not costs.read:  # decoders read the file themselves
            warm = min(self.storage.warm_s, costs.decode)
            costs = replace(costs, read=warm, decode=costs.decode - warm)
        waiting, floor = self.storage.misses(self.conditions.memory, self.storage.sample_bytes, data_bytes)
        return replace(costs, waiting=costs.waiting + waiting, floor=floor)

    def _memory(self, size: int) -> Memory:
        subject = self.subject
        return Memory(subject.workers, subject.prefetch, size, HELD if isinstance(subject, Ours) else 1, subject.in_shm)

    def _rates(self, loop: Loop, memory: Memory) -> Loop:
        """Measure the loader alone with several numbers of workers."""
        subject, cores = self.subject, self.conditions.cores
        if not subject.parts_known:
            rate = self._rate(subject.workers, None)
            return replace(loop, costs=Costs(transform=1 / rate), measured={subject.workers: rate})
        size = max(1, min(subject.batch_size, round(BATCH_S / max(loop.costs.work + loop.costs.waiting, 1e-9))))

        def fits(workers: int) -> bool:
            small = replace(memory, workers=workers, batch_bytes=memory.batch_bytes * size // max(subject.batch_size, 1))
            return workers <= MOST_WORKERS and not small.missing(self.conditions)

        counts = {0, 1, 2, cores, subject.workers} if subject.parallel else {0}
        measured = {workers: self._rate(workers, size) for workers in sorted(counts) if fits(workers)}
        if subject.parallel and fits(1):
            handover = subject.handover(self.rows, size, max(HANDOVER_S * self.unit, LEAST_S)) - loop.costs.collate
            loop = loop.changed(handover=max(handover, 0.0))
        loop = replace(loop, measured=measured)
        best = loop.best_workers(loop.most_workers)
        if best > max(measured) and fits(best):  # many that wait: too far from what was measured
            loop = replace(loop, measured=measured | {best: self._rate(best, size)})
        return loop

    def _rate(self, workers: int, size: int | None) -> float:
        """Return the median samples/s of the loader alone, and keep how much it varies."""
        with self.subject.batches(workers, self.rows, size) as batches:
            ahead, samples = workers * (self.subject.prefetch + 1), map(count, batches)
            runs = [stream(samples, ahead * (k == 0), RATE_S * self.unit / SLICES) for k in range(SLICES)]
        low, middle, high = sorted(run.images / run.seconds for run in runs)
        self.ratios[f"with {number_of(workers, 'worker')} the rate was {low:,.0f} to {high:,.0f}/s"] = high / low
        return middle

    def _together(self, loop: Loop, step: Step) -> float | None:
        """Return samples/s of the loader and the model together; None: it would take too long."""
        subject, limit = self.subject, TOGETHER_S * self.unit
        ahead = subject.workers * (subject.prefetch + 1)
        if subject.workers not in loop.measured or (ahead + 2) * subject.batch_size * loop.seconds(subject.workers) > 4 * limit:
            return None

        def steps(batches: Any) -> Any:
            for batch in batches:
                step(move(batch, self.device))
                yield count(batch)

        with subject.batches(subject.workers, self.rows) as batches:
            run = stream(steps(batches), ahead + 1, limit)
        rate, predicted = run.images / run.seconds, 1 / loop.seconds(subject.workers)
        self.ratios[f"together {rate:,.0f}/s were measured, where the parts predict {predicted:,.0f}"] = max(
            rate / predicted, predicted / rate
        )
        return rate

    def _variants(self, loop: Loop, crop: int | None) -> tuple[list[Variant], list[str], dict[str, int]]:
        subject, seconds = self.subject, VARIANTS_S * self.unit
        if crop is None or subject.samples is None:
            return [], [], {}
        number = max(6, min(FILES, int(seconds / 25 / max(loop.costs.decode, 1e-4))))
        images = subject.images(self.rows[:number], self.files)
        sides = [min(header.height, header.width) for header in map(_header, images) if header is not None]
        if not sides:
            return [], [], {}
        return try_variants(images, subject.samples, crop, int(median(sides)), self.conditions, seconds)

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
