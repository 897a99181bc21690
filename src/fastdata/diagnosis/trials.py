"""Changes that are tried, since they need no preparing: other arguments of the dataset, and faster steps of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastdata.diagnosis.advice import Change
from fastdata.diagnosis.pipeline import Loop
from fastdata.diagnosis.subject import Ours, Subject, probe, tensors_of
from fastdata.diagnosis.training import Step, time_step
from fastdata.images.dataset import ImageDataset
from fastdata.images.records import StoreImages
from fastdata.loader.loader import Loader

__all__ = ["dataset_trials", "first_image", "rows_of", "step_trials"]


def first_image(batch: Any) -> Tensor | None:
    """Return the first images of a batch, [B, C, H, W]; None: it has none."""
    return next((tensor for tensor in tensors_of(batch) if tensor.dim() == 4 and tensor.shape[1] in (1, 3)), None)


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
        parts, _ = probe(Ours(Loader(changed, subject.batch_size, num_workers=0)), rows, seconds / len(options))
        costs = parts.costs()
        after = loop.changed(read=costs.read, decode=costs.decode, resize=costs.resize, transform=costs.transform)
        yield Change(title, f"LMDBDataset(..., {paste})", after, subject.workers, "from samples that were made this way")


def _with_crop(dataset: ImageDataset, crop: Any) -> ImageDataset:
    views = dataset.views
    changed: ImageDataset = dataset.with_crop(crop, hflip=views.hflip, vflip=views.vflip, transform=views.transform)
    return changed


def step_trials(
    step: Step, batch: Any, device: torch.device, loop: Loop, samples: int, workers: int, seconds: float
) -> Iterator[Change]:
    """Yield faster ways to do the step."""

    def after(run: Any) -> Loop:
        step_s, cpu_s = time_step(run, batch, device, seconds / 2)
        return loop.changed(step=step_s / samples, step_cpu=cpu_s / samples)

    def in_bfloat16(inputs: Any) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            step(inputs)

    with suppress(RuntimeError, NotImplementedError):  # an operation has no such kernel
        paste = f'with torch.autocast("{device.type}", torch.bfloat16): ...  # or Trainer(..., precision="bf16")'
        yield Change("compute in bfloat16", paste, after(in_bfloat16), workers, "from steps that were timed this way")
    model = step.model
    if model is None or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return
    weights = [weight for weight in model.parameters() if weight.dim() == 4]
    if weights and not any(weight.is_contiguous(memory_format=torch.channels_last) and weight.shape[1] > 1 for weight in weights):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        yield Change(
            "store weights and images with the channels last",
            "model.to(memory_format=torch.channels_last)  # or Trainer(..., channels_last=True)",
            after(step),
            workers,
            "from steps that were timed this way",
        )
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def rows_of(subject: Subject, most: int) -> list[int]:
    """Draw samples, each at most once."""
    count = subject.samples or most
    return np.random.default_rng(0).choice(count, min(most, count), replace=False).tolist()  # type: ignore[no-any-return]
