"""The run that `Trainer.fit` makes: epochs, evaluations, checkpoints, and when it ends."""

from __future__ import annotations

import math
import signal
from contextlib import nullcontext, suppress
from typing import Any

import torch

from fastdata.errors import warn_user
from fastdata.parallel.signals import Termination, interruption
from fastdata.train.arguments import check_counts
from fastdata.train.training import Training

__all__ = ["TERMINATED", "Run"]

GO_ON, STOP, TERMINATE, INTERRUPT = range(4)
VERDICTS = {signal.SIGTERM: TERMINATE, signal.SIGINT: INTERRUPT}
TERMINATED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Run:
    """See `Trainer.fit` for the arguments."""

    def __init__(
        self,
        trainer: Training,
        train: Any,
        val: Any,
        *,
        epochs: int | None,
        max_steps: int | None,
        eval_every: int | None,
    ) -> None:
        check_counts(epochs=epochs, max_steps=max_steps, eval_every=eval_every)
        if epochs is None and max_steps is None:
            raise ValueError("fit needs epochs or max_steps, or it would never end")
        self.trainer, self.train, self.eval_every = trainer, train, eval_every
        self.val = None if trainer.profiling else val
        self.epochs, self.max_steps = (math.inf if limit is None else limit for limit in (epochs, max_steps))
        self.verdict, self.termination = GO_ON, Termination()

    def go(self) -> dict[str, float]:
        trainer = self.trainer
        trainer.resume()
        trainer.schedule.begin(self._updates(), evaluated=self.val is not None or trainer.profiling)
        if trainer.update and not self._goes_on():
            self._say_finished()
        with self.termination if trainer.saves else nullcontext():  # without checkpoints it ends at once
            try:
                while self._goes_on():
                    self._epoch()
                if self.verdict < TERMINATE:
                    trainer.check_finite(over=True)
                    self._validate()
                trainer.records.flush()
                trainer.save()
            finally:
                trainer.close()
        if self.verdict >= TERMINATE:
            self._leave()
        return trainer.results

    def _leave(self) -> None:
        """End the process, as a signal asked, now that all is saved."""
        trainer, interrupted = self.trainer, self.verdict == INTERRUPT
        what = "interrupted" if interrupted else "SIGTERM"
        trainer.records.meter.tell(
            f"{what}: saved at update {trainer.update} in {trainer.dir}; the same command goes on from there."
        )
        trainer.world.leave()
        raise interruption() if interrupted else SystemExit(TERMINATED)

    def _updates(self) -> float:
        """Count all updates of the run, those before a resume included; math.inf: nobody knows."""
        trainer, updates = self.trainer, self.max_steps
        with suppress(TypeError):  # a DataLoader may have len() without an answer
            batches = len(self.train)
            first = math.ceil((batches - trainer.used(self.train)) / trainer.accumulate)  # of the epoch that it goes on with
            left = (self.epochs - trainer.epoch - 1) * math.ceil(batches / trainer.accumulate) + first
            updates = min(updates, trainer.update + max(left, 0))
        return updates

    def _say_finished(self) -> None:
        trainer = self.trainer
        if trainer.world.rank == 0:
            where = "" if trainer.dir is None else f" in {trainer.dir}"
            warn_user(
                f"nothing was trained: the run{where} is finished, with {trainer.epoch} epochs and {trainer.update} updates. To "
                "train longer, ask for more epochs or max_steps; for a new run, pass resume=False or another dir"
            )

    def _goes_on(self) -> bool:
        more = self.trainer.epoch < self.epochs and self.trainer.update < self.max_steps
        return self.verdict == GO_ON and (more or self.trainer.epoch_open)

    def _epoch(self) -> None:
        """The rest of an epoch, up to its evaluation, unless something ends the run before."""
        trainer = self.trainer
        if not trainer.epoch_open:
            for update in trainer.steps(self.train):
                self._after(update)
                if self.verdict != GO_ON or update >= self.max_steps:
                    break
        if trainer.epoch_open and self.verdict < TERMINATE:
            if self.eval_every is None:
                self._validate()
            trainer.end_epoch()
            self._ask()
            trainer.save()

    def _after(self, update: int) -> None:
        trainer = self.trainer
        if self.eval_every and update % self.eval_every == 0:
            self._validate()
        self._ask()
        due = trainer.save_every and update % trainer.save_every == 0
        if (due or trainer.best.improved) and self.verdict == GO_ON:
            trainer.save()

    def _validate(self) -> None:
        if self.val is not None and self.trainer.validated != self.trainer.update:
            self.trainer.validate(self.val)

    def _ask(self) -> None:
        """The ranks end at the same update: a signal or a hook may have reached only one."""
        if self.termination.asked:
            self.verdict = VERDICTS[self.termination.asked]
        elif self.trainer.stopping:
            self.verdict = STOP
        if self.trainer.world.size > 1:
            self.verdict = int(self.trainer.world.most(torch.tensor(self.verdict), on_hosts=True))
