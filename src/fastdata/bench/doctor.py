"""Measure a training loop: the loader with several numbers of workers, the step, both together, and the parts of a sample."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce, wraps
from itertools import repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from fastdata.bench.harness import Run, interleave, running, stream, summarize, table
from fastdata.bench.loaders import BATCH, CROP, NORMAL, ImageFiles, find_task
from fastdata.data.dataset import SlotDataset, Timing
from fastdata.gpu.copies import Copier
from fastdata.gpu.normalize import GPUNormalize
from fastdata.loader.direct import is_direct
from fastdata.loader.loader import Loader
from fastdata.prepare.functions import prep
from fastdata.store.files import is_store
from fastdata.system.machine import available_cores
from fastdata.system.torch_private import pytree
from fastdata.words import number_of

TOTAL_S = 15.0  # what the seconds below add up to, about, without those of prepared images
RATE_S, PARTS_S = 1.5, 2.5
TURNS, TURN_S = 5, 0.45  # of a loader and the Loader of prepared images
MAX_BATCH = 32  # samples of a batch whose parts are measured
MEANING = {
    "storage": "the loop waits for the disk, or whatever else samples are read from",
    "CPU": "the loop waits for batches, which cost CPU time to make",
    "loader": "the loop waits for batches",
    "model": "the step and the copy to the device are the limit, and batches are there in time",
}
RESIZED = 256 / 224  # side of the stored images of a folder to that of the crops
SAMPLES = 300  # of a folder that are prepared


@dataclass(frozen=True)
class Diagnosis:
    """The measurements of a training loop; ``str(...)`` is a report.

    Attributes:
        subject: what was measured.
        samples: number of samples of the dataset, or None if unknown.
        batch_size, workers: of the loader.
        cores: of this process.
        parts: seconds to make a sample, by part, in one process; empty if only whole batches could be measured.
        rates: samples/s of the loader alone, by its number of workers.
        step_s: seconds per sample to copy a batch to the device and to step on it, or None without a step.
        together: samples/s of the loader and the step together, or None without a step.
        prepared: samples/s of the Loader, with the step if there is one, after preparing some of the images; or None.
        gain: how many times as fast the loop (the loader alone, without a step) is with prepared images.
    """

    subject: str
    samples: int | None
    batch_size: int
    workers: int
    cores: int
    parts: Mapping[str, float]
    rates: Mapping[int, float]
    step_s: float | None
    together: float | None
    prepared: float | None = None
    gain: float | None = None

    @property
    def limit(self) -> str:
        """The slowest part: "storage", "CPU", "model" with the copy to its device, or "loader" if parts are unknown."""
        if 1 / self.rates[self.workers] < (self.step_s or 0.0):
            return "model"
        waiting = self.parts.get("waiting", 0.0)
        return "loader" if not self.parts else "storage" if waiting > sum(self.parts.values()) - waiting else "CPU"

    def json(self) -> str:
        """Return all numbers as JSON."""
        return json.dumps(asdict(self) | {"limit": self.limit}, indent=1, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def doctor(loader: Any, step: Any = None, *, device: str | torch.device | None = None, seconds: float = TOTAL_S) -> Diagnosis:
    """Measure the loader with several numbers of workers, the parts of a sample, the step, and loader and step together.

    Samples are drawn at random, in new workers and, at the end, in this process. A step really trains: it draws random numbers,
    updates statistics and, if it steps an optimizer, weights. So give it a model that can be thrown away.

    Args:
        loader: torch's DataLoader, a Loader, or another iterable of batches, of which only whole batches are measured.
        step: a function of a batch on the device, which does a training step, or None for the loader alone.
        device: the device of the model. By default the Loader's, else a GPU if there is one, else the CPU.
        seconds: about how long this takes; a shorter time gives less exact numbers.
    """
    return _diagnose(loader, step, device, seconds)


def _diagnose(loader: Any, step: Any, device: Any, seconds: float, prepare: Callable[..., Loader] | None = None) -> Diagnosis:
    """Diagnose a loader as `doctor` does.

    prepare: a function of (batch size, workers) that makes a Loader of prepared images, which takes turns with `loader`.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError(f"seconds is {seconds}, but must be positive and finite")
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"doctor measures a DataLoader, a Loader or another iterable of batches, found a {type(loader).__name__}")
    if step is not None and not callable(step):
        raise TypeError(f"a step is a function of a batch, found {step!r:.100}")
    unit, cores = seconds / TOTAL_S, available_cores()
    dataset: Any = loader.dataset if isinstance(loader, Loader | DataLoader) else None
    device = torch.device(device or getattr(loader, "device", None) or ("cuda" if torch.cuda.is_available() else "cpu"))
    remade = dataset is not None and not is_direct(dataset)
    workers = loader.num_workers if remade else 0
    with running(_remade(loader, workers)) as batches:
        batch = next(batches)
    size, copier = _count(batch, _batch_size(loader)), Copier(device, pin=False)

    def counts(batches: Iterator[Any]) -> Iterator[int]:
        return (_count(each, size) for each in batches)

    def steps(batches: Iterator[Any], fixed: Any = None, *, wait: bool = False) -> Iterator[int]:
        """Step on each batch, or on `fixed` in its place. wait: wait for the device after each step."""
        for each in batches:
            step(copier.start(each if fixed is None else fixed).take())
            if wait and device.type == "cuda":
                torch.cuda.synchronize(device)
            yield _count(each, size)

    def turn(make: Callable[[int], Any], count: Any, seconds: float, workers: int = workers) -> Run:
        """Measure with new workers, since the speed of a process depends on how it was started."""
        with running(make(workers)) as batches:
            return stream(count(batches), 1 + workers * (getattr(loader, "prefetch_factor", None) or 2), seconds)

    own, count = partial(_remade, loader), counts if step is None else steps
    runs = {n: turn(own, counts, RATE_S * unit, n) for n in ({1, min(2, cores), cores, workers} if remade else ()) if n}
    turns: dict[str, Callable[[float], Run]] = {"loader": partial(turn, own, count)}
    if prepare is not None:
        prepared, kept = prepare(size, workers, device=device if device.type == "cuda" else None), copier.start(batch).take()
        turns["prepared"] = partial(turn, lambda _: prepared, counts if step is None else partial(steps, fixed=kept))
    if step is not None:
        turns["step"] = partial(turn, lambda _: repeat(batch), partial(steps, wait=True), workers=1)  # to warm up by three
    rounds, length = (1, TURN_S * TURNS) if prepare is None else (TURNS, TURN_S)
    found = {row["name"]: row for row in summarize(interleave(turns, seconds=length * unit, repeats=rounds, warmup=0), "loader")}
    runs[0] = turn(own, counts, RATE_S * unit, 0)  # last, when no workers are forked any more, which would share open files
    median = {name: row["images_per_s"]["median"] for name, row in found.items()}
    gain = None if prepare is None else found["prepared"]["ratio"]["median"]
    if gain is not None and step is not None:
        gain = min(gain, median["step"] / median["loader"])
    return Diagnosis(
        subject=type(loader).__name__ if dataset is None else f"{type(loader).__name__} of {type(dataset).__name__}",
        samples=len(dataset) if hasattr(dataset, "__len__") else None,
        batch_size=size,
        workers=workers,
        cores=cores,
        parts=_parts(loader, PARTS_S * unit),
        rates={n: run.images / run.seconds for n, run in sorted(runs.items())},
        step_s=1 / median["step"] if step is not None else None,
        together=median["loader"] if step is not None else None,
        prepared=median.get("prepared"),
        gain=gain,
    )


