"""What `fit` refuses before it begins, since it would go wrong hours later; and the totals that it gives to schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from fastdata.optim import cosine, linear, onecycle
from training import Batch, cut, data, net, trainer


def test_a_schedule_that_ends_before_the_run():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer, scheduler=OneCycleLR(optimizer, max_lr=0.1, total_steps=5), accumulate=2)
    batches = cut(data(12), (4, 4, 4))
    with pytest.raises(ValueError, match="total_steps"):
        run.fit(batches, epochs=3)
    assert run.update == 0
    run.fit(batches, epochs=3, max_steps=5)
    assert run.update == 5


def test_a_plateau_without_an_evaluation():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer, scheduler=ReduceLROnPlateau(optimizer))
    with pytest.raises(ValueError, match="no val"):
        run.fit(cut(data(8), (4, 4)), epochs=1)
    run.fit(cut(data(8), (4, 4)), cut(data(4), (4,)), epochs=1)
    assert run.epoch == 1


def test_a_run_without_an_end():
    model = net()
    with pytest.raises(ValueError, match="epochs or max_steps"):
        trainer(model, SGD(model.parameters(), lr=0.1)).fit(cut(data(8), (4, 4)))


class Unsized:
    """Three batches an epoch, and no len()."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(cut(data(12), (4, 4, 4)))


def rates(scheduler: Any, batches: Any, accumulate: int = 1, resume: int | None = None, **options: Any) -> list[float]:
    """The rate that each update of a run is made with, of 1.0; resume: end after so many updates, and go on in another Trainer."""
    seen = list[float]()

    def made(hooks: Any) -> Any:
        model = net()
        optimizer = SGD(model.parameters(), lr=1.0)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        return trainer(model, optimizer, scheduler=scheduler, accumulate=accumulate, hooks=hooks)

    first = made({"step": lambda run: run.update == resume})
    first.fit(batches, **options)
    if resume is not None:
        assert first.update == resume
        second = made({})
        second.load_state_dict(first.state_dict())
        second.fit(batches, **options)
    return seen


SIZED, UNSIZED = cut(data(18), (4, 4, 4, 4, 2)), Unsized()
RUNS: dict[str, tuple[Any, int, dict[str, Any]]] = {  # its batches, accumulate, arguments of fit
    "15 batches": (SIZED, 1, {"epochs": 3}),
    "9 of 15 batches, accumulated": (SIZED, 2, {"epochs": 3}),
    "cut short": (SIZED, 1, {"epochs": 3, "max_steps": 7}),
    "no epochs": (SIZED, 2, {"max_steps": 8}),
    "no len": (UNSIZED, 1, {"max_steps": 8}),
}
TOTALS = dict(zip(RUNS, (15, 9, 7, 8, 8), strict=True))


@pytest.mark.filterwarnings("ignore:nothing was trained")  # by a run that is resumed at its end
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("make", [cosine, linear, onecycle], ids=lambda make: make.__name__)
def test_the_total_of_a_schedule_comes_from_the_run(make, run):
    batches, accumulate, options = RUNS[run]
    total = TOTALS[run]
    expected = [make(total)(update) for update in range(total)]
    assert rates(make(), batches, accumulate, **options) == expected
    assert rates(make(total), batches, accumulate, **options) == expected, "a total that fits"
    for update in (3, total - 1):
        assert rates(make(), batches, accumulate, resume=update, **options) == expected


def test_a_run_that_is_made_longer_has_a_new_total():
    optimizer = SGD((model := net()).parameters(), lr=1.0)
    run, seen = trainer(model, optimizer, scheduler=cosine(warmup=1)), list[float]()
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    for epochs in (1, 2):
        run.fit(SIZED, epochs=epochs)
    wanted = [cosine(5, warmup=1), cosine(10, warmup=1)]
    assert seen == [wanted[update > 4](update) for update in range(10)]


@pytest.mark.parametrize("total", [5, 100])
@pytest.mark.parametrize("make", [cosine, linear, onecycle])
def test_a_total_that_does_not_fit_is_refused_with_both_numbers(make, total):
    model = net()
    run = trainer(model, SGD(model.parameters(), lr=0.1), scheduler=make(total), accumulate=2)
    with pytest.raises(ValueError, match=rf"{make.__name__}\(total={total}, .*fit makes 9 updates.*leave total out"):
        run.fit(SIZED, epochs=3)
    assert run.update == 0


def test_a_warm_up_that_is_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="warmup is 500, but must be a whole number of updates below total, 15"):
        rates(cosine(warmup=500), SIZED, epochs=3)


def test_a_run_of_unknown_length_needs_a_total():
    with pytest.raises(ValueError, match=r"cosine\(.*no len\(\): give fit max_steps"):
        rates(cosine(), UNSIZED, epochs=3)
    assert rates(linear(9), UNSIZED, epochs=3) == [linear(9)(update) for update in range(9)]


def test_a_loop_of_ones_own_needs_a_total():
    model = net()
    run = trainer(model, SGD(model.parameters(), lr=0.1), scheduler=cosine(warmup=2))
    with pytest.raises(ValueError, match=r"cosine\(warmup=2, .*no total.*epochs \* updates per epoch"):
        next(run.steps(SIZED))
    assert run.update == 0
