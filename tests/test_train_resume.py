"""A run that was killed, asked to end, or lost a rank, at any update, ends with the same bits as one that was not."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import stores
from fastdata import Trainer
from support import run, run_ranks
from training import summed

SCRIPT = Path(runs.__file__)
RANDOM = {"plateau": 1, "precision": "fp16", "eval_every": 2}
KINDS: dict[str, dict[str, Any]] = {
    "workers": {"data": "loader", "workers": 2, **RANDOM},
    "loader": {"data": "loader", "points": [5]},
    "plain": {"data": "plain", "plateau": 1, "precision": "bf16", "points": [3, 6]},
    "own generator": {"data": "plain", "own": 1, "eval_every": 3, "points": [2, 7]},
    "on a device": {"data": "loader", "workers": 2, "device": "cpu", "points": [3, 7]},
    "prefetched": {"data": "loader", "workers": 1, "ahead": 1, "points": [3]},
    "torch's, prefetched": {"data": "plain", "workers": 2, "ahead": 1, "points": [3, 6]},
    "no length": {"data": "stream", "plateau": 1, "points": [4, 7]},
    "no length, a state": {"data": "counted", "max_steps": 8, "points": [2, 10]},
}


PATHS = os.pathsep.join(filter(None, (str(SCRIPT.parent), os.environ.get("PYTHONPATH"))))
ENVIRONMENT = {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


def ended(what: str, job: dict[str, Any], environment: dict[str, str] | None = None) -> Any:
    """The end of a program; warnings are errors."""
    python = (sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", "-W", "ignore:nothing was trained")
    job = {"store": str(stores.square()), **job}
    return run(*python, SCRIPT, what, json.dumps(job), seconds=600, env={**os.environ, **ENVIRONMENT, **(environment or {})})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def killed(root: Path) -> dict[str, Any]:
    """Each kind of run, killed again and again, two at a time."""
    stores.square()
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda kind: ended("each", {**KINDS[kind], "dir": str(root / kind)}), KINDS)
    return dict(zip(KINDS, results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_killed_after_any_save_the_last_checkpoint_is_the_same(killed: dict[str, Any], kind: str) -> None:
    """In the middle of an epoch, at its end before and after the evaluation, and twice or more in one epoch."""
    assert killed[kind].returncode == 0, killed[kind].stderr[-3000:]
    found = json.loads(killed[kind].stdout.splitlines()[-1])
    assert found["saves"] == found["lives"] >= 10
    assert found["other"] == []


@pytest.mark.slow
def test_sigterm_saves_and_ends_with_75(killed: dict[str, Any], root: Path) -> None:
    """Without save_every; a second one kills at once."""
    job = {**KINDS["plain"], "dir": str(root / "term"), "save_every": None, "at": 3, "do": "term"}
    assert ended("one", job).returncode == 75
    assert runs.newest(job).name == "update-00000003.pt"
    assert ended("one", job).returncode == 0
    assert runs.same_files(runs.newest(job), runs.newest({"dir": root / "plain/straight"}))
    twice = {**job, "dir": str(root / "twice"), "do": "twice"}
    assert ended("one", twice).returncode == -signal.SIGTERM
    assert not list((root / "twice/checkpoints").glob("update-*"))


def ranks(count: int, job: dict[str, Any]) -> int:
    """The exit code of a program as so many ranks, which begin again if one fails."""
    return run_ranks(count, sys.executable, SCRIPT, "one", json.dumps({"store": str(stores.square()), **job}), env=ENVIRONMENT)


SHARED = {"data": "loader", "together": 12, "accumulate": 1}


@pytest.mark.slow
def test_a_signal_to_one_rank_ends_both_at_the_same_update(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    job = {**SHARED, "store": str(stores.square()), "dir": str(root / "one of two"), "save_every": None}
    job |= {"at": 3, "do": "term", "rank": 1}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda rank: ended("one", job, {**where, "RANK": rank}), "01")
    assert [end.returncode for end in ends] == [75, 75]
    assert runs.newest(job).name == "update-00000003.pt"


@pytest.mark.slow
def test_ranks_that_are_restarted_after_a_crash_end_the_same(root: Path) -> None:
    straight = {**SHARED, "dir": str(root / "two")}
    crashed = {**SHARED, "dir": str(root / "crashed"), "at": 3, "do": "crash", "rank": 1}
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda job: ranks(2, job), (straight, crashed)))
    assert ends == [0, 0]
    assert (root / "crashed/done").exists()
    assert runs.same_files(runs.newest(crashed), runs.newest(straight))


def test_a_handler_of_sigterm_is_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    within: list[Any] = []

    def fit(name: str) -> None:
        callbacks = {"step": lambda trainer: within.append(signal.getsignal(signal.SIGTERM))}
        sgd = partial(torch.optim.SGD, lr=0.1)
        trainer = Trainer(torch.nn.Linear(3, 3), summed, sgd, dir=tmp_path / name, callbacks=callbacks)
        trainer.fit([(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))], epochs=1)

    def mine(number: int, frame: Any) -> None:
        pass

    signal.signal(signal.SIGTERM, mine)
    try:
        fit("main")
        assert within.pop() is not mine and signal.getsignal(signal.SIGTERM) is mine
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fit, "thread").result()
        assert within == [mine] and signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


SIGNALLED = """
import os, signal, subprocess, sys, time, torch
from functools import partial
from fastdata import Loader, Trainer
from torch.utils.data import TensorDataset

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it, and so would this

def step(trainer):
    if trainer.update == int(sys.argv[3]):
        # workers get it too, as from a terminal or a scheduler
        code = f"import os; os.killpg({os.getpid()}, {sys.argv[2]})"
        subprocess.run([sys.executable, "-c", code], start_new_session=True)
        time.sleep(0.5)

loader = Loader(TensorDataset(torch.ones(40, 3)), 4, num_workers=2)
next(iter(loader))  # workers that began before the run
loss = lambda model, batch: model(batch[0]).square()[:, 0]
trainer = Trainer(torch.nn.Linear(3, 1), loss, partial(torch.optim.SGD, lr=0.1), dir=sys.argv[1], callbacks={"step": step})
try:
    trainer.fit(loader, epochs=2)
except KeyboardInterrupt:
    print("caught")
    raise
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code", "cause"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 75, "SIGTERM")])
def test_a_signal_to_the_workers_too_saves_and_ends_in_one_line(tmp_path: Path, number: int, code: int, cause: str) -> None:
    done = run(sys.executable, "-c", SIGNALLED, tmp_path, int(number), 13, seconds=300, start_new_session=True)
    assert (done.returncode, done.stderr) == (code, "")
    epoch, last, *caught = done.stdout.splitlines()
    assert epoch.startswith("epoch 1: ") and caught == ["caught"] * (number == signal.SIGINT)
    assert last == f"{cause}: saved at update 13 in {tmp_path}; the same command continues from there."
    done = run(sys.executable, "-c", SIGNALLED, tmp_path, int(number), 0, seconds=300)
    assert done.returncode == 0 and "resumed after update 13, in epoch 2." in done.stdout
