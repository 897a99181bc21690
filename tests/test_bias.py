"""Biases in front of a BatchNorm: which are found, and that nothing but rounding changes without them."""

from __future__ import annotations

import copy
import doctest
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from fastdata.gpu import bias, conv_norm_graph
from fastdata.gpu.bias import dead_biases, drop_dead_bias

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
on_each_device = pytest.mark.parametrize("device", ["cpu", CUDA])

CONVS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Forward(nn.Module):
    """Modules by name, and a function that is the forward."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def conv(inputs: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, 4, 3, padding=1, **options)


def bn(**options: Any) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(4, **options)


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


OPTIONS = [{}, {"momentum": None}, {"momentum": 0.0}, {"track_running_stats": False}, {"affine": False}]


@pytest.mark.slow
@on_each_device
@pytest.mark.parametrize("kind", [CONVS, TRANSPOSED])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_training_and_evaluation_stay_the_same(
    rank: int, options: dict[str, Any], kind: dict[int, type[nn.Module]], device: str
) -> None:
    before = net(rank, kind, **options).to(device, torch.float64)
    after, old = copy.deepcopy(before), copy.deepcopy(before)
    assert drop_dead_bias(after) == ["0", "3.0"]
    assert after[0].bias is None and after[3][0].bias is None and after[4].bias is not None
    both = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (before, after)]
    for step in range(5):
        x, outs = batch(rank, step).to(device, torch.float64), []
        same(*(m.eval()(x) for m, _ in both))
        for model, optimizer in both:
            optimizer.zero_grad()
            outs.append(model.train()(x))
            (outs[-1] ** 3).mean().backward()
        same(*outs)
        for name, p in after.named_parameters():
            same(before.get_parameter(name).grad, p.grad)
        for _, optimizer in both:
            optimizer.step()
        for name, value in after.named_buffers():
            shift = old.get_submodule({"1": "0", "3.1": "3.0"}[name.rpartition(".")[0]]).bias if "mean" in name else 0
            same(before.get_buffer(name), value + shift)
    same(before.eval()(x), after.eval()(x))
    assert len(list(after.parameters())) == len(list(before.parameters())) - 2


def test_an_evolving_mean_is_compared_with_one_that_moved() -> None:
    model = net(2).train()
    mean = model[1].running_mean.clone()
    model(batch(2))
    assert (model[1].running_mean - mean).abs().min() > 1e-3


@pytest.mark.parametrize("wide", ["weights", "statistics"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_folding_is_in_the_wider_dtype(half: torch.dtype, wide: str) -> None:
    model = net(2)
    model[0 if wide == "statistics" else 1].to(half)
    bias, mean = model[0].bias.detach().clone(), model[1].running_mean.clone()
    assert bias.dtype != mean.dtype
    drop_dead_bias(model)
    assert model[1].running_mean.dtype == mean.dtype
    assert torch.equal(model[1].running_mean, (mean.float() - bias.float()).to(mean.dtype))


def test_the_buffer_itself_is_changed() -> None:
    model = net(2)
    mean = model[1].running_mean
    drop_dead_bias(model)
    assert model[1].running_mean is mean and not mean.requires_grad


def test_again_there_is_nothing() -> None:
    model = net(2)
    assert dead_biases(model) == [("0", "1"), ("3.0", "3.1")]
    drop_dead_bias(model)
    assert dead_biases(model) == [] and drop_dead_bias(model) == []


def twice(module: nn.Module, x: Tensor) -> Tensor:
    return module.bn(module.conv(x)) + module.bn(module.conv(x * 2))


class Opaque(nn.Module):
    """Control flow that depends on a tensor."""

    def __init__(self, inside: nn.Module | None = None) -> None:
        super().__init__()
        self.inside = inside or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if x.sum() > 1e9 else self.inside(x) * 1


class Named(nn.Conv2d):
    """Computes the same."""


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Quadratic(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x**2


class Standardized(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight, bias) ** 2


def chain(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


def pair(run: Callable[..., Any], **more: nn.Module) -> nn.Module:
    return Forward(run, **{"conv": conv(), "bn": bn(), **more})


def by_hand(module: Any, x: Tensor) -> Tensor:
    y = module.conv(x)
    return F.batch_norm(y, module.bn.running_mean, module.bn.running_var, training=module.training)


def in_training_only(module: Any, x: Tensor) -> Any:
    y = module.conv(x)
    return module.bn(y) if module.training else (module.bn(y), y)


def in_evaluation_only(module: Any, x: Tensor) -> Any:
    y = module.conv(x)
    return (module.bn(y), y) if module.training else module.bn(y)


class Choosing(nn.Module):
    """Cannot be traced by itself, as `flag` is not known, nor in a model that passes it, as the end depends on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = conv(), bn()

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        if not flag:
            return x
        y = self.conv(x)
        z: Tensor = self.bn(y)
        return y if z.sum() > 1e9 else z


