"""What `fit` refuses before it begins, since it would go wrong hours later; and the totals that it gives to schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from fastdata import Batch as LoaderBatch
from fastdata import Loader, Trainer
from fastdata.errors import FastDataError, LoaderError
from fastdata.optim import cosine, linear, onecycle
from fastdata.system.torch_private import end_kept_workers, pytree
from training import Batch, cut, data, net, trainer


def test_a_schedule_that_ends_before_the_run():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer, scheduler=OneCycleLR(optimizer, max_lr=0.1, total_steps=5), accumulate=2)
    batches = cut(data(12), (4, 4, 4))
    with pytest.raises(ValueError, match="total_steps"):
        run.fit(batches, epochs=3)
    with pytest.raises(ValueError, match="epochs or max_steps"):
        run.fit(batches)
    assert run.update == 0
    run.fit(batches, epochs=3, max_steps=5)
    assert run.update == 5


class Unsized:
    """Three batches an epoch, and no len()."""

    batches = cut(data(12), (4, 4, 4))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def rates(scheduler: Any, batches: Any, accumulate: int = 1, ends: Any = (None,), **options: Any) -> list[float]:
    """The rate that each update of a run is made with, of 1.0. The run ends after each of these updates, and another goes on."""
    seen, state = list[float](), None
    for end in ends:
        model = net()
        optimizer = SGD(model.parameters(), lr=1.0)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        callbacks = {"step": lambda run, end=end: run.update == end}
        run = trainer(model, optimizer, scheduler=scheduler, accumulate=accumulate, callbacks=callbacks)
        if state is not None:
            run.load_state_dict(state)
        run.fit(batches, **options)
        state = run.state_dict()
    return seen


SIZED, UNSIZED = cut(data(18), (4, 4, 4, 4, 2)), Unsized()
RUNS: dict[str, tuple[Any, int, dict[str, Any], int]] = {  # its batches, accumulate, arguments of fit, updates
    "15 batches": (SIZED, 1, {"epochs": 3}, 15),
    "9 of 15 batches, accumulated": (SIZED, 2, {"epochs": 3}, 9),
    "cut short": (SIZED, 1, {"epochs": 3, "max_steps": 7}, 7),
    "no epochs": (SIZED, 2, {"max_steps": 8}, 8),
    "no len": (UNSIZED, 1, {"max_steps": 8}, 8),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing was trained")  # by a run that is resumed at its end
@pytest.mark.parametrize(("batches", "accumulate", "options", "total"), RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("make", [cosine, linear, onecycle], ids=lambda make: make.__name__)
def test_the_total_of_a_schedule_comes_from_the_run(make, batches, accumulate, options, total):
    expected = [make(total)(update) for update in range(total)]
    for scheduler, ends in ((make(), (None,)), (make(total), (None,)), (make(), (3, None)), (make(), (3, total - 1, None))):
        assert rates(scheduler, batches, accumulate, ends, **options) == expected


@pytest.mark.parametrize("total", [5, 100])
@pytest.mark.parametrize("make", [cosine, linear, onecycle])
def test_a_total_that_does_not_fit_is_refused_with_both_numbers(make, total):
    model = net()
    run = trainer(model, SGD(model.parameters(), lr=0.1), scheduler=make(total), accumulate=2)
    with pytest.raises(ValueError, match=rf"{make.__name__}\(total={total}, .*fit makes 9 updates.*leave total out"):
        run.fit(SIZED, epochs=3)
    assert run.update == 0


def test_a_run_of_unknown_length_needs_a_total():
    with pytest.raises(ValueError, match=r"cosine\(.*no len\(\): pass max_steps"):
        rates(cosine(), UNSIZED, epochs=3)
    assert rates(linear(9), UNSIZED, epochs=3) == [linear(9)(update) for update in range(9)]


def recorded(**options: Any) -> tuple[Trainer, list[Any]]:
    """A Trainer, and the rows of the batches that it has seen."""
    seen = list[Any]()

    def loss_fn(model: Any, batch: Any) -> Any:
        seen.append(batch[0][:, 0].tolist())
        return model(batch[0]).sum(1)

    return Trainer(torch.nn.Linear(3, 2), loss_fn, partial(SGD, lr=0.01), **options), seen


def test_a_pass_that_was_left_goes_on_with_the_next_batch():
    """Of our Loader and of any other iterable; in another call of fit, and in a loop over steps."""

    def ids(plan: Any, batches: Any) -> list[Any]:
        run, seen = recorded(accumulate=2)
        plan(run, batches)
        return seen

    def broken(run: Any, batches: Any) -> None:
        while run.epoch < 2:
            for update in run.steps(batches):
                if update % 2 == 0:
                    break

    rows = TensorDataset(torch.arange(20.0)[:, None].expand(20, 3))
    for batches in (lambda: Loader(rows, 3, shuffle=True, num_workers=0), lambda: DataLoader(rows, 3)):
        whole = ids(lambda run, batches: run.fit(batches, epochs=2), batches())
        assert whole == ids(broken, batches())
        assert whole == ids(lambda run, batches: [run.fit(batches, epochs=2, max_steps=k) for k in (2, 3, 99)], batches())


@pytest.mark.parametrize("stop", [2, 7, 5])
def test_workers_that_persist_do_not_change_what_a_resumed_run_sees(stop):
    """In the first epoch, in the second, where the iterator that torch keeps draws no seed, and between them."""
    rows = TensorDataset(torch.arange(10.0)[:, None].expand(10, 3))

    def ids(*ends: int | None) -> list[Any]:
        found, state = list[Any](), None
        torch.manual_seed(0)
        for end in ends:
            run, seen = recorded(callbacks={"step": lambda run, end=end: run.update == end})
            if state is not None:
                run.load_state_dict(state)
            loader = DataLoader(rows, 2, shuffle=True, num_workers=1, persistent_workers=True)
            run.fit(loader, epochs=2)
            state = run.state_dict()
            found += seen
            end_kept_workers(loader)
        return found

    assert ids(stop, None) == ids(None)


@pytest.mark.parametrize(("claimed", "used", "says"), [(3, 3, "gave more batches"), (5, 5, None), (7, 5, "gave only 5")])
def test_a_len_that_is_wrong_is_said(claimed, used, says, recwarn):
    run = trainer(net(), partial(SGD, lr=0.1))
    run.fit(type("Claimed", (Unsized,), {"batches": SIZED, "__len__": lambda self: claimed})(), epochs=1)
    assert run.update == used
    texts = [str(one.message) for one in recwarn if "len()" in str(one.message)]
    assert len(texts) == bool(says) and all(f"len() is {claimed}, but it {says}" in text for text in texts)


@pytest.mark.parametrize("change", [lambda rows: torch.cat([rows, rows]), lambda rows: rows[:1]])
def test_batches_whose_rows_a_function_changed_are_counted(change):
    batches = [pytree.tree_map(change, LoaderBatch.of(batch, 4, np.arange(4), (0, 4))) for batch in cut(data(8), (4, 4))]
    assert batches[0].valid is None
    run = trainer(net(), partial(SGD, lr=0.1))
    run.fit(batches, epochs=1)
    assert run.evaluate(batches)["loss"] > 0


@dataclass
class Named:
    """A container that is neither a tuple nor a mapping. The Loader says how many of its rows count."""

    x: torch.Tensor
    valid: int | None = None
    ids: Any = None


def test_repeated_rows_of_an_unknown_container_are_an_error():
    run = Trainer(torch.nn.Linear(3, 2), lambda model, batch: model(batch.x).sum(1), partial(SGD, lr=0.1))
    assert run.evaluate([Named(torch.ones(2, 3))])["loss"]
    with pytest.raises(FastDataError, match="2 rows, 1 are repeats, which cannot be cut from a Named"):
        run.evaluate([Named(torch.ones(2, 3), 1, np.arange(2))])
    with pytest.raises(FastDataError, match=r"4 rows, 1 are repeats, which cannot be cut from a Tensor of length 20.*drop_last"):
        run.fit([LoaderBatch.of((torch.ones(4, 3), torch.ones(20)), 3, np.arange(4), (0, 4))], epochs=1)
    options = {"num_workers": 0, "rank": 1, "world_size": 2}
    with Loader(TensorDataset(torch.ones(3, 3)), 2, collate_fn=Named, **options) as loader:
        assert [(batch.valid, len(batch.ids)) for batch in loader] == [(1, 2)]
    with (
        Loader(TensorDataset(torch.ones(3, 3)), 2, collate_fn=len, **options) as loader,
        pytest.raises(LoaderError, match="1 of 2 rows of a batch are repeats, but a int cannot have"),
    ):
        next(iter(loader))
