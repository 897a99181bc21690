"""Two and three ranks train, skip, evaluate and profile as one process does on all of their batches."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from fastdata import Loader
from fastdata.errors import FastDataError
from rank_script import AVERAGES, MOMENTUM, SHARDS, SIZES, labelled
from stores import folder
from training import cut, data, net, plain, trainer, values

SCRIPT = Path(__file__).with_name("rank_script.py")


@cache
def outcome(size: int) -> list[dict[str, Any]] | str:
    """What each of so many ranks found, or that one failed: that need not be tried again."""
    root = folder()
    command = [sys.executable, "-W", "error", str(SCRIPT), str(size), str(root)]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(size)]
    try:
        if [rank.wait(timeout=600) for rank in ranks] != [0] * size:
            return "a rank failed: see what it printed"
    except subprocess.TimeoutExpired:
        return "a rank hangs"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(root / f"{rank}.pt", weights_only=True) for rank in range(size)]


def found(size: int) -> list[dict[str, Any]]:
    made = outcome(size)
    assert not isinstance(made, str), made
    return made


RANKS = pytest.mark.parametrize("size", [pytest.param(size, marks=pytest.mark.slow) for size in (2, 3)])


@RANKS
@pytest.mark.parametrize("accumulate", [1, 3])
def test_ragged_shards_are_one_big_batch(size, accumulate):
    model = net()
    union = [
        tuple(torch.cat([labelled(rank, size)[k][part] for rank in range(size)]) for part in (0, 1)) for k in range(len(SHARDS))
    ]
    windows = [union[k : k + accumulate] for k in range(0, len(union), accumulate)]
    plain(model, MOMENTUM(model.parameters()), [tuple(map(torch.cat, zip(*window, strict=True))) for window in windows])
    for rank in found(size):
        assert (rank[f"ragged {accumulate}"] - values(model)).abs().max() < 1e-12


@RANKS
@pytest.mark.parametrize("accumulate", [1, 3])
def test_ranks_that_have_nothing_left_add_nothing(size, accumulate):
    for n in (13, 4 * size + 1, 3 * 4 * size + 1):
        model, step = net(), 4 * size * accumulate
        sizes = [min(step, n - start) for start in range(0, n, step)]
        plain(model, MOMENTUM(model.parameters()), cut(data(n), sizes))
        for rank in found(size):
            assert (rank[f"loader {n} {accumulate}"] - values(model)).abs().max() < 1e-12


@RANKS
def test_ranks_with_different_numbers_of_batches_say_so_and_do_not_wait(size):
    counts = ", ".join(str(5 - rank) for rank in range(size))
    for rank in found(size):
        before, during = rank["unequal"]
        assert before.startswith(f"0: the loaders have {counts} batches, rank by rank, but ranks would wait for each other")
        assert during.startswith(f"{6 - size}: the loaders have different numbers of batches, since only some end after {6 - size}")


@pytest.mark.parametrize("use", ["fit", "evaluate"])
def test_a_loader_of_one_of_two_ranks_is_refused_by_one_process(use):
    """Half of the samples would be left out."""
    with Loader(TensorDataset(*data(8)), 4, num_workers=0, rank=0, world_size=2) as loader:
        run = trainer(net(), MOMENTUM)
        with pytest.raises(FastDataError, match="samples of rank 0 of 2, but this is rank 0 of 1"):
            run.fit(loader, epochs=1) if use == "fit" else getattr(run, use)(loader)


@RANKS
def test_gradients_are_exchanged_once_an_update(size):
    ranks = found(size)
    for rank in ranks:
        buckets = max(rank["exchanges"])
        assert buckets > 1 and rank["exchanges"] == [0, 0, buckets, 0, buckets], "5 batches, 3 an update"
        assert len(rank["inside"]) == 3 and len(rank["ends"]) == 2
        assert torch.equal(rank["ends"], ranks[0]["ends"])
    assert all(not torch.equal(a, b) for a, b in zip(ranks[0]["inside"], ranks[1]["inside"], strict=True))


@RANKS
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gradient_that_is_infinite_on_one_rank_is_skipped_by_all(size, kind, fused, precision):
    ranks = [rank[f"inf {kind} {fused} {precision}"] for rank in found(size)]
    for rank in ranks:
        torch.testing.assert_close(rank, ranks[0], rtol=0, atol=0)
        before, skipped, after = rank["weights"]
        assert torch.equal(before, skipped) and not torch.equal(skipped, after) and after.isfinite().all()
        assert torch.equal(*rank["average"]) and rank["skipped"] == 1
        assert rank["scale"] == (32768 if precision == "fp16" else 1)


@RANKS
def test_evaluation_counts_each_sample_once(size):
    for rank in found(size):
        for n, results in rank["evaluations"]:
            x, y = data(n)
            out = net()(x).detach()
            top1 = (out.argmax(1) == y).sum().item() / n
            assert results == pytest.approx({"loss": F.cross_entropy(out, y).item(), "top1": top1}, abs=1e-12)
        assert [n for n, _ in rank["evaluations"]] == [*SIZES]


@RANKS
def test_metric_objects_compute_what_they_do_on_one_rank_or_an_error_says_why_not(size):
    first, *others = (rank["metrics"] for rank in found(size))
    assert all(other == first for other in others)
    for n, results in zip((13, 16, 17), first[:3], strict=True):
        both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)})
        alone = trainer(net(), MOMENTUM, metrics={"all": both}).evaluate([data(n)])
        assert results == pytest.approx(alone, rel=1e-6)
    assert first[3] == "rank 1 has no rows of this dataset to update all: use smaller batches"
    assert "rank by rank" in first[4] and "must sum over them" in first[4]


@RANKS
def test_ranks_log_their_mean_and_rank_0_calls_the_callback(size):
    first, *others = (rank["logged"] for rank in found(size))
    assert others == [[]] * (size - 1) and [record["update"] for record in first] == [2, 4, 4]
    assert all(record["rank"] == (size - 1) / 2 and record["second"] == 7 for record in first)


@RANKS
def test_evaluation_has_the_statistics_that_a_checkpoint_has(size):
    ranks = found(size)
    assert len({json.dumps(rank["statistics"]["evaluated"]) for rank in ranks}) == 1
    assert ranks[0]["statistics"]["evaluated"] == pytest.approx(ranks[0]["statistics"]["alone"], rel=1e-6)
    assert ranks[0]["statistics"]["averaged"] == pytest.approx(ranks[0]["statistics"]["averaged alone"], rel=1e-6)


@RANKS
@pytest.mark.parametrize(("precision", "close", "scale"), [("fp32", 1e-6, 1), ("fp16", 1e-3, 32768)])
def test_fully_shard_trains_alike_and_has_plain_states(size, precision, close, scale):
    ranks = [rank[f"sharded {precision}"] for rank in found(size)]
    model, step = net(torch.float32), 4 * size
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = [p.detach().clone() for p in model.parameters()]
    x, y = data(5 * step, torch.float32)
    for start in range(0, 5 * step, 3 * step):
        optimizer.zero_grad()
        F.cross_entropy(model(x[start : start + 3 * step]), y[start : start + 3 * step]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        average = [AVERAGES * a + (1 - AVERAGES) * p.detach() for a, p in zip(average, model.parameters(), strict=True)]
    for rank in ranks:
        assert rank["parts"], "the weights are distributed"
        assert rank["loss"] == ranks[0]["loss"]
        assert rank["skipped"] == [1, True, scale]
        assert all(rank["versions"]), "as in the state of a model that is not sharded"
    states = ranks[0]["states"]
    torch.testing.assert_close(states["model"], dict(model.state_dict()), rtol=close, atol=close)
    torch.testing.assert_close([*states["ema"].values()], average, rtol=close, atol=close)
