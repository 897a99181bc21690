"""The options of a run. A checkpoint keeps them, so that a resume can report what differs."""

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

    Where they differ from those in a checkpoint, the new values are used. Only schedulers of torch continue with the rates and
    momenta that they have set.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, **own: Any) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._own: dict[str, Any] = {**own, "batch_size": None, "optimizer": type(optimizer).__name__}
        for number, group in enumerate(optimizer.param_groups):
            for name in group.keys() - {"params", "initial_lr"}:
                value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
                value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
                if isinstance(value, bool | int | float | str | tuple | None):
                    self._own[self._key(name, number)] = value
        self._saved: Mapping[str, Any] | None = None

    def see(self, loader: Any) -> None:
        """Note the batch size of the training loader, if it has one."""
        self._own["batch_size"] = getattr(loader, "global_batch_size", None) or getattr(loader, "batch_size", None)

    def state_dict(self) -> dict[str, Any]:
        return {**dict(sorted(self._own.items())), **self._schedule.options()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise a ValueError if the saved options are those of another optimizer."""
        new, old = self._own["optimizer"], saved["optimizer"]
        if new != old and {new, old} != {"Adam", "AdamW"}:  # these two keep the same state per weight
            raise ValueError(f"its optimizer is {old}, this one is {new}")

    def load(self, saved: Mapping[str, Any]) -> None:
        """Give the optimizer the new values where they differ. Call it after the optimizer was loaded from the same checkpoint."""
        self._saved = saved
        self._own["batch_size"] = saved["batch_size"]
        for number, group in enumerate(self._optimizer.param_groups):
            for name in [*group]:
                key = self._key(name, number)
                if key in self._own and self._own[key] != saved.get(key, self._own[key]) and not self._keeps(name):
                    for part in {name, "initial_lr"} & group.keys() if name == "lr" else {name}:
                        if isinstance(group[part], Tensor):
                            group[part].fill_(self._own[key])  # a captured or compiled step reads this very tensor
                        else:
                            group[part] = self._own[key]

    def differences(self) -> str | None:
        """Describe options that differ from the saved ones, and which are used. None: nothing was loaded since the last call."""
        saved, self._saved = self._saved, None
        if saved is None:
            return None
        new, old = list[str](), list[str]()
        for name, value in self.state_dict().items():
            if value != saved.get(name, value):
                kept = self._keeps(name.partition(" of group ")[0])
                (old if kept else new).append(f"{name} {saved[name]} saved, {value} now")
        texts = [f"{'; '.join(new)}: the new values are used"] if new else []
        if old:
            texts.append(f"{'; '.join(old)}: the saved values are used, since torch's scheduler continues with them")
        return ". ".join(texts)

    def _keeps(self, name: str) -> bool:
        return self._schedule.of_torch is not None and name in SET_BY_SCHEDULERS

    def _key(self, name: str, group: int) -> str:
        return f"{name} of group {group}" if len(self._optimizer.param_groups) > 1 else name
