"""Losses and outputs that are collected with their graphs are said, once; a run without them hears nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD

from training import Batch, cut, data, net, summed, trainer

SGD_OF = partial(SGD, lr=0.1)
BATCHES: list[Batch] = cut(data(40, torch.float32), (4,) * 10)


def said(loss_fn: Callable[..., Any] = summed, **options: Any) -> list[str]:
    """The warnings of a run of two epochs."""
    run = trainer(net(torch.float32), SGD_OF, loss_fn, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(BATCHES, epochs=2)
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
    assert len(texts) == 1 and "memory grows: collect loss.detach()" in texts[0]