def _remade(loader: Any, workers: int) -> Any:
    """Return a loader like this one with the given number of workers; other iterables unchanged."""
    if isinstance(loader, Loader):
        kept = {name: getattr(loader, name) for name in ("prefetch_factor", "collate_fn", "device", "pin_memory", "backend")}
        kept |= {"batch_transform": loader._position.transforms or None, "split": False, "seed": workers}  # other samples for each
        return Loader(loader.dataset, _batch_size(loader), shuffle=True, num_workers=workers, **kept)
    if not isinstance(loader, DataLoader):
        return loader
    data, options = loader.dataset, dict[str, Any]()
    if not isinstance(data, IterableDataset):
        options["sampler"] = RandomSampler(data, replacement=True, num_samples=1 << 40)  # type: ignore[arg-type]  # without end
    if workers:
        options |= {"prefetch_factor": loader.prefetch_factor, "timeout": loader.timeout}
        options |= {"multiprocessing_context": loader.multiprocessing_context, "worker_init_fn": loader.worker_init_fn}
    return DataLoader(
        data,
        None if loader.batch_sampler is None else _batch_size(loader),  # or its items are batches
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),  # torch warns otherwise
        **options,
    )


def _batch_size(loader: Any) -> int:
    """Return the number of samples of a batch; 1 if it is unknown."""
    if isinstance(loader, Loader):
        return min(loader.global_batch_size // loader.part.world_size, len(loader.dataset))
    if isinstance(loader, DataLoader) and loader.batch_sampler is not None:
        return loader.batch_size or len(next(iter(loader.batch_sampler)))
    return 1


def _count(batch: Any, default: int) -> int:
    """Return the number of samples of a batch, or `default` if it holds no tensors."""
    if (valid := getattr(batch, "valid", None)) is not None:
        return int(valid)
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim), default)


