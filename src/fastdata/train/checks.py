"""Checks of a run: graphs that are kept alive, inputs of many shapes, and values that are not finite."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from fastdata.errors import FastDataError, warn_user

MARKED_UPDATE = 3  # the update whose graph is marked
CHECKED_UPDATE = 5  # the update after which this graph must be gone
MAX_SHAPES = 6


class _Mark:
    """Lives as long as the graph node to which it is attached."""


class GraphCheck:
    """Warns, once, if losses or outputs are collected with their graphs, so that memory grows with every batch."""

    def __init__(self) -> None:
        self._updates = 0
        self._marks = weakref.WeakSet[_Mark]()

    def check(self, result: Any) -> None:
        """Check the result of loss_fn for a batch. Marks the whole graph of one update."""
        if self._updates != MARKED_UPDATE - 1:
            return
        losses = result[0] if isinstance(result, tuple | list) else result
        nodes, seen = [getattr(losses, "grad_fn", None)], set[Any]()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen and type(node).__name__ != "AccumulateGrad":  # lives with its weight
                seen.add(node)
                mark = _Mark()
                node.metadata["fastdata"] = mark  # a dict that lives as long as the node
                self._marks.add(mark)
                nodes.extend(next_node for next_node, _ in node.next_functions)

    def updated(self) -> None:
        """Look, after each update, for graphs that are still alive."""
        self._updates += 1
        if self._updates != CHECKED_UPDATE:
            return
        if self._marks:
            gc.collect()  # what only a reference cycle keeps
        if self._marks:
            warn_user("losses or outputs are kept with their graphs, so memory grows: keep loss.detach() instead")
        self._marks.clear()


class CudnnBenchmark:
    """Lets cuDNN measure its algorithms for each shape of input, up to six of them: three sizes, with a short batch of each."""

    def __init__(self) -> None:
        self._shapes = set[torch.Size]()
        self._on = torch.backends.cudnn.benchmark = True

    def record_shape(self, tensor: Tensor) -> None:
        """Record the shape of the first tensor of a batch."""
        if self._on:
            self._shapes.add(tensor.shape)
            if len(self._shapes) > MAX_SHAPES:
                self._on = torch.backends.cudnn.benchmark = False
                warn_user(f"inputs have more than {MAX_SHAPES} shapes: cudnn.benchmark is off from here on")


def not_finite(skipped: int, model: nn.Module, loss: Tensor | None, *, rate: float, scaled: bool) -> FastDataError:
    """Return the error for `skipped` updates in a row, with the likely causes. scaled: the precision is fp16."""
    broken = [name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    value = math.nan if loss is None else loss.item()
    own = f"weights or statistics that are not finite themselves: {', '.join(broken[:3])}; " if broken else ""
    narrow = "; numbers above 65,504, too large for fp16 (pass precision='bf16')" if scaled else ""
    return FastDataError(
        f"the last updates, {skipped} in a row, were skipped and changed no weights, because their gradients are not finite "
        f"(the loss is {value:.3g}). Likely causes: {own}inputs that are not finite; a learning rate that is too high "
        f"({rate:.3g}; lower it, warm it up, or pass clip_norm=1.0); a division by 0, or a logarithm or root of 0 "
        f"(torch.autograd.set_detect_anomaly(True) names it){narrow}"
    )
