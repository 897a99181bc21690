"""The options of a run. A checkpoint keeps them, so that a resume can report what differs and which value is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fastdata.optim.schedule import Schedule

__all__ = ["Options"]

SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


class Options:
    """Options of a run by name, as plain values: the Trainer's own, its optimizer's by group, and its schedule's.

    Where they differ from those in a checkpoint, the new values are used. Only schedulers of torch continue with their saved
    arguments, and with the rates and momenta that they set.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, **own: Any) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._own: dict[str, Any] = {**own, "batch_size": None, "optimizer": type(optimizer).__name__, **_group_values(optimizer)}
        self._saved: Mapping[str, Any] | None = None

    def see(self, loader: Any) -> None:
        """Note the batch size of the training loader, if it has one."""
        self._own["batch_size"] = getattr(loader, "global_batch_size", None) or getattr(loader, "batch_size", None)

    def state_dict(self) -> dict[str, Any]:
        return {**self._own, **self._schedule.options()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise a ValueError if the saved options are those of another optimizer."""
        new = self._own["optimizer"]
        old = saved.get("optimizer", new)
        if new != old and {new, old} != {"Adam", "AdamW"}:  # these two keep the same state per weight
            raise ValueError(f"its optimizer is {old}, this one is {new}")

    def load(self, saved: Mapping[str, Any]) -> None:
        """Give the optimizer the new values where they differ. Call it after the optimizer was loaded from the same checkpoint."""
        self._saved = saved
        self._own["batch_size"] = saved.get("batch_size")
        for k, group in enumerate(self._optimizer.param_groups):
            for name in [*group]:
                key = _key(name, k, self._optimizer)
                if _differs(key, self._own, saved) and not (self._schedule.of_torch and name in SET_BY_SCHEDULERS):
                    for part in (name, "initial_lr") if name == "lr" and "initial_lr" in group else (name,):
                        _put(group, part, self._own[key])

    def differences(self) -> str | None:
        """Describe options that differ from the saved ones, and which are used. None: nothing was loaded since the last call."""
        if self._saved is None:
            return None
        now = self.state_dict()
        saved = self._saved
        self._saved = None
        scheduler = self._schedule.of_torch
        new = list[str]()
        old = list[str]()
        for name in now:
            if _differs(name, now, saved):
                kept = scheduler and (name.split(" of group ")[0] in SET_BY_SCHEDULERS or name.startswith(f"{scheduler}: "))
                (old if kept else new).append(f"{name} {saved[name]} saved, {now[name]} now")
        texts = [f"{'; '.join(new)}: the new values are used"] if new else []
        if old:
            reason = f"the saved values are used, since {scheduler} continues with them (resume=False starts a new run)"
            texts.append(f"{'; '.join(old)}: {reason}")
        return ". ".join(texts)


def _group_values(optimizer: Optimizer) -> dict[str, Any]:
    """Return the plain values of an optimizer's groups, with their initial rates."""
    found = {}
    for k, group in enumerate(optimizer.param_groups):
        for name in group:
            if name not in ("params", "initial_lr"):
                value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
                found[_key(name, k, optimizer)] = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str | tuple | None)}


def _key(name: str, group: int, optimizer: Optimizer) -> str:
    return f"{name} of group {group}" if len(optimizer.param_groups) > 1 else name


def _differs(name: str, now: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    return name in now and name in saved and now[name] != saved[name]


def _put(group: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(group[name], Tensor):
        group[name].fill_(value)  # a captured or compiled step reads this very tensor
    else:
        group[name] = value
