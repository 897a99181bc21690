"""A run of which no update can be applied ends with the likely causes, instead of going on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from fastdata.errors import FastDataError
from training import Batch, Switch, cut, data, net, summed, trainer, values

OPTIMIZERS = {"sgd": partial(SGD, lr=0.1), "fused adamw": partial(AdamW, lr=0.1, fused=True)}
BATCHES: list[Batch] = cut(data(400, torch.float32), (4,) * 100)


def spoilt(batches: list[Batch]) -> list[Batch]:
    return [(x * torch.nan, y) for x, y in batches]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_fifty_in_a_row_end_a_run_at_the_next_line_of_the_log(make):
    """Ten are fine; then the inputs are not."""
    model, seen = net(torch.float32), list[torch.Tensor]()
    callbacks = {"step": lambda run: seen.append(values(model))}
    run = trainer(model, make, log_every=20, callbacks=callbacks)
    with pytest.raises(FastDataError, match=r"(?s)the last 50 updates were all skipped.*the loss is nan") as caught:
        run.fit(BATCHES[:10] + spoilt(BATCHES), epochs=1)
    assert run.update == 60 and torch.equal(values(model), seen[9])
    text = str(caught.value)
    assert (
        all(cause in text for cause in ("inputs", "rate that is too high, which is 0.1", "set_detect_anomaly"))
        and "bf16" not in text
    )


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
        trainer(net(torch.float32), OPTIMIZERS["sgd"], precision="fp16").fit(spoilt(BATCHES), epochs=1)
