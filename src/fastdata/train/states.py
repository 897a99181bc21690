"""States as tensors, numbers and text: of models and optimizers, sharded or not, and of random generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor

__all__ = ["load_states", "random_state", "restore_random", "states"]

FULL = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def states(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the state of a model, and of its optimizer if given. Sharded parameters are put together on rank 0."""
    if _is_sharded(model):
        parts: Any = sharded.get_state_dict(model, optimizers, options=FULL)
        return list(parts)[: 1 + len(optimizers)]
    return [model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers)]


def load_states(saved: Sequence[dict[str, Any]], model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Load what `states` returned."""
    if _is_sharded(model):
        rest = saved[1] if optimizers else {}
        sharded.set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=rest, options=FULL)
        return
    model.load_state_dict(saved[0])
    for optimizer, state in zip(optimizers, saved[1:], strict=True):
        optimizer.load_state_dict(state)


def random_state() -> dict[str, Any]:
    """Return the state of the generators that a model or a loader may draw from, as tensors and numbers."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    _, keys, place, has_gauss, gauss = legacy
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    numpy = {"keys": torch.from_numpy(keys.astype(np.int64)), "rest": (place, has_gauss, gauss)}
    return {"torch": torch.get_rng_state(), "cuda": gpu, "numpy": numpy, "python": random.getstate()}


def restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(("MT19937", state["numpy"]["keys"].numpy().astype(np.uint32), *state["numpy"]["rest"]))  # noqa: NPY002
    random.setstate(state["python"])