def layers(module: Any, x: Tensor) -> list[Tensor]:
    """As perceptual losses do it: outputs along the way, of a Sequential that is never called."""
    outs = []
    for k, layer in enumerate(module.features):
        x = layer(x)
        if k in (0, 2):
            outs.append(x)
    return outs


def layers_and_control_flow(module: Any, x: Tensor) -> Any:
    outs = layers(module, x)
    return outs if x.sum() > 1e9 else outs[0]


def shared_bias() -> nn.Module:
    model = nn.Sequential(conv(), bn(), conv(4))
    model[2].bias = model[0].bias
    return model


def parametrized(name: str) -> nn.Module:
    model = nn.Sequential(conv(), bn())
    parametrize.register_parametrization(model[0], name, nn.Identity())
    return model


def hooked(k: int, register: str) -> nn.Module:
    model = nn.Sequential(nn.Sequential(conv()), bn(), nn.ReLU())
    [model[0][0], model[1], model[2], model[0]][k].get_submodule("").__getattribute__(register)(lambda *_: None)
    return model


def frozen(*, norm: bool, all_of_it: bool = False, **options: Any) -> nn.Module:
    model = nn.Sequential(conv(), bn(**options))
    model.train(not all_of_it)
    model[1].train(not norm)
    return model


def own_forward(module: nn.Module) -> nn.Module:
    old = module.forward
    module.forward = lambda x: old(x) ** 2  # type: ignore[method-assign]
    return module


def instance_forward() -> nn.Module:
    model = nn.Sequential(conv(), bn())
    model.forward = lambda x: (model[0](x), model[1](model[0](x)))  # type: ignore[assignment]
    return nn.Sequential(model)


def own_train() -> nn.Module:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> None:  # type: ignore[override]
            super().train(mode)

    return Frozen(conv(), bn())


def uncopyable() -> nn.Module:
    model = nn.Sequential(conv(), bn())
    model.lock = threading.Lock()  # type: ignore[assignment]
    return model


def weight_norm() -> nn.Module:
    model = nn.Sequential(conv(), bn())
    torch.nn.utils.weight_norm(model[0])
    model(batch(2))
    return model


def perhaps(module: Any, x: Tensor) -> Tensor:
    y = module.conv(x)
    z = module.bn(y)
    return y if z.sum() > 1e9 else z


def perhaps_of_a_part(module: Any, x: Tensor) -> Tensor:
    y = module.part(x)
    z = module.bn(y)
    return y if z.sum() > 1e9 else z


def kept(module: Any, x: Tensor) -> Tensor:
    module.seen = {"all": [module.conv(x)]}
    return module.bn(module.seen["all"][0])


def restart(module: Any, x: Tensor) -> Tensor:
    """Fails in the middle of a part: what was seen of it until then must not count twice."""
    return module.bn(module.conv(module.part(x)))


