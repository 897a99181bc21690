"""What a run says of itself: graphs that are collected, once; and an error with the causes where no update can be applied."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from fastdata.errors import FastDataError
from training import Batch, Switch, cut, data, net, summed, trainer, values

OPTIMIZERS = {"sgd": partial(SGD, lr=0.1), "fused adamw": partial(AdamW, lr=0.1, fused=True)}
BATCHES: list[Batch] = cut(data(400, torch.float32), (4,) * 100)
SPOILT: list[Batch] = [(x * torch.nan, y) for x, y in BATCHES]


def said(loss_fn: Callable[..., Any] = summed, **options: Any) -> list[str]:
    """The warnings of a run of two epochs."""
    run = trainer(net(torch.float32), OPTIMIZERS["sgd"], loss_fn, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(BATCHES[:10], epochs=2)
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def test_a_usual_run_hears_nothing():
    """It keeps numbers and detached tensors, and the last loss as it is."""
    kept = list[Any]()

    def loss_fn(model: Any, batch: Batch) -> Any:
        loss, count = summed(model, batch)
        kept[:] = [*kept[:-1], loss.detach(), loss.item(), loss]
        return loss, count

    assert said(loss_fn, accumulate=2, ema=0.9, clip_norm=1.0) == [] == said(precision="bf16")


@pytest.mark.parametrize("what", ["losses", "outputs", "sums of outputs", "losses, in a callback"])
def test_kept_graphs_are_said_once(what):
    collected, last = list[Any](), list[Any]()

    def loss_fn(model: Any, batch: Batch) -> Any:
        outputs = model(batch[0])
        last[:] = loss, count = summed(lambda _: outputs, batch)
        collected.append({"losses": loss, "outputs": outputs, "sums of outputs": {"sum": outputs.sum()}}.get(what))
        return loss, count

    def step(run: Any) -> None:
        if what == "losses, in a callback":
            collected.append(last[0])

    texts = said(loss_fn, callbacks={"step": step})
    assert len(texts) == 1 and "memory grows: keep loss.detach()" in texts[0]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_fifty_in_a_row_end_a_run_at_the_next_line_of_the_log(make):
    """Ten are fine; then the inputs are not."""
    model, seen = net(torch.float32), list[torch.Tensor]()
    callbacks = {"step": lambda run: seen.append(values(model))}
    run = trainer(model, make, log_every=20, callbacks=callbacks)
    with pytest.raises(FastDataError, match=r"(?s)the last updates, 50 in a row, were skipped.*the loss is nan") as caught:
        run.fit(BATCHES[:10] + SPOILT, epochs=1)
    assert run.update == 60 and torch.equal(values(model), seen[9])
    text = str(caught.value)
    assert "bf16" not in text and all(cause in text for cause in ("inputs", "too high (0.1; lower", "set_detect_anomaly"))


def test_updates_that_are_skipped_now_and_then_end_nothing():
    """One of 49 is applied."""
    model, skipped = net(torch.float32), list[int]()
    switch = Switch(model[0].weight)
    switch.on = True

    def step(run: Any) -> None:
        switch.on = run.update % 49 != 0

    callbacks = {"step": step, "epoch": lambda run, record: skipped.append(record["skipped"])}
    trainer(model, OPTIMIZERS["sgd"], log_every=3, callbacks=callbacks).fit(BATCHES, epochs=2)
    assert sum(skipped) == 200 - 199 // 49


def test_a_gradient_alone_and_weights_that_are_not_finite_are_told_apart():
    model = net(torch.float32)
    Switch(model[0].weight).on = True
    with pytest.raises(FastDataError, match=r"\(the loss is 1") as caught:
        trainer(model, OPTIMIZERS["sgd"]).fit(BATCHES[:5], epochs=1)
    assert "finite themselves" not in str(caught.value)
    model = net(torch.float32)
    with torch.no_grad():
        model[2].bias[1] = torch.inf
    with pytest.raises(FastDataError, match=r"not finite themselves: 2\.bias;"):
        trainer(model, OPTIMIZERS["sgd"]).fit(BATCHES[:5], epochs=1)


def test_fp16_finds_its_scale_and_is_named_where_it_is_too_narrow():
    def loss_fn(factor: float, model: Any, batch: Batch) -> Any:
        losses, count = summed(model, batch)
        return losses * factor, count

    run = trainer(net(torch.float32), OPTIMIZERS["sgd"], partial(loss_fn, 2.0**20), precision="fp16", clip_norm=1.0)
    run.fit(BATCHES, epochs=1)
    assert run.state_dict()["scaler"]["scale"] < 2.0**8, "it was found after some skipped updates"
    with pytest.raises(FastDataError, match=r"65,504.*precision='bf16'"):
        trainer(net(torch.float32), OPTIMIZERS["sgd"], precision="fp16").fit(SPOILT, epochs=1)
