"""Tips on updates: accumulation, clipping, optimizers, schedules, and leftovers of debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from measuring import LeftOut, Repeat, Setting, Sides, tip
from of_models import batch_of, kept, losses, residual, training
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastdata.optim import cosine, onecycle, scale_lr


@tip(baseline="one batch of 32", tip="Trainer(accumulate=4) with batches of 8", unit="samples")
def accumulate(setting: Setting) -> Iterator[Sides]:
    model = torch.nn.Sequential(nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 10)).to(setting.device)
    images, targets = batch_of(setting, 32)
    model(images)
    parts = list(zip(images.split(8), targets.split(8), strict=True))
    network = residual(setting)
    with training(setting, model, [(images, targets)]) as whole, training(setting, model, parts, accumulate=4) as split:

        def check() -> str:
            for _ in range(3):
                a, b = whole(), split()
                assert abs(a - b) < 1e-3, f"losses {a} and {b}"
            return "equal losses after three updates"

        memory = [kept(lambda b=batch: losses(network, b).mean()) for batch in ((images, targets), parts[0])]
        with (
            training(setting, network, [(images, targets)]) as large,
            training(setting, network, parts, accumulate=4) as small,
        ):
            yield Sides(Repeat(setting, large, 32), Repeat(setting, small, 32), check, {"activations": (memory[0], memory[1])})


@tip(baseline="Trainer()", tip="Trainer(clip_norm=1.0)")
def clip(setting: Setting) -> Iterator[Sides]:
    model, batch = residual(setting), batch_of(setting)
    with training(setting, model, [batch]) as plain, training(setting, model, [batch], clip_norm=1.0) as clipped:
        yield Sides(Repeat(setting, plain), Repeat(setting, clipped))


def many_layers(setting: Setting) -> nn.Sequential:
    """A model whose update is a large part of its step: many weights, little work on each."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(setting.some(40, 4)))).to(setting.device)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, **zero: Any) -> Callable[[], Tensor]:
    def step() -> Tensor:
        optimizer.zero_grad(**zero)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def compared(setting: Setting, make: Callable[[nn.Module, bool], Callable[[], Tensor]], *, rtol: float) -> Sides:
    """Updates of equal models in two ways, which have to make the same losses."""
    steps = [make(many_layers(setting), way) for way in (False, True)]

    def check() -> str:
        for _ in range(3):
            a, b = (step() for step in steps)
            assert torch.allclose(a, b, rtol=rtol), f"losses {a} and {b}"
        return "equal losses of three updates"

    return Sides(*(Repeat(setting, step) for step in steps), check)


@tip(baseline="AdamW, torch's default", tip="AdamW(fused=True), which the Trainer asks for on a GPU")
def fused(setting: Setting) -> Iterator[Sides]:
    x = torch.randn(16, 128, device=setting.device)

    def make(model: nn.Module, fused: bool) -> Callable[[], Tensor]:
        return step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None), x)

    yield compared(setting, make, rtol=1e-3)


@tip(baseline="zero_grad(set_to_none=False)", tip="zero_grad(), which drops the gradients")
def set_to_none(setting: Setting) -> Iterator[Sides]:
    x = torch.randn(16, 128, device=setting.device)

    def make(model: nn.Module, dropped: bool) -> Callable[[], Tensor]:
        return step_of(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), x, set_to_none=dropped)

    yield compared(setting, make, rtol=1e-4)


@tip(baseline="torch.autograd.set_detect_anomaly(True)", tip="off")
def anomaly(setting: Setting) -> Iterator[Sides]:
    x = torch.randn(16, 128, device=setting.device)

    def make(model: nn.Module, off: bool) -> Callable[[], Tensor]:
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=1e-3), x)

        def run() -> Tensor:
            with torch.autograd.set_detect_anomaly(not off):
                return step()

        return run

    yield compared(setting, make, rtol=1e-4)


