"""What a user logs, the hook for each record, and the log of a job: lines, full disks, signals, and runs that go on."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from fastdata import FastDataError, Trainer
from fastdata.monitor import meter
from training import cut, data, net, summed

PLAIN = partial(SGD, lr=0.1)
BATCHES = cut(data(20), (4, 4, 4, 4, 4))


def made(folder: Path | None = None, loss_fn: Any = summed, **options: Any) -> Trainer:
    return Trainer(net(), loss_fn, PLAIN, dir=folder, **{"progress": False, "log_every": 2, **options})


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [record for text in lines if (record := json.loads(text))["kind"] == kind]


def in_loss(trainer: list[Trainer], values: list[float], kind: Any) -> Any:
    """A loss function that logs the next of these values, in training."""
    left = iter(values)

    def loss_fn(model: Any, batch: Any) -> Any:
        if model.training if isinstance(model, nn.Module) else False:
            trainer[0].log("aux", kind(next(left)))
        else:
            trainer[0].log("aux", kind(10.0 + len(batch[0])))
        return summed(model, batch)

    return loss_fn


@pytest.mark.slow
@pytest.mark.parametrize("kind", [float, torch.tensor, lambda value: torch.tensor([value], requires_grad=True)])
def test_the_mean_of_what_was_logged_is_in_the_next_record(tmp_path, kind):
    values, trainer = [float(k * k) for k in range(20)], list[Trainer]()
    trainer.append(made(tmp_path, in_loss(trainer, values, kind), accumulate=2, metrics={"half": lambda out, batch: 0.5}))
    results = trainer[0].fit(BATCHES, cut(data(6), (4, 2)), epochs=2)
    found = {record["update"]: record["aux"] for record in records(tmp_path, "train")}
    spans = {2: (0, 4), 3: (4, 5), 4: (5, 7), 6: (7, 10)}
    assert found == {update: pytest.approx(sum(values[a:b]) / (b - a)) for update, (a, b) in spans.items()}
    assert [record["aux"] for record in records(tmp_path, "epoch")] == [pytest.approx(sum(values[a : a + 5]) / 5) for a in (0, 5)]
    assert results["aux"] == 13 and results["half"] == 0.5  # the mean of 14 and 12
    assert [record["aux"] for record in records(tmp_path, "eval")] == [13, 13]


def test_hooks_and_loops_log_too_and_nothing_is_lost_at_the_end(tmp_path):
    hooks = {
        "step": lambda trainer: trainer.log("step", trainer.update),
        "eval": lambda trainer, results: trainer.log("twice", 2 * results["loss"]),
        "epoch": lambda trainer, record: trainer.log("epochs", trainer.epoch),
    }
    made(tmp_path, hooks=hooks).fit(BATCHES, BATCHES[:1], max_steps=9)
    means = {record["update"]: record.get("step") for record in records(tmp_path, "train")}
    assert means == {2: 1, 4: 2.5, 5: 4.5, 6: None, 8: 6.5, 9: 8.5}  # a hook comes after the record of its update
    assert [record["epochs"] for record in records(tmp_path, "epoch")] == [1]
    assert all(record["twice"] == 2 * record["loss"] for record in records(tmp_path, "eval"))
    other = made(tmp_path / "loop")
    for update in other.steps(BATCHES):
        other.log("mine", update)
    other.end_epoch()
    other.close()
    assert [record["mine"] for record in records(tmp_path / "loop", "epoch")] == [3]
    assert sum(record["mine"] for record in records(tmp_path / "loop", "train")) == 1 + 2.5 + 4.5


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("aux", "1", TypeError, "takes a number or a tensor of one, but got a str"),
        ("aux", None, TypeError, "got a NoneType"),
        ("aux", 1j, TypeError, "got a complex"),
        ("aux", torch.zeros(2, 3), ValueError, r"got a tensor \[2, 3\]: log its mean"),
        (3, 1.0, TypeError, "the name is 3"),
        ("loss", 1.0, ValueError, "'loss'"),
        ("update", 1.0, ValueError, "'update'"),
        ("top1", 1.0, ValueError, "'top1'"),
        ("eval_aux", 1.0, ValueError, "'eval_aux'"),
    ],
)
def test_wrong_use_is_told(name, value, error, said):
    run = made(hooks={"step": lambda trainer: trainer.log(name, value)}, metrics={"top1": lambda out, batch: 0.5})
    with pytest.raises(error, match=said):
        run.fit(BATCHES, epochs=1)


def test_there_is_no_log_before_a_run_nor_after_it(tmp_path):
    run = made()
    with pytest.raises(FastDataError, match=r"log\('aux', ...\) was called outside of a run"):
        run.log("aux", 1.0)
    run.fit(BATCHES, epochs=1)
    with pytest.raises(FastDataError, match="outside of a run"):
        run.log("aux", 1.0)
    with pytest.raises(FastDataError, match="outside of a run"):
        made(tmp_path, hooks={"save": lambda trainer, path: trainer.log("aux", 1.0)}).fit(BATCHES, epochs=1)


def test_the_hook_gets_each_record_of_the_log(tmp_path):
    got: list[dict[str, Any]] = []
    hooks = {"log": lambda trainer, record: got.append(record)}
    made(tmp_path, hooks=hooks).fit(BATCHES, BATCHES[:1], epochs=2)
    written = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [{"time": record["time"], **mine} for record, mine in zip(written, got, strict=True)] == written
    assert {record["kind"] for record in got} == {"train", "eval", "epoch"}
    got.clear()
    made(hooks=hooks).fit(BATCHES, epochs=1)
    assert [record["update"] for record in got] == [2, 4, 5, 5]  # also without a folder


def test_a_hook_that_raises_ends_the_run():
    def broken(trainer: Trainer, record: Any) -> None:
        raise OSError("the service of the log is away")

    with pytest.raises(OSError, match="is away"):
        made(hooks={"log": broken}).fit(BATCHES, epochs=1)
    with pytest.raises(TypeError, match=r"hooks\['log'\] is a str"):
        made(hooks={"log": "wandb"})


RANK = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from functools import partial
from torch.optim import SGD
from fastdata import Trainer
from training import cut, data, net, summed

rank, root = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{root}/meeting", rank=rank, world_size=2)
got = []
def step(trainer):
    trainer.log("rank", float(rank))
    if rank == 1:
        trainer.log("second", 7.0)  # of one rank only
trainer = Trainer(net(), summed, partial(SGD, lr=0.1), log_every=2, progress=False,
                  hooks={"step": step, "log": lambda trainer, record: got.append(record)})
trainer.fit(cut(data(16), (4, 4, 4, 4)), epochs=1)
Path(root, f"{rank}.json").write_text(json.dumps(got))
dist.barrier()  # or the threads of one may take the end of the other for a failure
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_log_their_mean_and_rank_0_calls_the_hook(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=Path(__file__).parent) for rank in range(2)]
    try:
        assert [rank.wait(timeout=360) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert second == [] and [record["update"] for record in first] == [2, 4, 4, 4]
    assert all(record["rank"] == 0.5 and record["second"] == 7 for record in first)


class Slow(list[Any]):
    """Batches that come one in a while."""

    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.06)
            yield batch


def test_a_job_s_log_has_a_line_a_minute(capsys, monkeypatch):
    monkeypatch.setattr(meter, "LINE_S", 0.05)
    made(progress=True, log_every=2).fit(Slow(BATCHES), epochs=1)
    said = capsys.readouterr().out.splitlines()
    training = [text for text in said if text.startswith("epoch 1: ") and " of 5 updates, loss" in text]
    assert len(training) >= 2 and all("samples/s" in text for text in training)
    monkeypatch.setattr(meter, "LINE_S", 60.0)
    made(progress=True).fit(BATCHES, epochs=1)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_full_disk_ends_no_training(tmp_path):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match=r"log\.jsonl could not be written .*No space left.*continues") as said:
        made(tmp_path, log_every=1).fit(BATCHES, epochs=2)
    assert [warning.filename for warning in said if "log.jsonl" in str(warning.message)] == [__file__]
    assert (tmp_path / "checkpoints" / "update-00000010.pt").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_that_is_full_for_a_while_costs_one_warning_for_each_file(tmp_path):
    """The limit of a file's size cuts a record off in its middle, as a full disk does."""
    pytest.importorskip("tensorboard")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def step(trainer: Trainer) -> None:
        most = limits[0]
        if trainer.update in (3, 4):
            (file,) = tmp_path.glob("events.*")
            most = file.stat().st_size + 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))

    try:
        with pytest.warns(UserWarning, match="could not be written .* continues") as said:
            made(tmp_path, tensorboard=True, log_every=1, hooks={"step": step}).fit(BATCHES, epochs=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    texts = [str(one.message)[:13] for one in said if "could not be written" in str(one.message)]
    assert sorted(texts) == ["TensorBoard's", "log.jsonl cou"]
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["update"] == 10


def test_lines_for_which_a_disk_has_no_room_end_no_training(tmp_path, monkeypatch):
    with suppress(OSError), open("/dev/full", "w") as full:  # which cannot be closed without an error
        monkeypatch.setattr(sys, "stdout", full)
        run = made(tmp_path, progress=True)
        run.fit(BATCHES, epochs=2)
    assert run.update == 10 and [record["epoch"] for record in records(tmp_path, "epoch")] == [1, 2]


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"kind": "train", "update": 1, "loss": 3.0}\n{"kind": "tra')
    made(tmp_path).fit(BATCHES, epochs=1)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert lines[1] == '{"kind": "tra' and json.loads(lines[2])["update"] == 2


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
trainer = Trainer(torch.nn.Linear(3, 1), loss, partial(torch.optim.SGD, lr=0.1), dir=sys.argv[1], hooks={"step": step})
try:
    trainer.fit(loader, epochs=2)
except KeyboardInterrupt:
    print("caught")
    if sys.argv[4:] != ["catch"]:
        raise
"""


def signalled(folder: Path, number: int, update: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SIGNALLED, str(folder), str(number), str(update), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=360, check=False, start_new_session=True)


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_in_one_line_and_the_resumed_epoch_is_labelled(tmp_path: Path) -> None:
    done = signalled(tmp_path, signal.SIGINT, 13)
    assert done.returncode == 130 and done.stderr == ""
    epoch, last, caught = done.stdout.splitlines()
    assert epoch.startswith("epoch 1: ") and caught == "caught"
    assert last == f"interrupted: saved at update 13 in {tmp_path}; the same command continues from there."
    done = signalled(tmp_path, signal.SIGTERM, 17)
    assert done.returncode == 75 and done.stderr == ""
    assert done.stdout.splitlines()[-1] == f"SIGTERM: saved at update 17 in {tmp_path}; the same command continues from there."
    done = signalled(tmp_path, signal.SIGINT, 0)
    assert done.returncode == 0
    assert "epoch 2, resumed at update 17: loss" in done.stdout
    assert [record.get("resumed_at") for record in records(tmp_path, "epoch")] == [None, 17]
    assert [record["update"] for record in records(tmp_path, "train")][-3:] == [13, 17, 20]


@pytest.mark.slow
def test_a_script_may_catch_the_interrupt(tmp_path: Path) -> None:
    done = signalled(tmp_path, signal.SIGINT, 3, "catch")
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "caught")
    assert (tmp_path / "checkpoints" / "update-00000003.pt").exists()


def test_an_epoch_that_begins_with_a_resume_is_whole(tmp_path):
    made(tmp_path).fit(BATCHES, epochs=1)
    made(tmp_path).fit(BATCHES, epochs=2)
    assert [record.get("resumed_at") for record in records(tmp_path, "epoch")] == [None, None]
