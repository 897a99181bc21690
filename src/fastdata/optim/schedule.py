"""One interface to functions of the update and torch's schedulers, which knows when to step each and keeps plain state."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from fastdata.optim.rates import Curve, Factor, need
from fastdata.system.torch_private import has_stepped

__all__ = ["Schedule", "SchedulerLike"]

SchedulerLike: TypeAlias = Factor | LRScheduler | tuple[LRScheduler, str] | None


class Schedule:
    """Sets the rates of an optimizer from nothing, a function of the update, or any of torch's schedulers.

    A scheduler of torch is stepped where the examples in torch's documentation step it:

    - OneCycleLR and CyclicLR after every update, and so a SequentialLR or ChainedScheduler that contains one.
    - ReduceLROnPlateau after every evaluation, with the metric "loss"; ``(scheduler, "accuracy")`` names another.
    - All others after every epoch, including CosineAnnealingWarmRestarts: its T_0 counts epochs.
    - ``(scheduler, "update")`` and ``(scheduler, "epoch")`` override this; the scheduler's numbers then count these.

    Call the optimizer's ``step`` for every update, a skipped one with all gradients None. OneCycleLR and CyclicLR may set momenta.

    Args:
        scheduler: None, a function of the update, a scheduler of this optimizer, or a pair.
        optimizer: the optimizer whose rates are set. A function sets those of update 0 at once, or, if it has no total yet, when
            `begin` fills it in.

    Attributes:
        every: when it steps: "never", "update", "epoch" or "evaluation".
        metric: the metric of a ReduceLROnPlateau.

    Raises:
        TypeError: if `scheduler` is something else, or a function returns no number.
        ValueError: if the scheduler belongs to another optimizer, the pair is wrong, or a function returns a number that is below 0
            or not finite; when called, if a OneCycleLR is past its end or a plateau's metric is missing.
    """

    def __init__(self, scheduler: SchedulerLike, optimizer: Optimizer) -> None:
        base, option = scheduler if isinstance(scheduler, tuple) and len(scheduler) == 2 else (scheduler, None)
        self.every, self.metric = _when(base, option)
        self.optimizer = optimizer
        self._update = 0
        self._scheduler = base
        if isinstance(base, LRScheduler) and base.optimizer is not optimizer:
            raise ValueError(f"the {_name(base)} is of another optimizer: make it with the one whose rates it is to set")
        self._own_total = isinstance(base, Curve) and base.total is not None
        if not self._waits:
            self._set(0)

    @property
    def of_torch(self) -> str | None:
        """The name of torch's scheduler, whose state includes its arguments. None for a function or nothing."""
        return _name(self._scheduler) if isinstance(self._scheduler, LRScheduler) else None

    def options(self) -> dict[str, Any]:
        """Return the arguments of one of fastdata's own functions, as plain values."""
        return {"scheduler": repr(self._scheduler)} if isinstance(self._scheduler, Curve) else {}

    @property
    def _waits(self) -> bool:
        """Whether its total is still to be filled in."""
        return isinstance(self._scheduler, Curve) and self._scheduler.total is None

    def _set(self, update: int) -> None:
        """Set the rates of an update, if a function defines them."""
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
        """Prepare for a run of `updates` updates, math.inf if unknown: fill in the total of a function that has none.

        Raises:
            ValueError: if the scheduler would fail during the run, or the run would end with rates that were not meant.
        """
        if self.every == "evaluation" and not evaluated:
            raise ValueError(f"the scheduler waits for the metric {self.metric!r}, but fit has no val to evaluate: give it one")
        if isinstance(self._scheduler, Curve):
            self._scheduler = self._fitted(self._scheduler, updates)
            self._set(self._update)
        if isinstance(self._scheduler, OneCycleLR) and self.every == "update" and self._scheduler.total_steps < updates < math.inf:
            raise ValueError(f"OneCycleLR has total_steps={self._scheduler.total_steps}, but the run has {updates:.0f} updates")

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
        """Raise a ValueError if the total of a function was not filled in."""
        if self._waits:
            self._set(self._update)

    def updated(self, update: int) -> None:
        """Set the rates of the next update, after update number `update`, counted from 0, was tried."""
        self._set(update + 1)
        if self.every == "update":
            self._step()

    def epoch_ended(self) -> None:
        """Set the rates of the next epoch, after the last `updated` of this one."""
        if self.every == "epoch":
            self._step()

    def _step(self) -> None:
        if isinstance(self._scheduler, LRScheduler):
            self._scheduler.step()

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Step a ReduceLROnPlateau after an evaluation. All ranks must pass the same metrics, those of all samples."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            if self.metric not in metrics:
                raise ValueError(
                    f"ReduceLROnPlateau needs the metric {self.metric!r}, found {[*metrics]}: pass (scheduler, one of these names)"
                )
            self._scheduler.step(metrics[self.metric])

    def rates(self) -> list[float]:
        """Return the rate of each group in the next update."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state for ``torch.load(weights_only=True)``. Functions are left out: the script has them."""
        state = copy.deepcopy(self._scheduler.state_dict()) if isinstance(self._scheduler, LRScheduler) else None
        return {"scheduler": _name(self._scheduler), "every": self.every, "update": self._update, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the optimizer's first. As in torch, a scheduler gets its saved arguments back.

        Raises:
            ValueError: if it is the state of another scheduler.
        """
        own = (_name(self._scheduler), self.every)
        found = (state["scheduler"], state["every"])
        if own != found:
            raise ValueError(f"the scheduler is {own}, in the checkpoint it is {found}: pass that one, or start a new run")
        self._update = state["update"]
        if not self._waits:
            self._set(self._update)
        if isinstance(self._scheduler, LRScheduler):
            self._scheduler.load_state_dict(copy.deepcopy(state["state"]))
            if self._update:  # torch looks for steps in this process only, and would warn of a wrong order
                has_stepped(self.optimizer)


def _when(scheduler: object, option: object) -> tuple[str, str]:
    """Return when a scheduler is stepped, and on which metric."""
    if isinstance(scheduler, ReduceLROnPlateau):
        metric = option not in ("update", "epoch") and isinstance(option, str | None)
        need(metric, "the pair's second", option, "the name of a metric")
        return "evaluation", str(option or "loss")
    if isinstance(scheduler, LRScheduler):
        need(option in (None, "update", "epoch"), "the pair's second", option, "'update' or 'epoch'")
        often = any(isinstance(part, OneCycleLR | CyclicLR) for part in _parts(scheduler))
        return str(option or ("update" if often else "epoch")), ""
    if isinstance(scheduler, type) or not (scheduler is None or callable(scheduler)):
        found = repr(scheduler) if isinstance(scheduler, str | type) else f"a {type(scheduler).__name__}"
        raise TypeError(f"the scheduler is {found}: pass one that was made with the optimizer, a pair, a function, or None")
    need(option is None, "the pair's second", option, "left out: a function is one of the update, and None does nothing")
    return "never" if scheduler is None else "update", ""


def _parts(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """Yield a scheduler and all schedulers inside it."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _parts(part)


def _name(scheduler: object) -> str:
    return type(scheduler).__name__ if isinstance(scheduler, LRScheduler) else "None" if scheduler is None else "a function"
