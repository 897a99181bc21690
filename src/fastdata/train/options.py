"""What a run was asked for: a checkpoint keeps it, so that a resume can say what differs, and which value counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["describe_differences", "options_of", "put_asked"]

SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


def options_of(optimizer: Optimizer) -> dict[str, Any]:
    """Name an optimizer and the plain values of its groups, with the rates that they begin with: {"lr of group 1": 0.1, ...}."""
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for k, group in enumerate(optimizer.param_groups):
        for name in group:
            if name not in ("params", "initial_lr"):
                value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
                found[_named(name, k, optimizer)] = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str | tuple | None)}


def put_asked(asked: Mapping[str, Any], saved: Mapping[str, Any], optimizer: Optimizer, *, scheduled: bool) -> None:
    """Give an optimizer that was loaded from a checkpoint the values that are asked for, where they differ from those saved.

    Args:
        scheduled: a scheduler of torch goes on with the rates and momenta that it set before, so these stay as they were saved.
    """
    for k, group in enumerate(optimizer.param_groups):
        for name in [*group]:
            key = _named(name, k, optimizer)
            if _differs(key, asked, saved) and not (scheduled and name in SET_BY_SCHEDULERS):
                for part in (name, "initial_lr") if name == "lr" and "initial_lr" in group else (name,):
                    if isinstance(group[part], Tensor):
                        group[part].fill_(asked[key])  # a captured or compiled step reads this very tensor
                    else:
                        group[part] = asked[key]


def describe_differences(asked: Mapping[str, Any], saved: Mapping[str, Any], *, scheduled: str | None) -> str:
    """Say which options differ from those saved, and which value counts; "" if none does.

    Args:
        scheduled: the name of a scheduler of torch, which goes on with what it was saved with; None: there is none.
    """
    new, old = [], []
    for name in asked:
        if _differs(name, asked, saved):
            kept = scheduled and (name.split(" of group ")[0] in SET_BY_SCHEDULERS or name.startswith(f"{scheduled}: "))
            (old if kept else new).append(f"{name} {saved[name]} saved, {asked[name]} asked")
    texts = [f"{'; '.join(new)}: what is asked counts"] if new else []
    if old:
        texts.append(f"{'; '.join(old)}: what was saved counts, for {scheduled} goes on with it (resume=False starts anew)")
    return ". ".join(texts)


def _named(name: str, group: int, optimizer: Optimizer) -> str:
    return f"{name} of group {group}" if len(optimizer.param_groups) > 1 else name


def _differs(name: str, asked: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    return name in asked and name in saved and asked[name] != saved[name]