def _parts(loader: Any, seconds: float) -> dict[str, float]:
    """Return the seconds of the parts of a sample, made in this process; empty if they cannot be measured."""
    dataset: Any = loader.dataset if isinstance(loader, Loader | DataLoader) else None
    batched = isinstance(loader, Loader) or getattr(loader, "batch_sampler", None) is not None
    if dataset is None or isinstance(dataset, IterableDataset) or not batched or is_direct(dataset):
        return {}
    rng, size = np.random.default_rng(0), min(_batch_size(loader), MAX_BATCH)
    collate = loader.collate_fn or default_collate

    def make(timing: Timing) -> int:
        rows = rng.integers(0, len(dataset), size)
        if isinstance(dataset, SlotDataset) and isinstance(loader, Loader):
            dataset.read_batch(rows, seed=0, epoch=0, timing=timing)
        else:
            collate([dataset[k] for k in rows.tolist()])
        return size

    return measure_parts(make, seconds)


def _lines(found: Diagnosis) -> Iterator[str]:
    """Yield the lines of a report."""
    samples = "" if found.samples is None else f": {found.samples:,} samples"
    workers = f"{number_of(found.workers, 'worker')}, batches of {found.batch_size}"
    yield f"{found.subject}{samples}; {workers}; {number_of(found.cores, 'core')}"
    yield ""
    yield f"limit      {found.limit}: {MEANING[found.limit]}"
    if whole := sum(found.parts.values()):
        yield ""
        rows = [[name, f"{1e3 * s:.3f}", f"{s / whole:.0%}"] for name, s in found.parts.items()]
        yield from table(["part of a sample, in one process", "ms", "share"], rows)
    yield ""
    names = {number: f"{number}{'  <- yours' * (number == found.workers)}" for number in found.rates}
    yield from table(["workers", "loader alone, samples/s"], [[names[k], f"{rate:,.0f}"] for k, rate in found.rates.items()])
    yield ""
    rates = {
        "step alone, on one batch": found.step_s and 1 / found.step_s,
        "loader and step together": found.together,
        f"prepared, in the Loader with as many workers{', and the step' * (found.step_s is not None)}": found.prepared,
    }
    yield from (f"{name}: {rate:,.0f} samples/s" for name, rate in rates.items() if rate is not None)
    if found.gain is not None:
        yield f"gain of preparing: {found.gain:.2f} times as fast"


# The parts of a sample, in CPU time of this thread, which other programs do not change. The rest of the time on the clock is
# waiting for the disk, the network or a lock, but for the time in which the thread was ready and had no core.

QUEUED = Path("/proc/thread-self/schedstat")
KNOWN = {  # what reads, decodes and resizes images for most people, if it is imported
    "fastdata.bench.loaders:read_source": "read",
    "torchvision.io.image:read_file": "read",
    "PIL.Image:open": "decode",
    "PIL.Image:Image.convert": "decode",
    "PIL.ImageFile:ImageFile.load": "decode",
    "cv2:imread": "decode",
    "cv2:imdecode": "decode",
    "cv2:cvtColor": "decode",
    "simplejpeg:decode_jpeg": "decode",
    "torchvision.io.image:decode_image": "decode",
    "torchvision.io.image:decode_jpeg": "decode",
    "PIL.Image:Image.resize": "resize",
    "cv2:resize": "resize",
    "torch.nn.functional:interpolate": "resize",
}


