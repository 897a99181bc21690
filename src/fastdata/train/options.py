"""The options of a run. A checkpoint keeps them, so that a resume can report what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["apply_options", "options_of"]

SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


def options_of(optimizer: Optimizer, **own: Any) -> dict[str, Any]:
    """Return the options of a run and of its optimizer, as plain values by name and by (number of the group, name)."""
    options: dict[Any, Any] = {**own, "optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        for name in sorted(group.keys() - {"params", "initial_lr"}):
            value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
            value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
            if isinstance(value, bool | int | float | str | tuple | None):
                options[number, name] = value
    return options


def apply_options(optimizer: Optimizer, options: Mapping[Any, Any], saved: Mapping[Any, Any], *, of_torch: bool) -> str:
    """Give an optimizer that was loaded its own options where they differ from the saved ones. Describes the differences.

    Args:
        of_torch: a scheduler of torch continues with the rates and momenta that it has set.
    """
    new, old = list[str](), list[str]()
    for key, value in options.items():
        if value == saved.get(key, value):
            continue
        number, name = key if isinstance(key, tuple) else (None, key)
        text = f"{name}{f' of group {number}' if number else ''} {saved[key]} saved, {value} now"
        if of_torch and name in SET_BY_SCHEDULERS:
            old.append(text)
            continue
        new.append(text)
        group = {} if number is None else optimizer.param_groups[number]
        for part in {name, "initial_lr" if name == "lr" else name} & group.keys():
            if isinstance(group[part], Tensor):
                group[part].fill_(value)  # a captured or compiled step reads this very tensor
            else:
                group[part] = value
    texts = {"new": new, "saved": old}
    return ". ".join(f"{'; '.join(found)}: the {used} values are used" for used, found in texts.items() if found)
