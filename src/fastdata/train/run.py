"""The run that `Trainer.fit` makes: epochs, evaluations, checkpoints, and when it ends."""

from __future__ import annotations

import math
import signal
import sys
from contextlib import nullcontext, suppress
from typing import Any

import torch

from fastdata.errors import warn_user
from fastdata.parallel.signals import Interrupted, Termination
from fastdata.train.arguments import check_counts
from fastdata.train.training import Training

__all__ = ["TERMINATED", "Run"]

CONTINUE, STOP, TERMINATE, INTERRUPT = range(4)
VERDICTS = {signal.SIGTERM: TERMINATE, signal.SIGINT: INTERRUPT}
TERMINATED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Run:
    """One run of a trainer. `Trainer.fit` documents the arguments."""

    def __init__(
        self, trainer: Training, train: Any, val: Any, *, epochs: int | None, max_steps: int | None, eval_every: int | None
    ) -> None:
        check_counts(epochs=epochs, max_steps=max_steps, eval_every=eval_every)
        if epochs is None and max_steps is None:
            raise ValueError("fit needs epochs or max_steps, or it would never end")
        self.trainer = trainer
        self.train = train
        self.val = None if trainer.profiling else val
        self.eval_every = eval_every
        self.epochs = math.inf if epochs is None else epochs
        self.max_steps = math.inf if max_steps is None else max_steps
        self.verdict = CONTINUE
        self.termination = Termination()

    def go(self) -> dict[str, float]:
        """Run to the end and return the results of the last evaluation."""
        trainer = self.trainer
        trainer.resume()
        trainer.schedule.begin(self._count_updates(), evaluated=self.val is not None or trainer.profiling)
        if trainer.update and not self._continues():
            self._warn_finished()
        with self.termination if trainer.saves else nullcontext():  # without checkpoints, a signal ends the process at once
            try:
                while self._continues():
                    self._epoch()
                if self.verdict < TERMINATE:
                    trainer.check_finite(over=True)
                    self._validate()
                trainer.records.flush()
                trainer.save()
            finally:
                trainer.close()
            self._decide()  # a signal may have come after the last update
        if self.verdict >= TERMINATE:
            self._exit()
        return trainer.results

    def _exit(self) -> None:
        """End the process after a signal, once everything is saved."""
        trainer = self.trainer
        interrupted = self.verdict == INTERRUPT
        trainer.records.meter.tell(
            f"{'interrupted' if interrupted else 'SIGTERM'}: saved at update {trainer.update} in {trainer.dir}; the same command "
            "continues from there."
        )
        trainer.world.leave()
        if not interrupted:
            raise SystemExit(TERMINATED)
        raise KeyboardInterrupt if hasattr(sys, "ps1") else Interrupted  # an interactive session does not end

    def _count_updates(self) -> float:
        """Return the number of updates of the whole run, including those before a resume; math.inf if it is not known."""
        trainer = self.trainer
        updates = self.max_steps
        with suppress(TypeError):  # a DataLoader may have a len() that raises
            batches = len(self.train)
            first = math.ceil((batches - trainer.used(self.train)) / trainer.accumulate)  # rest of the current epoch
            left = (self.epochs - trainer.epoch - 1) * math.ceil(batches / trainer.accumulate) + first
            updates = min(updates, trainer.update + max(left, 0))
        return updates

    def _warn_finished(self) -> None:
        trainer = self.trainer
        if trainer.world.rank == 0:
            where = "" if trainer.dir is None else f" in {trainer.dir}"
            warn_user(
                f"nothing was trained: the run{where} is finished, with {trainer.epoch} epochs and {trainer.update} updates. To "
                "train longer, ask for more epochs or max_steps; for a new run, pass resume=False or another dir"
            )

    def _continues(self) -> bool:
        more = self.trainer.epoch < self.epochs and self.trainer.update < self.max_steps
        return self.verdict == CONTINUE and (more or self.trainer.epoch_open)

    def _epoch(self) -> None:
        """Run the rest of an epoch and its evaluation, unless something ends the run first."""
        trainer = self.trainer
        if not trainer.epoch_open:
            for update in trainer.steps(self.train):
                self._after_update(update)
                if self.verdict != CONTINUE or update >= self.max_steps:
                    break
        if trainer.epoch_open and self.verdict < TERMINATE:
            if self.eval_every is None:
                self._validate()
            trainer.end_epoch()
            self._decide()
            trainer.save()

    def _after_update(self, update: int) -> None:
        trainer = self.trainer
        if self.eval_every and update % self.eval_every == 0:
            self._validate()
        self._decide()
        due = trainer.save_every and update % trainer.save_every == 0
        if (due or trainer.best.improved) and self.verdict == CONTINUE:
            trainer.save()

    def _validate(self) -> None:
        if self.val is not None and self.trainer.validated != self.trainer.update:
            self.trainer.validate(self.val)

    def _decide(self) -> None:
        """Decide whether the run ends here. All ranks agree, because a signal or a hook may have reached only one."""
        if self.termination.received:
            self.verdict = VERDICTS[self.termination.received]
        elif self.trainer.stopping:
            self.verdict = STOP
        if self.trainer.world.size > 1:
            self.verdict = int(self.trainer.world.max(torch.tensor(self.verdict), on_hosts=True))
