"""Evaluation in one process: one forward a batch, modes and precision as they were, the order of the set, metrics of each form."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.functional.classification as functional
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score

from fastdata import Loader
from fastdata.errors import FastDataError
from training import cut, data, net, trainer, values

MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
ROWS = (4, 4, 2)


def right(outputs, batch):
    return (outputs.argmax(1) == batch[1]).sum(), len(batch[1])


def test_modes_are_restored_and_each_batch_runs_once():
    model, calls = net().append(nn.Dropout(0.5)), list[bool]()
    model[2].eval()
    model[1].register_forward_hook(lambda module, args, out: calls.append(module.training or torch.is_grad_enabled()))
    run = trainer(model, MOMENTUM, metrics={"top1": right, "again": right})
    before = [m.training for m in model.modules()]
    results = run.evaluate(cut(data(10), (4, 4, 2)))
    assert calls == [False] * 3 and [m.training for m in model.modules()] == before == [True, True, True, False, True]
    x, y = data(10)
    out = net()(x)
    top1 = (out.argmax(1) == y).double().mean().item()
    assert results == pytest.approx({"loss": F.cross_entropy(out, y).item(), "top1": top1, "again": top1}, abs=1e-12)
    torch.testing.assert_close(run.predict(cut((x, y), (4, 6))), out, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == before


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_precision_is_that_of_the_trainer_and_stays_inside_also_when_it_breaks(precision, dtype, outer):
    """In an autocast of the caller's too, in training and in evaluation."""
    seen = list[torch.dtype]()

    def watched(model, batch):
        outputs = model(batch[0])
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs, batch[1], reduction="none")

    model, batches = net(torch.float32), cut(data(8, torch.float32), (4, 4))
    run = trainer(model, MOMENTUM, watched, precision=precision, metrics={"broken": lambda outputs, batch: 1 // 0})
    with torch.autocast("cpu", torch.bfloat16, enabled=outer):
        run.fit(batches, epochs=1)
        with pytest.raises(ZeroDivisionError) as caught:  # the frames live on in it
            run.evaluate(batches)
        found = run.predict(batches)
        assert torch.is_autocast_enabled("cpu") == outer and caught
    assert seen == [dtype] * 3 and model.training
    with torch.autocast("cpu", dtype, enabled=precision != "fp32"), torch.no_grad():
        wanted = torch.cat([model(x) for x, _ in batches]).float()
    assert found.dtype == torch.float32 and torch.equal(found, wanted)


def test_predictions_come_in_the_order_of_the_set_whatever_the_loader_does():
    x, y = data(17)
    with Loader(TensorDataset(x, y), 4, shuffle=True, num_workers=0, seed=3) as loader:
        run = trainer(net(), MOMENTUM)
        torch.testing.assert_close(run.predict(loader), net()(x).detach(), rtol=0, atol=1e-14)
        classes = run.predict(loader, lambda model, batch: model(batch[0]).argmax(1))
    assert torch.equal(classes, net()(x).argmax(1))


@pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])
def test_a_loader_that_gives_nothing_to_evaluate_is_an_error(use):
    run, once_only = trainer(net(), MOMENTUM), iter(cut(data(8), (4, 4)))
    call = partial(run.fit, cut(data(8), (4, 4)), epochs=1) if use == "fit" else getattr(run, use)
    call(once_only)
    if use == "fit":
        assert run.results["loss"] > 0
        call = partial(run.fit, cut(data(8), (4, 4)), epochs=2)
    with pytest.raises(FastDataError, match=r"the loader gave no batches to evaluate: .*; a generator can be read only once"):
        call(once_only)


@pytest.mark.parametrize("shuffle", [False, True])
def test_evaluating_changes_no_weight(tmp_path, shuffle):
    """Nor what a run draws that a hook ends, and that goes on in another."""

    def trained(name, val, at=None):
        torch.manual_seed(0)
        model, rows = net().append(nn.Dropout(0.5)), TensorDataset(*data(18))
        run = trainer(model, MOMENTUM, dir=tmp_path / name, callbacks={"step": lambda run: run.update == at})
        run.fit(DataLoader(rows, 4, shuffle=True), DataLoader(rows, 4, shuffle=shuffle) if val else None, epochs=3, eval_every=2)
        run.predict(DataLoader(rows, 4))
        return values(model)

    trained("evaluated", True, at=7)
    assert torch.equal(trained("evaluated", True), trained("plain", False))


