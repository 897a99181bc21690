"""What a person sees of a run: the log, TensorBoard's curves, the line of an epoch."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastdata import Trainer
from fastdata.monitor.checks import CudnnBenchmark


def loss_fn(model: Any, batch: Tensor) -> tuple[Tensor, int]:
    return model(batch).square().sum(), len(batch)


def trained(folder: Path | None, batches: Any, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    trainer = Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.01), dir=folder, log_every=2, **options)
    trainer.fit(batches, batches[:1], epochs=2)
    return trainer


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [record for text in lines if (record := json.loads(text))["kind"] == kind]


def batches(count: int = 5) -> list[Tensor]:
    return [torch.full((4, 3), float(k + 1)) for k in range(count)]


def test_the_log_has_the_mean_loss_of_the_updates_since_the_last_line(tmp_path):
    losses: list[float] = []
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches() * 2:
        loss = model(batch).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained(tmp_path, batches(), progress=False)
    found = {record["update"]: record["loss"] for record in records(tmp_path, "train")}
    spans = {2: (0, 2), 4: (2, 4), 5: (4, 5), 6: (5, 6), 8: (6, 8), 10: (8, 10)}
    assert found == {update: pytest.approx(sum(losses[a:b]) / (b - a), rel=1e-5) for update, (a, b) in spans.items()}
    epochs = records(tmp_path, "epoch")
    assert [record["loss"] for record in epochs] == [pytest.approx(sum(losses[a : a + 5]) / 5, rel=1e-5) for a in (0, 5)]
    assert [record["epoch"] for record in records(tmp_path, "eval")] == [1, 2]
    assert all(record["lr"] == 0.01 for record in records(tmp_path, "train"))


def test_rates_count_rows_and_waiting(tmp_path):
    class Slow(list[Tensor]):
        def __iter__(self):
            for batch in batches():
                time.sleep(0.05)
                yield batch

    trained(tmp_path, Slow(batches()), progress=False)
    for record in records(tmp_path, "epoch"):
        passed = 20 / record["samples_per_s"]
        assert passed >= 0.25
        assert record["wait"] * passed >= 0.25
        assert record["samples_per_s_without_waiting"] == pytest.approx(20 / (passed * (1 - record["wait"])), rel=1e-6)


def epochs_of(said: str) -> list[str]:
    return [text for text in said.splitlines() if text.startswith("epoch")]


def test_an_epoch_is_one_line(capsys):
    trained(None, batches())
    said = epochs_of(capsys.readouterr().out)
    assert [text.split(":")[0] for text in said] == ["epoch 1", "epoch 2"]
    assert all("samples/s" in text and "evaluation: loss" in text for text in said)
    trained(None, batches(), progress=False)
    assert capsys.readouterr().out == ""


def test_tensorboard_has_the_curves_of_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(tmp_path, batches(), progress=False, tensorboard=True)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    points = {event.step: event.value for event in events.Scalars("train/loss")}
    assert points == {record["update"]: pytest.approx(record["loss"], rel=1e-5) for record in records(tmp_path, "train")}
    assert {"train/lr", "train/wait", "eval/loss"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("shapes", "stays"),
    [
        ([(64, 3, 32, 32), (7, 3, 32, 32), (64, 3, 48, 48), (7, 3, 48, 48)] * 3, True),
        ([(64, 3, side, side) for side in (32, 48, 64)] + [(7, 3, side, side) for side in (32, 48, 64)], True),
        ([(64, 3, side, side) for side in (32, 48, 64, 80)], False),
        ([(rows, 3, 32, 32) for rows in (64, 60, 56, 52, 48)], False),
    ],
    ids=["two sizes with short batches", "three sizes with short batches", "four sizes", "rows that always differ"],
)
def test_cudnn_measures_on_for_a_few_sizes_and_their_short_batches(shapes, stays):
    """What a run on a GPU has its batches looked at by."""
    before = torch.backends.cudnn.benchmark
    try:
        watch = CudnnBenchmark()
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", message="inputs have more")
            for shape in shapes:
                watch.see(torch.zeros(shape))
        assert torch.backends.cudnn.benchmark == stays and bool(caught) != stays
    finally:
        torch.backends.cudnn.benchmark = before


def test_on_the_cpu_cudnns_switch_stays():
    before = torch.backends.cudnn.benchmark
    trained(None, [torch.zeros(1 + side, 3) for side in range(5)], progress=False)
    assert torch.backends.cudnn.benchmark == before
