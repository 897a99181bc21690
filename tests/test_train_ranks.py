"""Two and three ranks train, skip, evaluate and log as one process does on all of their batches.

Each function `check_...` runs on every rank of one process group, which this file is the program of.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.functional.classification import multiclass_auroc

from fastdata import Loader
from fastdata.errors import FastDataError
from fastdata.train.evaluate import evaluate
from fastdata.train.log import Means
from support import step_of, until
from training import Batch, cut, data, net, plain, summed, trainer, values

MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
SHARDS = ((5, 2, 3), (1, 6, 3), (4, 4, 4), (2, 1, 7), (3, 5, 1))  # rows of each rank, batch by batch
AVERAGES = 0.8


def everyone(value: Any) -> list[Any]:
    """The value of each rank."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def shards(size: int) -> list[list[Batch]]:
    """The batches of each rank, of sizes of its own."""
    rows = [row for shard in SHARDS for row in shard[:size]]
    batches = cut(data(sum(rows)), rows)
    return [batches[rank::size] for rank in range(size)]


def joined(batches: Any) -> Batch:
    return tuple(map(torch.cat, zip(*batches, strict=True)))  # type: ignore[return-value]


def loader(n: int, dtype: torch.dtype = torch.float64) -> Loader:
    return Loader(TensorDataset(*data(n, dtype)), 4, num_workers=0)


def check_updates(rank: int, size: int) -> None:
    """Ragged shards are one big batch, and ranks that have nothing left add nothing."""
    for accumulate in (1, 3):
        model, reference = net(), net()
        trainer(model, MOMENTUM, accumulate=accumulate).fit(shards(size)[rank], epochs=1)
        union = [joined(batches) for batches in zip(*shards(size), strict=True)]
        windows = [joined(union[k : k + accumulate]) for k in range(0, len(union), accumulate)]
        plain(reference, MOMENTUM(reference.parameters()), windows)
        assert (values(model) - values(reference)).abs().max() < 1e-12
        for n in (13, 4 * size + 1, 3 * 4 * size + 1):
            model, reference, step = net(), net(), 4 * size * accumulate
            trainer(model, MOMENTUM, accumulate=accumulate).fit(loader(n), epochs=1)
            plain(reference, MOMENTUM(reference.parameters()), cut(data(n), [min(step, n - k) for k in range(0, n, step)]))
            assert (values(model) - values(reference)).abs().max() < 1e-12


def check_exchanges(rank: int, size: int) -> None:
    """Gradients are exchanged once an update."""
    model, counts = net(), list[int]()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-5, gradient_as_bucket_view=True)  # type: ignore[arg-type]

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP does not take annotations as text
        counts[-1] += 1
        return exchanged(bucket, size)

    wrapped.register_comm_hook(None, hook)

    def loss_fn(called: Any, batch: Batch) -> Any:
        counts.append(0)
        return summed(called, batch)

    run = trainer(wrapped, MOMENTUM(model.parameters()), loss_fn, accumulate=3)
    for _ in range(2):  # DDP makes its buckets anew after the first exchange
        list(run.steps(shards(size)[rank][:1]))
    counts.clear()
    list(run.steps(shards(size)[rank]))
    buckets = max(counts)
    assert buckets > 1 and counts == [0, 0, buckets, 0, buckets], "5 batches, 3 an update"


def exchanged(bucket: dist.GradBucket, size: int, then: Any = lambda reduced: reduced) -> Any:
    """What DDP does with a bucket, and then something else."""
    work = dist.all_reduce(bucket.buffer() / size, async_op=True).get_future()
    return work.then(lambda future: then(future.value()[0]))


def check_an_infinite_gradient_of_one_rank_is_skipped_by_all(rank: int, size: int) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        for make in (MOMENTUM, partial(AdamW, lr=0.01)):
            for fused in (True, False):
                infinite(rank, size, partial(make, fused=fused), precision)


