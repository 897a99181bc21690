"""What a run reports: records of the log, numbers of the user's own, TensorBoard's curves, lines; and disks that are full."""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from fastdata import Trainer
from fastdata.train import log
from fastdata.train.checks import CudnnBenchmark
from training import cut, data, net, plain, summed, trainer

PLAIN = partial(SGD, lr=0.1)
BATCHES = cut(data(20), (4, 4, 4, 4, 4))


def made(folder: Path | None = None, loss_fn: Any = summed, **options: Any) -> Trainer:
    return trainer(net(), PLAIN, loss_fn, dir=folder, **{"log_every": 2, **options})


def records(folder: Path, kind: str = "") -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [record for record in lines if kind in record["kind"]]


def test_the_log_has_the_mean_loss_of_the_updates_since_the_last_line(tmp_path):
    losses, model = list[float](), net()
    optimizer = PLAIN(model.parameters())
    for x, y in BATCHES * 2:
        losses.append(F.cross_entropy(model(x), y).item())
        plain(model, optimizer, [(x, y)])
    got, seen = list[dict[str, Any]](), list[torch.Tensor | None]()
    callbacks = {"log": lambda run, record: got.append(record), "step": lambda run: seen.append(run.loss)}
    run = made(tmp_path, callbacks=callbacks)
    assert run.loss is None
    run.fit(BATCHES, BATCHES[:1], epochs=2)
    assert [loss.item() for loss in seen] == pytest.approx(losses) and not any(loss.requires_grad for loss in seen)
    found = {record["update"]: record["loss"] for record in records(tmp_path, "train")}
    spans = {2: (0, 2), 4: (2, 4), 5: (4, 5), 6: (5, 6), 8: (6, 8), 10: (8, 10)}
    assert found == {update: pytest.approx(sum(losses[a:b]) / (b - a)) for update, (a, b) in spans.items()}
    epochs = records(tmp_path, "epoch")
    assert [record["loss"] for record in epochs] == [pytest.approx(sum(losses[a : a + 5]) / 5) for a in (0, 5)]
    assert [record["epoch"] for record in records(tmp_path, "eval")] == [1, 2]
    assert all(record["lr"] == 0.1 for record in records(tmp_path, "train"))
    written = records(tmp_path)
    assert [{"time": record["time"], **mine} for record, mine in zip(written, got, strict=True)] == written


def slowly(batches: list[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.06)
        yield batch


def test_rates_count_rows_and_waiting_and_a_job_s_log_has_a_line_a_minute(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(log, "LINE_S", 0.05)
    made(tmp_path).fit(slowly(BATCHES), BATCHES, epochs=1)
    (record,) = records(tmp_path, "epoch")
    passed = 20 / record["samples_per_s"]
    assert passed >= 0.3 and record["wait"] * passed >= 0.3
    assert record["samples_per_s_without_waiting"] == pytest.approx(20 / (passed * (1 - record["wait"])), rel=1e-6)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2 and all(text.startswith("epoch 1: ") and "updates, loss" in text for text in lines)
    assert last.startswith("epoch 1: loss") and "samples/s" in last and "evaluation: loss" in last
    monkeypatch.setattr(log, "LINE_S", 60.0)
    made().fit(BATCHES, epochs=2)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("kind", [float, lambda value: torch.tensor([value], requires_grad=True)])
def test_the_mean_of_what_was_logged_is_in_the_next_record(tmp_path, kind):
    values = iter([float(k * k) for k in range(20)])

    def loss_fn(model: Any, batch: Any) -> Any:
        trains = isinstance(model, nn.Module) and model.training
        run.log("aux", kind(next(values) if trains else 10.0 + len(batch[0])))
        return summed(model, batch)

    callbacks = {
        "step": lambda run: run.log("step", run.update),
        "eval": lambda run, results: run.log("twice", 2 * results["loss"]),
        "epoch": lambda run, record: run.log("epochs", run.epoch),
    }
    run = made(tmp_path, loss_fn, accumulate=2, metrics={"half": lambda out, batch: 0.5}, callbacks=callbacks)
    results = run.fit(BATCHES, cut(data(6), (4, 2)), epochs=2)
    found = {record["update"]: record["aux"] for record in records(tmp_path, "train")}
    spans = {2: (0, 4), 3: (4, 5), 4: (5, 7), 6: (7, 10)}
    assert found == {update: pytest.approx(sum(k * k for k in range(a, b)) / (b - a)) for update, (a, b) in spans.items()}
    steps = {record["update"]: record.get("step") for record in records(tmp_path, "train")}
    assert steps == {2: 1, 3: 2.5, 4: None, 6: 4.5}  # a callback comes after the record of its update
    assert results["aux"] == 13 and results["half"] == 0.5  # the mean of 14 and 12
    assert all(record["aux"] == 13 and record["twice"] == 2 * record["loss"] for record in records(tmp_path, "eval"))
    assert [record["epochs"] for record in records(tmp_path, "epoch")] == [1, 2]


@pytest.mark.parametrize("name", ["loss", "update", "top1"])
def test_names_of_the_log_and_of_metrics_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}'"):
        made(metrics={"top1": lambda out, batch: 0.5}).log(name, 1.0)


def test_tensorboard_has_the_curves_of_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made(tmp_path).fit(BATCHES, BATCHES[:1], epochs=2)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    points = {event.step: event.value for event in events.Scalars("train/loss")}
    assert points == {record["update"]: pytest.approx(record["loss"], rel=1e-5) for record in records(tmp_path, "train")}
    assert {"train/lr", "train/wait", "eval/loss"} <= set(events.Tags()["scalars"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_that_is_full_for_a_while_costs_one_warning(tmp_path):
    """The limit of a file's size cuts a record off in its middle, as a full disk does."""
    pytest.importorskip("tensorboard")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def step(run: Trainer) -> None:
        most = next(tmp_path.glob("events.*")).stat().st_size + 10 if run.update in (3, 4) else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))

    try:
        with pytest.warns(UserWarning, match="could not be written .* continues") as said:
            made(tmp_path, log_every=1, callbacks={"step": step}).fit(BATCHES, epochs=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len([one for one in said if "could not be written" in str(one.message)]) == 1
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["update"] == 10 and any(not text.endswith("}") for text in lines), "it spoils no other line"


def test_lines_for_which_a_disk_has_no_room_end_no_training(tmp_path, monkeypatch):
    with suppress(OSError), open("/dev/full", "w") as full:  # which cannot be closed without an error
        monkeypatch.setattr(sys, "stdout", full)
        run = made(tmp_path)
        run.fit(BATCHES, epochs=2)
    assert run.update == 10 and [record["epoch"] for record in records(tmp_path, "epoch")] == [1, 2]


def test_cudnn_measures_on_for_a_few_sizes_and_their_short_batches(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    watch = CudnnBenchmark()
    for side, rows in itertools.product((32, 48, 64) * 2, (64, 7)):
        watch.record_shape(torch.zeros(rows, 3, side, side))
    assert torch.backends.cudnn.benchmark
    with pytest.warns(UserWarning, match="inputs have more than 6 shapes"):
        watch.record_shape(torch.zeros(64, 3, 33, 33))
    assert not torch.backends.cudnn.benchmark
