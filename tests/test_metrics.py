"""Metrics of an evaluation: functions in each of their forms, and torchmetrics' objects, on one rank and on two."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchmetrics.functional.classification as functional
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score

from training import cut, data, net, trainer

PLAIN = partial(SGD, lr=0.1)
ROWS = (4, 4, 2)


def evaluated(metrics: Any, **options: Any) -> dict[str, float]:
    return trainer(net(), PLAIN, metrics=metrics, **options).evaluate(cut(data(10), ROWS))


def scores() -> tuple[Tensor, Tensor]:
    x, y = data(10)
    return net()(x).detach(), y


def accuracy() -> float:
    made, y = scores()
    return sum(int(row.argmax()) == int(label) for row, label in zip(made, y, strict=True)) / len(y)


def area(positive: Tensor, negative: Tensor) -> float:
    """Of the curve: how often a positive has the higher score."""
    return (positive[:, None] > negative[None]).double().mean().item()


def test_each_form_of_a_function_gives_the_mean_over_all_rows():
    found = evaluated(
        {
            "pair": lambda scores, batch: ((scores.argmax(1) == batch[1]).sum(), len(batch[1])),
            "rows": lambda scores, batch: scores.argmax(1) == batch[1],
            "tensor": lambda scores, batch: (scores.argmax(1) == batch[1]).double().mean(),
            "float": lambda scores, batch: (scores.argmax(1) == batch[1]).double().mean().item(),
            "theirs": lambda scores, batch: functional.multiclass_accuracy(scores, batch[1], 3, average="micro"),
        }
    )
    assert found == {
        "loss": found["loss"],
        **dict.fromkeys(("pair", "rows", "tensor", "float", "theirs"), pytest.approx(accuracy())),
    }


def test_what_no_metric_is_or_returns_is_refused():
    for value in (torch.tensor(3), {"a": 1.0}):
        with pytest.raises(TypeError, match=rf"metrics\['top1'\] returned {str(value)[:6]}"):
            evaluated({"top1": lambda scores, batch, value=value: value})
    with pytest.raises(TypeError, match=r"MulticlassAccuracy.*a metric is a function, an object"):
        evaluated({"acc": MulticlassAccuracy})


def test_a_collection_and_an_object_of_several_numbers_name_each():
    made, y = scores()
    each = [((made.argmax(1) == c) & (y == c)).sum().item() / (y == c).sum().item() for c in range(3)]
    both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)})
    run = trainer(net(), PLAIN, metrics={"all": both, "classes": MulticlassAccuracy(3, average=None)})
    found = run.evaluate(cut(data(10), ROWS))
    assert run.evaluate(cut(data(10), ROWS)) == found, "each time anew"
    assert [*found] == ["loss", "all/acc", "all/f1", "classes/0", "classes/1", "classes/2"]
    assert found["all/acc"] == pytest.approx(accuracy())
    assert [found[f"classes/{c}"] for c in range(3)] == pytest.approx(each)
    assert evaluated(MetricCollection([MulticlassAccuracy(3, average="micro")]))["MulticlassAccuracy"] == pytest.approx(accuracy())


def test_a_pair_says_what_an_object_is_updated_with():
    made, y = scores()
    first = (BinaryAUROC(), lambda scores, batch: (scores.softmax(1)[:, 0], (batch["y"] == 0).int()))

    def loss(model: Any, batch: dict[str, Tensor]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])

    batches = [{"x": x, "y": y} for x, y in cut(data(10), ROWS)]
    found = trainer(net(), PLAIN, loss, metrics={"first": first}).evaluate(batches)
    want = area(made[y == 0].softmax(1)[:, 0], made[y != 0].softmax(1)[:, 0])
    assert found["first"] == pytest.approx(want)
    with pytest.raises(TypeError, match=r"a dict.*pass the pair"):
        trainer(net(), PLAIN, loss, metrics={"auroc": BinaryAUROC()}).evaluate(batches)