def infinite(rank: int, size: int, make: Any, precision: str) -> None:
    """The last rank's gradients become infinite once, after the ranks have exchanged them."""
    model = net(torch.float32)
    wrapped, bad = DistributedDataParallel(model), [False]

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        spoil = bad[0] and rank == size - 1
        return exchanged(bucket, size, lambda reduced: reduced.fill_(torch.inf) if spoil else reduced)

    wrapped.register_comm_hook(None, hook)
    run = trainer(wrapped, make, precision=precision, ema=AVERAGES, clip_norm=1.0)
    weights, averages, skipped = list[Tensor](), list[Tensor](), 0
    for update in run.steps([(x.float(), y) for x, y in shards(size)[rank][:3]]):
        weights.append(values(model))
        averages.append(values(run.ema.model))  # type: ignore[union-attr]
        bad[0] = update == 1
        skipped += step_of(run).read_totals()["skipped"]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2]) and weights[2].isfinite().all()
    assert torch.equal(averages[0], averages[1]) and skipped == 1 and scale_of(run) == (32768 if precision == "fp16" else 1)
    for other in everyone((weights, averages, run.optimizer.state_dict()["state"])):
        torch.testing.assert_close(other, (weights, averages, run.optimizer.state_dict()["state"]), rtol=0, atol=0)


def scale_of(run: Any) -> float:
    """What fp16 losses are multiplied by; other precisions have no scale."""
    return float(run.state_dict()["scaler"].get("scale", 1.0))


def check_ranks_with_fewer_batches_say_so_and_do_not_wait(rank: int, size: int) -> None:
    """Known at the beginning or not."""
    batches, counts = cut(data(20), [4] * 5), ", ".join(str(5 - rank) for rank in range(size))
    for own, updates, said in (
        (batches[: 5 - rank], 0, f"the loaders have {counts} batches, rank by rank, so ranks would hang"),
        (iter(batches[: 5 - rank]), 6 - size, f"different numbers of batches or a wrong .*, as one ends after {6 - size}"),
    ):
        run = trainer(net(), MOMENTUM)
        with pytest.raises(FastDataError, match=said):
            run.fit(own, epochs=1)
        assert run.update == updates


def check_ranks_log_their_mean_and_rank_0_calls_the_callback(rank: int, size: int) -> None:
    got = list[dict[str, Any]]()

    def step(run: Any) -> None:
        run.log("rank", float(rank))
        if rank == 1:
            run.log("second", 7.0)  # of one rank only

    callbacks = {"step": step, "log": lambda run, record: got.append(record)}
    trainer(net(), MOMENTUM, log_every=2, callbacks=callbacks).fit(cut(data(16), (4, 4, 4, 4)), epochs=1)
    assert [record["update"] for record in got] == ([2, 4, 4] if rank == 0 else [])
    assert all(record["rank"] == (size - 1) / 2 and record["second"] == 7 for record in got)


def check_metric_objects_compute_what_they_do_on_one_rank_or_an_error_says_why_not(rank: int, size: int) -> None:
    both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)})
    run = trainer(net(), MOMENTUM, metrics={"all": both})
    for n in (13, 16, 17):
        x, y = data(n)
        out, found = net()(x), run.evaluate(loader(n))
        area = multiclass_auroc(out, y, 3).item()
        right = (out.argmax(1) == y).float().mean().item()
        assert found == pytest.approx({"loss": F.cross_entropy(out, y).item(), "all/acc": right, "all/auroc": area}, rel=1e-6)
        assert everyone(found) == [found] * size
    with pytest.raises(FastDataError, match="rank 1 has no rows for metrics all: use smaller batches"):
        run.evaluate(loader(1))
    with pytest.raises(FastDataError, match=r"rank by rank: its compute\(\) must sum over the ranks"):
        alone = SimpleNamespace(reset=int, update=lambda *_: None, compute=lambda: float(rank))  # knows its own rank only
        trainer(net(), MOMENTUM, metrics={"alone": alone}).evaluate(loader(13))


def check_evaluation_counts_each_sample_once(rank: int, size: int) -> None:
    """Predictions come in the order of the set, on every rank."""

    def right(outputs: Tensor, batch: Batch) -> Any:
        return (outputs.argmax(1) == batch[1]).sum(), len(batch[1])

    run = trainer(net(), MOMENTUM, metrics={"top1": right})
    for n in range(1, 18):
        x, y = data(n)
        out = net()(x).detach()
        top1 = (out.argmax(1) == y).sum().item() / n
        assert run.evaluate(loader(n)) == pytest.approx({"loss": F.cross_entropy(out, y).item(), "top1": top1}, abs=1e-12)
        with Loader(TensorDataset(x, y), 4, num_workers=0, shuffle=True) as shuffled:
            for batches in (loader(n), shuffled):
                torch.testing.assert_close(run.predict(batches), out, rtol=0, atol=1e-12)
    with pytest.raises(FastDataError, match=r"needs batches with \.ids"):
        run.predict(cut(data(8), (4, 4)))


