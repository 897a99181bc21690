"""Rates and momenta through Schedule are those of a plain loop with torch's schedulers, also after a resume at any point."""

from __future__ import annotations

import copy
import io
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as lrs

from fastdata.optim import cosine, linear, onecycle, scale_lr
from fastdata.train.schedule import Schedule

EPOCHS, UPDATES = 6, 4  # per epoch
TOTAL = EPOCHS * UPDATES
LOSSES = [1.0, 0.9, 0.95, 0.97, 0.96, 0.96]  # of the evaluations: a plateau after the second
EVENTS = [(kind, n) for n in range(EPOCHS) for kind in (*["update"] * UPDATES, "evaluation", "epoch")]
Make = Callable[[Optimizer], Any]


def sgd() -> SGD:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    return SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.03}], lr=1.0, momentum=0.9)


def adam() -> AdamW:
    return AdamW([nn.Parameter(torch.ones(2))], lr=0.01)


# name: how it is made, when torch's documentation or the pair steps it, the optimizer
CASES: dict[str, tuple[Make, str, Callable[[], Optimizer]]] = {
    "lambda": (lambda o: lrs.LambdaLR(o, lambda epoch: 0.95**epoch), "epoch", sgd),
    "multistep": (lambda o: lrs.MultiStepLR(o, [2, 4, 4], gamma=0.1), "epoch", sgd),
    "linear": (lambda o: lrs.LinearLR(o, 0.1, 1.0, 4), "epoch", sgd),
    "cosine": (lambda o: lrs.CosineAnnealingLR(o, EPOCHS, 1e-4), "epoch", sgd),
    "restarts": (lambda o: lrs.CosineAnnealingWarmRestarts(o, 2, 2), "epoch", sgd),
    "restarts, in a pair": (lambda o: (lrs.CosineAnnealingWarmRestarts(o, 2, 2), "update"), "update", sgd),
    "exponential, in a pair": (lambda o: (lrs.ExponentialLR(o, 0.9), "update"), "update", sgd),
    "cyclic": (lambda o: lrs.CyclicLR(o, 0.01, 0.1, 3, scale_fn=lambda x: 0.8**x), "update", sgd),
    "onecycle": (lambda o: lrs.OneCycleLR(o, [0.1, 0.03], TOTAL), "update", sgd),
    "onecycle, in a pair": (lambda o: (lrs.OneCycleLR(o, [0.1, 0.03], TOTAL), "epoch"), "epoch", sgd),
    "onecycle of betas": (lambda o: lrs.OneCycleLR(o, 0.1, TOTAL, three_phase=True, anneal_strategy="linear"), "update", adam),
    "plateau": (lambda o: lrs.ReduceLROnPlateau(o, patience=1, factor=0.3, cooldown=1), "evaluation", sgd),
    "plateau of a maximum": (lambda o: lrs.ReduceLROnPlateau(o, "max", patience=0, min_lr=[1e-3, 1e-2]), "evaluation", sgd),
    "sequential": (lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1, 1.0, 2), lrs.MultiStepLR(o, [1, 2])], [2]), "epoch", sgd),
    "sequential, with a cyclic": (
        lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 5), lrs.CyclicLR(o, 0.01, 0.1, 3)], [5]),
        "update",
        sgd,
    ),
    "chained": (lambda o: lrs.ChainedScheduler([lrs.OneCycleLR(o, 0.1, TOTAL), lrs.ExponentialLR(o, 0.99)], o), "update", sgd),
}
FUNCTIONS: dict[str, tuple[Make, str, Callable[[], Optimizer]]] = {
    "none": (lambda o: None, "never", sgd),
    "function": (lambda o: cosine(TOTAL - 3, warmup=5, final=0.1), "update", sgd),
    "function of numpy": (lambda o: lambda update: np.float32(0.9) ** update, "update", adam),
}


def used(optimizer: Optimizer, events: list[tuple[str, int]], told: Callable[[str, int], None]) -> list[list[float]]:
    """The rates and momenta that each update uses, and those at the end. A scheduler is told the events, with their number."""

    def now() -> list[float]:
        return [float(v) for group in optimizer.param_groups for v in (group["lr"], group.get("momentum") or group["betas"][0])]

    found = []
    for kind, number in events:
        if kind == "update":
            found.append(now())
            optimizer.step()
        told(kind, number)
    return [*found, now()]


def by_hand(made: Any, every: str) -> Callable[[str, int], None]:
    """Step a scheduler as a loop by hand does."""
    scheduler = made[0] if isinstance(made, tuple) else made

    def told(kind: str, number: int) -> None:
        if kind == every:
            scheduler.step(*([LOSSES[number]] if kind == "evaluation" else []))

    return told


def through(schedule: Schedule, update: int = 0) -> Callable[[str, int], None]:
    """Tell a Schedule; the next update is number `update`."""
    updates = itertools.count(update)

    def told(kind: str, number: int) -> None:
        if kind == "update":
            schedule.updated(next(updates))
        elif kind == "evaluation":
            schedule.evaluated({"accuracy": 0.5, "loss": LOSSES[number]})
        else:
            schedule.epoch_ended()

    return told


@pytest.mark.parametrize("name", CASES)
def test_rates_and_momenta_are_those_of_a_plain_loop(name: str) -> None:
    make, every, optimizer = CASES[name]
    reference, own = optimizer(), optimizer()
    expected = used(reference, EVENTS, by_hand(make(reference), every))
    assert len({tuple(row) for row in expected}) > 1
    schedule = Schedule(make(own), own)
    schedule.begin(TOTAL, evaluated=True)
    assert schedule.every == every and used(own, EVENTS, through(schedule)) == expected
    assert schedule.rates() == [group["lr"] for group in own.param_groups]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *FUNCTIONS])
