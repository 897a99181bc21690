"""Measure a training loop: the loader with several numbers of workers, the step, both together, and the parts of a sample."""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from fastdata.bench.harness import running, settle, stream, table
from fastdata.bench.loaders import BATCH, CROP, find_task, random_box
from fastdata.bench.parts import measure_parts
from fastdata.data.dataset import SlotDataset, Timing
from fastdata.errors import FastDataError
from fastdata.gpu.copies import Copier
from fastdata.loader.direct import is_direct
from fastdata.loader.loader import Loader
from fastdata.prepare.functions import prep
from fastdata.sources.base import read_source
from fastdata.sources.listing import list_sources
from fastdata.store.files import is_store
from fastdata.system.machine import available_cores
from fastdata.system.torch_private import pytree
from fastdata.words import number_of

__all__ = ["Diagnosis", "doctor", "examine"]

TOTAL_S = 15.0  # what the seconds below add up to, about
RATE_S, PARTS_S, STEP_S, TOGETHER_S = 1.5, 3.0, 2.3, 2.5
MAX_BATCH = 32  # samples of a batch with which rates are measured
WARMUP = 2  # calls that are not timed: they allocate, choose kernels and compile
PARTS = {"waiting": "waiting for storage", "transform": "transform, other"}  # titles that are not the name
MEANING = {
    "storage": "the loop waits for the disk, or whatever else samples are read from",
    "CPU": "the loop waits for batches, which cost CPU time to make",
    "loader": "the loop waits for batches",
    "model": "the step and its copy to the device are the limit, and batches are there in time",
}
RESIZED = 256 / 224  # side of the stored images of a folder to that of the crops
SAMPLES = 300  # of a folder that are prepared
MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


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
        step_s: seconds to copy a batch that is there to the device, and of a step on it, for a sample; None: no step.
        together: samples/s of the loader and the step together; None: no step.
        prepared: samples/s of the Loader on a part of the same images that was prepared; None: not measured.
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

    @property
    def limit(self) -> str:
        """What is the slowest alone: "storage"; "CPU", which makes batches; "loader", which is one of these, if the parts are
        unknown; or "model", with the copy to its device."""
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
    """Measure the loader alone, with several numbers of workers, the parts of a sample, the copy of a batch to the device with
    a step of the model on it, and then the loader and the step together.

    Samples are drawn at random, in new workers and at the end in this process. A step really trains: it draws random numbers,
    updates statistics and, if it steps an optimizer, weights. So give it a model that can be thrown away.

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
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"doctor measures a DataLoader, a Loader or another iterable of batches, found a {type(loader).__name__}")
    unit, cores = seconds / TOTAL_S, available_cores()
    known = isinstance(loader, Loader | DataLoader)
    dataset: Any = loader.dataset if known else None
    device = torch.device(device or getattr(loader, "device", None) or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = None if step is None else _training(step, device)
    remade = known and not is_direct(dataset)
    workers = loader.num_workers if remade else 0
    rates = {}
    for count in sorted({1, 2, cores, workers} - {0} if remade else (), reverse=True):
        rates[count] = _loader_rate(loader, count, RATE_S * unit)
    with _running(loader, workers, _batch_size(loader)) as batches:
        batch = next(batches)
        size = _count(batch, _batch_size(loader))
        settle()  # workers make batches ahead

        step_s = together = None
        if run is not None:

            def steps(over: Iterable[Any]) -> Iterator[int]:
                for each in over:
                    run(Copier(device, pin=False).start(each).take())
                    if device.type == "cuda" and over is not batches:  # beside the loader, it goes on while the next batch comes
                        torch.cuda.synchronize(device)
                    yield _count(each, size)

            step_s = 1 / _rate(steps(repeat(batch)), WARMUP, STEP_S * unit)
            together = _rate(steps(batches), _ahead(loader, workers), TOGETHER_S * unit)
    rates[0] = _loader_rate(loader, 0, RATE_S * unit)  # last, when no workers are forked any more, which would share open files
    return Diagnosis(
        subject=type(loader).__name__ if dataset is None else f"{type(loader).__name__} of {type(dataset).__name__}",
        samples=len(dataset) if hasattr(dataset, "__len__") else None,
        batch_size=size,
        workers=workers,
        cores=cores,
        parts=_parts(loader, PARTS_S * unit),
        rates=dict(sorted(rates.items())),
        step_s=step_s,
        together=together,
    )


def _loader_rate(loader: Any, workers: int, seconds: float) -> float:
    """Return samples/s of a loader alone, made again with so many workers and smaller batches."""
    size = min(_batch_size(loader), MAX_BATCH)
    with _running(loader, workers, size) as batches:
        return _rate((_count(batch, size) for batch in batches), _ahead(loader, workers), seconds)


def _rate(counts: Iterator[int], ahead: int, seconds: float) -> float:
    run = stream(counts, ahead, seconds)
    return run.images / run.seconds


def _training(step: Any, device: torch.device) -> Callable[[Any], Any]:
    """Return a step of training as a function of a batch."""
    if callable(step):
        return step  # type: ignore[no-any-return]
    if not isinstance(step, tuple | list) or len(step) != 2 or not isinstance(step[0], nn.Module):
        raise TypeError(f"a step is a function of a batch, or (model, loss_fn); found {step!r:.100}")
    model, loss_fn = step
    model.to(device)

    def train(batch: Any) -> None:
        result = loss_fn(model, batch)
        (result[0] if isinstance(result, tuple | list) else result).sum().backward()
        model.zero_grad(set_to_none=True)

    return train


@contextmanager
def _running(loader: Any, workers: int, size: int) -> Iterator[Iterator[Any]]:
    """Yield batches without end, of samples drawn at random, which so many workers make."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, on purpose
        with running(_remade(loader, workers, size)) as batches:
            yield batches


