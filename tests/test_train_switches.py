"""Every switch of the Trainer does what it says, and every wrong argument is refused with what to do."""

from __future__ import annotations

import copy
import json
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import LBFGS, SGD, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fastdata.train.world import build_optimizer
from training import cut, data, net, plain, summed, trainer, values

MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)


def images(n: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(n)
    return torch.randn(n, 3, 8, 8, generator=made, dtype=torch.float64).to(dtype), torch.randint(3, (n,), generator=made)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.GroupNorm(1, 3)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * F.dropout(F.gelu(self.norm(self.conv(x))), 0.2, self.training)


def vision(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(192, 3)).to(dtype)


# Weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_average_is_that_of_torch(dtype):
    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(dtype)

    model, reference, batches = make(), make(), cut(data(40, dtype), (8,) * 5)
    average = AveragedModel(reference, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    average.update_parameters(reference)  # the first one copies
    run = trainer(model, MOMENTUM, ema=0.9)
    results = run.fit(batches, batches[:1], epochs=1)
    optimizer = MOMENTUM(reference.parameters())
    for batch in batches:
        plain(reference, optimizer, [batch])
        average.update_parameters(reference)
    eps = 1e-13 if dtype == torch.float64 else 1e-6
    assert run.ema.model[1].num_batches_tracked == 5, "a count is copied; torch would round its average"
    average.module[1].num_batches_tracked.fill_(5)
    torch.testing.assert_close(run.ema.model.state_dict(), average.module.state_dict(), rtol=eps, atol=eps)
    assert torch.equal(values(model), values(reference)), "the weights themselves are not touched"
    x, y = batches[0]
    assert results["loss"] == pytest.approx(F.cross_entropy(average.module.eval()(x), y).item(), rel=1e-5)
    assert results["loss"] != pytest.approx(F.cross_entropy(model.eval()(x), y).item(), rel=1e-3)


def saved_bytes(model: nn.Module, batch: Any) -> int:
    seen = dict[int, int]()

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        summed(model, batch)[0].backward()
    return sum(seen.values())


def test_recomputing_gives_equal_weights_for_less_memory():
    batches, model, reference = cut(images(24), (8, 8, 8)), vision(), vision()
    torch.manual_seed(1)
    trainer(model, MOMENTUM, recompute=(kind for kind in (Block,)), ema=0.5).fit(batches, epochs=1)
    torch.manual_seed(1)  # the same dropout, in both passes
    trainer(reference, MOMENTUM).fit(batches, epochs=1)
    assert torch.equal(values(model), values(reference)) and [*model.state_dict()] == [*vision().state_dict()]
    less, more = saved_bytes(model, batches[0]), saved_bytes(reference, batches[0])
    assert less < more / 2
    twice = trainer(copy.deepcopy(model), MOMENTUM, recompute=[Block]).model
    assert isinstance(twice[0], Block) and type(twice[0]) is type(model[0]), "a second Trainer does not wrap it again"
    assert saved_bytes(twice, batches[0]) == less
    assert torch.equal(twice.eval()(batches[0][0]), reference.eval()(batches[0][0]))
    assert model[0](batches[0][0], scale=0.0).equal(batches[0][0])


def test_channels_last_is_the_layout_of_weights_averages_and_batches():
    layouts = list[bool]()

    def loss_fn(model, batch):
        layouts.append(batch[0].is_contiguous(memory_format=torch.channels_last))
        return summed(model, batch)

    batches = cut(images(16), (8, 8))
    for on in (True, False):
        run = trainer(vision(), MOMENTUM, loss_fn, channels_last=on, ema=0.9)
        run.fit(batches, batches, epochs=1)
        for model in (run.model, run.ema.model):
            assert model[0].conv.weight.is_contiguous(memory_format=torch.channels_last) == on
    assert layouts == [True] * 4 + [False] * 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")  # torch's own, when inductor is imported
def test_a_compiled_model_keeps_its_keys_and_trains_alike():
    batches, model, reference = cut(data(16, torch.float32), (8, 8)), net(torch.float32), net(torch.float32)
    run = trainer(model, MOMENTUM, compile=True, ema=0.9)
    results = run.fit(batches, batches, epochs=1)
    plain(reference, MOMENTUM(reference.parameters()), batches)
    torch.testing.assert_close(values(model), values(reference))
    assert model._compiled_call_impl is not None and [*run.state_dict()["model"]] == [*reference.state_dict()]
    assert run.model is model and set(results) == {"loss"}


def test_tf32_sets_torch_and_nothing_else_does(monkeypatch):
    told = list[str]()
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for switch, allowed in ((True, True), (None, True), (False, False), (None, False)):
        trainer(net(), MOMENTUM, tf32=switch)
        assert torch.backends.cudnn.allow_tf32 == allowed
    assert told == ["high", "highest"]


# Models and optimizers


@pytest.mark.parametrize(("given", "fused"), [({}, True), ({"fused": False}, False), ({"foreach": True}, None)])
def test_an_optimizer_made_for_a_gpu_is_fused_unless_someone_said_otherwise(given, fused):
    made = build_optimizer(partial(AdamW, lr=0.1, **given), net(), torch.device("cuda"))
    assert made.defaults["fused"] is fused
    assert not build_optimizer(partial(AdamW, lr=0.1), net(), torch.device("cpu")).defaults["fused"]


def test_optimizers_that_need_a_loop_of_ones_own_say_so():
    model = net()
    for optimizer in ([SGD(model.parameters(), lr=0.1)], LBFGS(model.parameters()), LBFGS):
        with pytest.raises(TypeError, match=r"not a (list|LBFGS); LBFGS or several optimizers need"):
            trainer(model, optimizer)


def test_a_bias_before_a_batchnorm_is_pointed_out():
    def model(bias):
        return nn.Sequential(nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))

    with pytest.warns(UserWarning, match=r"bias of convolutions \(1 in all, such as 0\)\. drop_dead_bias"):
        trainer(model(True), MOMENTUM)
    trainer(model(False), MOMENTUM)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metrics": {"loss": summed}}, r"metrics is \['loss'\], but must be names other than loss, kind"),
        ({"precision": "fp8"}, "precision is 'fp8'.*fp32, bf16, fp16"),
        ({"accumulate": 0}, "accumulate is 0, but must be a whole number, at least 1"),
        ({"log_every": 0}, "log_every is 0"),
        ({"clip_norm": 0}, "clip_norm is 0, but must be above 0, or None"),
        ({"recompute": (nn.Conv2d,)}, "recompute is 'Conv2d', but must be a class of modules in the model"),
        ({"callbacks": {"batch": print}}, r"callbacks is \['batch'\], but must be among step, epoch, eval, save"),
        ({"profile": True}, "profile is True, but must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        trainer(net(), MOMENTUM, **options)


# Hooks and the profiler


def test_each_hook_is_called_when_and_with_what_it_should_be(tmp_path):
    calls = list[Any]()
    callbacks = {
        "step": lambda run: calls.append(("step", run.update, run.epoch)),
        "epoch": lambda run, record: calls.append(("epoch", run.epoch, record["skipped"], record["eval_loss"])),
        "eval": lambda run, results: calls.append(("eval", run.update, results["loss"])),
        "save": lambda run, path: calls.append(("save", path.name, path.is_file())),
    }
    batches = cut(data(10), (4, 4, 2))
    results = trainer(net(), MOMENTUM, callbacks=callbacks, dir=tmp_path, accumulate=2).fit(batches, batches, epochs=2)
    losses = [call[2] for call in calls if call[0] == "eval"]
    saved = [call for call in calls if call[0] == "save"]
    assert [call for call in calls if call[0] != "save"] == [
        *(("step", 1, 0), ("step", 2, 1), ("eval", 2, losses[0]), ("epoch", 1, 0, losses[0])),
        *(("step", 3, 1), ("step", 4, 2), ("eval", 4, losses[1]), ("epoch", 2, 0, losses[1])),
    ]
    assert saved == [("save", "update-00000002.pt", True), ("save", "update-00000004.pt", True)]
    assert results == {"loss": losses[1]} and losses[1] < losses[0]


@pytest.mark.parametrize(("hook", "answer", "updates"), [("step", 1, 9), ("step", True, 2), ("epoch", True, 3), ("eval", True, 3)])
def test_true_ends_a_run_and_nothing_else_does(hook, answer, updates):
    callbacks = {hook: lambda run, *rest: answer if run.update >= 2 else None}
    batches = cut(data(12), (4, 4, 4))
    run = trainer(net(), MOMENTUM, callbacks=callbacks)
    run.fit(batches, batches, epochs=3)
    assert run.update == updates


def test_the_profiler_writes_a_trace_tells_a_table_and_ends_the_run(tmp_path, capsys):
    batches = cut(data(40), (4,) * 10)
    run = trainer(net(), MOMENTUM, profile=2, dir=tmp_path)
    assert run.fit(batches, batches, epochs=100) == {} and run.update == 5
    names = [event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("loss_fn") == 2 and "Optimizer.step#SGD.step" in names
    assert "Self CPU" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
