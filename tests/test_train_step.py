"""Updates are those of one big batch and of a plain loop; what is not finite changes nothing; rates depend on the update only."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from fastdata.errors import FastDataError
from fastdata.optim import cosine
from support import step_of
from training import Switch, cut, data, masked, net, plain, summed, trainer, values

MOMENTUM, ADAM = partial(SGD, lr=0.1, momentum=0.9), partial(AdamW, lr=0.01)
OPTIMIZERS = {"sgd": MOMENTUM, "adamw": ADAM}


# One big batch


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_50_updates_are_bit_for_bit_those_of_a_plain_loop(make):
    batches = DataLoader(TensorDataset(*data(230, torch.float32)), 20)  # 20 divides nothing exactly; the last has 10
    model, reference = net(torch.float32), net(torch.float32)
    trainer(model, make).fit(batches, max_steps=50)
    plain(reference, make(reference.parameters()), (list(batches) * 5)[:50])
    assert torch.equal(values(model), values(reference))
    assert not torch.equal(values(model), values(net(torch.float32)))


@pytest.mark.parametrize("valid", [None, 1, 4])
def test_a_rank_with_nothing_left_in_an_epoch_adds_nothing(valid):
    """It goes through its micro-batches, since the others wait for it to exchange gradients: `valid` of them is 0."""
    batches, model, reference = cut(data(8), (4, 4)), net(), net()
    step = step_of(trainer(model, MOMENTUM))
    step.begin()
    step.add(batches[0], valid=valid, last=False)
    step.add(batches[1], valid=0, last=True)
    step.update()
    plain(reference, MOMENTUM(reference.parameters()), batches[:1])
    assert torch.equal(values(model), values(reference))
    total = summed(net(), batches[0])[0].item()
    assert step.read_totals() == {"losses": pytest.approx(total), "counts": 4, "skipped": 0, "updates": 1}
    assert step.loss().item() == pytest.approx(total / 4)


# Leftovers


def test_gradients_of_before_and_of_an_update_that_broke_are_forgotten():
    batches, model, reference = cut(data(12), (4, 4, 4)), net(), net()
    run = trainer(model, MOMENTUM, accumulate=3)
    summed(model, batches[0])[0].backward()  # as someone does who tries the model first
    with pytest.raises(ZeroDivisionError):
        list(run.steps(batch if k < 2 else 1 // 0 for k, batch in enumerate(batches)))
    list(run.steps(batches))
    plain(reference, MOMENTUM(reference.parameters()), cut(data(12), (12,)))
    assert (values(model) - values(reference)).abs().max() < 1e-12


def test_a_loader_without_batches_is_an_error_instead_of_a_run_without_end():
    run, once = trainer(net(), MOMENTUM), iter(cut(data(8), (4, 4)))
    with pytest.raises(FastDataError, match="no batches"):
        run.fit(once, max_steps=3)
    assert run.update == 2


def test_modules_that_are_frozen_in_eval_mode_stay_so():
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
    model[1].eval()
    run = trainer(model, MOMENTUM)
    run.fit(cut(data(8), (4, 4)), cut(data(4), (4,)), epochs=2)
    assert [m.training for m in model] == [True, False] and torch.equal(model[1].running_mean, torch.zeros(3).double())
    model.eval()
    run.fit(cut(data(8), (4, 4)), epochs=3)
    assert model[1].training, "a model that is in eval mode as a whole is to be trained as a whole"


# What is not finite


FUSED = {
    f"{name}, {kind}": partial(make, fused=kind == "fused") for name, make in OPTIMIZERS.items() for kind in ("fused", "plain")
}


@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize(("precision", "bad"), [("fp32", 2), ("bf16", 0), ("fp16", 0), ("fp16", 2)])
def test_an_infinite_gradient_changes_nothing_and_is_counted(make, precision, bad):
    batches = cut(data(40, torch.float32), (8,) * 5)
    records: list[dict[str, Any]] = []

    def train(batches, bad):
        model = net(torch.float32)
        switch, seen = Switch(model[2].bias), []

        def step(run):
            seen.append((values(model), values(run.ema.model), copy.deepcopy(run.optimizer.state_dict()["state"])))
            switch.on = run.update == bad

        switch.on = bad == 0
        callbacks = {"step": step, "epoch": lambda run, record: records.append(record)}
        run = trainer(model, make, precision=precision, ema=0.9, clip_norm=0.5, callbacks=callbacks)
        run.fit(batches, epochs=1)
        return seen, run

    junk = [torch.full((3, 8), torch.nan) for _ in range(64)]
    del junk  # memory that someone else may get, unset
    found, run = train(batches, bad)
    wanted, other = train(batches[:bad] + batches[bad + 1 :], None)
    torch.testing.assert_close(found[bad + 1 :], wanted[bad:], rtol=0, atol=0)
    if bad:
        torch.testing.assert_close(found[bad], found[bad - 1], rtol=0, atol=0)
    assert [record["skipped"] for record in records] == [1, 0]
    assert records[0]["loss"] == pytest.approx(records[1]["loss"]), "the loss of a skipped update does not count"
    if precision == "fp16":
        scaled, unscaled = (one.state_dict()["scaler"] for one in (run, other))
        assert (scaled["scale"], unscaled["scale"], scaled["_growth_tracker"]) == (32768, 65536, 4 - bad)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_the_clipped_norm_of_fp16_is_the_true_one(limit):
    batch, norms = cut(data(32, torch.float32), (16, 16)), []
    for precision in ("fp32", "fp16"):
        model = net(torch.float32)
        trainer(model, partial(SGD, lr=1.0), precision=precision, clip_norm=limit, accumulate=2).fit(batch, epochs=1)
        norms.append((values(model) - values(net(torch.float32))).norm().item())
    assert norms[0] == pytest.approx(norms[1], rel=5e-3)
    assert norms[0] == pytest.approx(limit, rel=1e-3) if limit < 1 else 0.01 < norms[0] < 10


# The host


class Waits(TorchDispatchMode):
    """Counts the times that the host reads a number from the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make", "precision", "waits_for"),
    [(FUSED["sgd, fused"], "bf16", 0), (FUSED["adamw, fused"], "fp16", 0), (MOMENTUM, "fp16", 1)],
)
def test_between_lines_of_the_log_the_host_waits_for_nothing(make, waits_for, precision):
    counts, batches = list[int](), cut(data(96, torch.float32), (4,) * 24)
    options = {"ema": 0.9, "clip_norm": 1.0, "precision": precision, "scheduler": cosine(20)}
    with Waits() as waits:
        run = trainer(net(torch.float32), make, masked, accumulate=2, log_every=5, **options)
        for _ in run.steps(batches):
            counts.append(waits.count)
    each = [b - a for a, b in pairwise(counts)]  # of updates 2 to 12; the first one may wait
    quiet = [waited for update, waited in enumerate(each, 2) if update % 5]
    assert quiet == [waits_for] * len(quiet)


class Bag(nn.Module):
    """Rows of an embedding, whose gradient is sparse or not."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.out = nn.EmbeddingBag(9, 6, sparse=sparse, dtype=torch.float64), nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, rows: Any) -> Any:
        return self.out(self.bag((rows * 2).long() % 9))


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sparse_gradients_are_those_of_a_dense_embedding(clip_norm, accumulate):
    dense, sparse = Bag(False), Bag(True)
    for model in (dense, sparse):
        trainer(model, partial(SGD, lr=0.1), clip_norm=clip_norm, accumulate=accumulate).fit(cut(data(20), (4,) * 5), epochs=2)
    assert (values(sparse) - values(dense)).abs().max() < 1e-12 < (values(dense) - values(Bag(False))).abs().max()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_update_without_gradients_is_no_error(precision):
    model = net(torch.float32)
    run = trainer(model, SGD(model[0].parameters(), lr=0.1), precision=precision)
    model[0].requires_grad_(False)
    run.fit(cut(data(8, torch.float32), (4, 4)), epochs=1)
    assert run.update == 2 and torch.equal(values(model), values(net(torch.float32)))
