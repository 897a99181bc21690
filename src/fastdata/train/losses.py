"""The results that a loss function may return, and their common form."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

EXPECTED = (
    'return one loss for each sample or token, such as cross_entropy(model(x), y, reduction="none"), or (losses, mask) where '
    "some don't count, or (loss_sum, count)"
)
MEAN = 1  # torch's number for reduction="mean"
MAX_DEPTH = 8  # operations between a loss of torch and what the loss function returns


class Losses(NamedTuple):
    """The losses of a batch.

    Attributes:
        each: the losses with their graph, float of any shape; 0 where one does not count.
        total: their sum, float [], without a graph.
        number: how many of them count.
    """

    each: Tensor
    total: Tensor
    number: Tensor | float


def losses_of(result: Any) -> Losses:
    """Return the losses, their sum, and how many count, from the result of a loss function, as `Trainer` describes it."""
    losses, second = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    if not isinstance(losses, Tensor) or not losses.is_floating_point() or not isinstance(second, Tensor | Real | None):
        raise TypeError(f"loss_fn returned {_described(result)}: {EXPECTED}")
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise TypeError(f"loss_fn returned {_described(result)} without a graph, so there is no gradient: don't detach it")
    if second is None:
        if not losses.dim():
            raise TypeError(f"loss_fn returned a single number, but means of batches cannot be combined: {EXPECTED}")
        return Losses(losses, _sum(losses), losses.numel())
    if isinstance(second, Tensor) and second.dim():
        if second.dtype != torch.bool or second.shape != losses.shape:
            raise TypeError(
                f"loss_fn returned {_described(result)}, but a mask is bool and of the shape of the losses: use mask.bool(). "
                "For weights return (loss_sum, count) with (losses * weights).sum() and weights.sum()"
            )
        losses = losses.masked_fill(~second, 0)
        return Losses(losses, _sum(losses), second.sum())
    return Losses(losses, _sum(losses), second.detach() if isinstance(second, Tensor) else float(second))


def _sum(losses: Tensor) -> Tensor:
    """Return the sum, in float32 at least: half precision cannot count beyond a few thousand."""
    losses = losses.detach()
    return losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32)) if losses.dim() else losses.clone()


def check_values(result: Any) -> None:
    """Raise a TypeError if the graph has a mean and the count is not 1, or ignored targets and there is no mask. The host waits."""
    if isinstance(result, Tensor):
        loss = _loss_of_torch(result)
        if loss is None or loss._saved_target.numel() != result.numel():
            return
        targets = loss._saved_target
        index = (loss._saved_ignore_index + 2**63) % 2**64 - 2**63  # torch saves it unsigned
        if count := int((targets == index).sum()):
            raise TypeError(
                f"{count} of {targets.numel()} targets are {index}, which the loss ignores, but loss_fn returned no mask, so their "
                f"zeros would count: return (losses, targets != {index})"
            )
    else:
        loss_sum, count = result
        if _is_mean(loss_sum.grad_fn) and not (isinstance(count, Tensor) and count.dim()) and float(count) != 1:
            raise TypeError(f"loss_fn returned (a mean, {float(count):g}), so the gradient would be divided twice: {EXPECTED}")


def _is_mean(node: Any) -> bool:
    """Return whether a node is a mean, or a loss of torch with reduction="mean", smoothed or with something added."""
    for name in ("AddBackward0", "MulBackward1"):  # the second is a product with a number, as in torch's label smoothing
        if type(node).__name__ == name:
            node = node.next_functions[0][0]
    return type(node).__name__ == "MeanBackward0" or getattr(node, "_saved_reduction", None) == MEAN


def _loss_of_torch(losses: Tensor) -> Any:
    """Return the cross-entropy that the losses come from, if there is one near the end of their graph."""
    node = losses.grad_fn
    for _ in range(MAX_DEPTH):
        if node is None or hasattr(node, "_saved_ignore_index"):
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _described(result: Any) -> str:
    if isinstance(result, tuple | list) and len(result) <= 4:
        return f"({', '.join(map(_described, result))})"
    return f"a tensor {result.dtype} {[*result.shape]}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
