"""Tips on the model: precision, layout, compilation, memory, and what makes the host wait."""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from measuring import Endless, LeftOut, Repeat, Setting, Sides, tip
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastdata import Trainer, drop_dead_bias

CLASSES = 10


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int, *, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.last_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.last_norm(self.second(self.norm(self.first(x)).relu()))).relu()


def residual(setting: Setting, *, bias: bool = False) -> nn.Sequential:
    """A small residual network on the device."""
    torch.manual_seed(0)
    width, depth = setting.some(32, 8, 128), setting.some(2, 1, 8)
    stem = nn.Conv2d(3, width, 3, 2, 1, bias=bias)
    blocks = [Block(width, bias=bias) for _ in range(depth)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    return nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), *blocks, *head).to(setting.device)


def batch_of(setting: Setting, rows: int | None = None, side: int | None = None) -> tuple[Tensor, Tensor]:
    """Random images and classes on the device."""
    rows = rows or setting.some(16, 4, 128)
    side = side or setting.some(48, 16, 128)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(rows, 3, side, side, generator=generator)
    return images.to(setting.device), torch.randint(0, CLASSES, (rows,), generator=generator).to(setting.device)


def losses(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


class Updates:
    """Makes one update a call, and returns its loss; after three updates 0, as reading a loss makes the host wait."""

    def __init__(self, trainer: Trainer, updates: Iterator[int]) -> None:
        self.trainer, self.updates = trainer, updates

    def __call__(self) -> float:
        next(self.updates)
        return float(self.trainer.loss) if self.trainer.update <= 3 else 0.0  # type: ignore[arg-type]


@contextmanager
def training(setting: Setting, model: nn.Module, batches: list[Any], **switches: Any) -> Iterator[Updates]:
    """Train a copy of the model."""
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    trainer = Trainer(copy.deepcopy(model), losses, optimizer, device=setting.device, **{"cudnn_benchmark": False, **switches})
    updates = trainer.steps(Endless(batches))

    try:
        yield Updates(trainer, updates)
    finally:
        updates.close()
        trainer.close()


@contextmanager
def switched(setting: Setting, model: nn.Module, *, within: float, rows: float = 1, **switches: Any) -> Iterator[Sides]:
    """Training without and with switches of the Trainer; the losses of the first updates differ by a share `within` at most."""
    with training(setting, model, [batch_of(setting)]) as plain, training(setting, model, [batch_of(setting)], **switches) as other:

        def check() -> str:
            for _ in range(3):
                a, b = plain(), other()
                assert abs(a - b) <= within * abs(a), f"losses {a} and {b}"
            return f"losses of three updates within {within:.1%}"

        yield Sides(Repeat(setting, plain, rows), Repeat(setting, other, rows), check)


@tip(baseline='Trainer(precision="fp32")', tip='Trainer(precision="bf16")')
def amp(setting: Setting) -> Iterator[Sides]:
    with switched(setting, residual(setting), within=0.05, precision="bf16") as sides:
        yield sides


@tip(baseline="Trainer()", tip="Trainer(channels_last=True)")
def channels_last(setting: Setting) -> Iterator[Sides]:
    with switched(setting, residual(setting), within=0.01, channels_last=True) as sides:
        yield sides


@tip(baseline="Trainer()", tip="Trainer(compile=True), after it has compiled", slow=True)
def compile(setting: Setting) -> Iterator[Sides]:
    needs, there = (
        ("Triton", find_spec("triton")) if setting.cuda else ("a C++ compiler", shutil.which(os.environ.get("CXX", "g++")))
    )
    if not there:
        raise LeftOut(f"needs {needs}")
    with switched(setting, residual(setting), within=0.01, compile=True) as sides:
        yield sides


@tip(baseline="a convolution with a bias before each BatchNorm", tip="the same without, by drop_dead_bias")
def bias(setting: Setting) -> Iterator[Sides]:
    with_bias = residual(setting, bias=True).train()
    without = copy.deepcopy(with_bias)
    assert drop_dead_bias(without)
    batch = batch_of(setting)

    def step(model: nn.Module) -> Tensor:
        model.zero_grad()
        loss = losses(model, batch).mean()
        loss.backward()
        return loss.detach()

    def check() -> str:
        assert torch.allclose(step(with_bias), step(without), rtol=1e-3)
        return "equal losses"

    yield Sides(Repeat(setting, lambda: step(with_bias)), Repeat(setting, lambda: step(without)), check)


class Kept:
    """Counts the bytes that autograd keeps for backward, without the weights; `most` of them at a time."""

    def __init__(self) -> None:
        self.uses: Counter[int] = Counter()
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> Packed:
        is_weight = tensor.is_leaf and tensor.requires_grad
        return Packed(self, tensor.detach(), 0 if is_weight else 1)  # with its graph, it would keep itself alive

    def add(self, tensor: Tensor, uses: int) -> None:
        storage = tensor.untyped_storage()
        before = self.uses[storage.data_ptr()]
        self.uses[storage.data_ptr()] = after = before + uses
        if not before or not after:
            self.now += storage.nbytes() * uses
            self.most = max(self.most, self.now)


class Packed:
    """A tensor that autograd keeps."""

    def __init__(self, kept: Kept, tensor: Tensor, uses: int) -> None:
        self.kept, self.tensor, self.uses = kept, tensor, uses
        kept.add(tensor, uses)

    def __del__(self) -> None:
        self.kept.add(self.tensor, -self.uses)


def kept(call: Callable[[], object]) -> float:
    """Return the most bytes that a call keeps for backward at a time."""
    count = Kept()
    with torch.autograd.graph.saved_tensors_hooks(count.pack, lambda packed: packed.tensor):
        call()
    return float(count.most)


@tip(baseline="Trainer()", tip="Trainer(recompute=(Block,))")
def checkpointing(setting: Setting) -> Iterator[Sides]:
    model, batch = residual(setting), batch_of(setting)
    with training(setting, model, [batch]) as plain, training(setting, model, [batch], recompute=(Block,)) as again:
        models = [update.trainer.model for update in (plain, again)]
        memory = [kept(lambda m=model: losses(m, batch).mean()) for model in models]

        def check() -> str:
            a, b = plain(), again()
            assert abs(a - b) < 1e-3, f"losses {a} and {b}"
            return "equal losses"

        yield Sides(Repeat(setting, plain), Repeat(setting, again), check, {"activations": (memory[0], memory[1])})


@tip(baseline="forward with a graph", tip="forward in torch.inference_mode()", unit="calls")
def inference_mode(setting: Setting) -> Iterator[Sides]:
    model, (images, _) = residual(setting).eval(), batch_of(setting)

    def plain() -> Tensor:
        return model(images)

    @torch.inference_mode()
    def bare() -> Tensor:
        return model(images)

    def check() -> str:
        assert torch.allclose(plain().detach(), bare(), rtol=1e-3, atol=1e-4)
        return "equal outputs"

    memory = {"activations": (kept(plain), kept(bare))}
    yield Sides(Repeat(setting, plain), Repeat(setting, bare), check, memory)


@tip(baseline="batches of 4", tip="batches of 64 (on a GPU, of 512)", unit="samples")
def large_batch(setting: Setting) -> Iterator[Sides]:
    model = residual(setting)
    sizes = (4, setting.some(64, 8, 512))
    with training(setting, model, [batch_of(setting, 4)]) as few, training(setting, model, [batch_of(setting, sizes[1])]) as many:
        yield Sides(Repeat(setting, few, sizes[0]), Repeat(setting, many, sizes[1]))


@tip(baseline="images of 96 x 96 (on a GPU, 224)", tip="of 64 x 64 (160), as a schedule= has them in the first epochs")
def progressive(setting: Setting) -> Iterator[Sides]:
    model = residual(setting)
    rows = setting.some(8, 4, 128)
    large, small = (batch_of(setting, rows, side) for side in (setting.some(96, 24, 224), setting.some(64, 16, 160)))
    with training(setting, model, [large]) as slow, training(setting, model, [small]) as quick:
        yield Sides(Repeat(setting, slow), Repeat(setting, quick))


@tip(baseline="a loss that loops over the samples in Python", tip="the same loss of the whole batch", unit="calls")
def vectorized_loss(setting: Setting) -> Iterator[Sides]:
    scores = torch.randn(64, 1000, device=setting.device, requires_grad=True)
    targets = torch.randint(0, 1000, (64,), device=setting.device)

    def looped() -> Tensor:
        found = [
            -torch.log_softmax(row, 0)[target] * (1 - torch.softmax(row, 0)[target]) ** 2
            for row, target in zip(scores, targets, strict=True)
        ]
        return torch.stack(found).mean()

    def whole() -> Tensor:
        logs = torch.log_softmax(scores, 1).gather(1, targets[:, None])[:, 0]
        return (-logs * (1 - logs.exp()) ** 2).mean()

    def check() -> str:
        assert torch.allclose(looped(), whole(), rtol=1e-4)
        return "equal losses"

    yield Sides(Repeat(setting, lambda: looped().backward()), Repeat(setting, lambda: whole().backward()), check)


# On a GPU only


@tip(baseline="Trainer(cudnn_benchmark=False)", tip="Trainer(cudnn_benchmark=True)", where="gpu")
def cudnn_benchmark(setting: Setting) -> Iterator[Sides]:
    with switched(setting, residual(setting), within=0.01, cudnn_benchmark=True) as sides:
        before = torch.backends.cudnn.benchmark

        def at(value: bool, measure: Any) -> Any:
            def run(seconds: float) -> Any:
                torch.backends.cudnn.benchmark = value  # it is global
                return measure(seconds)

            return run

        yield Sides(at(False, sides.baseline), at(True, sides.tip), sides.check)
        torch.backends.cudnn.benchmark = before


@tip(baseline="products in float32", tip="in TF32, as by Trainer(tf32=True)", where="gpu")
def tf32(setting: Setting) -> Iterator[Sides]:
    model, batch = residual(setting), batch_of(setting)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def step(*, rounded: bool) -> None:
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        torch.backends.cudnn.allow_tf32 = rounded
        losses(model, batch).mean().backward()

    yield Sides(Repeat(setting, lambda: step(rounded=False)), Repeat(setting, lambda: step(rounded=True)))
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@tip(baseline="loss.item() after each update", tip="the loss is read every 50 updates", where="gpu")
def syncs(setting: Setting) -> Iterator[Sides]:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).to(setting.device)
    x = torch.randn(32, 64, device=setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def often() -> None:
        for _ in range(50):
            step().item()

    def rarely() -> None:
        total = torch.zeros((), device=setting.device)
        for _ in range(50):
            total += step()
        total.item()

    yield Sides(Repeat(setting, often, 50), Repeat(setting, rarely, 50))


@tip(baseline="torch.rand(...).to(device)", tip="torch.rand(..., device=device)", unit="calls", where="gpu")
def made_on_device(setting: Setting) -> Iterator[Sides]:
    shape = (setting.some(256, 4), 3, 64, 64)
    yield Sides(
        Repeat(setting, lambda: torch.rand(shape).to(setting.device)),
        Repeat(setting, lambda: torch.rand(shape, device=setting.device)),
    )


@tip(baseline="torch.cuda.empty_cache() after each update", tip="without", where="gpu")
def empty_cache(setting: Setting) -> Iterator[Sides]:
    model, batch = residual(setting), batch_of(setting)

    def step() -> None:
        losses(model, batch).mean().backward()

    def emptied() -> None:
        step()
        torch.cuda.empty_cache()

    yield Sides(Repeat(setting, emptied), Repeat(setting, step))
