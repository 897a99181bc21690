"""The best value of a metric so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["Best"]


class Best:
    """The best value of one metric, by a rule such as "top1:max" or "loss:min"; the rule None keeps nothing."""

    def __init__(self, rule: str | None, names: tuple[str, ...]) -> None:
        self.rule = rule
        self.value: float | None = None
        self.improved = False  # since the last checkpoint
        self._name, _, self._mode = (rule or "").partition(":")
        known = self._name in names or self._name.rpartition("/")[0] in names  # a metric with several results names them itself
        if rule is not None and not (known and self._mode in ("min", "max")):
            raise ValueError(f"best is {rule!r}, but must be a metric ({', '.join(names)}) and :min or :max, such as 'loss:min'")

    def see(self, results: Mapping[str, float]) -> None:
        if self.rule is None:
            return
        if self._name not in results:
            raise ValueError(
                f"best is {self.rule!r}, but the evaluation gave {', '.join(results)}: pass one of these, and :min or :max"
            )
        new = results[self._name]
        if not math.isnan(new) and (self.value is None or (new > self.value if self._mode == "max" else new < self.value)):
            self.value = new
            self.improved = True

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; the value of another rule is dropped."""
        self.value = state["value"] if state["rule"] == self.rule else None
        self.improved = False