def test_a_resume_at_any_point_goes_on_as_if_nothing_was(name: str) -> None:
    """From a checkpoint's file, whose state can be loaded twice: torch's CyclicLR takes it apart."""
    make, _, optimizer = (CASES | FUNCTIONS)[name]
    own = optimizer()
    whole = used(own, EVENTS, through(Schedule(make(own), own)))
    for k in range(len(EVENTS)):
        first, file = optimizer(), io.BytesIO()
        schedule = Schedule(make(first), first)
        done = used(first, EVENTS[:k], through(schedule))[:-1]
        torch.save((first.state_dict(), schedule.state_dict()), file)
        file.seek(0)
        of_optimizer, of_schedule = torch.load(file, weights_only=True)
        kept = copy.deepcopy(of_schedule)
        for _ in range(2):
            again = optimizer()
            schedule = Schedule(make(again), again)
            again.load_state_dict(of_optimizer)
            schedule.load_state_dict(of_schedule)
            assert of_schedule == kept
            assert done + used(again, EVENTS[k:], through(schedule, len(done))) == whole


def test_a_plateau_sees_the_metric_that_is_named() -> None:
    optimizer = adam()
    schedule = Schedule((lrs.ReduceLROnPlateau(optimizer, "max", patience=0), "accuracy"), optimizer)
    assert (schedule.every, schedule.metric) == ("evaluation", "accuracy")
    for accuracy, rate in ((0.5, 0.01), (0.6, 0.01), (0.6, 0.001)):
        schedule.evaluated({"loss": 0.0, "accuracy": accuracy})
        assert schedule.rates() == [pytest.approx(rate)]
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau needs 'accuracy', found metrics \['loss'\]: pass \(scheduler, METRIC"):
        schedule.evaluated({"loss": 1.0})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: lrs.StepLR(adam(), 3), ValueError, "the StepLR is of another optimizer: give the Trainer"),
        (lambda o: (lrs.StepLR(o, 3), "batch"), ValueError, "second item of scheduler is 'batch', but must be 'update' or"),
        (lambda o: (cosine(3), "epoch"), TypeError, "None, a function, a torch scheduler, or"),
        (lambda o: "cosine", TypeError, "the scheduler is 'cosine': pass"),
        (lambda o: lambda update: math.nan, ValueError, "the factor of the rate in update 0 is nan, but must be a finite number"),
    ],
)
def test_a_wrong_scheduler_is_refused(make: Make, error: type[Exception], message: str) -> None:
    optimizer = adam()
    with pytest.raises(error, match=re.escape(message)):
        Schedule(make(optimizer), optimizer)


# Functions of the update.


def of_torch(make: Make, updates: int) -> list[float]:
    """The rates of updates 0, 1, ... by torch, with rate 1."""
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
    return [rates[0] for rates in used(optimizer, [("update", 0)] * updates, by_hand(make(optimizer), "update"))][:updates]


def close(expected: list[float]) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(total=st.integers(1, 40), final=st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.0]))
def test_cosine_and_linear_are_torchs(total: int, final: float) -> None:
    updates = range(total + 1)
    torchs = of_torch(lambda o: lrs.CosineAnnealingLR(o, total, final), total + 1)
    assert [cosine(total, final=final)(u) for u in updates] == close(torchs)
    if final <= 1:  # torch's LinearLR takes no other
        line = of_torch(lambda o: lrs.LinearLR(o, 1.0, final, total), total + 1)
        assert [linear(total, final=final)(u) for u in updates] == close(line)


@given(total=st.integers(1, 60), peak_at=st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9]), div=st.sampled_from([1.0, 25.0, 100.0]))
def test_onecycle_is_torchs(total: int, peak_at: float, div: float) -> None:
    mine = onecycle(total, peak_at=peak_at, start=1 / div, final=1 / div / 1e4)
    if peak_at * total == 1:  # torch divides by zero
        assert mine(0) == 1.0
    else:
        torchs = of_torch(lambda o: lrs.OneCycleLR(o, 1.0, total, pct_start=peak_at, div_factor=div), total)
        assert [mine(u) for u in range(total)] == close(torchs)
    assert mine(total - 1) == mine(total) == mine(10 * total) == 1 / div / 1e4


def test_formulas_in_numbers() -> None:
    assert [cosine(8, warmup=3)(u) for u in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [linear(6, warmup=1, final=0.5)(u) for u in range(8)] == close([0.5, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5])
    assert scale_lr(0.1, 1024) == pytest.approx(0.4)
    assert scale_lr(1e-3, 64, base=16, rule="sqrt") == pytest.approx(2e-3)
    assert scale_lr(0.3, 32, base=32) == 0.3 == scale_lr(0.3, 32, base=32, rule="sqrt")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cosine(0), "total is 0, but must be a whole number of updates, at least 1"),
        (lambda: cosine(5, warmup=5), "warmup is 5, but must be a whole number of at least 0, below total (5)"),
        (lambda: linear(5, final=-0.1), "final is -0.1, but must be a finite factor of 0 or more"),
        (lambda: scale_lr(0.1, 0), "(batch_size, base) is (0, 256), but must be two whole numbers, at least 1"),
        (lambda: scale_lr(0.1, 8, rule="cube"), "rule is 'cube', but must be 'linear' or 'sqrt'"),
    ],
)
def test_arguments_out_of_range_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