FOUND: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "chain": (lambda: chain(conv(), bn(), nn.ReLU(), conv(4), bn()), ["0", "3"]),
    "without bias": (lambda: chain(conv(bias=False), bn(), nn.ReLU()), []),
    "no norm": (lambda: chain(conv(), nn.ReLU()), []),
    "nothing": (lambda: nn.Identity(), []),
    "alone": (lambda: conv(), []),
    "something between": (lambda: chain(conv(), nn.ReLU(), bn()), []),
    "other order": (lambda: chain(bn(), conv(4)), []),
    "group norm": (lambda: chain(conv(), nn.GroupNorm(2, 4)), []),
    "own forward": (lambda: pair(lambda m, x: m.bn(m.conv(x))), ["conv"]),
    "keyword": (lambda: pair(lambda m, x: m.bn(input=m.conv(input=x))), ["conv"]),
    "output seen": (lambda: pair(lambda m, x: (m.bn(m.conv(x)), m.conv(x))), []),
    "output used": (lambda: pair(lambda m, x: (lambda y: m.bn(y) + y)(m.conv(x))), []),
    "output sized": (lambda: pair(lambda m, x: (lambda y: m.bn(y) * y.mean())(m.conv(x))), []),
    "two norms": (lambda: pair(lambda m, x: (lambda y: m.bn(y) + m.other(y))(m.conv(x)), other=bn()), []),
    "two convolutions": (lambda: pair(lambda m, x: m.bn(m.conv(x)) + m.bn(m.other(x)), other=conv()), []),
    "norm of a sum": (lambda: pair(lambda m, x: m.bn(m.conv(x) + m.other(x)), other=conv()), []),
    "norm elsewhere too": (lambda: pair(lambda m, x: m.bn(m.bn(m.conv(x)))), []),
    "pair called twice": (lambda: pair(twice), ["conv"]),
    "called once more": (lambda: pair(lambda m, x: m.bn(m.conv(x)) + m.conv(x)), []),
    "never called": (lambda: pair(lambda m, x: x), []),
    "functional": (lambda: pair(by_hand), []),
    "only in training": (lambda: pair(in_training_only), []),
    "only in evaluation": (lambda: pair(in_evaluation_only), []),
    "norm never called": (lambda: pair(lambda m, x: m.conv(x)), []),
    "a flag, then control flow": (lambda: Forward(lambda m, x: m.part(x, True), part=Choosing()), []),
    "bias read": (lambda: pair(lambda m, x: m.bn(m.conv(x)) + m.conv.bias.sum()), []),
    "weight read": (lambda: pair(lambda m, x: m.bn(m.conv(x)) + m.conv.weight.sum()), ["conv"]),
    "outputs along the way": (lambda: Forward(layers, features=chain(conv(), bn(), nn.ReLU(), conv(4), bn())), ["features.3"]),
    "along the way, not traceable": (lambda: Forward(layers_and_control_flow, features=chain(conv(), bn(), nn.ReLU())), []),
    "perhaps elsewhere": (lambda: pair(perhaps), []),
    "perhaps elsewhere, of a part": (lambda: Forward(perhaps_of_a_part, part=chain(nn.ReLU(), conv()), bn=bn()), []),
    "kept as an attribute": (lambda: pair(kept), []),
    "bias shared": (shared_bias, []),
    "one module in two places": (lambda: (lambda c: chain(c, bn(), nn.Conv2d(4, 3, 1), c))(conv()), []),
    "parametrized bias": (lambda: parametrized("bias"), []),
    "parametrized weight": (lambda: parametrized("weight"), ["0"]),
    "weight norm": (weight_norm, ["0"]),
    "train() of its own": (own_train, ["0"]),
    "lazy": (lambda: chain(nn.LazyConv2d(4, 1), bn()), []),
    "lazy norm": (lambda: chain(conv(), nn.LazyBatchNorm2d()), []),
    "hook on the convolution": (lambda: hooked(0, "register_forward_hook"), []),
    "hook before the convolution": (lambda: hooked(0, "register_forward_pre_hook"), ["0.0"]),
    "hook on the norm": (lambda: hooked(1, "register_forward_hook"), []),
    "hook before the norm": (lambda: hooked(1, "register_forward_pre_hook"), []),
    "hook behind": (lambda: hooked(2, "register_forward_hook"), ["0.0"]),
    "hook around": (lambda: hooked(3, "register_forward_hook"), []),
    "subclass": (lambda: chain(Named(3, 4, 1), bn()), ["0"]),
    "other forward": (lambda: chain(Doubled(3, 4, 1), bn()), []),
    "other norm": (lambda: chain(conv(), Quadratic(4)), []),
    "other convolution": (lambda: chain(Standardized(3, 4, 1), bn()), []),
    "patched convolution": (lambda: chain(own_forward(conv()), bn()), []),
    "patched norm": (lambda: chain(conv(), own_forward(bn())), []),
    "patched around": (instance_forward, []),
    "frozen": (lambda: frozen(norm=True), []),
    "frozen, of the batch": (lambda: frozen(norm=True, track_running_stats=False), ["0"]),
    "all in evaluation": (lambda: frozen(norm=True, all_of_it=True), ["0"]),
    "other rank": (lambda: chain(nn.Conv2d(3, 4, 1), nn.BatchNorm1d(4)), []),
    "other width": (lambda: chain(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(4)), []),
    "sync": (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(chain(conv(), bn(), nn.Conv1d(3, 4, 1))), ["0"]),
    "closed part behind": (lambda: chain(conv(), bn(), Opaque()), ["0"]),
    "closed part between": (lambda: chain(conv(), Opaque(), bn()), []),
    "inside a closed part": (
        lambda: chain(Opaque(chain(conv(), bn())), Opaque(chain(conv(4), bn()))),
        ["0.inside.0", "1.inside.0"],
    ),
    "closed root": (lambda: Opaque(chain(conv(), bn(), Opaque(chain(conv(4), bn())))), ["inside.0", "inside.2.inside.0"]),
    "a list": (lambda: Forward(lambda m, x: [f(x) for f in m.many], many=nn.ModuleList([chain(conv(), bn())])), ["many.0.0"]),
    "partly seen part": (
        lambda: pair(restart, part=Opaque(chain(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))),
        ["part.inside.0", "conv"],
    ),
    "cannot be copied": (uncopyable, []),
    "raises": (lambda: Forward(lambda m, x: 1 / 0, inside=chain(conv(), bn())), ["inside.0"]),
    "no forward": (lambda: nn.ModuleList([chain(conv(), bn())]), ["0.0"]),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("case", FOUND)