def check_evaluation_has_the_statistics_that_a_checkpoint_has(rank: int, size: int) -> None:
    """Every rank has others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    run, n = trainer(model, MOMENTUM, ema=AVERAGES), 6 * size
    list(run.steps([(x + rank, y) for x, y in cut(data(24), (8, 8, 8))]))
    evaluated = evaluate(run.model, loader(n), summed, ({}, {}), run._compute, Means())["loss"]
    averaged, (state, *_) = run.evaluate(loader(n))["loss"], everyone(run.state_dict())
    x, y = data(n)
    for loss, key in ((evaluated, "model"), (averaged, "ema")):
        model.load_state_dict(state[key])
        assert loss == pytest.approx(F.cross_entropy(model.eval()(x), y).item(), rel=1e-6)
    assert everyone(evaluated) == [evaluated] * size


def check_fully_shard_trains_alike_and_has_plain_states(rank: int, size: int) -> None:
    for precision, close, scale in (("fp32", 1e-6, 1), ("fp16", 1e-3, 32768)):
        factor, step, reference = [1.0], 4 * size, net(torch.float32)

        def loss_fn(model: Any, batch: Batch, factor: list[float] = factor) -> Any:
            loss, count = summed(model, batch)
            return loss * factor[0], count

        options: Any = {"parallelize": lambda model: fully_shard(model), "accumulate": 3, "clip_norm": 0.2, "ema": AVERAGES}
        run = trainer(net(torch.float32), MOMENTUM, loss_fn, precision=precision, **options)
        list(run.steps(loader(5 * step, torch.float32)))
        state, average = run.state_dict(), [p.detach().clone() for p in reference.parameters()]
        optimizer = MOMENTUM(reference.parameters())
        for x, y in cut(data(5 * step, torch.float32), (3 * step, 2 * step)):
            optimizer.zero_grad()
            F.cross_entropy(reference(x), y).backward()
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.2)
            optimizer.step()
            average = [AVERAGES * a + (1 - AVERAGES) * p.detach() for a, p in zip(average, reference.parameters(), strict=True)]
        if rank == 0:
            torch.testing.assert_close(state["model"], dict(reference.state_dict()), rtol=close, atol=close)
            torch.testing.assert_close([*state["ema"].values()], average, rtol=close, atol=close)
        assert all(isinstance(p, DTensor) for p in run.model.parameters())
        loss = run.evaluate(loader(7, torch.float32))["loss"]
        assert everyone(loss) == [loss] * size
        step_of(run).read_totals()
        before, factor[0] = local(run.model), torch.inf if rank == size - 1 else 1.0
        list(run.steps(loader(4 * size, torch.float32)))
        assert step_of(run).read_totals()["skipped"] == 1 and torch.equal(before, local(run.model)) and scale_of(run) == scale


def local(model: nn.Module) -> Tensor:
    """This rank's part of the weights."""
    return torch.cat([p.detach().to_local().flatten() for p in model.parameters() if isinstance(p, DTensor)])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_do_what_one_process_does(tmp_path, size):
    command = [sys.executable, "-W", "error", __file__, str(size), str(tmp_path / "meeting")]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(size)]
    try:
        until(lambda: any(rank.poll() for rank in ranks) or all(rank.poll() == 0 for rank in ranks), 600)
        assert [rank.poll() for rank in ranks] == [0] * size, "a rank failed: see what it printed"
    finally:
        for one in ranks:
            one.kill()
            one.wait()


@pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])
def test_a_loader_of_one_of_two_ranks_is_refused_by_one_process(use):
    """Half of the samples would be left out."""
    with Loader(TensorDataset(*data(8)), 4, num_workers=0, rank=0, world_size=2) as loader:
        run = trainer(net(), MOMENTUM)
        with pytest.raises(FastDataError, match="samples of rank 0 of 2, but this is rank 0 of 1"):
            run.fit(loader, epochs=1) if use == "fit" else getattr(run, use)(loader)


if __name__ == "__main__":
    torch.set_num_threads(1)
    size, rank = int(sys.argv[1]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=size)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(rank, size)
    dist.barrier()  # or the threads of one may take the end of the other for a failure
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo may abort a process whose interpreter ends: pytorch/pytorch#190489
