"""What a resumed run says and does where its options differ, and what becomes of an earlier run that is not gone on from."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from fastdata import Trainer
from fastdata.errors import FastDataError
from fastdata.optim import cosine
from training import Batch, cut, data, net, plain, summed, values

BATCHES: list[Batch] = cut(data(12), (4, 4, 4))


def trainer(
    folder: Path | None, optimizer: Any = None, scheduler: Any = None, *, end: int | None = None, **options: Any
) -> Trainer:
    """end: the run ends after so many updates. scheduler: of the optimizer."""
    model = net()
    made = (optimizer or partial(SGD, lr=0.05))(model.parameters())
    callbacks = {"step": lambda run: run.update == end}
    options = {"callbacks": callbacks, **options}
    return Trainer(model, summed, made, dir=folder, scheduler=scheduler and scheduler(made), **options)


def by_hand(optimizers: list[Any]) -> nn.Module:
    """Three batches for each optimizer; all share their state."""
    model, state = net(), None
    for make in optimizers:
        optimizer = make(model.parameters())
        if state is not None:
            wanted = [{**group, "params": []} for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, values_asked in zip(optimizer.param_groups, wanted, strict=True):
                group.update({name: value for name, value in values_asked.items() if name != "params"})
        plain(model, optimizer, BATCHES)
        state = optimizer.state_dict()
    return model


SGDS = [partial(SGD, lr=0.05, momentum=0.9), partial(SGD, lr=0.005, momentum=0.5, weight_decay=0.1)]
ADAMS = [partial(AdamW, lr=0.05), partial(AdamW, lr=0.005, betas=(0.5, 0.9), weight_decay=0.3)]


@pytest.mark.parametrize("makes", [SGDS, ADAMS], ids=["SGD", "AdamW"])
def test_what_is_asked_of_the_optimizer_counts_and_is_said(tmp_path, makes):
    trainer(tmp_path, makes[0]).fit(BATCHES, epochs=1)
    with pytest.warns(UserWarning, match=r"after update 3, in epoch 2\. .*lr 0.05 saved, 0.005 now: the new value") as said:
        again = trainer(tmp_path, makes[1])
    again.fit(BATCHES, epochs=2)
    assert "weight_decay" in str(said[0].message) and said[0].filename == __file__
    assert (values(again.model) - values(by_hand(makes))).abs().max() < 1e-12
    state = torch.load(tmp_path / "checkpoints/update-00000006.pt", weights_only=True)
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.005


def test_a_rate_of_a_function_counts_as_it_is_asked(tmp_path):
    """In the middle of a run, and after the second resume too, which asks for what the first did."""
    trainer(tmp_path, scheduler=lambda o: cosine(), end=2).fit(BATCHES, epochs=3)
    seen = list[float]()
    for end in (5, None):
        with pytest.warns(UserWarning, match="lr 0.05 saved, 0.005 now") if end else nullcontext():
            again = trainer(tmp_path, partial(SGD, lr=0.005), lambda o: cosine(), end=end)
        again.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        again.fit(BATCHES, epochs=3)
    assert seen == [pytest.approx(0.005 * cosine(9)(update)) for update in range(2, 9)]


def test_another_optimizer_can_t_go_on(tmp_path):
    """What it keeps of each weight has other names."""
    trainer(tmp_path, SGDS[0]).fit(BATCHES, epochs=1)
    with pytest.raises(FastDataError, match="optimizer SGD was saved, not AdamW"):
        trainer(tmp_path, ADAMS[0]).fit(BATCHES, epochs=2)


def test_a_scheduler_of_torch_goes_on_with_its_own_and_that_is_said(tmp_path):
    """Weight decay is not its own."""
    trainer(tmp_path, scheduler=lambda o: StepLR(o, 1, gamma=0.5)).fit(BATCHES, epochs=1)
    with pytest.warns(UserWarning, match="weight_decay 0 saved, 0.1 now: the new value is used") as said:
        again = trainer(tmp_path, partial(SGD, lr=0.4, weight_decay=0.1), lambda o: StepLR(o, 1, gamma=0.1))
    again.fit(BATCHES, epochs=2)
    text = str(said[0].message)
    assert "lr 0.05 saved, 0.4 now: the saved value is used" in text
    assert again.schedule.rates() == [pytest.approx(0.05 * 0.5**2)]
    assert again.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_other_options_are_named_too(tmp_path):
    trainer(tmp_path, scheduler=lambda o: cosine(warmup=1), clip_norm=1.0).fit(BATCHES, epochs=1)
    with pytest.warns(UserWarning, match="the new value is used") as said:
        trainer(tmp_path, scheduler=lambda o: cosine(warmup=2), accumulate=2, precision="bf16", ema=0.9)
    for text in (
        *("precision fp32 saved, bf16 now", "accumulate 1 saved, 2 now", "clip_norm 1.0 saved, None now"),
        *("ema None saved, 0.9 now"),
        "scheduler cosine(warmup=1, final=0.0) saved, cosine(warmup=2, final=0.0) now",
    ):
        assert text in str(said[0].message)


def test_a_finished_run_says_so_and_trains_nothing(tmp_path):
    results = trainer(tmp_path).fit(BATCHES, BATCHES, epochs=2)
    again = trainer(tmp_path)
    with pytest.warns(UserWarning, match=r"nothing was trained: the run is finished \(epochs: 2, updates: 6\)"):
        assert again.fit(BATCHES, BATCHES, epochs=2) == results
    assert again.update == 6


@pytest.mark.slow
def test_resume_false_starts_anew_and_loses_nothing(tmp_path, capsys):
    """Checkpoints and log of each run are kept aside; a second fit of the same Trainer goes on."""
    runs = []
    for rate in (0.05, 0.1, 0.2):
        made = trainer(tmp_path, partial(SGD, lr=rate), resume=False)
        made.fit(BATCHES, BATCHES, epochs=1)
        made.fit(BATCHES, BATCHES, epochs=2)
        assert made.update == 6
        runs.append(made)
    assert f"an earlier run were moved from {tmp_path} to {tmp_path / 'earlier-2'}" in capsys.readouterr().out
    for made, folder in zip(runs, ("earlier-1", "earlier-2", "."), strict=True):
        checkpoints = tmp_path / folder / "checkpoints"
        assert sorted(path.name for path in checkpoints.iterdir()) == ["update-00000003.pt", "update-00000006.pt"]
        state = torch.load(checkpoints / "update-00000006.pt", weights_only=True)["model"]
        assert all(torch.equal(state[name], weight) for name, weight in made.model.state_dict().items())
        log = [json.loads(line) for line in (tmp_path / folder / "log.jsonl").read_text().splitlines()]
        assert [record["epoch"] for record in log if record["kind"] == "epoch"] == [1, 2]


def test_require_needs_a_checkpoint_and_a_loop_of_ones_own_goes_on_too(tmp_path):
    with pytest.raises(FastDataError, match=rf"resume is 'require', but {tmp_path} has no checkpoint"):
        trainer(tmp_path, resume="require").fit(BATCHES, epochs=1)
    trainer(tmp_path).fit(BATCHES, epochs=1)
    again = trainer(tmp_path, resume="require")
    again.fit(BATCHES, epochs=2)
    again.fit(BATCHES, epochs=3)
    assert again.update == 9
    run = trainer(tmp_path)
    list(run.steps(BATCHES))
    run.save()
    run.close()
    assert run.update == 12 and (tmp_path / "checkpoints/update-00000012.pt").is_file()