def measure_parts(make: Callable[[Timing], int], seconds: float) -> dict[str, float]:
    """Make samples for about `seconds`, and return the seconds that a sample takes, by part.

    Args:
        make: makes a batch and returns its number of samples. It gets a Timing; a dataset that times itself adds to it.
    """
    with _one_thread(), _clock() as clocked:
        make(Timing())  # opens files and imports modules
        clocked.clear()
        timing, samples = Timing(), 0
        started, cpu, queued = time.perf_counter(), time.thread_time(), _queued_s()
        while not samples or time.perf_counter() < started + seconds:
            samples += make(timing)
        wall, cpu, queued = time.perf_counter() - started, time.thread_time() - cpu, _queued_s() - queued
    known: dict[str, float] = {part: clocked[part] for part in ("read", "decode", "resize")}
    if timing != Timing():  # on the clock, with the known functions inside
        known = {part: getattr(timing, f"{part}_s") * cpu / wall for part in known}
    parts = {"waiting": wall - cpu - queued, **known, "transform": cpu - sum(known.values())}
    return {part: max(spent, 0.0) / samples for part, spent in parts.items()}


@contextmanager
def _clock() -> Iterator[dict[str, float]]:
    """Wrap the known functions, and yield the CPU seconds of each part. A call counts without the known calls inside it."""
    seconds, at, part = defaultdict[str, float](float), time.thread_time(), "transform"  # of the part that runs, since when

    def switch(to: str) -> str:
        nonlocal at, part
        now = time.thread_time()
        seconds[part] += now - at
        at, part, before = now, to, part
        return before

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                switch(before)

        return call

    known = [(owner, name, getattr(owner, name), part) for owner, name, part in _known_functions()]
    for owner, name, function, of in known:
        setattr(owner, name, timed(of, function))
    try:
        yield seconds
    finally:
        for owner, name, function, _part in known:
            setattr(owner, name, function)


def _known_functions() -> Iterator[tuple[Any, str, str]]:
    """Yield the owner and the name of each known function whose module is imported, and its part."""
    for name, part in KNOWN.items():
        module, _, path = name.partition(":")
        *outer, last = path.split(".")
        owner = reduce(lambda found, attribute: getattr(found, attribute, None), outer, sys.modules.get(module))
        if hasattr(owner, last):
            yield owner, last, part


def _queued_s() -> float:
    """Return the seconds for which this thread was ready to run, but other threads had the cores; 0 if the kernel does not say."""
    try:
        return int(QUEUED.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let OpenCV and torch use one thread, as in a worker."""
    threads = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads[0])
        torch.set_num_threads(threads[1])


# The command


def examine(
    path: str | None,
    *,
    loader: str | None = None,
    model: str | None = None,
    size: int | None = None,
    crop: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    seconds: float = TOTAL_S,
) -> Diagnosis:
    """Diagnose a store, a SOURCE of images, or a user's loader, as `fastdata doctor --help` says."""
    if path is None and loader is None:
        raise ValueError("there is nothing to measure: give a store, a folder of images, or --loader MODULE:FUNCTION")
    if loader is not None and (batch_size or workers is not None or (path is None and (size or crop))):
        raise ValueError("with --loader, leave out --batch-size and --workers; --size and --crop need a PATH")
    step = None if model is None else _call(model, "--model")
    own, workers = None if loader is None else _call(loader, "--loader"), available_cores() if workers is None else workers
    stored = path is not None and is_store(Path(path))
    if path is None or (stored and own is None):
        return doctor(own if path is None else _loader(path, size, crop, batch_size or BATCH, workers), step, seconds=seconds)
    if own is None:
        images = ImageFiles(path, crop or CROP)
        own = DataLoader(images, min(batch_size or BATCH, len(images)), shuffle=True, num_workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        if stored:
            prepared = partial(_loader, path, size, crop)
        else:
            made = prep(path, Path(folder, "o.fds"), size=size or round((crop or CROP) * RESIZED), limit=SAMPLES).out
            prepared = partial(_loader, str(made), None, crop or CROP)
        found = _diagnose(own, step, None, seconds, partial(prepared, batch_transform=GPUNormalize(*NORMAL), drop_last=True))
    if loader is None:
        found = replace(found, subject=f"ImageFolder in torch's DataLoader, with RandomResizedCrop({images.crop}) and float32")
    return found


def _call(name: str, option: str) -> Any:
    """Call the function that `name` means, as "module:function", and return its result. The working folder is searched too."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{option} is {name!r}, but must be MODULE:FUNCTION, such as train:make ({error})") from error
    return function()


def _loader(path: str, size: int | None, crop: int | None, batch_size: int, workers: int, **options: Any) -> Loader:
    task = find_task(path, size, crop, batch_size)
    return Loader(task.dataset(), task.batch_size, shuffle=True, num_workers=workers, **options)
