"""What a run was asked for: a checkpoint keeps it, so that a resume can say what differs, and which value counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fastdata.optim.schedule import Schedule

__all__ = ["Options"]

SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


class Options:
    """Options of a run by name, as plain values: the Trainer's own, those of its optimizer's groups, and of its schedule.

    Where they differ from those in a checkpoint, those asked for now count. But schedulers of torch go on with what they were
    saved with, and so do the rates and momenta that they set.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, **own: Any) -> None:
        self._optimizer, self._schedule = optimizer, schedule
        self._own: dict[str, Any] = {**own, "batch_size": None, "optimizer": type(optimizer).__name__, **_of_groups(optimizer)}
        self._saved: Mapping[str, Any] | None = None

    def see(self, loader: Any) -> None:
        """Note the batch size of the loader that is trained on, if it tells."""
        self._own["batch_size"] = getattr(loader, "global_batch_size", None) or getattr(loader, "batch_size", None)

    def state_dict(self) -> dict[str, Any]:
        return {**self._own, **self._schedule.options()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise ValueError where what was saved is of another optimizer."""
        asked, before = self._own["optimizer"], saved.get("optimizer", self._own["optimizer"])
        if asked != before and {asked, before} != {"Adam", "AdamW"}:  # these two keep the same of each weight
            raise ValueError(f"its optimizer is {before}, this one is {asked}")

    def load(self, saved: Mapping[str, Any]) -> None:
        """After the optimizer was loaded from the same checkpoint: give it the values that are asked for, where they differ."""
        self._saved = saved
        self._own["batch_size"] = saved.get("batch_size")
        for k, group in enumerate(self._optimizer.param_groups):
            for name in [*group]:
                key = _named(name, k, self._optimizer)
                if _differs(key, self._own, saved) and not (self._schedule.of_torch and name in SET_BY_SCHEDULERS):
                    for part in (name, "initial_lr") if name == "lr" and "initial_lr" in group else (name,):
                        _put(group, part, self._own[key])

    def differences(self) -> str | None:
        """Say which options differ from those saved, and which value counts. None: nothing was loaded since the last call."""
        if self._saved is None:
            return None
        asked, saved, self._saved = self.state_dict(), self._saved, None
        scheduler, new, old = self._schedule.of_torch, list[str](), list[str]()
        for name in asked:
            if _differs(name, asked, saved):
                kept = scheduler and (name.split(" of group ")[0] in SET_BY_SCHEDULERS or name.startswith(f"{scheduler}: "))
                (old if kept else new).append(f"{name} {saved[name]} saved, {asked[name]} asked")
        texts = [f"{'; '.join(new)}: what is asked counts"] if new else []
        if old:
            texts.append(f"{'; '.join(old)}: what was saved counts, for {scheduler} goes on with it (resume=False starts anew)")
        return ". ".join(texts)


def _of_groups(optimizer: Optimizer) -> dict[str, Any]:
    """The plain values of an optimizer's groups, with the rates that they begin with."""
    found = {}
    for k, group in enumerate(optimizer.param_groups):
        for name in group:
            if name not in ("params", "initial_lr"):
                value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
                found[_named(name, k, optimizer)] = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str | tuple | None)}


def _named(name: str, group: int, optimizer: Optimizer) -> str:
    return f"{name} of group {group}" if len(optimizer.param_groups) > 1 else name


def _differs(name: str, asked: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    return name in asked and name in saved and asked[name] != saved[name]


def _put(group: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(group[name], Tensor):
        group[name].fill_(value)  # a captured or compiled step reads this very tensor
    else:
        group[name] = value
