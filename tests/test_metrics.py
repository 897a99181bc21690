"""Metrics of an evaluation: functions in each of their forms, and torchmetrics' objects, on one rank and on two."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torchmetrics.functional.classification as functional
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
)

from training import Batch, cut, data, net, trainer

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


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda scores, batch: (scores.argmax(1) == batch[1]).sum(), "integer"),
        (lambda scores, batch: {"a": 1.0}, "a dict"),
    ],
)
def test_a_function_that_returns_something_else_is_told(function, said):
    with pytest.raises(TypeError, match=rf"metrics\['top1'\] returned {said}|metrics\['top1'\] returned an {said}"):
        evaluated({"top1": function})


def test_objects_see_all_rows_anew_each_time():
    made, y = scores()
    run = trainer(net(), PLAIN, metrics={"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)})
    want = sum(area(made[y == c].softmax(1)[:, c], made[y != c].softmax(1)[:, c]) for c in range(3)) / 3
    for _ in range(2):
        found = run.evaluate(cut(data(10), ROWS))
        assert found["acc"] == pytest.approx(accuracy()) and found["auroc"] == pytest.approx(want)


def test_a_collection_and_an_object_of_several_numbers_name_each():
    made, y = scores()
    each = [((made.argmax(1) == c) & (y == c)).sum().item() / (y == c).sum().item() for c in range(3)]
    both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)})
    found = evaluated({"all": both, "classes": MulticlassAccuracy(3, average=None)})
    assert [*found] == ["loss", "all/acc", "all/f1", "classes/0", "classes/1", "classes/2"]
    assert found["all/acc"] == pytest.approx(accuracy())
    assert [found[f"classes/{c}"] for c in range(3)] == pytest.approx(each)
    assert evaluated(MetricCollection([MulticlassAccuracy(3, average="micro")]))["MulticlassAccuracy"] == pytest.approx(accuracy())


def test_a_pair_says_what_an_object_is_updated_with():
    made, y = scores()
    first = (BinaryAUROC(), lambda scores, batch: (scores.softmax(1)[:, 0], (batch["y"] == 0).int()))
    named = (BinaryAUROC(), lambda scores, batch: {"target": (batch["y"] == 0).int(), "preds": scores.softmax(1)[:, 0]})

    def loss(model: Any, batch: dict[str, Tensor]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])

    batches = [{"x": x, "y": y} for x, y in cut(data(10), ROWS)]
    found = trainer(net(), PLAIN, loss, metrics={"first": first, "named": named}).evaluate(batches)
    want = area(made[y == 0].softmax(1)[:, 0], made[y != 0].softmax(1)[:, 0])
    assert (found["first"], found["named"]) == (pytest.approx(want), pytest.approx(want))
    with pytest.raises(TypeError, match=r"metrics\['auroc'\] .*a dict.*pass the pair"):
        trainer(net(), PLAIN, loss, metrics={"auroc": BinaryAUROC()}).evaluate(batches)


@pytest.mark.parametrize(
    ("metrics", "error", "said"),
    [
        ({"acc": MulticlassAccuracy}, TypeError, "the class MulticlassAccuracy: pass an object"),
        ({"loss": MulticlassAccuracy(3)}, ValueError, "'loss'"),
    ],
)
def test_what_no_metric_is_is_refused_at_once(metrics, error, said):
    with pytest.raises(error, match=said):
        trainer(net(), PLAIN, metrics=metrics)


RANK = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from functools import partial
import fastdata
from fastdata import FastDataError, Loader
from training import data, net, trainer

PLAIN = partial(torch.optim.SGD, lr=0.1)

class Alone:  # knows its own rank only
    def reset(self): self.right = self.count = 0
    def update(self, scores, classes):
        self.right += (scores.argmax(1) == classes).sum().item()
        self.count += len(classes)
    def compute(self): return self.right / self.count

rank, root = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{root}/meeting", rank=rank, world_size=2)
found = []
for n in (13, 16, 17, 1):
    metrics = {"all": MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)}),
               "mean": lambda scores, batch: (scores.argmax(1) == batch[1]).double().mean()}
    run = trainer(net(), PLAIN, metrics=metrics)
    try:
        found.append([n, run.evaluate(Loader(TensorDataset(*data(n)), 4, num_workers=0))])
    except FastDataError as error:
        found.append([n, str(error)])
run = trainer(net(), PLAIN, metrics={"alone": Alone()})
try:
    run.evaluate(Loader(TensorDataset(*data(13)), 4, num_workers=0))
except FastDataError as error:
    found.append([13, str(error)])
Path(root, f"{rank}.json").write_text(json.dumps(found))
dist.barrier()
os._exit(0)  # the threads of one may take the end of the other for a failure, and abort
"""


@pytest.mark.slow
def test_two_ranks_compute_what_one_does_or_say_why_not(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=Path(__file__).parent) for rank in range(2)]
    try:
        assert [rank.wait(timeout=360) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    for n, found in first[:3]:
        metrics = {"all": MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)})}
        whole: Batch = data(n)
        alone = trainer(net(), PLAIN, metrics=metrics).evaluate([whole])
        want = {"loss": alone["loss"], "mean": alone["all/acc"], "all/acc": alone["all/acc"], "all/auroc": alone["all/auroc"]}
        assert found == pytest.approx(want, rel=1e-6)
    assert first[3] == [1, "rank 1 has no rows of this dataset to update all: use smaller batches"]
    assert "on rank 0" in first[4][1] and "does not sum over the ranks" in first[4][1]
