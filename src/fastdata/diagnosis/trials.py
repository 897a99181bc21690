"""Changes that are tried, since they need no preparing: other arguments of the dataset, and faster steps of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from fastdata.diagnosis.advice import Change
from fastdata.diagnosis.pipeline import Loop
from fastdata.diagnosis.subject import Ours, Subject, probe
from fastdata.diagnosis.training import Step, time_step
from fastdata.images.dataset import ImageDataset
from fastdata.images.records import StoreImages
from fastdata.loader.loader import Loader

__all__ = ["dataset_trials", "rows_of", "step_trials"]


ROUNDS = 3


def dataset_trials(subject: Subject, loop: Loop, rows: Sequence[int], seconds: float) -> Iterator[Change]:
    """Yield what a fastdata dataset of images could do differently with the same store."""
    if not isinstance(subject, Ours) or not isinstance(subject.dataset, ImageDataset) or subject.dataset.views.several:
        return
    dataset, (view,) = subject.dataset, subject.dataset.views.each
    if view.crop is None:
        return
    options = list[tuple[str, str, ImageDataset]]()
    side = max(view.crop.sides(2))
    if view.crop.resizes and view.crop.antialias:
        with suppress(TypeError):  # a crop of the user's own has no such field
            crop: Any = replace(view.crop, antialias=False)  # type: ignore[call-arg]
            title = "resize without antialiasing, which aliases where a crop shrinks"
            options.append((title, f"crop={crop!r}", _with_crop(dataset, crop)))
    if isinstance(dataset._images, StoreImages):
        now, variants = dataset._images.variant, dataset._images.store.manifest.variants
        sizes = {v.size for v in variants if not v.is_mask and v.size is not None and side <= v.size < (now.size or 1 << 30)}
        if sizes:
            size = min(sizes)
            options.append((f"read the stored size {size} in place of {now.name}", f"size={size}", dataset.with_size(size)))
    for title, paste, changed in options:
        made = Ours(Loader(changed, subject.batch_size, num_workers=0))
        _, read = probe(made, rows, seconds / len(options) / 3)  # into memory
        costs = probe(made, rows[:read], seconds / len(options) * 2 / 3)[0].costs()
        after = loop.changed(read=costs.read, decode=costs.decode, resize=costs.resize, transform=costs.transform)
        yield Change(title, f"LMDBDataset(..., {paste})", after, subject.workers, "predicted from samples that were made this way")


def _with_crop(dataset: ImageDataset, crop: Any) -> ImageDataset:
    views = dataset.views
    changed: ImageDataset = dataset.with_crop(crop, hflip=views.hflip, vflip=views.vflip, transform=views.transform)
    return changed


def step_trials(step: Step, batch: Any, device: torch.device, loop: Loop, workers: int, seconds: float) -> Iterator[Change]:
    """Yield faster ways to do the step."""

    def in_bfloat16(inputs: Any) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            step(inputs)

    def with_channels(layout: torch.memory_format) -> Callable[[Any], None]:
        def run(inputs: Any) -> None:
            model.to(memory_format=layout)  # type: ignore[union-attr, call-overload]
            step(inputs)

        return run

    model, turn, how = step.model, seconds / 4 / ROUNDS, "predicted from steps that were timed both ways"
    with suppress(RuntimeError, NotImplementedError):  # an operation has no such kernel
        ratio = _ratio(step, in_bfloat16, batch, device, turn)
        paste = f'with torch.autocast("{device.type}", torch.bfloat16): ...  # or Trainer(..., precision="bf16")'
        yield Change("compute in bfloat16", paste, _faster(loop, ratio), workers, how)
    weights = [weight for weight in model.parameters() if weight.dim() == 4] if model is not None else []
    if not weights or any(weight.is_contiguous(memory_format=torch.channels_last) and weight.shape[1] > 1 for weight in weights):
        return
    try:
        ratio = _ratio(with_channels(torch.contiguous_format), with_channels(torch.channels_last), batch, device, turn)
    finally:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[union-attr, call-overload]
    paste = "model.to(memory_format=torch.channels_last)  # or Trainer(..., channels_last=True)"
    yield Change("store the weights of convolutions with the channels last", paste, _faster(loop, ratio), workers, how)


def _ratio(one: Callable[[Any], Any], other: Callable[[Any], Any], batch: Any, device: torch.device, seconds: float) -> float:
    """Return the time of the other step as a multiple of that of the one, from rounds in which both take turns."""
    times = [[time_step(run, batch, device, seconds)[0] for run in (one, other)] for _ in range(ROUNDS)]
    return median(second / first for first, second in times)


def _faster(loop: Loop, ratio: float) -> Loop:
    return loop.changed(step=ratio * loop.costs.step, step_cpu=ratio * loop.costs.step_cpu)


def rows_of(subject: Subject, most: int) -> list[int]:
    """Draw samples, each at most once."""
    count = subject.samples or most
    return np.random.default_rng(0).choice(count, min(most, count), replace=False).tolist()  # type: ignore[no-any-return]
