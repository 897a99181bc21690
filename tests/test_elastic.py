"""A run goes on with another number of ranks, and its global batches stay the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import fastdata
import reference
import runs
import stores
from fastdata import Loader, Trainer
from fastdata.store.store import Store
from support import children, small_shards

DATA = TensorDataset(torch.arange(20))


def test_a_sampler_has_the_list_of_one_rank() -> None:
    def loader(rank: int, world: int, *, batches: bool) -> Loader:
        sampler = DistributedSampler(DATA, world, rank)
        if batches:
            return Loader(DATA, batch_sampler=BatchSampler(sampler, 2, drop_last=True), num_workers=0)
        return Loader(DATA, 2, sampler=sampler, num_workers=0, rank=rank, world_size=world)

    for kind in (True, False):
        before = loader(0, 2, batches=kind)
        if not kind:
            next(iter(before))
            state = {**before.state_dict(), "num_samples": 7}  # as 3 ranks have
            with pytest.raises(ValueError, match="in the middle of an epoch with 2 ranks, but this loader has 3: a sampler"):
                loader(0, 3, batches=kind).load_state_dict(state)
        with pytest.raises(ValueError, match=r"num_samples \d+, and this loader has \d+"):
            loader(0, 3, batches=kind).load_state_dict(before.state_dict())


def test_a_trainer_says_what_other_loaders_cannot_do() -> None:
    """The place of a DataLoader is that of one rank among so many."""

    def trainer() -> Trainer:
        model = torch.nn.Linear(1, 2)

        def loss(model: Any, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(model(batch[0].float()[:, None]), batch[0] % 2, reduction="none")

        return Trainer(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))

    def state(train: Any) -> dict[str, Any]:
        run = trainer()
        steps = run.steps(train)
        next(steps)
        found = run.state_dict()
        steps.close()
        return {**found, "ranks": found["ranks"] * 2}  # as two ranks save it

    data = TensorDataset(torch.arange(12))
    with pytest.warns(UserWarning, match="within an epoch, and world_size was 2, but is now 1: this loader cannot"):
        trainer().load_state_dict(state(DataLoader(data, 4)))
    trainer().load_state_dict(state(Loader(data, global_batch_size=4, num_workers=0)))


# ------------------------------------------------------------------------------------------------------------ torchrun


@cache
def store() -> Path:
    """42 images of 32 x 32 in shards of 3."""
    out = stores.folder() / "many shards.fds"
    with small_shards(3):
        fastdata.prep(stores.sources(), out, size=32, resize="crop", codec="rgb", workers=1)
    return out


def agents(folder: Path, job: dict[str, Any], count: int) -> list[int]:
    """Run a job under so many agents of torchrun, each with a rank of its own; return their exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    paths = os.pathsep.join(filter(None, (str(Path(runs.__file__).parent), os.environ.get("PYTHONPATH"))))
    timing = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    started = []
    for agent in range(count):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{count}", "--nproc-per-node=1", "--max-restarts=9"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic", "--monitor-interval=0.2"]
        command += [f"--rdzv-conf={timing},is_host={int(agent == 0)}", "--local-addr=127.0.0.1"]
        own = {**os.environ, "PYTHONPATH": paths, "AGENT": str(agent), "OMP_NUM_THREADS": "1"}
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or ranks find the addresses of those before the restart (docs/loader.md)
        log = (folder / f"agent-{agent}.log").open("wb")
        command += [runs.__file__, "one", json.dumps(job)]
        started.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
        log.close()
    try:
        return [process.wait(600) for process in started]
    finally:
        for process in started:
            for rank in children(process.pid):
                os.kill(rank, signal.SIGKILL)
            process.kill()
            process.wait()


@pytest.mark.slow
def test_torchrun_goes_on_with_fewer_ranks_after_one_is_lost(tmp_path: Path) -> None:
    """Three agents of torchrun have a rank each; one is killed with its rank, and the others begin again as two. 3 do not divide
    10 samples, so ranks repeat some, which do not count.
    """
    job = {"data": "loader", "store": str(store()), "together": 10, "accumulate": 2, "order": "interleaved", "dropout": 0}
    job |= {"epochs": 3}
    lost = {**job, "dir": str(tmp_path / "run"), "log": str(tmp_path / "log"), "at": 4, "do": "end agent", "agent": "2"}
    alone = {**job, "dir": str(tmp_path / "alone")}
    assert agents(tmp_path, alone, 1) == [0]
    assert agents(tmp_path, lost, 3) == [0, 0, -9], (tmp_path / "agent-0.log").read_text()[-3000:]
    found: dict[tuple[int, int], dict[int, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    for line in (tmp_path / "log").read_text().splitlines():
        update, rank, size, ids = line.split(" ", 3)
        found[int(update), int(size)][int(rank)].append(json.loads(ids))
    counts = list(Store(store()).manifest.shard_samples)
    expected = {}  # 5 batches an epoch: 3 updates, the last of one batch
    for epoch in range(3):
        whole = reference.lanes(counts, 8, 3, epoch)
        batches = [whole[start : start + 10] for start in range(0, 42, 10)]
        expected |= {3 * epoch + k: batches[2 * k : 2 * k + 2] for k in range(3)}
    assert {size for _, size in found} == {2, 3}
    complete = defaultdict(list)
    for (update, size), ranks in found.items():
        if len(ranks) == size and {len(batches) for batches in ranks.values()} == {len(expected[update])}:
            for k, batch in enumerate(expected[update]):
                parts = [ranks[rank][k] for rank in range(size)]
                assert sorted(sample for part in parts for sample in part) == sorted(batch), (update, size)
            complete[size].append(update)
    assert complete[3][:4] == [0, 1, 2, 3] and complete[2][-1] == 8
    assert {*complete[3], *complete[2]} == {*range(9)}
    states = [torch.load(runs.newest(one), weights_only=True) for one in (lost, alone)]
    assert states[0]["update"] == states[1]["update"] == 9
    for name, weight in states[1]["model"].items():
        torch.testing.assert_close(states[0]["model"][name], weight, rtol=0, atol=1e-6)
