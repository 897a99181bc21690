"""Training side by side: a model fed by a Loader, and the same model on one batch that never leaves the device."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from part import Setting, Wrong
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastdata import GPUNormalize, Loader, Trainer
from fastdata.bench.harness import Run

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Normalized(nn.Module):
    """Integers in, scores out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.normalize, self.network = GPUNormalize(MEAN, STD, dtype=torch.bfloat16), network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.normalize(images))


class Endless:
    """Epoch after epoch as one, so that a turn may end anywhere."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batches


class Fed:
    """A Trainer and what feeds it.

    Args:
        network: a copy of it is trained.
        batches: a Loader, or a list with one batch.

    Attributes:
        waits: of each turn, the share of its time that the Loader says the host waited for batches.
    """

    def __init__(self, setting: Setting, network: nn.Module, batches: Any, rows: int) -> None:
        self.setting, self.rows = setting, rows
        self.loader = batches if isinstance(batches, Loader) else None
        sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
        self.trainer = Trainer(
            Normalized(copy.deepcopy(network)),
            _loss,
            sgd,
            device=setting.device,
            precision="bf16",
            channels_last=True,
        )
        self.updates = self.trainer.steps(Endless(batches))
        self.waits: list[float] = []

    def measure(self, seconds: float) -> Run:
        """A turn: images and seconds of updates, whose batches were not ready before it began."""
        for _ in range(1 + self._ready()):
            next(self.updates)
        self.setting.wait()
        waited, count, started = self._waited(), 0, time.perf_counter()
        while not count or time.perf_counter() - started < seconds:
            next(self.updates)
            count += 1
        self.setting.wait()
        spent = time.perf_counter() - started
        self.waits.append((self._waited() - waited) / spent)
        return Run(count * self.rows, spent, 0.0)

    def train(self, updates: int) -> None:
        for _ in itertools.islice(self.updates, updates):
            pass

    def finite(self) -> bool:
        """Whether training went well, as far as weights tell."""
        return all(bool(weight.isfinite().all()) for weight in self.trainer.model.parameters())

    def _waited(self) -> float:
        return self.loader.stats().wait_s if self.loader else 0.0

    def _ready(self) -> int:
        return self.loader.num_workers * self.loader.prefetch_factor if self.loader else 0


def _loss(model: nn.Module, batch: Any) -> Tensor:
    images, targets = batch[0], batch[1]
    return cross_entropy(model(images).float(), targets, reduction="none")


def one_batch(loader: Loader, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The first batch of a loader, to stay on the device."""
    images, targets = next(iter(loader))
    return [(images.to(device).clone(), targets.to(device).clone())]


def same(loader: Loader, other: Loader, batches: int) -> None:
    """Check that two loaders deliver the same first batches, to the last bit."""
    for number, (a, b) in enumerate(itertools.islice(zip(loader, other, strict=True), batches)):
        if any(not torch.equal(one.cpu(), two.cpu()) for one, two in zip(a, b, strict=True)):
            raise Wrong(f"batch {number} is not what one process makes on the CPU")
