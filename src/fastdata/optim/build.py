"""Making and checking an optimizer of a model's parameters."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

__all__ = ["build_optimizer"]


def build_optimizer(optimizer: Any, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer, or the one that a function makes from the model's parameters, fused on a GPU if possible.

    Raises:
        TypeError: if `optimizer` is neither, or calls the model itself.
        ValueError: if it has parameters that are not the model's.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}, but must be one optimizer or a function that makes it, such as "
                "partial(AdamW, lr=1e-3); several optimizers that take turns need a loop of your own"
            )
        defaults = {name: argument.default for name, argument in inspect.signature(optimizer).parameters.items()}
        fuse = device.type == "cuda" and "fused" in defaults and defaults["fused"] is None and not defaults.get("foreach")
        optimizer = optimizer(model.parameters(), **({"fused": True} if fuse else {}))
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS calls the model several times an update, which the Trainer does not: write a loop of your own")
    own = {id(p) for p in model.parameters()}
    if not all(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "the optimizer has parameters that are not the model's, as when the model was replaced or sharded after it was "
            "made: give a function that makes the optimizer, such as partial(AdamW, lr=1e-3)"
        )
    return optimizer  # type: ignore[no-any-return]