def test_found(case: str) -> None:
    make, names = FOUND[case]
    model = make()
    kept = dict(model.state_dict(keep_vars=True))
    modes = [m.training for m in model.modules()]
    found = dead_biases(model)
    assert sorted(name for name, _ in found) == sorted(names)
    now = model.state_dict(keep_vars=True)
    assert now.keys() == kept.keys() and all(now[name] is value for name, value in kept.items())
    assert [m.training for m in model.modules()] == modes
    assert drop_dead_bias(model) == [name for name, _ in found]
    assert all(model.get_submodule(name).bias is None for name in names)


def test_pairs_are_in_order() -> None:
    model = Forward(lambda m, x: m.d(m.b(m.c(m.a(x)))), b=conv(4), a=conv(), c=bn(), d=bn())
    assert dead_biases(model) == [("b", "d"), ("a", "c")]


def test_looking_has_no_effect() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.calls, self.seen = conv(), bn(), 0, []
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.steps += 1
            self.seen.append(x)
            return self.bn(self.conv(x)) * torch.rand(3).sum() * random.random() * np.random.rand()  # noqa: NPY002

    model = Noisy()
    called = []
    for register in (nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook):
        register(model, lambda *_: called.append(1))
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    expected = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    assert dead_biases(model) == [("conv", "bn")]
    found = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert torch.equal(expected[0], found[0]) and expected[1:] == found[1:]
    assert model.calls == model.steps == 0 and model.seen == [] and called == []


def test_nothing_is_traced_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_norm_graph, "_copy", lambda model: pytest.fail("copied"))
    assert dead_biases(chain(conv(bias=False), bn())) == dead_biases(conv()) == []


def test_bits_of_a_compiled_model() -> None:
    model = torch.compile(chain(conv(), bn()), backend="eager")
    assert drop_dead_bias(model) == ["_orig_mod.0"]
    assert model(batch(2)).shape == (6, 4, 9, 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_numbers_of_the_gpu_stay() -> None:
    torch.cuda.manual_seed(0)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(0)
    model = pair(lambda m, x: m.bn(m.conv(x)) * torch.rand(3, device="cuda").sum()).cuda()
    assert drop_dead_bias(model) == ["conv"]
    assert torch.equal(torch.rand(3, device="cuda"), expected)


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
    found = drop_dead_bias(after)
    order = [what for what, _, _ in steps]
    if all(s[1] == -1 for s in steps) and not outputs and "add" not in order and len(set(order)) == len(order):  # a chain
        assert found == sorted(a for a, b in pairwise(order) if a.startswith("conv") and b.startswith("bn"))
    for mode in (True, True, False):
        x = batch(2).double()
        same(before.train(mode)(x), after.train(mode)(x))


def test_example() -> None:
    results = doctest.testmod(bias)
    assert results.attempted >= 2 and results.failed == 0
