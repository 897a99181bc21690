"""One adapter over functions of the update and torch's schedulers: it knows when each is stepped, and its state is plain."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, MultiStepLR, OneCycleLR, ReduceLROnPlateau

from fastdata.optim.rates import Curve, Factor, need
from fastdata.torch_private import has_stepped

__all__ = ["Schedule", "SchedulerLike"]

SchedulerLike: TypeAlias = Factor | LRScheduler | tuple[LRScheduler, str] | None


class Schedule:
    """Sets the rates of an optimizer: by nothing, by a function of the update, or by any of torch's schedulers.

    A scheduler of torch is stepped when its examples in torch's documentation step it:

    - OneCycleLR and CyclicLR after every update; so is a SequentialLR or ChainedScheduler with one of them inside.
    - ReduceLROnPlateau after every evaluation, on the metric "loss"; ``(scheduler, "accuracy")`` names another.
    - All others after every epoch, CosineAnnealingWarmRestarts too: its T_0 counts epochs.
    - ``(scheduler, "update")`` and ``(scheduler, "epoch")`` say it otherwise; its numbers then count these.

    The optimizer's ``step`` is to be called for every update, a skipped one with all gradients None. Momenta that OneCycleLR and
    CyclicLR set are left to them. `every` is when it steps: "never", "update", "epoch" or "evaluation"; `metric` is a plateau's.

    Args:
        scheduler: None, a function of the update, a scheduler of this optimizer, or a pair.
        optimizer: Whose rates are set. A function sets those of update 0 at once, one that has no total when `begin` gives it.

    Raises:
        TypeError: it is none of these, or a function gave no number.
        ValueError: the scheduler is another optimizer's, the pair is wrong, or a function gave a number below 0 or not finite; when
            called, a OneCycleLR is past its end, or a plateau's metric is missing.
    """

    def __init__(self, scheduler: SchedulerLike, optimizer: Optimizer) -> None:
        pair = scheduler if isinstance(scheduler, tuple) and len(scheduler) == 2 else (scheduler, None)
        self.every, self.metric = _when(*pair)
        self.optimizer, self._update, self._scheduler = optimizer, 0, pair[0]
        if isinstance(pair[0], LRScheduler) and pair[0].optimizer is not optimizer:
            raise ValueError(f"the {_name(pair[0])} is of another optimizer: make it with the one whose rates it is to set")
        self._arguments = dict(_arguments(pair[0])) if isinstance(pair[0], LRScheduler) else {}
        self._own_total = isinstance(pair[0], Curve) and pair[0].total is not None
        if not self._waits:
            self._set(0)

    @property
    def of_torch(self) -> str | None:
        """The name of torch's scheduler, which keeps what it was made with in its state; None: it is a function, or nothing."""
        return _name(self._scheduler) if isinstance(self._scheduler, LRScheduler) else None

    def options(self) -> dict[str, Any]:
        """What it was made with, as plain values, so far as it can be told."""
        return {"scheduler": repr(self._scheduler)} if isinstance(self._scheduler, Curve) else self._arguments

    @property
    def _waits(self) -> bool:
        """Whether its total is yet to come."""
        return isinstance(self._scheduler, Curve) and self._scheduler.total is None

    def _set(self, update: int) -> None:
        """The rates of an update, where a function gives them."""
        self._update = update
        if self._scheduler is None or isinstance(self._scheduler, LRScheduler):
            return
        factor = float(self._scheduler(update))
        need(0 <= factor < math.inf, f"the factor of the rate in update {update}", factor, "a finite number from 0 on")
        for group in self.optimizer.param_groups:
            rate = group["lr"]
            first = group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            if isinstance(rate, Tensor):  # a captured or compiled step reads this very tensor
                rate.zero_().add_(first * factor)
            else:
                group["lr"] = first * factor

    def begin(self, updates: float, *, evaluated: bool) -> None:
        """Before a run of that many updates, math.inf if nobody knows: fill in the total of a function that has none.

        Raises:
            ValueError: what would end the run hours later, or let it end with other rates than those that were meant.
        """
        if self.every == "evaluation" and not evaluated:
            raise ValueError(f"the scheduler waits for the metric {self.metric!r}, but fit has no val to evaluate: give it one")
        if isinstance(self._scheduler, Curve):
            self._scheduler = self._fitted(self._scheduler, updates)
            self._set(self._update)
        if self.every == "update" and isinstance(self._scheduler, OneCycleLR) and self._scheduler.total_steps < updates < math.inf:
            raise _ended(self._scheduler, f"a run of {updates:.0f} updates")

    def _fitted(self, curve: Curve, updates: float) -> Curve:
        if updates == math.inf:
            if curve.total is None or not self._own_total:
                raise ValueError(f"{curve} takes its total from the run, but the loader has no len(): give fit max_steps")
            return curve
        if self._own_total and curve.total != updates:
            raise ValueError(
                f"the scheduler is {curve}, but fit makes {updates:.0f} updates (of `accumulate` batches each): leave total out, "
                "and fit fills it in. To end a run early without changing its rates, let a hook return True"
            )
        return curve.over(max(int(updates), 1))

    def check_total(self) -> None:
        """Raise the ValueError of a function whose total nobody has filled in."""
        if self._waits:
            self._set(self._update)

    def updated(self, update: int) -> None:
        """After update number `update` was tried, the first is 0: set the rates of the next one."""
        self._set(update + 1)
        if self.every == "update":
            self._step()

    def epoch_ended(self) -> None:
        """After the last `updated` of an epoch: set the rates of the next one."""
        if self.every == "epoch":
            self._step()

    def _step(self) -> None:
        if not isinstance(self._scheduler, LRScheduler):
            return
        try:
            self._scheduler.step()
        except ValueError as error:
            for part in _parts(self._scheduler):
                if isinstance(part, OneCycleLR) and part.last_epoch > part.total_steps:
                    raise _ended(part, f"step {part.last_epoch}") from error
            raise

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """After an evaluation: a plateau counts it. On several ranks all must give the same metrics, those of all samples."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            if self.metric not in metrics:
                raise ValueError(f"the plateau is to see {self.metric!r}, found {[*metrics]}: pass (scheduler, one of these names)")
            self._scheduler.step(metrics[self.metric])

    def rates(self) -> list[float]:
        """The rate of each group in the next update."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, as ``torch.load(weights_only=True)`` wants them. Functions are left out: the script has them.

        Raises:
            TypeError: a scheduler that is not torch's keeps something else.
        """
        name = _name(self._scheduler)
        state = _plain(self._scheduler.state_dict(), name) if isinstance(self._scheduler, LRScheduler) else None
        return {"scheduler": name, "every": self.every, "update": self._update, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; load the optimizer's first. As in torch, a scheduler gets the arguments back that it was saved with.

        Raises:
            ValueError: it is the state of another scheduler.
        """
        asked, found = (_name(self._scheduler), self.every), (state["scheduler"], state["every"])
        if asked != found:
            raise ValueError(f"the scheduler is {asked}, in the checkpoint it is {found}: pass that one, or start a run anew")
        self._update = state["update"]
        if not self._waits:
            self._set(self._update)
        if isinstance(self._scheduler, LRScheduler):
            self._scheduler.load_state_dict(copy.deepcopy(state["state"]))
            for part in _parts(self._scheduler):
                if isinstance(part, MultiStepLR):
                    part.milestones = Counter(part.milestones)
            if self._update:  # else torch warns of a wrong order: it looks for steps in this process only
                has_stepped(self.optimizer)