@pytest.mark.parametrize("calls", [0, 2])
def test_metrics_need_the_outputs_of_one_call(calls):
    def loss_fn(model, batch):
        outputs = [model(batch[0]) for _ in range(calls)] or [model[2](model[1](model[0](batch[0])))]
        return F.cross_entropy(outputs[-1], batch[1], reduction="none")

    with pytest.raises(FastDataError, match=f"called the model {calls} times, but metrics need one call"):
        trainer(net(), MOMENTUM, loss_fn, metrics={"top1": right}).evaluate(cut(data(8), (4, 4)))
    assert trainer(net(), MOMENTUM, loss_fn).evaluate(cut(data(8), (4, 4)))["loss"] > 0


@pytest.mark.parametrize(("rows", "warns"), [(5, True), (6, False)])
def test_a_sampler_that_repeats_samples_in_an_evaluation_is_said(rows, warns, recwarn):
    """To have as many on every rank."""
    dataset = TensorDataset(*data(rows))
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0, shuffle=False)
    trainer(net(), MOMENTUM).evaluate(DataLoader(dataset, 2, sampler=sampler))
    assert warns == any("the DistributedSampler repeats 1 of the samples" in str(one.message) for one in recwarn)


# Metrics


SCORES, CLASSES = net()(data(10)[0]).detach(), data(10)[1]
ACCURACY = pytest.approx((SCORES.argmax(1) == CLASSES).double().mean().item())


def evaluated(**metrics: Any) -> dict[str, float]:
    return trainer(net(), MOMENTUM, metrics=metrics).evaluate(cut(data(10), ROWS))


def test_each_form_of_a_function_gives_the_mean_over_all_rows():
    forms = {
        "pair": right,
        "rows": lambda scores, batch: scores.argmax(1) == batch[1],
        "tensor": lambda scores, batch: (scores.argmax(1) == batch[1]).double().mean(),
        "float": lambda scores, batch: (scores.argmax(1) == batch[1]).double().mean().item(),
        "theirs": lambda scores, batch: functional.multiclass_accuracy(scores, batch[1], 3, average="micro"),
    }
    found = evaluated(**forms)
    assert found == {"loss": found["loss"], **dict.fromkeys(forms, ACCURACY)}


def test_what_no_metric_is_or_returns_is_refused():
    for value in (torch.tensor(3), {"a": 1.0}):
        with pytest.raises(TypeError, match=rf"metrics\['top1'\] returned {str(value)[:6]}"):
            evaluated(top1=lambda scores, batch, value=value: value)
    with pytest.raises(TypeError, match=r"MulticlassAccuracy.*a metric is a function, an object"):
        evaluated(acc=MulticlassAccuracy)


def test_a_collection_and_an_object_of_several_numbers_name_each():
    each = [(SCORES.argmax(1) == c)[CLASSES == c].double().mean().item() for c in range(3)]
    both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)})
    run = trainer(net(), MOMENTUM, metrics={"all": both, "classes": MulticlassAccuracy(3, average=None)})
    found = run.evaluate(cut(data(10), ROWS))
    assert run.evaluate(cut(data(10), ROWS)) == found, "each time anew"
    assert [*found] == ["loss", "all/acc", "all/f1", "classes/0", "classes/1", "classes/2"]
    assert found["all/acc"] == ACCURACY and [found[f"classes/{c}"] for c in range(3)] == pytest.approx(each)


def test_a_pair_says_what_an_object_is_updated_with():
    first = (BinaryAUROC(), lambda scores, batch: (scores.softmax(1)[:, 0], (batch["y"] == 0).int()))

    def loss(model: Any, batch: dict[str, Tensor]) -> Any:
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    batches = [{"x": x, "y": y} for x, y in cut(data(10), ROWS)]
    found = trainer(net(), MOMENTUM, loss, metrics={"first": first}).evaluate(batches)
    positive, negative = (SCORES.softmax(1)[chosen, 0] for chosen in (CLASSES == 0, CLASSES != 0))
    assert found["first"] == pytest.approx((positive[:, None] > negative).double().mean().item()), "the area under the curve"
    with pytest.raises(TypeError, match=r"a dict.*pass \(metric, "):
        trainer(net(), MOMENTUM, loss, metrics={"auroc": BinaryAUROC()}).evaluate(batches)
