"""Steps torch's schedulers, and functions of an update's index, each when it is due, and keeps their state as plain values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from fastdata.errors import warn_user
from fastdata.optim import Curve, need
from fastdata.system.torch_private import has_stepped

SchedulerLike: TypeAlias = Callable[[int], float] | LRScheduler | tuple[LRScheduler, str] | None


class Schedule:
    """Sets the rates of an optimizer by a function of the update, a scheduler of torch (`of_torch`), or not at all.

    It steps `every` "update", "epoch" or "evaluation", or "never"; `metric` is what a ReduceLROnPlateau looks at.
    """

    def __init__(self, scheduler: SchedulerLike, optimizer: Optimizer) -> None:
        base, option = scheduler if isinstance(scheduler, tuple) and len(scheduler) == 2 else (scheduler, None)
        self.every, self.metric = _when(base, option)
        self.optimizer = optimizer
        self.of_torch = isinstance(base, LRScheduler)
        self._moves: bool | None = None  # whether a rate was above 0 since the last epoch ended; None: there was no update
        self._scheduler: Any = base
        if isinstance(base, LRScheduler) and base.optimizer is not optimizer:
            raise ValueError(f"the {_name(base)} is of another optimizer: give the Trainer that optimizer")
        self._fitted = isinstance(base, Curve) and base.total is None  # the run gives the total
        self._set(0)

    def _set(self, update: int) -> None:
        """Set the rates of an update, if a function defines them, and its total is known."""
        self._update = update
        if self._scheduler is None or self.of_torch or (self._fitted and self._scheduler.total is None):
            return
        factor = float(self._scheduler(update))
        need(0 <= factor < math.inf, f"the factor of the rate in update {update}", factor, "a finite number, at least 0")
        for group in self.optimizer.param_groups:
            rate = group["lr"]
            first = group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            if isinstance(rate, Tensor):  # a captured or compiled step reads this very tensor
                rate.zero_().add_(first * factor)
            else:
                group["lr"] = first * factor

    def begin(self, updates: float, *, evaluated: bool) -> None:
        """Prepare for a run of `updates` updates, math.inf if unknown: fill in the total of a function that has none."""
        if self.every == "evaluation" and not evaluated:
            raise ValueError(f"the scheduler needs the metric {self.metric!r}, but fit has no val to evaluate: give one")
        if self._fitted:
            if updates == math.inf:
                raise ValueError(f"{self._scheduler} takes its total from the run, but the loader has no len(): pass max_steps")
            self._scheduler = self._scheduler.over(max(int(updates), 1))
            self._set(self._update)
        elif isinstance(self._scheduler, Curve) and self._scheduler.total != updates < math.inf:
            raise ValueError(f"scheduler is {self._scheduler}, but fit makes {updates:.0f} updates: leave total out; fit sets it")
        if isinstance(self._scheduler, OneCycleLR) and self.every == "update" and self._scheduler.total_steps < updates < math.inf:
            raise ValueError(f"OneCycleLR has total_steps={self._scheduler.total_steps}, but the run makes {updates:.0f} updates")

    def updated(self, update: int) -> None:
        """Set the rates of the next update, after update number `update`, counted from 0, was tried."""
        rates = (group["lr"] for group in self.optimizer.param_groups)
        self._moves = self._moves or any(isinstance(rate, Tensor) or rate > 0 for rate in rates)
        self._set(update + 1)
        if self.of_torch and self.every == "update":
            self._scheduler.step()

    def epoch_ended(self) -> None:
        """Set the rates of the next epoch, after the last `updated` of this one. Warn if this one's rates were all 0."""
        if self._moves is False:
            why = f"the scheduler ({_name(self._scheduler)}) steps once per {self.every}"
            why = "no scheduler changes it: give an lr above 0" if self._scheduler is None else why
            warn_user(f"the optimizer's learning rate was 0 for a whole epoch; {why}")
        self._moves = None
        if self.of_torch and self.every == "epoch":
            self._scheduler.step()

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Step a ReduceLROnPlateau after an evaluation. All ranks must pass the same metrics, over all samples."""
        if self.every == "evaluation":
            if self.metric not in metrics:
                raise ValueError(f"ReduceLROnPlateau needs {self.metric!r}, found metrics {[*metrics]}: pass (scheduler, METRIC)")
            self._scheduler.step(metrics[self.metric])

    def rates(self) -> list[float]:
        """Return the rate of each group in the next update."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state for ``torch.load(weights_only=True)``. Functions are left out: the script has them."""
        state = copy.deepcopy(self._scheduler.state_dict()) if self.of_torch else None
        return {"scheduler": _name(self._scheduler), "every": self.every, "update": self._update, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the state of the optimizer first. As in torch, a scheduler gets its saved arguments back."""
        own, found = (_name(self._scheduler), self.every), (state["scheduler"], state["every"])
        if own != found:
            raise ValueError(f"the scheduler is {own}, but the checkpoint has {found}: pass the same, or start a new run")
        self._set(state["update"])
        if self.of_torch:
            self._scheduler.load_state_dict(copy.deepcopy(state["state"]))
            if self._update:  # torch looks for steps in this process only, and would warn of a wrong order
                has_stepped(self.optimizer)


def _when(scheduler: object, option: object) -> tuple[str, str]:
    """Return when a scheduler is stepped, and on which metric."""
    if isinstance(scheduler, ReduceLROnPlateau):
        return "evaluation", str(option or "loss")
    if isinstance(scheduler, LRScheduler):
        need(option in (None, "update", "epoch"), "the second item of scheduler", option, "'update' or 'epoch'")
        return str(option or ("update" if _is_per_update(scheduler) else "epoch")), ""
    if isinstance(scheduler, type) or not (scheduler is None or callable(scheduler)) or option is not None:
        raise TypeError(f"the scheduler is {scheduler!r}: pass None, a function, a torch scheduler, or (torch scheduler, when)")
    return "never" if scheduler is None else "update", ""


def _is_per_update(scheduler: LRScheduler) -> bool:
    return isinstance(scheduler, OneCycleLR | CyclicLR) or any(map(_is_per_update, getattr(scheduler, "_schedulers", ())))


def _name(scheduler: object) -> str:
    return type(scheduler).__name__ if isinstance(scheduler, LRScheduler) else "None" if scheduler is None else "a function"
