"""What profile says of functions whose cost and whose waits are known."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastdata.bench import profile as module
from fastdata.bench import syncs
from fastdata.bench.profile import Profile, Times, profile
from fastdata.monitor.habits import Habits

needs_cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
HERE = Path(__file__)


def quick(fn: Callable[..., Any], *args: Any) -> Profile:
    return profile(fn, *args, steps=2, warmup=1)


def waits(fn: Callable[..., Any], *args: Any) -> dict[str, float]:
    """Operators by name, and how often a call."""
    return {sync.what.removeprefix("aten::"): sync.per_call for sync in quick(fn, *args).syncs}


V, INDEX, MASK = torch.arange(6.0), torch.tensor([1, 2]), torch.arange(6) > 2


def assign(value: Any) -> None:
    V.clone()[MASK] = value


def synchronize() -> None:
    with contextlib.suppress(AssertionError, RuntimeError):  # what it says where there is no GPU
        torch.cuda.synchronize()


def grow(v: Tensor) -> None:
    for k, x in enumerate(v.split(2)):
        if k % 2 and x.sum() > 0:
            x.max().item()


WAITS: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "nothing": (lambda: V * 2 + V.sum(), {}),
    "item": (lambda: V.sum().item(), {"_local_scalar_dense": 1}),
    "bool": (lambda: bool(V.any()), {"_local_scalar_dense": 1}),
    "float": (lambda: float(V[0]), {"_local_scalar_dense": 1}),
    "format": (lambda: f"{V[0]:.2f}", {"_local_scalar_dense": 1}),
    "a tensor as an index of a list": (lambda: [1, 2, 3][INDEX[0]], {"_local_scalar_dense": 1}),
    "a tensor as an index": (lambda: V[INDEX], {}),
    "a mask": (lambda: V[MASK], {"index": 1}),
    "a mask of bytes": (lambda: V[MASK.byte()], {"index": 1}),
    "assign a number": (lambda: assign(0.0), {}),
    "assign values": (lambda: assign(torch.ones(3)), {"index_put_": 1}),
    "where, three arguments": (lambda: torch.where(MASK, V, 0), {}),
    "where": (lambda: torch.where(MASK), {"nonzero": 1}),
    "argwhere": (lambda: MASK.argwhere(), {"nonzero": 1}),
    "masked_select": (lambda: V.masked_select(MASK), {"masked_select": 1}),
    "masked_fill": (lambda: V.masked_fill(MASK, 0), {}),
    "unique": (lambda: V.unique(), {"_unique2": 1}),
    "unique rows": (lambda: V.unique(dim=0), {"unique_dim": 1}),
    "unique_consecutive": (lambda: V.unique_consecutive(), {"unique_consecutive": 1}),
    "repeat_interleave": (lambda: torch.repeat_interleave(INDEX, INDEX), {"repeat_interleave": 1}),
    "repeat_interleave, size known": (lambda: torch.repeat_interleave(INDEX, INDEX, output_size=3), {}),
    "repeat_interleave, one number": (lambda: V.repeat_interleave(2), {}),
    "cpu": (lambda: V.cpu(), {"Tensor.cpu": 1}),
    "tolist": (lambda: V.tolist(), {"Tensor.tolist": 1}),
    "to": (lambda: V.to(V.device), {}),
    "to the CPU": (lambda: V.to("cpu"), {"Tensor.to": 1}),
    "to the CPU, keyword": (lambda: V.to(dtype=torch.int32, device=torch.device("cpu")), {}),
    "print": (lambda: str(V), {"Tensor.__repr__": 1}),
    "format of many": (lambda: f"{V}", {"Tensor.__format__": 1}),
    "numpy": (lambda: V.numpy(), {"Tensor.numpy": 1}),
    "asarray": (lambda: np.asarray(V), {"Tensor.__array__": 1}),
    "a copy, then what the host does with it": (lambda: (V.cpu() * 2).sum().numpy().item(), {"Tensor.cpu": 1}),
    "a copy, then the original": (lambda: (V.cpu().sum().item(), V.sum().item()), {"Tensor.cpu": 1, "_local_scalar_dense": 1}),
    "tensor": (lambda: torch.tensor([1.0, 2.0]), {"torch.tensor": 1}),
    "as_tensor": (lambda: torch.as_tensor([1.0, 2.0]), {"torch.as_tensor": 1}),
    "as_tensor of a tensor": (lambda: torch.as_tensor(V), {}),
    "new_tensor": (lambda: V.new_tensor([1.0]), {"Tensor.new_tensor": 1}),
    "tensor on the CPU": (lambda: torch.tensor([1.0], device="cpu"), {}),
    "zeros": (lambda: torch.zeros(3), {}),
    "empty_cache": (lambda: torch.cuda.empty_cache(), {"torch.cuda.empty_cache": 1}),
    "synchronize": (lambda: synchronize(), {"torch.cuda.synchronize": 1}),
    "equal": (lambda: torch.equal(V, V), {"equal": 1}),
    "allclose": (lambda: torch.allclose(V, V), {"allclose": 1}),
    "bincount": (lambda: INDEX.bincount(), {"bincount": 1}),
    "inv": (lambda: torch.linalg.inv(torch.eye(2)), {"_linalg_check_errors": 1}),
    "inv_ex": (lambda: torch.linalg.inv_ex(torch.eye(2)), {}),
    "eigh": (lambda: torch.linalg.eigh(torch.eye(2)), {"_linalg_eigh": 1}),
    "one_hot": (lambda: F.one_hot(INDEX, 4), {}),
    "one_hot, keyword": (lambda: F.one_hot(INDEX, num_classes=4), {}),
    "one_hot, not told": (lambda: F.one_hot(INDEX), {"_local_scalar_dense": 2}),
    "one_hot, then item": (lambda: F.one_hot(INDEX, 4).sum().item(), {"_local_scalar_dense": 1}),
    "several": (lambda: (V.max().item(), V.min().item(), V[MASK]), {"_local_scalar_dense": 2, "index": 1}),
    "sometimes": (lambda: grow(V), {"_local_scalar_dense": 2}),
}


# The solver's own business; what is an error on a GPU; and what stands in the line alone.
NOT_ON_A_GPU = {"inv_ex", "numpy", "asarray", "to the CPU, keyword"}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("case", WAITS)
def test_operators_that_would_wait(case: str) -> None:
    fn, expected = WAITS[case]
    found = quick(fn)
    counts: dict[str, float] = {}
    for sync in found.syncs:
        assert sync.where.startswith((str(HERE), "tests/test_profile.py:"))
        counts[sync.what.removeprefix("aten::")] = counts.get(sync.what.removeprefix("aten::"), 0) + sync.per_call
    if case == "one_hot, not told":  # which operators look at the range differs between versions
        assert counts.keys() == expected.keys()
    else:
        assert counts == expected and found.syncs_per_call == sum(expected.values())


def test_a_wait_is_where_the_user_calls_also_while_a_trainer_watches_the_call() -> None:
    habits = Habits(looks=True)
    habits.updated()
    try:
        (sync,) = quick(WAITS["empty_cache"][0]).syncs
    finally:
        habits.close()
    assert sync.where.startswith((str(HERE), "tests/test_profile.py:"))


def test_unsteady_waits_are_a_fraction() -> None:
    calls = iter(range(100))
    found = profile(lambda: V.sum().item() if next(calls) % 5 == 4 else V, steps=1, warmup=0)
    assert found.syncs_per_call == pytest.approx(0.2)


def two_lines(x: Tensor) -> Tensor:
    if x.sum() > 1e9:
        return x
    return x[x > 0]


def line_of(fn: Callable[..., Any], offset: int) -> str:
    return f"test_profile.py:{inspect.getsourcelines(fn)[1] + offset}"


def test_each_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {sync.where: sync.what for sync in quick(two_lines, V).syncs}
    lines = [where.rpartition("/")[2] for where in found]
    assert lines[0] == line_of(two_lines, 1) and lines[1] == line_of(two_lines, 3)
    assert list(found.values()) == ["aten::_local_scalar_dense", "aten::index"]
    monkeypatch.chdir(HERE.parent)
    assert [sync.where for sync in quick(two_lines, V).syncs] == lines


def test_a_line_of_the_user_in_what_torch_calls() -> None:
    class Peeking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * grad.sum().item()

    found = quick(lambda x: Peeking.apply(nn.functional.relu(x)), V.clone().requires_grad_()).syncs
    assert [sync.where.rpartition("/")[2] for sync in found] == [line_of(Peeking.backward, 2)]


def test_places_without_a_line() -> None:
    assert [sync.where for sync in quick(torch.nonzero, V).syncs] == ["in the function"]
    found = quick(lambda x: x.take_along_dim(x[MASK].long().clamp(0, 1), 0), V.clone().requires_grad_())
    assert found.backward
    masked = quick(lambda x: x[MASK], V.clone().requires_grad_()).syncs
    assert {(s.where if "test" not in s.where else "a line", s.what) for s in masked} == {
        ("a line", "aten::index"),
        ("in backward", "aten::index_put"),
    }


def test_optimizers_read_numbers_of_the_host() -> None:
    layer = nn.Linear(4, 2)

    def train(optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
        def step(x: Tensor) -> None:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = layer(x).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)

        return step

    assert waits(train(torch.optim.Adam(layer.parameters(), foreach=False)), torch.ones(3, 4)) == {}
    assert waits(train(torch.optim.LBFGS(layer.parameters())), torch.ones(3, 4)).keys() == {"_local_scalar_dense"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.calls += 1
        return {"out": [self.layer(x)], "same": (self.layer(x).detach(), 3)}


@on_each_device
def test_a_module(device: str) -> None:
    model, x = Model().to(device), torch.ones(32, 64, device=device)
    model.layer.weight.grad = torch.full_like(model.layer.weight, 7.0)
    found = profile(model, x, steps=3, warmup=2)
    assert found.name == "Model" and found.device == ("cpu" if device == "cpu" else "cuda:0") and found.steps == 3
    assert found.backward is not None and found.host_ms == found.forward.host_ms + found.backward.host_ms > 0
    assert (found.forward.device_ms is None) == (device == "cpu") == (found.backward.device_ms is None)
    assert model.calls == 2 + 3 + (10 if device == "cpu" else 11)
    assert (model.layer.weight.grad == 7).all() and model.layer.bias.grad is None and x.grad is None
    assert "aten::addmm" in [o.name for o in found.operators]
    assert sum(o.share for o in found.operators) == pytest.approx(1) and found.operators[0].share > 0
    assert [o.ms for o in found.operators] == sorted((o.ms for o in found.operators), reverse=True)
    assert next(o.calls for o in found.operators if o.name == "aten::addmm") == 2
    assert found.syncs == ()


@on_each_device
def test_no_backward_without_grad(device: str) -> None:
    x = torch.ones(4, device=device)
    for found in (quick(torch.cos, x), quick(lambda: None), quick(torch.no_grad()(lambda y: y * 2), x.clone().requires_grad_())):
        assert found.backward is None and found.host_ms == found.forward.host_ms and "| backward" not in str(found)


@on_each_device
def test_time_is_that_of_a_call(device: str) -> None:
    class Sleeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            time.sleep(0.03)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            time.sleep(0.06)
            return grad

    found = profile(Sleeping.apply, torch.ones(3, device=device, requires_grad=True), steps=3, warmup=1)
    assert found.backward is not None
    assert 30 <= found.forward.host_ms < 85 and 60 <= found.backward.host_ms < 170
    assert device == "cuda" or 60 <= found.operators[0].ms < 170
    for times in (found.forward, found.backward) if device == "cuda" else ():
        assert times.device_ms is not None and times.device_ms >= 0.99 * times.host_ms - 1


@on_each_device
def test_a_loss_is_measured_without_its_model(device: str) -> None:
    layer = nn.Linear(8, 8).to(device)
    out = layer(torch.ones(2, 8, device=device))
    found = quick(lambda pair, more: F.mse_loss(*pair) + more["x"].sum(), (out, torch.zeros_like(out)), {"x": out})
    assert found.backward is not None
    assert not any("addmm" in o.name.lower() or "aten::mm" in o.name for o in found.operators)
    assert layer.weight.grad is None
    out.sum().backward()  # its graph is still there


def test_gradients_start_anew() -> None:
    leaf = torch.ones(5, requires_grad=True)
    seen: list[Tensor | None] = []
    own: list[weakref.ref[Tensor]] = []

    def fn(x: Tensor) -> Tensor:
        seen.append(x.grad)
        assert not any(ref() is not None for ref in own)
        other = torch.ones(5, requires_grad=True)  # a leaf of its own
        own.append(weakref.ref(other))
        return x * other

    before = leaf.grad = torch.full((5,), 3.0)
    quick(fn, leaf)
    assert seen[0] is not None and all(grad is None for grad in seen[1:])
    assert leaf.grad is before and (before == 3).all()


def test_backward_starts_from_ones() -> None:
    seen: list[Tensor] = []

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y, z = x * 2, x.sum()
        y.register_hook(seen.append)
        z.register_hook(seen.append)
        return y, z

    quick(fn, torch.ones(5, requires_grad=True))
    assert seen and all((grad == 1).all() for grad in seen)


def test_a_graph_of_many_paths() -> None:
    def fn(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x * 0.5 + x * 0.5
        return x

    assert quick(fn, torch.ones(1, requires_grad=True)).backward is not None


def test_most_waits_first() -> None:
    found = quick(lambda: (V.max().item(), [x.item() for x in V]))
    assert found.syncs_per_call == 7
    many = quick(lambda: (V[MASK], [x.item() for x in V])).syncs
    assert [sync.per_call for sync in many] == [6, 1]


def test_gradients_come_back_after_an_error() -> None:
    leaf, calls = torch.ones(5, requires_grad=True), iter(range(9))
    before = leaf.grad = torch.full((5,), 3.0)
    with pytest.raises(ZeroDivisionError):
        quick(lambda x: x * 2 / (0 if next(calls) == 3 else 1) if next(calls) < 8 else 1 / 0, leaf)
    assert leaf.grad is before


@on_each_device
def test_an_output_that_is_a_leaf(device: str) -> None:
    leaf = torch.ones(5, requires_grad=True, device=device)
    assert quick(lambda x: x, leaf).backward is not None
    assert leaf.grad is None


@on_each_device
def test_peak(device: str) -> None:
    mb = 1 << 18  # floats
    held = [torch.ones(mb, device=device, requires_grad=True) for _ in range(4)]
    held[0].grad = torch.ones(mb, device=device)

    def fn(x: Tensor) -> None:
        big = torch.empty(8 * mb, device=x.device).fill_(1)
        del big
        torch.empty(3 * mb, device=x.device).fill_(1)

    assert quick(fn, held[0]).peak_bytes == pytest.approx(8 << 20, rel=0.01)
    exp = quick(lambda x: x.exp(), held[0]).peak_bytes  # the result, the ones, and one gradient
    assert exp == pytest.approx(3 << 20, rel=0.01)


def test_table() -> None:
    lines = str(quick(two_lines, V.clone().requires_grad_())).splitlines()
    assert lines[0].startswith("two_lines on cpu: ") and " ms a call, " in lines[0] and lines[0].endswith(" MB at most")
    assert [line.split("|")[1].strip() for line in lines[2:6]] == [
        "median of 2",
        "-" * len(lines[3].split("|")[1]),
        "forward",
        "backward",
    ]
    assert any("| aten::index " in line for line in lines)
    assert any(line == "the host would wait for a GPU 3 times a call:" for line in lines)
    assert any(f"test_profile.py:{inspect.getsourcelines(two_lines)[1] + 1}" in line for line in lines)
    assert str(quick(torch.cos, V)).splitlines()[-1] == "the host would wait for a GPU 0 times a call"


def test_table_of_a_gpu() -> None:
    found = Profile("f", "cuda:0", 20, Times(1.0, 2.0), None, (), None, ())
    assert str(found).splitlines()[0] == "f on cuda:0: 1.000 ms a call"
    assert str(found).splitlines()[4].split("|")[1:4] == [" forward      ", "    1.000 ", "   2.000 "]
    assert str(found).endswith("the host waits for the GPU 0 times a call")


def test_names() -> None:
    assert quick(lambda: V).name == "test_names.<locals>.<lambda>"
    assert quick(nn.Sequential(nn.ReLU()), V).name == "Sequential"


def test_a_compiled_function() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2).sin()

    found = quick(torch.compile(fn, backend="aot_eager"), V.clone().requires_grad_())
    assert found.backward is not None and found.syncs == ()


def test_what_is_compiled_stays_compiled() -> None:
    runs: list[int] = []
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        compilations.append(1)

        def compiled(*args: Any) -> Any:
            runs.append(1)
            return graph.forward(*args)

        return compiled

    def fn(x: Tensor) -> Tensor:
        return (x * 2).sin()

    subject = torch.compile(fn, backend=backend)
    subject(V)
    runs.clear()
    profile(subject, V, steps=4, warmup=2)
    assert len(runs) >= 2 + 4, "the timed calls are those of compiled code"
    runs.clear()
    subject(V)
    assert runs == [1] and compilations == [1]


def test_waits_of_a_compiled_function() -> None:
    def fn(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    compiled = torch.compile(fn, backend="eager")
    compiled(V)
    assert [sync.what for sync in quick(compiled, V).syncs] == ["aten::index"]


def test_a_profiler_of_the_users_goes_on() -> None:
    seen: list[str] = []

    def own(frame: Any, event: str, _: Any) -> None:
        seen.append(event)

    sys.setprofile(own)
    try:
        quick(torch.cos, V)
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert seen


@pytest.mark.parametrize("fn", [V, 3, None])
def test_not_callable(fn: Any) -> None:
    with pytest.raises(TypeError, match=f"found {type(fn).__name__}: pass fn, then"):
        profile(fn)


@pytest.mark.parametrize("arguments", [{"steps": 0}, {"warmup": -1}])
def test_wrong_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more and warmup 0 or more, found steps="):
        profile(lambda: pytest.fail("called"), **arguments)


def test_example() -> None:
    results = doctest.testmod(module)
    assert results.attempted >= 2 and results.failed == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("case", [case for case in WAITS if case not in NOT_ON_A_GPU])
def test_what_waits_on_a_gpu(case: str) -> None:
    """What is said of the CPU holds: the same code waits on a GPU, or does not."""
    fn, expected = WAITS[case]
    old = {name: globals()[name] for name in ("V", "INDEX", "MASK")}
    globals().update({name: value.cuda() for name, value in old.items()})
    try:
        with torch.device("cuda"):
            found = quick(fn)
    finally:
        globals().update(old)
    assert found.device == "cuda:0" and bool(found.syncs) == bool(expected), found.syncs


def test_warnings_are_counted_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With warnings in place of those of PyTorch, which need a GPU."""
    modes: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def waiting() -> None:
        warnings.warn("another", stacklevel=1)
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)

    seen = syncs._Seen()
    with syncs._warned(seen):
        waiting()
        assert modes == ["warn"]
    ((where, what), count), *more = seen.counts.items()
    assert where.endswith(line_of(waiting, 3)) and what.startswith('warnings.warn("called a sync') and count == 3 and not more
    assert modes == ["warn", 0]
    with pytest.raises(UserWarning, match="another"):  # as it was before
        waiting()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_lines_that_wait_on_a_gpu() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = quick(two_lines, V.cuda().requires_grad_())
    assert not [w for w in caught if "synchronizing" in str(w.message)]
    first = next(sync for sync in found.syncs if sync.where.endswith(line_of(two_lines, 1)))
    assert first.what == "if x.sum() > 1e9:" and first.per_call == 1
    assert any(sync.where.endswith(line_of(two_lines, 3)) for sync in found.syncs)
    assert torch.cuda.get_sync_debug_mode() == 0
    assert "waits for the GPU" in str(found) and found.forward.device_ms is not None
