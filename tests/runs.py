"""A small run of a Trainer, as a program: what the tests of resuming start, kill and start again.

python runs.py one JOB: the run of a job, as JSON; see `fit`.
python runs.py each JOB: the same, killed after each of its saves, or "points"; prints which resumed runs ended otherwise, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset

from fastdata import CenterCrop, LMDBDataset, Loader, Prefetcher, RandomCrop, Trainer
from support import step_of
from training import summed

EPOCHS = 2


class Noisy(Dataset[Any]):
    """42 images that draw their noise from torch's, numpy's and Python's own generators."""

    def __len__(self) -> int:
        return 42

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        noise = torch.randn(3, 24, 24) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return noise + k % 3, k % 3


class Stream:
    """9 batches an epoch, of torch's generator, and no len()."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for k in range(9):
            yield torch.randn(5 - k % 2, 3, 24, 24), torch.arange(5 - k % 2) % 3


class Counted(Stream):
    """The same with a state of its own."""

    def __init__(self) -> None:
        self.epoch, self.at = 0, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.at < 9:
            made = torch.Generator().manual_seed(self.at)
            self.at += 1
            yield torch.randn(4, 3, 24, 24, generator=made), torch.arange(4) % 3
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Small(nn.Module):
    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.BatchNorm2d(4) if dropout else nn.Identity(), nn.Flatten())
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.layers(x.float() / 64)))


def accuracy(outputs: Tensor, batch: Any) -> tuple[Tensor, int]:
    return (outputs.argmax(1) == batch[1]).sum(), len(batch[1])


def data(job: dict[str, Any]) -> tuple[Any, Any]:
    kind, workers = job["data"], job.get("workers", 0)
    if kind == "plain":
        own = torch.Generator().manual_seed(5) if job.get("own") else None
        train = DataLoader(Noisy(), 5, shuffle=True, num_workers=workers, generator=own)
        return Prefetcher(train, "cpu") if job.get("ahead") else train, DataLoader(Noisy(), 20)
    if kind in ("stream", "counted"):
        return Stream() if kind == "stream" else Counted(), DataLoader(Noisy(), 20)
    store, size = job["store"], {"global_batch_size": job["together"]} if "together" in job else {"batch_size": 5}
    dataset, device = LMDBDataset(store, crop=RandomCrop(24), hflip=0.5), job.get("device")
    order = job.get("order")
    train: Any = Loader(dataset, shuffle=True, order=order, num_workers=workers, seed=3, device=device, **size)
    train = Prefetcher(train, "cpu") if job.get("ahead") else train
    return train, Loader(LMDBDataset(store, crop=CenterCrop(24)), 20, num_workers=0)


def trainer(job: dict[str, Any]) -> Trainer:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    dropout = job.get("dropout", 0.3)
    model = Small(dropout)
    if job.get("plateau"):
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler: Any = (ReduceLROnPlateau(optimizer, factor=0.5, patience=0), "accuracy")
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scheduler = StepLR(optimizer, 1, gamma=0.3)
    chosen = {"precision": "fp32", "accumulate": 2, "save_every": 1, "keep_last": 3}
    return Trainer(
        model,
        summed,
        optimizer,
        scheduler=scheduler,
        clip_norm=1.0,
        ema=0.8 if dropout else None,
        dir=job["dir"],
        metrics={"accuracy": accuracy},
        callbacks={"step": partial(after_step, job)},
        **{name: job.get(name, value) for name, value in chosen.items()},
    )


def after_step(job: dict[str, Any], made: Trainer) -> None:
    """Signals and accidents that a job asks for: {"at": update, "do": what, "rank": which, or "agent": which of torchrun's}."""
    mine = made.world.rank == job.get("rank", made.world.rank) and os.environ.get("AGENT") == job.get("agent")
    if job.get("at") == made.update and mine and not Path(job["dir"], "done").exists():
        Path(job["dir"], "done").touch()
        if job["do"] == "crash":
            os._exit(3)
        if job["do"] == "end agent":  # as if its machine were gone
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(3)
        os.kill(os.getpid(), signal.SIGTERM)
        if job["do"] == "twice":
            os.kill(os.getpid(), signal.SIGTERM)


def fit(job: dict[str, Any]) -> int:
    """Run a job: {"dir", "data", ...}; with "die", by SIGKILL, right after so many saves. Returns how many saves there were."""
    if "AGENT" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
    made, (train, val), saves = trainer(job), data(job), 0
    save, add = made.save, step_of(made).add

    def counted() -> None:
        nonlocal saves
        before = made._saved
        save()
        saves += made._saved != before
        if saves == job.get("die"):
            if (written := made._checkpoints._written) is not None:
                written.exception()  # waits
            os.kill(os.getpid(), signal.SIGKILL)

    def logged(batch: Any, **options: Any) -> None:
        with Path(job["log"]).open("a") as file:
            file.write(f"{made.update} {made.world.rank} {made.world.size} {batch.ids[: options['valid']].tolist()}\n")
        add(batch, **options)

    made.save = counted  # type: ignore[method-assign]
    if "log" in job:
        step_of(made).add = logged
    try:
        made.fit(train, val, epochs=job.get("epochs", EPOCHS), max_steps=job.get("max_steps"), eval_every=job.get("eval_every"))
    finally:
        if hasattr(train, "close"):
            train.close()
    return saves


def newest(job: dict[str, Any]) -> Path:
    return max(Path(job["dir"], "checkpoints").glob("update-*.pt"))


def same_files(a: Path, b: Path) -> bool:
    """Equal in every byte."""
    return a.read_bytes() == b.read_bytes()


def forked(job: dict[str, Any]) -> int:
    """A job in a process of its own, which has only imported. Returns its exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 9
    try:
        saves = fit(job)
        Path(job["dir"], "saves").write_text(str(saves))
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Exception:  # noqa: BLE001  this process has nobody who would print it
        traceback.print_exc()
    finally:
        os._exit(code)


def each(job: dict[str, Any]) -> dict[str, Any]:
    """Killed after each save, and gone on from there; and killed after every save in a row, so that each process makes one."""
    for name in ("torch._dynamo", "torch.utils.tensorboard"):  # as each process would
        importlib.import_module(name)
    folder = Path(job["dir"])
    straight = {**job, "dir": str(folder / "straight")}
    assert forked(straight) == 0
    saves = int((folder / "straight/saves").read_text())
    other: list[Any] = []
    for k in job.get("points") or range(1, saves + 1):
        killed = {**job, "dir": str(folder / str(k))}
        codes = forked({**killed, "die": k}), forked(killed)
        fine = codes == (-signal.SIGKILL, 0) and newest(killed).name == newest(straight).name
        if not (fine and same_files(newest(killed), newest(straight))):
            other.append([k, codes])
    chain, lives = {**job, "dir": str(folder / "chain")}, 0
    while forked({**chain, "die": 1}) != 0:
        lives += 1
    if not same_files(newest(chain), newest(straight)):
        other.append("chain")
    return {"saves": saves, "lives": lives, "other": other}


if __name__ == "__main__":
    torch.set_num_threads(1)
    task = json.loads(sys.argv[2])
    result = each(task) if sys.argv[1] == "each" else {"saves": fit(task)}
    sys.stdout.write(json.dumps(result) + "\n")