def _remade(loader: Any, workers: int, size: int) -> Any:
    """Return a loader like this one, with so many workers and samples in a batch; another iterable as it is."""
    if isinstance(loader, Loader):
        return Loader(
            loader.dataset,
            min(size, len(loader.dataset)),
            shuffle=True,
            seed=workers,  # other samples for each
            num_workers=workers,
            prefetch_factor=loader.prefetch_factor,
            collate_fn=loader.collate_fn,
            device=loader.device,
            pin_memory=loader.pin_memory,
            backend=loader.backend,
            rank=0,
            world_size=1,
        )
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
        None if loader.batch_sampler is None else size,  # or its items are batches
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


def _ahead(loader: Any, workers: int) -> int:
    """Return how many batches may be ready before a clock starts."""
    return 1 + workers * ((getattr(loader, "prefetch_factor", None) or 2) + 1)


def _count(batch: Any, default: int) -> int:
    """Return the number of samples of a batch; `default` if it holds no tensors that tell."""
    if (valid := getattr(batch, "valid", None)) is not None:
        return int(valid)
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim), default)


def _parts(loader: Any, seconds: float) -> dict[str, float]:
    """Return the seconds of the parts of a sample, made in this process; empty if they cannot be told."""
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
        rows = [[PARTS.get(name, name), f"{1e3 * s:.3f}", f"{s / whole:.0%}"] for name, s in found.parts.items()]
        yield from table(["part of a sample, in one process", "ms", "share"], rows)
    yield ""
    names = {number: f"{number}{'  <- yours' * (number == found.workers)}" for number in found.rates}
    yield from table(["workers", "loader alone, samples/s"], [[names[k], f"{rate:,.0f}"] for k, rate in found.rates.items()])
    yield ""
    if found.prepared is not None:
        yield f"prepared, in the Loader with as many workers: {found.prepared:,.0f} samples/s"
    if found.step_s is not None:
        yield f"step alone, on one batch: {1 / max(found.step_s, 1e-12):,.0f} samples/s"
    if found.together is not None:
        yield f"loader and step together: {found.together:,.0f} samples/s"


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
    """Diagnose a store, a SOURCE of images, or a user's loader; see `fastdata doctor --help`.

    Raises:
        ValueError: an option is wrong.
        StoreError: the store holds no images.
    """
    if path is None and loader is None:
        raise ValueError("there is nothing to measure: give a store, a folder of images, or --loader MODULE:FUNCTION")
    if loader is not None and (size or crop or batch_size or workers is not None):
        raise ValueError("--size, --crop, --batch-size and --workers are about a loader that doctor makes: leave them out")
    step = None if model is None else _call(model, "--model")
    if loader is not None:
        return doctor(_call(loader, "--loader"), step, seconds=seconds)
    path, workers = str(path), available_cores() if workers is None else workers
    if is_store(Path(path)):
        return doctor(_loader(path, size, crop, batch_size, workers), step, seconds=seconds)
    images = ImageFiles(path, crop or CROP)
    files: DataLoader[Any] = DataLoader(images, min(batch_size or BATCH, len(images)), shuffle=True, num_workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        made = prep(path, Path(folder, "o.fds"), size=size or round(images.crop * RESIZED), limit=SAMPLES)
        rate = _loader_rate(_loader(str(made.out), None, images.crop, batch_size, workers), workers, seconds / 10)
    found = doctor(files, step, seconds=seconds)
    name = f"ImageFolder in torch's DataLoader, with RandomResizedCrop({images.crop}) and float32"
    return replace(found, subject=name, prepared=rate)


def _call(name: str, option: str) -> Any:
    """Call the function that `name` means, as "module:function", and return its result. The working folder is searched too."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{option} is {name!r}, but must be MODULE:FUNCTION, such as train:make_loader: {error}") from error
    return function()


def _loader(path: str, size: int | None, crop: int | None, batch_size: int | None, workers: int) -> Loader:
    task = find_task(path, size, crop, batch_size)
    return Loader(task.dataset(), task.batch_size, shuffle=True, num_workers=workers)


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """The images of a SOURCE, as torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize
    makes them: float32 [3, crop, crop]. An image that cannot be read is black."""

    def __init__(self, source: str, crop: int) -> None:
        found = list_sources(source)
        self.root, self.crop = found.root, crop
        self.sources = [one for one in found.sources if not one.problem]
        if not self.sources:
            raise FastDataError(f"{source} has no image that can be read, so there is nothing to measure")

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(read_source(self.root, self.sources[index]))).convert("RGB")
        except Exception:  # noqa: BLE001  whatever Pillow raises for a bad file
            image = Image.new("RGB", (self.crop, self.crop))
        top, left, height, width = random_box(image.height, image.width)
        image = image.crop((left, top, left + width, top + height)).resize((self.crop, self.crop), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255).sub_(MEAN).div_(STD), 0
