"""Rates and momenta through Schedule are those of a plain loop with torch's schedulers, also after a resume at any point."""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as lrs

from fastdata.optim.rates import cosine, linear, onecycle, scale_lr
from fastdata.train.schedule import Schedule

EPOCHS, UPDATES = 6, 4  # per epoch
LOSSES = [1.0, 0.9, 0.95, 0.97, 0.96, 0.96]  # of the evaluations: a plateau after the second


def sgd() -> SGD:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    return SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.03}], lr=1.0, momentum=0.9)


def adam() -> AdamW:
    return AdamW([nn.Parameter(torch.ones(2))], lr=0.01)


Make = Callable[[Optimizer], Any]
TOTAL = EPOCHS * UPDATES
# name: how it is made, when torch's documentation steps it, the optimizer
CASES: dict[str, tuple[Make, str, Callable[[], Optimizer]]] = {
    "lambda": (lambda o: lrs.LambdaLR(o, lambda epoch: 0.95**epoch), "epoch", sgd),
    "multistep": (lambda o: lrs.MultiStepLR(o, [2, 4, 4], gamma=0.1), "epoch", sgd),
    "exponential": (lambda o: lrs.ExponentialLR(o, 0.9), "epoch", sgd),
    "linear": (lambda o: lrs.LinearLR(o, 0.1, 1.0, 4), "epoch", sgd),
    "cosine": (lambda o: lrs.CosineAnnealingLR(o, EPOCHS, 1e-4), "epoch", sgd),
    "restarts": (lambda o: lrs.CosineAnnealingWarmRestarts(o, 2, 2), "epoch", sgd),
    "cyclic-function": (lambda o: lrs.CyclicLR(o, 0.01, 0.1, 3, scale_fn=lambda x: 0.8**x), "update", sgd),
    "onecycle": (lambda o: lrs.OneCycleLR(o, [0.1, 0.03], TOTAL), "update", sgd),
    "onecycle-betas": (lambda o: lrs.OneCycleLR(o, 0.1, TOTAL, three_phase=True, anneal_strategy="linear"), "update", adam),
    "plateau": (lambda o: lrs.ReduceLROnPlateau(o, patience=1, factor=0.3, cooldown=1), "evaluation", sgd),
    "plateau-max": (lambda o: lrs.ReduceLROnPlateau(o, "max", patience=0, min_lr=[1e-3, 1e-2]), "evaluation", sgd),
    "sequential": (
        lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1, 1.0, 2), lrs.MultiStepLR(o, [1, 2])], [2]),
        "epoch",
        sgd,
    ),
    "sequential-per-update": (
        lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 5), lrs.CyclicLR(o, 0.01, 0.1, 3)], [5]),
        "update",
        sgd,
    ),
    "chained-per-update": (
        lambda o: lrs.ChainedScheduler([lrs.OneCycleLR(o, 0.1, TOTAL), lrs.ExponentialLR(o, 0.99)], o),
        "update",
        sgd,
    ),
}


def rates_and_momenta(optimizer: Optimizer) -> list[float]:
    return [float(v) for group in optimizer.param_groups for v in (group["lr"], group.get("momentum") or group["betas"][0])]


def step(optimizer: Optimizer, *, skip: bool = False) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None if skip else torch.ones_like(parameter)
    optimizer.step()


def plain_loop(optimizer: Optimizer, scheduler: Any, every: str, epochs: int = EPOCHS, updates: int = UPDATES) -> list[list[float]]:
    """What a loop by hand uses in each update, and what it ends with."""
    found = []
    for epoch in range(epochs):
        for _ in range(updates):
            found.append(rates_and_momenta(optimizer))
            step(optimizer)
            if every == "update":
                scheduler.step()
        if every == "evaluation":
            scheduler.step(LOSSES[epoch])
        if every == "epoch":
            scheduler.step()
    return [*found, rates_and_momenta(optimizer)]


EVENTS = [(kind, n) for n in range(EPOCHS) for kind in (*["update"] * UPDATES, "evaluation", "epoch")]


