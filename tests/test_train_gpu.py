"""The Trainer on a GPU: no waits between lines of the log, skipped updates, and memory that stays flat."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from training import data, net, trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_gpu(fused: bool | None = None, **options: Any) -> Any:
    return trainer(net(torch.float32), partial(AdamW, lr=1e-3, fused=fused), device="cuda", **options)


def resident(count: int) -> list[Any]:
    return [tuple(part.cuda() for part in data(32, torch.float32))] * count


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_host_waits_for_nothing_between_lines_of_the_log(precision):
    subject = on_gpu(precision=precision, accumulate=2, clip_norm=1.0, ema=0.9, log_every=1000)
    subject.fit(resident(20), max_steps=5)  # sets up, and watches the loss function
    steps = subject.steps(resident(100))
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(50):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_without_a_device_the_gpu_is_used_unless_the_model_is_elsewhere():
    subject = trainer(net(torch.float32), partial(SGD, lr=0.1), device=None)
    assert subject.device.type == "cuda" == next(subject.model.parameters()).device.type
    subject.fit([data(32, torch.float32)] * 2, epochs=1)
    apart = net(torch.float32)
    apart[2].to("cuda")
    assert trainer(apart, partial(SGD, lr=0.1), device=None).device.type == "cpu"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("fused", [True, False])
def test_an_update_that_is_not_finite_is_skipped(precision, fused):
    subject = on_gpu(fused, precision=precision, ema=0.5)
    good = resident(1)
    bad = [(torch.full_like(good[0][0], torch.nan), good[0][1])]
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
    steps = on_gpu(ema=0.9, clip_norm=1.0).steps(resident(2100))
    for _ in range(100):
        next(steps)
    before = torch.cuda.memory_allocated()
    for _ in range(2000):
        next(steps)
    assert torch.cuda.memory_allocated() <= before