def _when(scheduler: object, told: object) -> tuple[str, str]:
    """When a scheduler is stepped, and on which metric."""
    if isinstance(scheduler, ReduceLROnPlateau):
        need(told not in ("update", "epoch") and isinstance(told, str | None), "the pair's second", told, "the name of a metric")
        return "evaluation", str(told or "loss")
    if isinstance(scheduler, LRScheduler):
        need(told in (None, "update", "epoch"), f"the second beside {_name(scheduler)}", told, "'update' or 'epoch'")
        often = any(isinstance(part, OneCycleLR | CyclicLR) for part in _parts(scheduler))
        return str(told or ("update" if often else "epoch")), ""
    if isinstance(scheduler, type) or not (scheduler is None or callable(scheduler)):
        found = repr(scheduler) if isinstance(scheduler, str | type) else f"a {type(scheduler).__name__}"
        raise TypeError(f"the scheduler is {found}: pass one that was made with the optimizer, a pair, a function, or None")
    need(told is None, "the pair's second", told, "left out: a function is one of the update, and None does nothing")
    return "never" if scheduler is None else "update", ""


def _parts(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """A scheduler and all that it holds."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _parts(part)


def _name(scheduler: object) -> str:
    return type(scheduler).__name__ if isinstance(scheduler, LRScheduler) else "None" if scheduler is None else "a function"


def _arguments(scheduler: LRScheduler) -> Iterator[tuple[str, Any]]:
    """Plain values that a scheduler was made with, by name, those of the schedulers in it too."""
    whole = _name(scheduler)
    for k, part in enumerate(_parts(scheduler)):
        for name, value in part.state_dict().items():
            if isinstance(value, Counter):
                value = sorted(value.elements())
            if isinstance(value, list):
                value = tuple(value)
            plain = value if isinstance(value, tuple) else (value,)
            if (
                not name.startswith("_")
                and name != "base_lrs"
                and all(isinstance(v, bool | int | float | str | None) for v in plain)
            ):
                yield f"{whole}: {name} of part {k}" if k else f"{whole}: {name}", value


def _ended(scheduler: OneCycleLR, asked: str) -> ValueError:
    return ValueError(
        f"OneCycleLR has total_steps={scheduler.total_steps}, but was asked for {asked}: make it with all steps of the run, "
        "epochs * updates per epoch (batches / accumulated ones, rounded up); a resumed one keeps what it was saved with"
    )


def _plain(value: Any, where: str) -> Any:
    """A copy of a state, of plain values; entries of dicts that are functions are left out."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _plain(item, where) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        made = [_plain(item, where) for item in value]
        return made if isinstance(value, list) else tuple(made)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"the state of {where} holds a {type(value).__name__}, which a checkpoint does not: give it its own state_dict")
