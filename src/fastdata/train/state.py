"""The contents of a checkpoint: everything that decides how a run continues, as tensors, numbers and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastdata.checkpoint.states import load_states, random_state, restore_random, states
from fastdata.errors import FastDataError, warn_user
from fastdata.train.options import Options
from fastdata.train.training import Training

__all__ = ["capture", "counters", "restore"]

FORMAT = 2
COUNTERS = ("update", "epoch", "epoch_open", "validated")


def counters(trainer: Training) -> tuple[int, ...]:
    return tuple(getattr(trainer, name) for name in COUNTERS)


def capture(trainer: Training, *, scaler: Any, place: Any, options: Options) -> dict[str, Any]:
    """Return the state of a trainer. All ranks call it together. `place` is where this rank stands in its epoch."""
    model, optimizer = states(trainer.model, trainer.optimizer)
    return {
        "format": FORMAT,
        "options": options.state_dict(),
        "model": model,
        "optimizer": optimizer,
        "ema": None if trainer.ema is None else states(trainer.ema.model)[0],
        "scaler": scaler.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        **dict(zip(COUNTERS, counters(trainer), strict=True)),
        "results": trainer.results,
        "best": trainer.best.state_dict(),
        "ranks": trainer.world.gather({"random": random_state(), "place": place}),
    }


def restore(trainer: Training, state: Mapping[str, Any], *, scaler: Any, options: Options) -> Any:
    """Set a trainer to a state. The optimizer keeps the values in `options`, which are those of this run.

    Returns where this rank stood in the epoch, or where rank 0 stood if the number of ranks has changed.

    Raises:
        FastDataError: if the state does not fit the trainer.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        found = f"has {', '.join(map(str, [*state][:8]))}" if isinstance(state, Mapping) else f"is a {type(state).__name__}"
        raise FastDataError(f"expected a state of fastdata's Trainer in format {FORMAT}, but it {found}")
    saved = state.get("options", {})
    try:
        options.check(saved)
        load_states((state["model"], state["optimizer"]), trainer.model, trainer.optimizer)
        if trainer.ema is not None:
            load_states((state["model"] if state["ema"] is None else state["ema"],), trainer.ema.model)
        scaler.load_state_dict(state["scaler"])
        options.load(saved)
        trainer.schedule.load_state_dict(state["schedule"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise FastDataError(f"the checkpoint is from another model, optimizer, precision or scheduler: {error}") from error
    for name in COUNTERS:
        setattr(trainer, name, state[name])
    trainer.results = dict(state["results"])
    trainer.best.load_state_dict(state["best"])
    if len(state["ranks"]) != trainer.world.size:
        return _place_of_others(state["ranks"], trainer.world.size)
    mine = state["ranks"][trainer.world.rank]
    restore_random(mine["random"])
    return mine["place"]


def _place_of_others(ranks: Sequence[Mapping[str, Any]], size: int) -> Any:
    """Return where to continue in an epoch that another number of ranks began. Only a Loader's place is that of all ranks."""
    place = ranks[0]["place"]
    if place and place["used"] and "global_batch_size" not in (place["loader"] or {}):
        warn_user(
            f"the checkpoint was made in the middle of an epoch by {len(ranks)} ranks, now there are {size}, and this loader "
            "cannot divide the rest of the epoch among them: some samples will repeat in it, others be left out. fastdata.Loader "
            "can, with global_batch_size="
        )
    return place