@tip(baseline="losses kept with their graphs", tip="losses kept with detach()")
def detach(setting: Setting) -> Iterator[Sides]:
    model, batch = residual(setting), batch_of(setting)

    def collected(*, detached: bool) -> list[Tensor]:
        found = [losses(model, batch).mean() for _ in range(8)] if not detached else []
        while len(found) < 8:
            found.append(losses(model, batch).mean().detach())
        return found

    memory = (kept(lambda: collected(detached=False)), kept(lambda: collected(detached=True)))
    yield Sides(amounts={"activations after 8 batches": memory})


# Tips that are about how well a number of samples trains


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's handwritten digits: 1,297 to train, 500 to test."""
    if find_spec("sklearn") is None:
        raise LeftOut("needs pip install scikit-learn")
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[rows]).float().div(16)[:, None]
    targets = torch.from_numpy(data.target[rows])
    return (images[:-500], targets[:-500]), (images[-500:], targets[-500:])


def error_of(seed: int, batch: int, epochs: int, optimizer: Callable[[Any], torch.optim.Optimizer], rates: Any = None) -> float:
    """The share of wrong answers, in percent, after training a small network from a seed."""
    (images, targets), (test_images, test_targets) = digits()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    made = optimizer(model.parameters())
    total = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, rates.over(total) if rates else lambda _: 1.0)
    for _ in range(epochs):
        for rows in torch.randperm(len(images))[: len(images) // batch * batch].split(batch):
            made.zero_grad()
            cross_entropy(model(images[rows]), targets[rows]).backward()
            made.step()
            schedule.step()
    with torch.inference_mode():
        return float((model(test_images).argmax(1) != test_targets).float().mean() * 100)


Optimizer = Callable[[Any], torch.optim.Optimizer]
Training = Callable[[int, int], float]  # (seed, epochs) -> test error


def errors(setting: Setting, baseline: Training, other: Training) -> Sides:
    """Compare the errors after ten epochs, for seven seeds."""
    seeds, epochs = (1, 1) if setting.quick else (7, 10)
    return Sides(scores={"test error, %": [(baseline(seed, epochs), other(seed, epochs)) for seed in range(seeds)]})


def best(setting: Setting, rates: Sequence[float], with_rate: Callable[[float], Training]) -> Training:
    """Return the training with the best of some rates, as found with two other seeds."""
    if setting.quick:
        return with_rate(rates[0])
    trainings = [with_rate(rate) for rate in rates]
    return min(trainings, key=lambda training: sum(training(seed, 10) for seed in (100, 101)))


def sgd(lr: float) -> Optimizer:
    return lambda weights: torch.optim.SGD(weights, lr=lr, momentum=0.9)


def train(batch: int, optimizer: Optimizer, rates: Any = None) -> Training:
    return lambda seed, epochs: error_of(seed, batch, epochs, optimizer, rates)


@tip(baseline="10 epochs of a constant rate, the best of four", tip="onecycle() up to the best of four rates", where="host")
def schedules(setting: Setting) -> Iterator[Sides]:
    rates = (0.02, 0.05, 0.1, 0.2)
    constant = best(setting, rates, lambda rate: train(32, sgd(rate)))
    yield errors(setting, constant, best(setting, rates, lambda rate: train(32, sgd(rate), onecycle())))


@tip(baseline="batches of 256 with the rate for 32", tip="with scale_lr and cosine(warmup=4)", where="host")
def scaled_rate(setting: Setting) -> Iterator[Sides]:
    scaled = sgd(scale_lr(0.02, 256, base=32))
    yield errors(setting, train(256, sgd(0.02)), train(256, scaled, cosine(warmup=4)))


@tip(baseline="batches of 648, SGD with the best of four rates", tip="Lamb with the best of four rates", where="host")
def lamb(setting: Setting) -> Iterator[Sides]:
    if find_spec("pytorch_optimizer") is None:
        raise LeftOut("needs pip install '.[optimizers]'")
    from pytorch_optimizer import Lamb

    def lamb_with(rate: float) -> Optimizer:
        return lambda weights: Lamb(weights, lr=rate)

    warm = cosine(warmup=1 if setting.quick else 4)
    plain = best(setting, (0.1, 0.2, 0.4, 0.8), lambda rate: train(648, sgd(rate), warm))
    yield errors(setting, plain, best(setting, (0.02, 0.05, 0.1, 0.2), lambda rate: train(648, lamb_with(rate), warm)))
