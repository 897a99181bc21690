"""What a loss function may return: losses, losses with a mask, or a sum and a count; and what is refused, with the remedy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, AdamW

from training import cut, data, each, masked, mean_of_torch, net, plain, trainer, values

MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
IGNORED = [0, 1, 2, 3, 13, 29]  # the first micro-batch has nothing that counts


def tokens(n: int) -> tuple[Tensor, Tensor]:
    """Rows of 5 tokens, float64 [n, 5, 6], and their targets, some ignored, int64 [n, 5]."""
    inputs, targets = data(5 * n)
    targets[::3] = -100
    return inputs.view(n, 5, 6), targets.view(n, 5)


def sums(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    losses, mask = masked(model, batch)
    return losses.sum(), mask.sum()


WEIGHTS = torch.tensor([0.001, 0.02, 0.003], dtype=torch.float64)  # so their sum is far below 1


def weighted(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(model(batch[0]), batch[1], WEIGHTS, reduction="sum"), WEIGHTS[batch[1]].sum()


def weighted_mean(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], WEIGHTS)


def with_ignored() -> tuple[Tensor, Tensor]:
    inputs, targets = data(30)
    targets[IGNORED] = -100
    return inputs, targets


@pytest.mark.parametrize(
    ("loss_fn", "whole", "mean"),
    [
        (each, lambda: data(30), mean_of_torch),
        (masked, with_ignored, mean_of_torch),
        (lambda model, batch: each(model, batch)[batch[1] != -100], with_ignored, mean_of_torch),
        (masked, lambda: tokens(30), mean_of_torch),
        (sums, lambda: tokens(30), mean_of_torch),
        (weighted, lambda: data(30), weighted_mean),
    ],
    ids=["losses", "mask", "chosen losses", "tokens", "sum and count", "weights"],
)
@pytest.mark.parametrize("make", [MOMENTUM, partial(AdamW, lr=0.01)], ids=["sgd", "adamw"])
def test_accumulated_updates_are_those_of_torchs_mean_over_large_batches(make, loss_fn, whole, mean):
    model, reference = net(), net()
    run = trainer(model, make, loss_fn, accumulate=3)
    run.fit(cut(whole(), (4, 4, 2) * 3), epochs=1)
    plain(reference, make(reference.parameters()), cut(whole(), (10,) * 3), mean)
    assert (values(model) - values(reference)).abs().max() < 1e-12 < (values(reference) - values(net())).abs().max()
    evaluated = run.evaluate(cut(whole(), (7, 7, 7, 7, 2)))
    assert evaluated["loss"] == pytest.approx(mean(reference, whole()).item(), abs=1e-12)


def test_losses_that_are_not_finite_behind_the_mask_change_nothing():
    x, y = data(8)
    mask = torch.arange(8) % 2 == 0

    def spoilt(model: Any, batch: Any) -> Any:
        losses = each(model, batch[:2])
        return torch.where(batch[2], losses, torch.nan), batch[2]

    model, reference = net(), net()
    plain(reference, MOMENTUM(reference.parameters()), [(x[mask], y[mask])])
    run = trainer(model, MOMENTUM, spoilt)
    run.fit([(x, y, mask)], epochs=1)
    assert (values(model) - values(reference)).abs().max() < 1e-12
    assert run.evaluate([(x, y, mask)])["loss"] == pytest.approx(F.cross_entropy(reference(x[mask]), y[mask]).item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_in_half_precision_are_summed_in_single(dtype):
    """Neither holds 5,001."""
    run = trainer(net(), MOMENTUM, lambda model, batch: torch.ones_like(batch[1], dtype=dtype))
    assert run.evaluate([data(5001)])["loss"] == 1.0


REFUSED = {
    "a mean": (mean_of_torch, r'one number.*reduction="none"'),
    "a mean and a count": (lambda m, b: (mean_of_torch(m, b), len(b[1])), r'\(a mean, 4\).*divided twice.*reduction="none"'),
    "numbers as a mask": (lambda m, b: (each(m, b), torch.ones(4)), r"mask must be bool.*use mask.bool\(\)"),
    "a mask of another shape": (lambda m, b: (each(m, b), torch.ones(4, 1) > 0), r"\[4\].*\[4, 1\].*have the shape of the losses"),
    "integers": (lambda m, b: m(b[0]).argmax(1), r'a tensor torch.int64 \[4\].*reduction="none"'),
    "a number": (lambda m, b: mean_of_torch(m, b).item(), r'returned a float.*reduction="none"'),
    "nothing": (lambda m, b: None, r'returned a NoneType.*reduction="none"'),
    "a dict": (lambda m, b: {"loss": each(m, b)}, r"a dict"),
    "no graph": (lambda m, b: each(m, b).detach(), r"without a graph"),
}


@pytest.mark.parametrize(("loss_fn", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_what_to_return(loss_fn, text):
    model = net()
    with pytest.raises(TypeError, match=f"(?s){text}"):
        trainer(model, MOMENTUM, loss_fn).fit(cut(data(8), (4, 4)), epochs=1)
    assert torch.equal(values(model), values(net()))


@pytest.mark.parametrize(
    "total",
    [
        lambda m, b: mean_of_torch(m, b) * len(b[1]),
        lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum", label_smoothing=0.1) + m[0].weight.square().mean(),
        lambda m, b: each(m, b).sum() + 0.1 * m[0].weight.square().mean(),
    ],
    ids=["a mean times the count", "smoothed", "a penalty that is a mean"],
)
def test_sums_that_have_a_mean_in_them_are_taken(total):
    run = trainer(net(), MOMENTUM, lambda model, batch: (total(model, batch), len(batch[1])))
    run.fit(cut(data(8), (4, 4)), epochs=1)
    assert run.update == 2


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 2}], ids=["plain", "smoothed", "another index"])
def test_ignored_targets_without_a_mask_are_refused(options):
    inputs, targets = tokens(8)
    index = options.get("ignore_index", -100)
    targets[targets == -100] = index
    count = int((targets == index).sum())

    def forgotten(model: Any, batch: Any) -> Tensor:
        return each(model, batch, **options).float() * 2

    with pytest.raises(TypeError, match=rf"{count} of 40 targets are {index}.*return \(losses, targets != {index}\)"):
        trainer(net(), MOMENTUM, forgotten).fit([(inputs, targets)], epochs=1)
