"""What is said of updates that are skipped because their gradients are not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastdata.errors import FastDataError, warn_user
from fastdata.system.torch_private import NormBase

__all__ = ["MOST_SKIPPED", "not_finite", "warn_of_statistics"]

MOST_SKIPPED = 50  # in a row; fp16 may need about twenty to find its scale


def not_finite(skipped: int, model: nn.Module, loss: Tensor | None, *, rate: float, scaled: bool) -> FastDataError:
    """Return the error for `skipped` updates in a row, with the likely causes.

    Args:
        loss: loss of the last update, [].
        rate: learning rate now.
        scaled: whether the model runs in fp16.
    """
    broken = [name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    value = math.nan if loss is None else loss.item()
    causes = [
        *([f"weights or statistics of the model that are not finite themselves: {', '.join(broken[:3])}"] if broken else []),
        "inputs that are not finite, or far from 0",
        f"a rate that is too high, which is {rate:.3g} now: lower it, warm it up, or set clip_norm=1.0",
        "a division by 0, or a logarithm or root of 0: torch.autograd.set_detect_anomaly(True) names it",
        *(["numbers above 65,504, which fp16 can't hold: precision='bf16' can"] if scaled else []),
    ]
    listed = "".join(f"\n  - {cause}" for cause in causes)
    return FastDataError(
        f"the last {skipped} updates were all skipped, since their gradients are not finite (the loss is {value:.3g}); they "
        f"changed no weights. Likely causes:{listed}"
    )


def warn_of_statistics(model: nn.Module) -> None:
    """Warn if running statistics of a norm are not finite: the forward pass of a skipped update has changed them all the same."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, NormBase)]
    broken = [
        f"{name}.{which}"
        for name, module in norms
        for which in ("running_mean", "running_var")
        if (found := getattr(module, which, None)) is not None and not torch.isfinite(found).all()
    ]
    if broken:
        warn_user(
            f"{broken[0]} is not finite, as are {len(broken)} running statistics in all, since a batch that was not finite went "
            "through the model: every evaluation will be NaN. Leave such batches out, and continue from a checkpoint before them"
        )
