"""The records of a run: lines of its log, which hooks get too, and numbers that the user logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastdata.monitor.log import Log
from fastdata.monitor.logged import NOTHING, Logged, means
from fastdata.monitor.meter import Meter
from fastdata.train.finite import warn_of_statistics
from fastdata.train.training import Training

__all__ = ["Records"]

HOOKS = ("step", "epoch", "eval", "save", "log")
ENDING = HOOKS[:3]  # these may end the run


class Records:
    """Writes the records of a run and calls its hooks.

    Args:
        trainer: the trainer of the run.
        folder: folder of the log. None: write no log.
        hooks: hooks by name, as the Trainer takes them.
        metrics: names of the metrics.
        shown: draw a progress line, and print one line per epoch.
        tensorboard: write TensorBoard's files too.

    Attributes:
        meter: counts rows and updates, and prints lines.
        logged: the numbers that the user logs.
        main: whether this is rank 0, the only one that writes.
    """

    def __init__(
        self,
        trainer: Training,
        folder: Path | None,
        hooks: Mapping[str, Callable[..., Any]],
        metrics: tuple[str, ...],
        *,
        shown: bool,
        tensorboard: bool,
    ) -> None:
        if unknown := sorted(set(hooks) - set(HOOKS)):
            raise ValueError(f"hooks has {', '.join(unknown)}, but there are {', '.join(HOOKS)}")
        if wrong := [name for name, hook in hooks.items() if not callable(hook)]:
            raise TypeError(f"hooks[{wrong[0]!r}] is a {type(hooks[wrong[0]]).__name__}, but must be a function")
        self._trainer = trainer
        self._hooks = dict(hooks)
        self.main = trainer.world.rank == 0
        self.meter = Meter(shown=shown and self.main)
        self.logged = Logged(metrics)
        self._log = Log(folder if self.main else None, tensorboard=tensorboard)
        self._last = 0  # the update of the last line

    def resumed(self) -> None:
        """Note that a state was loaded, whose updates are in the log already."""
        self._last = self.meter.resumed_at = self._trainer.update

    def line(self) -> None:
        """Write a line about the updates since the last one. Only here does the host wait for the device."""
        trainer = self._trainer
        trainer.check_finite()
        self._last = trainer.update
        logged = self.logged.read("train", trainer.world)
        record = self.meter.read(*trainer.totals.read(), logged, lr=trainer.schedule.rates()[0])
        if record["skipped"] and self.main:
            warn_of_statistics(trainer.model)
        self.write("train", record)

    def flush(self) -> None:
        """Write what no line has reported yet. All ranks call it together."""
        if self._last != self._trainer.update:
            self.line()
        elif logged := self.logged.read("train", self._trainer.world):  # by a hook, after the line of this update
            self.meter.add(logged)
            self.write("train", means(logged))

    def batch_evaluated(self, batch: Any, number: int) -> None:
        """Prepare for batch `number` of an evaluation, counted from 0, before it is used."""
        self.logged.kind = NOTHING if getattr(batch, "valid", None) == 0 else "eval"
        self.meter.evaluating(number)

    def evaluated(self, results: dict[str, float]) -> None:
        """Call the hook of an evaluation and write its line."""
        with self.logged.into("eval"):
            self.call("eval", results)
        averaged = {"ema": True} if self._trainer.ema else {}
        self.write("eval", {**results, **means(self.logged.read("eval", self._trainer.world)), **averaged})

    def epoch_ended(self, results: dict[str, float]) -> None:
        """Print the line of an epoch, call its hook and write its record."""
        record = self.meter.end(self._trainer.epoch, results)
        with self.logged.into("epoch"):
            self.call("epoch", record)
        self.write("epoch", {**record, **means(self.logged.read("epoch", self._trainer.world))})

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a record, and call the log hook."""
        record = {"kind": kind, "update": self._trainer.update, "epoch": self._trainer.epoch, **values}
        self._log.write(record)
        if self.main:
            self.call("log", record)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook, if it is set. A step, epoch or eval hook may end the run."""
        if hook in self._hooks:
            with self.logged.into(self.logged.kind if hook in ENDING else None):
                stop = self._hooks[hook](self._trainer, *arguments) is True
            self._trainer.stopping |= stop and hook in ENDING

    def close(self) -> None:
        """Close the log. From here on, logging a number is an error, because no run is active."""
        self.logged.kind = None
        self.meter.close()
        self._log.close()
