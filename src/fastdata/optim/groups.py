"""Parameter groups with and without weight decay."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from fastdata.optim.rates import need
from fastdata.system.torch_private import NormBase

NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return a model's parameters for any optimizer: one group with `weight_decay`, and one without.

    These do not decay: biases, all parameters of torch's norms, and all parameters of 0 or 1 dimension (gains, layer scales, norms
    of other libraries). All others decay, embeddings too, as in nanoGPT. Frozen parameters are in no group. A shared parameter
    appears once, and does not decay if any module uses it in one of these roles. The order is that of ``model.parameters()``.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        >>> [(len(group["params"]), group["weight_decay"]) for group in decay_groups(model, 0.05)]
        [(2, 0.05), (4, 0.0)]

        Optimizers for large batches need ``pip install 'fastdata-torch[optimizers]'``. Lamb with pre_norm=True is NVLAMB:

        >>> from pytorch_optimizer import LARS, Lamb, NovoGrad  # doctest: +SKIP
        >>> Trainer(model, loss_fn, LARS(decay_groups(model, 1e-4), lr=2.0))  # doctest: +SKIP
        >>> Trainer(model, loss_fn, Lamb(decay_groups(model, 0.01), lr=2e-3, pre_norm=True))  # doctest: +SKIP
        >>> Trainer(model, loss_fn, NovoGrad(decay_groups(model, 1e-3), lr=1e-2))  # doctest: +SKIP
    """
    need(0 <= weight_decay < math.inf, "weight_decay", weight_decay, "a finite number from 0 on")
    decays: dict[nn.Parameter, bool] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                decays[parameter] = decays.get(parameter, True) and _decays(module, name, parameter)
    with_decay, without = ([p for p, decay in decays.items() if decay is kind] for kind in (True, False))
    groups = [{"params": with_decay, "weight_decay": weight_decay}, {"params": without, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _decays(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies. A bias may have three dimensions (bias_k of nn.MultiheadAttention)."""
    return parameter.ndim >= 2 and not isinstance(module, NORMS) and name != "bias" and not name.startswith("bias_")
