"""The Trainer on a GPU: no waits between lines of the log, skipped updates, and memory that stays flat."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastdata import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Sample = tuple[Tensor, Tensor]


def samples(count: int = 640, seed: int = 0) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    return [(image, (image.sum() > 0).long()) for image in images]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 2))


def loss_fn(model: Any, batch: Any) -> tuple[Tensor, int]:
    return cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def trainer(**options: Any) -> Trainer:
    optimizer = options.pop("optimizer", partial(torch.optim.AdamW, lr=1e-3))
    return Trainer(model(), options.pop("loss_fn", loss_fn), optimizer, **{"device": "cuda", **options})


def resident(count: int = 20) -> list[Any]:
    images, targets = (torch.stack(parts).cuda() for parts in zip(*samples(32), strict=True))
    return [(images, targets)] * count


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_host_waits_for_nothing_between_lines_of_the_log(precision):
    subject = trainer(precision=precision, accumulate=2, clip_norm=1.0, ema=0.9, log_every=1000)
    subject.fit(resident(20), max_steps=5)  # sets up, and watches the loss function
    steps = subject.steps(resident(100))
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(50):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_without_a_device_the_gpu_is_used_unless_the_model_is_elsewhere():
    subject = trainer(device=None)
    assert subject.device.type == "cuda" == next(subject.model.parameters()).device.type
    subject.fit([tuple(map(torch.stack, zip(*samples(32), strict=True)))] * 2, epochs=1)
    apart = model()
    apart[4].to("cuda")
    assert Trainer(apart, loss_fn, partial(torch.optim.SGD, lr=0.1)).device.type == "cpu"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("fused", [True, False])
def test_an_update_that_is_not_finite_is_skipped(precision, fused):
    subject = trainer(precision=precision, ema=0.5, optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, fused=fused))
    good = resident(1)
    bad = [(torch.full_like(good[0][0], float("inf")), good[0][1])]
    subject.fit(good * 3, max_steps=3)
    weights = [p.detach().clone() for p in subject.model.parameters()]
    averages = [p.detach().clone() for p in subject.ema.model.parameters()]
    states = [value.clone() for state in subject.optimizer.state.values() for value in state.values()]
    subject.fit(bad, max_steps=4)
    assert all(map(torch.equal, weights, subject.model.parameters()))
    assert all(map(torch.equal, averages, subject.ema.model.parameters()))
    now = [value for state in subject.optimizer.state.values() for value in state.values()]
    assert all(map(torch.equal, states, now)) or not fused  # others count the step


def test_memory_stays_flat():
    subject = trainer(ema=0.9, clip_norm=1.0)
    steps = subject.steps(resident(2100))
    for _ in range(100):
        next(steps)
    before = torch.cuda.memory_allocated()
    for _ in range(2000):
        next(steps)
    assert torch.cuda.memory_allocated() <= before
