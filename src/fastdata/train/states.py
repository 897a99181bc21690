"""States as tensors, numbers and text: of models and optimizers, sharded or not, their options, and random generators."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

FULL = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def states(model: nn.Module, *optimizers: Optimizer) -> list[dict[str, Any]]:
    """Return the state of a model, and of its optimizer if given. Sharded parameters are put together on rank 0."""
    if _is_sharded(model):
        parts: Any = sharded.get_state_dict(model, optimizers, options=FULL)
        whole: Any = OrderedDict(parts[0])
        whole._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]  # versions of modules, which torch leaves out
        return [whole, *parts[1:]][: 1 + len(optimizers)]
    return [model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers)]


def load_states(saved: Sequence[dict[str, Any]], model: nn.Module, *optimizers: Optimizer) -> None:
    """Load the result of `states`."""
    if _is_sharded(model):
        rest = saved[1] if optimizers else {}
        sharded.set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=rest, options=FULL)
        return
    model.load_state_dict(saved[0])
    for optimizer, state in zip(optimizers, saved[1:], strict=True):
        optimizer.load_state_dict(state)


def options_of(optimizer: Optimizer, **own: Any) -> dict[Any, Any]:
    """Return the options of a run and of its optimizer, as plain values by name and by (number of the group, name)."""
    options: dict[Any, Any] = {**own, "optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in {**group, "lr": group.get("initial_lr", group["lr"])}.items():
            value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
            if isinstance(value, bool | int | float | str | tuple | None) and name != "initial_lr":
                options[number, name] = value
    return options


def apply_options(optimizer: Optimizer, options: Mapping[Any, Any], saved: Mapping[Any, Any], *, of_torch: bool) -> list[str]:
    """Give a loaded optimizer its own options back where the saved ones differ. Return descriptions of the differences.

    Args:
        of_torch: a scheduler of torch continues with the rates and momenta that it has set.
    """
    differences = []
    for key, value in options.items():
        if value == saved.get(key, value):
            continue
        number, name = key if isinstance(key, tuple) else (None, key)
        kept = of_torch and name in SET_BY_SCHEDULERS
        text = f"{name}{f' of group {number}' if number else ''} {saved[key]} saved, {value} now"
        differences.append(f"{text}: the {'saved' if kept else 'new'} value is used")
        group = {} if number is None or kept else optimizer.param_groups[number]
        for part in {name, "initial_lr" if name == "lr" else name} & group.keys():
            if isinstance(group[part], Tensor):
                group[part].fill_(value)  # a captured or compiled step reads this very tensor
            else:
                group[part] = value
    return differences


def random_state() -> dict[str, Any]:
    """Return the state of the generators that a model or a loader may draw from, as tensors and numbers."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    kind, keys, *rest = legacy
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"torch": torch.get_rng_state(), "cuda": gpu, "numpy": (kind, keys.tolist(), *rest), "python": random.getstate()}


def restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
