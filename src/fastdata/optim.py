"""Companions of an optimizer: learning rates and parameter groups.

`cosine`, `linear` and `onecycle` make functions of the update's number, 0, 1, 2, ..., which return the factor of a group's
``initial_lr`` (torch's name). Skipped updates count too, so that all ranks agree and a resume loses nothing. Warm-up is linear,
(update + 1) / (warmup + 1): update 0 has a rate above 0, and update `warmup` has the full rate. `total` is the number of updates of
the whole run; ``Trainer.fit`` fills it in if it is left out. In your own loop it is ``epochs * updates per epoch``, where an update
is `accumulate` batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

from torch import nn

from fastdata.system.torch_private import NormBase

__all__ = ["cosine", "decay_groups", "linear", "onecycle", "scale_lr"]

NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Curve:
    """A factor of the rate that spans all updates of a run: ``factor(update, total, **arguments)``.

    `name` is the function that made it. Until `total` is known, it is None, and a call raises a ValueError.
    """

    def __init__(self, name: str, factor: Callable[..., float], total: int | None, **arguments: Any) -> None:
        need(total is None or is_whole(total, 1), "total", total, "a whole number of updates, at least 1")
        warmup = arguments.get("warmup", 0)
        known = "" if total is None else f", below total ({total})"
        need(is_whole(warmup, 0) and warmup < (total or math.inf), "warmup", warmup, f"a whole number of at least 0{known}")
        for key in ("start", "final"):
            need(0 <= arguments.get(key, 0) < math.inf, key, arguments.get(key), "a finite factor of 0 or more")
        self.total = total
        self._name = name
        self._factor = factor
        self._arguments = arguments

    def over(self, total: int) -> Curve:
        """Return the same curve over another total."""
        return Curve(self._name, self._factor, total, **self._arguments)

    def __call__(self, update: int) -> float:
        if self.total is None:
            raise ValueError(f"{self} has no total, and only Trainer.fit fills it in: pass total=epochs * updates per epoch")
        return self._factor(update, self.total, **self._arguments)

    def __repr__(self) -> str:
        arguments = self._arguments if self.total is None else {"total": self.total, **self._arguments}
        return f"{self._name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def cosine(total: int | None = None, *, warmup: int = 0, final: float = 0.0) -> Curve:
    """Return half a cosine from 1 to `final`: ``final + (1 - final) * (1 + cos(pi * t)) / 2``.

    Here t = (update - warmup) / (total - warmup). The factor is `final` from update `total` on. Until then, without warm-up,
    the rates are those of torch's CosineAnnealingLR with T_max=total and eta_min=final * lr.
    """
    return Curve("cosine", partial(_annealed, lambda t: (1 + math.cos(math.pi * t)) / 2), total, warmup=warmup, final=final)


def linear(total: int | None = None, *, warmup: int = 0, final: float = 0.0) -> Curve:
    """Return the line ``1 - (1 - final) * t``, t as in `cosine`. Without warm-up: torch's LinearLR(optimizer, 1, final, total)."""
    return Curve("linear", partial(_annealed, lambda t: 1 - t), total, warmup=warmup, final=final)


def _annealed(shape: Callable[[float], float], update: int, total: int, *, warmup: int, final: float) -> float:
    if update < warmup:
        return (update + 1) / (warmup + 1)
    left = shape(min(1.0, (update - warmup) / (total - warmup)))
    return left + (1 - left) * final


def onecycle(total: int | None = None, *, peak_at: float = 0.3, start: float = 1 / 25, final: float = 1 / 25 / 1e4) -> Curve:
    """Return half a cosine up from `start` to 1, then half a cosine down to `final`. The group's rate is the peak.

    Up to rounding, the rates are those of torch's OneCycleLR(max_lr=lr, total_steps=total): the peak is at update
    ``peak_at * total - 1``, and the factor is `final` from update total - 1 on. Unlike torch's, it leaves momentum unchanged.
    """
    need(0 <= peak_at < 1, "peak_at", peak_at, "a fraction of total, at least 0 and below 1")
    return Curve("onecycle", _onecycle, total, peak_at=peak_at, start=start, final=final)


def _onecycle(update: int, total: int, *, peak_at: float, start: float, final: float) -> float:
    peak = peak_at * total - 1
    at = min(update, total - 1)
    rising = at <= peak
    t = (at / peak if peak else 1.0) if rising else (at - peak) / (total - 1 - peak)
    first, last = (start, 1.0) if rising else (1.0, final)
    return last + (first - last) * (1 + math.cos(math.pi * t)) / 2


def scale_lr(lr: float, batch_size: int, *, base: int = 256, rule: str = "linear") -> float:
    """Return the rate for a batch size, given the rate `lr` for batch size `base`. With k = batch_size / base:

    - "linear": lr * k, for SGD with warm-up (Goyal et al. 2017, arXiv:1706.02677).
    - "sqrt": lr * sqrt(k), for Adam and its kin (Krizhevsky 2014, arXiv:1404.5997; Malladi et al. 2022, arXiv:2205.10287).

    `batch_size` is the number of samples in one update, over all ranks and accumulated batches.
    """
    need(is_whole(batch_size, 1) and is_whole(base, 1), "(batch_size, base)", (batch_size, base), "two whole numbers, at least 1")
    need(rule in ("linear", "sqrt"), "rule", rule, "'linear' or 'sqrt'")
    k = batch_size / base
    return lr * (k if rule == "linear" else math.sqrt(k))


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
    need(0 <= weight_decay < math.inf, "weight_decay", weight_decay, "a finite number, at least 0")
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


def is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def need(ok: bool, name: str, found: object, expected: str) -> None:
    """Raise a ValueError unless `ok`."""
    if not ok:
        raise ValueError(f"{name} is {found!r}, but must be {expected}")
