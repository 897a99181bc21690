"""What is left on from debugging, kept graphs and empty_cache() in the loop are said, once; a run without them hears nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD

from training import Batch, cut, data, net, summed, trainer

SGD_OF = partial(SGD, lr=0.1)
BATCHES: list[Batch] = cut(data(40, torch.float32), (4,) * 10)


def said(context: AbstractContextManager[Any] | None = None, loss_fn: Callable[..., Any] = summed, **options: Any) -> list[str]:
    """The warnings of a run of two epochs."""
    run = trainer(net(torch.float32), SGD_OF, loss_fn, **options)
    before = torch.cuda.empty_cache
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if context is None:
            run.fit(BATCHES, epochs=2)
        else:
            with context:
                run.fit(BATCHES, epochs=2)
    assert torch.cuda.empty_cache is before, "nothing of torch stays changed"
    assert {warning.filename for warning in caught if "Anomaly Detection" not in str(warning.message)} <= {__file__}
    return [str(warning.message) for warning in caught if "Anomaly Detection" not in str(warning.message)]  # torch's own


@contextmanager
def deterministic(cudnn: bool) -> Iterator[None]:
    try:
        if cudnn:
            torch.backends.cudnn.deterministic = True
        else:
            torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


SWITCHES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "anomaly": (torch.autograd.detect_anomaly, "anomaly detection is on"),
    "autograd's profiler": (torch.autograd.profiler.profile, "a profiler is on"),
    "torch.profiler": (torch.profiler.profile, "a profiler is on"),
    "deterministic": (lambda: deterministic(cudnn=False), "a deterministic mode is on"),
    "cudnn.deterministic": (lambda: deterministic(cudnn=True), "a deterministic mode is on"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", SWITCHES)
def test_what_was_left_on_is_said_once(name):
    context, text = SWITCHES[name]
    found = said(context())
    assert len(found) == 1 and found[0].startswith(text) and "the run is slower" in found[0]


def test_a_usual_run_hears_nothing(tmp_path):
    """It keeps numbers and detached tensors, and the last loss as it is."""
    kept = list[Any]()

    def loss_fn(model: Any, batch: Batch) -> Any:
        loss, count = summed(model, batch)
        kept[:] = [*kept[:-1], loss.detach(), loss.item(), loss]
        return loss, count

    torch.cuda.empty_cache()
    assert said(None, loss_fn, accumulate=2, ema=0.9, clip_norm=1.0) == [] == said(None, precision="bf16")
    assert said(None, profile=2, dir=tmp_path) == [], "its own profiler is meant"


def kept(what: str) -> tuple[Callable[..., Any], list[Any]]:
    """A loss function that collects something with its graph."""
    found = list[Any]()

    def loss_fn(model: Any, batch: Batch) -> Any:
        outputs = model(batch[0])
        loss, count = summed(lambda _: outputs, batch)
        found.append({"losses": loss, "outputs": outputs, "sums of outputs": {"sum": outputs.sum()}}[what])
        return loss, count

    return loss_fn, found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["losses", "outputs", "sums of outputs"])
def test_kept_graphs_are_said_once(what):
    loss_fn, found = kept(what)
    texts = said(None, loss_fn)
    assert len(found) == 20 and len(texts) == 1 and "memory grows with every batch. Collect loss.detach()" in texts[0]


def test_a_hook_that_collects_what_has_a_graph_is_seen_too():
    collected, last = list[Any](), list[Any]()

    def loss_fn(model: Any, batch: Batch) -> Any:
        last[:] = summed(model, batch)
        return last

    texts = said(None, loss_fn, hooks={"step": lambda run: collected.append(last[0])})
    assert len(texts) == 1 and "Collect loss.detach()" in texts[0]


@pytest.mark.parametrize("where", ["hook", "loss function"])
def test_empty_cache_in_the_loop_is_said_once(where):
    def loss_fn(model: Any, batch: Batch) -> Any:
        torch.cuda.empty_cache()
        return summed(model, batch)

    options: Any = {"hooks": {"step": lambda run: torch.cuda.empty_cache()}} if where == "hook" else {"loss_fn": loss_fn}
    texts = said(None, **options)
    assert len(texts) == 1 and texts[0].startswith("torch.cuda.empty_cache() is called in the loop")


def test_empty_cache_once_an_epoch_is_fine():
    assert said(None, hooks={"epoch": lambda run, record: torch.cuda.empty_cache()}) == []


def test_a_loop_of_ones_own_that_is_left_early_leaves_torch_as_it_was():
    before = torch.cuda.empty_cache
    run = trainer(net(torch.float32), SGD_OF)
    for update in run.steps(BATCHES):
        if update == 2:
            break
    run.close()
    assert torch.cuda.empty_cache is before
