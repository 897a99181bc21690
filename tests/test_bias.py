"""Biases in front of a BatchNorm: what is dropped changes nothing but rounding, and what is not proven dead is kept."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from fastdata import GPUNormalize
from fastdata.gpu.bias import dead_biases, drop_dead_bias
from test_normalize import on_each_device

CONVS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def net(rank: int, kind: dict[int, type[nn.Module]] = CONVS, **options: Any) -> nn.Sequential:
    """Two dead biases and one that lives; the running statistics are not those of a new model."""
    torch.manual_seed(rank)
    block = nn.Sequential(kind[rank](4, 5, 3, padding=1), NORMS[rank](5, **options), nn.ReLU())
    model = nn.Sequential(CONVS[rank](3, 4, 3, stride=2), NORMS[rank](4, **options), nn.ReLU(), block, CONVS[rank](5, 2, 1))
    for norm in model.modules():
        if getattr(norm, "running_mean", None) is not None:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model


def batch(rank: int, seed: int = 0) -> Tensor:
    return torch.randn(6, 3, *(9, 7, 5)[:rank], generator=torch.Generator().manual_seed(seed))


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@on_each_device
@pytest.mark.parametrize("kind", [CONVS, TRANSPOSED])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_training_and_evaluation_stay_the_same(rank: int, options: Any, kind: dict[int, type[nn.Module]], device: str) -> None:
    before = net(rank, kind, **options).to(device, torch.float64)
    after, old = copy.deepcopy(before), copy.deepcopy(before)
    assert drop_dead_bias(after) == ["0", "3.0"] and dead_biases(after) == []
    assert after[0].bias is None and after[3][0].bias is None and after[4].bias is not None
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (before, after)]
    for step in range(3):
        x = batch(rank, step).to(device, torch.float64)
        same(before.eval()(x), after.eval()(x))
        outs = before.train()(x), after.train()(x)
        same(*outs)
        for out, optimizer in zip(outs, optimizers, strict=True):
            optimizer.zero_grad()
            (out**3).mean().backward()
            optimizer.step()
        for name, p in after.named_parameters():
            same(before.get_parameter(name).grad, p.grad)
        for name, value in after.named_buffers():
            shift = old.get_submodule({"1": "0", "3.1": "3.0"}[name.rpartition(".")[0]]).bias if "mean" in name else 0
            same(before.get_buffer(name), value + shift)
    same(before.eval()(x), after.eval()(x))
    assert len(list(after.parameters())) == len(list(before.parameters())) - 2


class Forward(nn.Module):
    """A convolution, a BatchNorm, more modules by name, and a function that is the forward."""

    def __init__(self, run: Callable[..., Any], **more: nn.Module) -> None:
        super().__init__()
        self.run, self.seen = run, []
        for name, module in {"conv": conv(), "bn": bn(), **more}.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def conv(inputs: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, 4, 3, padding=1)


bn = partial(nn.BatchNorm2d, 4)


def changed(*modules: nn.Module, change: Callable[[nn.Sequential], Any]) -> nn.Sequential:
    model = nn.Sequential(*modules)
    change(model)
    return model


class Thawing(nn.Sequential):
    """Its norms stay in evaluation, whatever the mode."""

    def train(self, mode: bool = True) -> nn.Sequential:
        super().train(mode)
        self[1].eval()
        return self


DROPPED: dict[str, Callable[[], nn.Module]] = {
    "by keyword": lambda: Forward(lambda m, x: m.bn(input=m.conv(input=x))),
    "behind integers": lambda: Forward(lambda m, x: m.bn(m.conv(m.floats(x))), floats=GPUNormalize(0.5, 0.25)),
    "weight read": lambda: Forward(lambda m, x: m.bn(m.conv(x)) + m.conv.weight.sum()),
    "random numbers drawn": lambda: Forward(lambda m, x: m.bn(m.conv(x)) * torch.rand(3).sum()),
    "all in evaluation": lambda: Forward(lambda m, x: m.bn(m.conv(x))).eval(),
    "sync": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Forward(lambda m, x: m.bn(m.conv(x)))),
}
KEPT: dict[str, Callable[[], nn.Module]] = {
    "something between": lambda: nn.Sequential(conv(), nn.ReLU(), bn()),
    "linear, whose inputs may have three axes": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "other rank": lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm1d(4)),
    "called by a module that fx does not open": lambda: (
        lambda one: Forward(lambda m, x: m.bn(m.conv(x)) + m.all(x), conv=one, all=nn.DataParallel(one, device_ids=[]))
    )(conv()),
    "output used": lambda: Forward(lambda m, x: (lambda y: m.bn(y) + y)(m.conv(x))),
    "output stored": lambda: Forward(lambda m, x: m.bn(m.seen.append(m.conv(x)) or m.seen[-1])),
    "convolution called once more": lambda: Forward(lambda m, x: m.bn(m.conv(x)) + m.conv(x)),
    "norm called once more": lambda: Forward(lambda m, x: m.bn(m.conv(x)) + m.bn(x[:, :1].expand(6, 4, 9, 7))),
    "only in training": lambda: Forward(lambda m, x: (lambda y: m.bn(y) if m.training else (m.bn(y), y))(m.conv(x))),
    "not traceable": lambda: Forward(lambda m, x: m.bn(m.conv(x)) if x.sum() > 0 else x),
    "bias read among all parameters": lambda: Forward(lambda m, x: m.bn(m.conv(x)) + sum(p.sum() for p in m.parameters())),
    "a path chosen by a buffer": lambda: Forward(lambda m, x: m.bn(m.conv(x)) if m.bn.num_batches_tracked else x),
    "statistics read": lambda: Forward(lambda m, x: m.bn(m.conv(x)) + x.mean() * m.bn.running_mean.view(1, 4, 1, 1)),
    "bias shared": lambda: changed(conv(), bn(), conv(4), change=lambda m: setattr(m[2], "bias", m[0].bias)),
    "parametrized": lambda: changed(
        conv(), bn(), conv(4), change=lambda m: parametrize.register_parametrization(m[0], "weight", nn.Identity())
    ),
    "subclass": lambda: nn.Sequential(type("Named", (nn.Conv2d,), {})(3, 4, 1), bn(), conv(4)),
    "patched": lambda: changed(conv(), bn(), change=lambda m: setattr(m[0], "forward", lambda x: F.relu(x))),
    "norm frozen": lambda: changed(conv(), bn(), change=lambda m: m[1].eval()),
    "norm frozen by train()": lambda: Thawing(conv(), bn()).eval(),
    "cannot be copied": lambda: changed(conv(), bn(), change=lambda m: setattr(m, "lock", threading.Lock())),
} | {
    f"{hook} of {k}": lambda hook=hook, k=k: changed(conv(), bn(), change=lambda m: getattr(m[k], f"register_{hook}")(print))
    for hook in ("forward_hook", "forward_pre_hook", "full_backward_hook")
    for k in (0, 1)
}


@pytest.mark.parametrize("case", [*DROPPED, *KEPT])
def test_what_is_dropped_and_what_is_kept(case: str) -> None:
    model = (DROPPED | KEPT)[case]()
    before, modes = dict(model.state_dict(keep_vars=True)), [m.training for m in model.modules()]
    state = torch.get_rng_state()
    found = dead_biases(model)
    assert [name for name, _ in found] == (["conv"] if case in DROPPED else [])
    now = model.state_dict(keep_vars=True)
    assert now.keys() == before.keys() and all(now[name] is value for name, value in before.items())
    assert [m.training for m in model.modules()] == modes and torch.equal(torch.get_rng_state(), state)
    assert drop_dead_bias(model) == [name for name, _ in found]


class Program(nn.Module):
    """Steps of (operation, register, register) over a few modules; each step's result is a new register."""

    def __init__(self, steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
        super().__init__()
        self.steps, self.outputs = steps, outputs
        for k in range(3):
            self.add_module(f"conv{k}", nn.Conv2d(3, 3, 1))
            self.add_module(f"bn{k}", nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        values = [x]
        for what, a, b in self.steps:
            x, y = values[a % len(values)], values[b % len(values)]
            values.append(x.relu() if what == "relu" else x + y if what == "add" else self.get_submodule(what)(x))
        return [values[-1], *(values[k % len(values)] for k in self.outputs)]


OPERATIONS = ["relu", "add", *(f"{kind}{k}" for kind in ("conv", "bn") for k in range(3))]
step = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9))
latest = st.builds(lambda what: (what, -1, 0), st.sampled_from(OPERATIONS))  # likelier to make pairs


@settings(deadline=None, max_examples=150)
@given(steps=st.lists(step | latest, min_size=2, max_size=9), outputs=st.lists(st.integers(0, 9), max_size=1))
@pytest.mark.slow
def test_any_program_computes_the_same(steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
    torch.manual_seed(0)
    before = Program(steps, outputs).double()
    after = copy.deepcopy(before)
    drop_dead_bias(after)
    for mode in (True, True, False):
        same(before.train(mode)(batch(2).double()), after.train(mode)(batch(2).double()))
