"""The results that a loss function may return, and their common form."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

EXPECTED = (
    'return one loss for each sample or token, such as cross_entropy(model(x), y, reduction="none"), or (losses, mask) if '
    "some don't count, or (loss_sum, count)"
)
MEAN = 1  # torch's number for reduction="mean"


class Losses(NamedTuple):
    """The losses of a batch with their graph, 0 where one does not count; their sum [], without a graph; how many count."""

    each: Tensor
    total: Tensor
    number: Tensor | float


def losses_of(result: Any) -> Losses:
    """Return the losses, their sum, and the number that count, from the result of a loss function, as `Trainer` describes it."""
    losses, second = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    if not isinstance(losses, Tensor) or not losses.is_floating_point() or not isinstance(second, Tensor | Real | None):
        raise TypeError(f"loss_fn returned {_described(result)}: {EXPECTED}")
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise TypeError(f"loss_fn returned {_described(result)} without a graph: avoid detach, no_grad and freezing all weights")
    if second is None:
        if not losses.dim():
            raise TypeError(f"loss_fn returned one number, without a count of losses: {EXPECTED}")
        return Losses(losses, _sum(losses), losses.numel())
    if isinstance(second, Tensor) and second.dim():
        if second.dtype != torch.bool or second.shape != losses.shape:
            raise TypeError(
                f"loss_fn returned {_described(result)}, but a mask must be bool and have the shape of the losses: use "
                "mask.bool(), or reshape it. For weights return ((losses * weights).sum(), weights.sum())"
            )
        losses = losses.masked_fill(~second, 0)
        return Losses(losses, _sum(losses), second.sum())
    return Losses(losses, _sum(losses), second.detach() if isinstance(second, Tensor) else float(second))


def _sum(losses: Tensor) -> Tensor:
    """Return the sum, in float32 at least: half precision cannot count beyond a few thousand."""
    losses = losses.detach()
    return losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32)) if losses.dim() else losses.clone()


def check_values(result: Any) -> None:
    """Raise a TypeError if the graph holds a mean though the count is not 1, or ignored targets without a mask. The host waits."""
    losses, count = (result, None) if isinstance(result, Tensor) else result
    node: Any = losses.grad_fn
    if count is None:
        while node is not None and not hasattr(node, "_saved_ignore_index"):
            node = node.next_functions[0][0] if node.next_functions else None
        if node is None or node._saved_target.numel() != losses.numel():
            return
        index = (node._saved_ignore_index + 2**63) % 2**64 - 2**63  # torch saves it unsigned
        if ignored := int((node._saved_target == index).sum()):
            text = f"{ignored} of {losses.numel()} targets are {index} and ignored, but their zero losses would count"
            raise TypeError(f"{text}: return (losses, targets != {index})")
    elif not losses.dim() and (type(node).__name__ == "MeanBackward0" or getattr(node, "_saved_reduction", None) == MEAN):
        if float(count) != 1:
            raise TypeError(f"loss_fn returned (a mean, {float(count):g}), so the gradient would be divided twice: {EXPECTED}")


def _described(result: Any) -> str:
    if isinstance(result, tuple | list) and len(result) <= 4:
        return f"({', '.join(map(_described, result))})"
    return f"a tensor {result.dtype} {[*result.shape]}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
