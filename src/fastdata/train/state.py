"""What a checkpoint holds: all that decides how a run goes on, as tensors, numbers and text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor

from fastdata.errors import FastDataError

if TYPE_CHECKING:
    from fastdata.train.trainer import Trainer

__all__ = ["capture", "counters", "random_state", "restore", "restore_random"]

FORMAT = 1
COUNTERS = ("update", "epoch", "epoch_open", "validated")


def counters(trainer: Trainer) -> tuple[int, ...]:
    """How far it is."""
    return tuple(getattr(trainer, name) for name in COUNTERS)


def capture(trainer: Trainer, *, best: float | None, scaler: Any, place: Any) -> dict[str, Any]:
    """The state of a trainer. All ranks call it together. place: where this rank stands in its epoch."""
    model, optimizer = _states(trainer.model, trainer.optimizer)
    return {
        "format": FORMAT,
        "model": model,
        "optimizer": optimizer,
        "ema": None if trainer.ema is None else _states(trainer.ema.model)[0],
        "scaler": scaler.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        **dict(zip(COUNTERS, counters(trainer), strict=True)),
        "results": trainer.results,
        "best": best,
        "ranks": trainer.world.gather({"random": random_state(), "place": place}),
    }


def restore(trainer: Trainer, state: Mapping[str, Any], *, scaler: Any) -> Mapping[str, Any]:
    """Set a trainer to a state. Returns what its own rank saved; of another number of ranks, without random numbers."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        found = f"has {', '.join(map(str, [*state][:8]))}" if isinstance(state, Mapping) else f"is a {type(state).__name__}"
        raise FastDataError(f"this is not a state of format {FORMAT} of fastdata's Trainer, but {found}")
    try:
        _load_states((state["model"], state["optimizer"]), trainer.model, trainer.optimizer)
        if trainer.ema is not None:
            _load_states((state["model"] if state["ema"] is None else state["ema"],), trainer.ema.model)
        scaler.load_state_dict(state["scaler"])
        trainer.schedule.load_state_dict(state["schedule"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise FastDataError(f"the checkpoint is of another model, optimizer, precision or scheduler: {error}") from error
    for name in COUNTERS:
        setattr(trainer, name, state[name])
    trainer.results = dict(state["results"])
    ranks, world = state["ranks"], trainer.world
    return ranks[world.rank] if len(ranks) == world.size else {**ranks[0], "random": None}


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


FULL = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)


def _states(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """State of a plain model, and of its optimizer if given; sharded parameters are put together, on rank 0."""
    if _is_sharded(model):
        parts: Any = sharded.get_state_dict(model, optimizers, options=FULL)
        return list(parts)[: 1 + len(optimizers)]
    return [dict(model.state_dict()), *(optimizer.state_dict() for optimizer in optimizers)]


def _load_states(found: Sequence[dict[str, Any]], model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """The opposite of `_states`."""
    if _is_sharded(model):
        rest = found[1] if optimizers else {}
        sharded.set_state_dict(model, optimizers, model_state_dict=found[0], optim_state_dict=rest, options=FULL)
        return
    model.load_state_dict(found[0])
    for optimizer, state in zip(optimizers, found[1:], strict=True):
        optimizer.load_state_dict(state)


def random_state() -> dict[str, Any]:
    """Of the generators that a model or a loader may draw from, as tensors and numbers."""
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
