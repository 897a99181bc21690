"""What the tests of the Trainer share: a small model, its data, and the plain loop that a Trainer has to equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastdata import Trainer

Batch = tuple[Tensor, Tensor]


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same one each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def data(n: int, dtype: torch.dtype = torch.float64) -> Batch:
    made = torch.Generator().manual_seed(n)
    return torch.randn(n, 6, generator=made, dtype=torch.float64).to(dtype), torch.randint(3, (n,), generator=made)


def cut(whole: Sequence[Tensor], sizes: Iterable[int]) -> list[Any]:
    """Batches of these sizes."""
    return list(zip(*(part.split(list(sizes)) for part in whole), strict=True))


def summed(model: Any, batch: Batch) -> tuple[Tensor, int]:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def each(model: Any, batch: Batch, **options: Any) -> Tensor:
    """A loss for each row, or each token of [B, T]."""
    return F.cross_entropy(model(batch[0]).movedim(-1, 1), batch[1], reduction="none", **options)


def masked(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """-100 does not count."""
    return each(model, batch), batch[1] != -100


def trainer(model: nn.Module, optimizer: Any, loss_fn: Callable[..., Any] = summed, **options: Any) -> Trainer:
    """On the CPU, where the references are."""
    return Trainer(model, loss_fn, optimizer, **{"device": "cpu", **options})


def mean_of_torch(model: nn.Module, batch: Any) -> Tensor:
    """What torch takes for the mean: over targets that are not ignored."""
    return F.cross_entropy(model(batch[0]).movedim(-1, 1), batch[1])


def plain(model: nn.Module, optimizer: Any, batches: Iterable[Any], mean: Callable[..., Tensor] = mean_of_torch) -> None:
    """The loop of every tutorial."""
    for batch in batches:
        optimizer.zero_grad()
        mean(model, batch).backward()
        optimizer.step()


def values(model: nn.Module) -> Tensor:
    """All weights in one vector, a copy."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Switch:
    """While it is on, the gradient of a weight is infinite."""

    def __init__(self, weight: Tensor) -> None:
        self.on = False
        weight.register_hook(lambda grad: torch.full_like(grad, torch.inf) if self.on else grad)