def through_schedule(
    schedule: Schedule, events: list[tuple[str, int]], first: int = 0, *, skip: bool = False
) -> Iterator[list[float]]:
    """Yields what each update uses; every third update is skipped, if told."""
    update = first
    for kind, epoch in events:
        if kind == "update":
            yield rates_and_momenta(schedule.optimizer)
            step(schedule.optimizer, skip=skip and update % 3 == 0)
            schedule.updated(update)
            update += 1
        elif kind == "evaluation":
            schedule.evaluated({"accuracy": 0.5, "loss": LOSSES[epoch]})
        else:
            schedule.epoch_ended()
    yield rates_and_momenta(schedule.optimizer)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rates_and_momenta_are_those_of_a_plain_loop(name: str, skip: bool) -> None:
    make, every, optimizer = CASES[name]
    by_hand = optimizer()
    expected = plain_loop(by_hand, make(by_hand), every)
    assert len({tuple(row) for row in expected}) > 1
    own = optimizer()
    schedule = Schedule(make(own), own)
    assert schedule.every == every
    schedule.begin(TOTAL, evaluated=True)
    assert list(through_schedule(schedule, EVENTS, skip=skip)) == expected
    assert schedule.rates() == [group["lr"] for group in own.param_groups]


def saved(schedule: Schedule) -> dict[str, Any]:
    """Optimizer and schedule as a checkpoint file gives them back."""
    file = io.BytesIO()
    torch.save({"optimizer": schedule.optimizer.state_dict(), "schedule": schedule.state_dict()}, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def resumed(make: Make, optimizer: Optimizer, state: Mapping[str, Any]) -> Schedule:
    schedule = Schedule(make(optimizer), optimizer)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return schedule


FUNCTIONS: dict[str, tuple[Make, str, Callable[[], Optimizer]]] = {
    "none": (lambda o: None, "never", sgd),
    "function": (lambda o: cosine(TOTAL - 3, warmup=5, final=0.1), "update", sgd),
    "numpy-function": (lambda o: lambda update: np.float32(0.9) ** update, "update", adam),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *FUNCTIONS])
def test_a_resume_at_any_point_goes_on_as_if_nothing_was(name: str) -> None:
    make, _, optimizer = (CASES | FUNCTIONS)[name]
    own = optimizer()
    whole = list(through_schedule(Schedule(make(own), own), EVENTS))
    for k in range(len(EVENTS)):
        first = optimizer()
        schedule = Schedule(make(first), first)
        done = list(through_schedule(schedule, EVENTS[:k]))[:-1]
        state = saved(schedule)
        kept = copy.deepcopy(state["schedule"])
        for _ in range(2):  # a state can be loaded twice: torch's CyclicLR takes it apart
            again = resumed(make, optimizer(), state)
            assert state["schedule"] == kept
            assert done + list(through_schedule(again, EVENTS[k:], len(done))) == whole


def test_a_pair_overrides_when_a_scheduler_is_stepped() -> None:
    for name, every in (("exponential", "update"), ("onecycle", "epoch"), ("sequential", "update"), ("restarts", "update")):
        make, usual, optimizer = CASES[name]
        assert usual != every
        by_hand, own = optimizer(), optimizer()
        schedule = Schedule((make(own), every), own)
        assert schedule.every == every
        assert list(through_schedule(schedule, EVENTS)) == plain_loop(by_hand, make(by_hand), every)


def test_a_plateau_sees_the_metric_that_is_named() -> None:
    optimizer = adam()
    schedule = Schedule((lrs.ReduceLROnPlateau(optimizer, "max", patience=0), "accuracy"), optimizer)
    assert (schedule.every, schedule.metric) == ("evaluation", "accuracy")
    for accuracy, rate in ((0.5, 0.01), (0.6, 0.01), (0.6, 0.001)):
        schedule.updated(0)
        schedule.evaluated({"loss": 0.0, "accuracy": accuracy})
        schedule.epoch_ended()
        assert schedule.rates() == [pytest.approx(rate)]
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau needs 'accuracy', found \['loss'\]: pass \(scheduler, one"):
        schedule.evaluated({"loss": 1.0})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: lrs.StepLR(adam(), 3), ValueError, "the StepLR is of another optimizer: make it with"),
        (lambda o: (lrs.StepLR(o, 3), "batch"), ValueError, "the pair's second is 'batch', but must be 'update' or 'epoch'"),
        (lambda o: (cosine(3), "epoch"), TypeError, "a pair, a function, or None"),
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
    return [rates[0] for rates in plain_loop(optimizer, make(optimizer), "update", 1, updates)][:updates]


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
        (lambda: cosine(0), "total is 0, but must be a whole number of updates, from 1 on"),
        (lambda: cosine(5, warmup=5), "warmup is 5, but must be a whole number below total, 5"),
        (lambda: linear(5, final=-0.1), "final is -0.1, but must be a factor of the rate from 0 on"),
        (lambda: scale_lr(0.1, 0), "(batch_size, base) is (0, 256), but must be two whole numbers from 1 on"),
        (lambda: scale_lr(0.1, 8, rule="cube"), "rule is 'cube', but must be 'linear' or 'sqrt'"),
    ],
)
def test_arguments_out_of_range_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
