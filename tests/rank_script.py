"""One rank of tests/test_train_ranks.py: does everything that is asked there in one process group, and saves what it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from fastdata import Loader, Trainer
from fastdata.errors import FastDataError
from fastdata.train.evaluate import Metrics, evaluate
from support import step_of
from training import Batch, cut, data, net, summed, trainer, values

MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
SHARDS = ((5, 2, 3), (1, 6, 3), (4, 4, 4), (2, 1, 7), (3, 5, 1))  # rows of each rank, batch by batch
SIZES = (*range(1, 18),)
AVERAGES = 0.8


def scale_of(run: Trainer) -> float:
    """What fp16 losses are multiplied by; other precisions have no scale."""
    return float(run.state_dict()["scaler"].get("scale", 1.0))


def labelled(rank: int, size: int) -> list[Batch]:
    """This rank's batches, of sizes of its own."""
    rows = [row for shard in SHARDS for row in shard[:size]]
    return cut(data(sum(rows)), rows)[rank::size]


def loader(n: int, dtype: torch.dtype = torch.float64) -> Loader:
    return Loader(TensorDataset(*data(n, dtype)), 4, num_workers=0)


def train(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for accumulate in (1, 3):
        model = net()
        trainer(model, MOMENTUM, accumulate=accumulate).fit(labelled(rank, size), epochs=1)
        found[f"ragged {accumulate}"] = values(model)
        for n in (13, 4 * size + 1, 3 * 4 * size + 1):
            model = net()
            trainer(model, MOMENTUM, accumulate=accumulate).fit(loader(n), epochs=1)
            found[f"loader {n} {accumulate}"] = values(model)
    return found


def exchanges(rank: int, size: int) -> dict[str, Any]:
    """How many buckets go round in each batch of an epoch, and the gradients between batches and at the end of each update."""
    model, counts, inside, ends = net(), list[int](), list[torch.Tensor](), list[torch.Tensor]()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-5, gradient_as_bucket_view=True)  # type: ignore[arg-type]

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP does not take annotations as text
        counts[-1] += 1
        return exchanged(bucket, size)

    wrapped.register_comm_hook(None, hook)

    def grads() -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    def loss_fn(called: Any, batch: Batch) -> Any:
        if model[0].weight.grad is not None:
            inside.append(grads())
        counts.append(0)
        return summed(called, batch)

    optimizer = MOMENTUM(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: ends.append(grads()))
    run = trainer(wrapped, optimizer, loss_fn, accumulate=3)
    for _ in range(2):  # DDP makes its buckets anew after the first exchange
        list(run.steps(labelled(rank, size)[:1]))
    for kept in (counts, inside, ends):
        kept.clear()
    list(run.steps(labelled(rank, size)))
    return {"exchanges": counts, "inside": torch.stack(inside), "ends": torch.stack(ends)}


def exchanged(bucket: dist.GradBucket, size: int, then: Any = lambda reduced: reduced) -> Any:
    """What DDP does with a bucket, and then something else."""
    work = dist.all_reduce(bucket.buffer() / size, async_op=True).get_future()
    return work.then(lambda future: then(future.value()[0]))


def infinite(rank: int, size: int, kind: str, fused: bool, precision: str) -> dict[str, Any]:
    """The last rank's gradients become infinite once, after the ranks have exchanged them."""
    model = net(torch.float32)
    make = {"sgd": MOMENTUM, "adamw": partial(AdamW, lr=0.01)}[kind]
    wrapped, bad = DistributedDataParallel(model), [False]

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        spoil = bad[0] and rank == size - 1
        return exchanged(bucket, size, lambda reduced: reduced.fill_(torch.inf) if spoil else reduced)

    wrapped.register_comm_hook(None, hook)
    run = trainer(wrapped, partial(make, fused=fused), precision=precision, ema=AVERAGES, clip_norm=1.0)
    weights, average, skipped = list[torch.Tensor](), list[torch.Tensor](), 0
    batches = [(x.float(), y) for x, y in labelled(rank, size)[:3]]
    for update in run.steps(batches):
        weights.append(values(model))
        average.append(values(run.ema.model))  # type: ignore[union-attr]
        bad[0] = update == 1
        skipped += step_of(run).read_totals()[2]
    state = run.optimizer.state_dict()["state"]
    scale = scale_of(run)
    return {"weights": weights, "average": average[:2], "skipped": skipped, "state": state, "scale": scale}


class Unsized:
    """Batches without a len()."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def unequal(rank: int, size: int) -> list[str]:
    """What is said where one rank has fewer batches than the others, known at the beginning or not."""
    batches, found = cut(data(20), [4] * 5), []
    for own in (batches[: 5 - rank], Unsized(batches[: 5 - rank])):
        run = trainer(net(), MOMENTUM)
        try:
            run.fit(own, epochs=1)
        except FastDataError as error:
            found.append(f"{run.update}: {error}")
    return found


def logged(rank: int, size: int) -> list[dict[str, Any]]:
    """The records that the callback of this rank gets."""
    got = list[dict[str, Any]]()

    def step(run: Trainer) -> None:
        run.log("rank", float(rank))
        if rank == 1:
            run.log("second", 7.0)  # of one rank only

    callbacks = {"step": step, "log": lambda run, record: got.append(record)}
    trainer(net(), MOMENTUM, log_every=2, callbacks=callbacks).fit(cut(data(16), (4, 4, 4, 4)), epochs=1)
    return got


class Alone:
    """A metric that knows its own rank only."""

    def reset(self) -> None:
        self.right = self.count = 0

    def update(self, scores: torch.Tensor, classes: torch.Tensor) -> None:
        self.right += int((scores.argmax(1) == classes).sum())
        self.count += len(classes)

    def compute(self) -> float:
        return self.right / self.count


def metrics(rank: int, size: int) -> list[Any]:
    """What torchmetrics' objects compute for sets of several sizes, the last too small; and one that does not sum over ranks."""
    found = list[Any]()
    for n in (13, 16, 17, 1):
        both = MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)})
        try:
            found.append(trainer(net(), MOMENTUM, metrics={"all": both}).evaluate(loader(n)))
        except FastDataError as error:
            found.append(str(error))
    try:
        trainer(net(), MOMENTUM, metrics={"alone": Alone()}).evaluate(loader(13))
    except FastDataError as error:
        found.append(str(error))
    return found


def evaluations(rank: int, size: int) -> dict[str, Any]:
    def right(outputs: torch.Tensor, batch: Batch) -> Any:
        return (outputs.argmax(1) == batch[1]).sum(), len(batch[1])

    run, found = trainer(net(), MOMENTUM, metrics={"top1": right}), list[Any]()
    for n in SIZES:
        found.append((n, run.evaluate(loader(n))))
    return {"evaluations": found}


def statistics(rank: int, size: int) -> dict[str, float]:
    """Losses in evaluation mode by running statistics, which every rank has others of; and what rank 0's own give."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    run, n = trainer(model, MOMENTUM, ema=AVERAGES), 6 * size
    list(run.steps([(x + rank, y) for x, y in cut(data(24), (8, 8, 8))]))
    own = evaluate(run.model, loader(n), summed, Metrics({}), run._compute)
    found = {"averaged": run.evaluate(loader(n))["loss"], "evaluated": own["loss"]}
    state = run.state_dict()
    x, y = data(n)
    for name, key in (("alone", "model"), ("averaged alone", "ema")):
        model.load_state_dict(state[key])
        found[name] = nn.functional.cross_entropy(model.eval()(x), y).item()
    return found


def sharded(rank: int, size: int, precision: str) -> dict[str, Any]:
    def split(model: nn.Module) -> nn.Module:
        return fully_shard(model)

    factor = [1.0]

    def loss_fn(model: Any, batch: Batch) -> Any:
        loss, count = summed(model, batch)
        return loss * factor[0], count

    options: Any = {"parallelize": split, "accumulate": 3, "clip_norm": 0.2, "ema": AVERAGES, "precision": precision}
    run = trainer(net(torch.float32), MOMENTUM, loss_fn, **options)
    list(run.steps(loader(5 * 4 * size, torch.float32)))
    state = run.state_dict()
    loss = run.evaluate(loader(7, torch.float32))["loss"]
    step_of(run).read_totals()
    before, factor[0] = shards(run.model), torch.inf if rank == size - 1 else 1.0
    list(run.steps(loader(4 * size, torch.float32)))
    return {
        "parts": all(isinstance(p, DTensor) for p in run.model.parameters()),
        "states": {name: state[name] for name in ("model", "ema")},
        "loss": loss,
        "versions": [state[name]._metadata == net().state_dict()._metadata for name in ("model", "ema")],
        "skipped": [step_of(run).read_totals()[2], torch.equal(before, shards(run.model)), scale_of(run)],
    }


def shards(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().to_local().flatten() for p in model.parameters() if isinstance(p, DTensor)])


def main(size: int, root: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root / 'meeting'}", rank=rank, world_size=size)
    found = train(rank, size) | exchanges(rank, size) | evaluations(rank, size)
    for precision in ("fp32", "bf16", "fp16"):
        for kind in ("sgd", "adamw"):
            for fused in (True, False):
                found[f"inf {kind} {fused} {precision}"] = infinite(rank, size, kind, fused, precision)
    found["statistics"], found["unequal"] = statistics(rank, size), unequal(rank, size)
    found["logged"], found["metrics"] = logged(rank, size), metrics(rank, size)
    found |= {f"sharded {precision}": sharded(rank, size, precision) for precision in ("fp32", "fp16")}
    torch.save(found, root / f"{rank}.pt")
    dist.barrier()  # or the threads of one may take the end of the other for a failure
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
