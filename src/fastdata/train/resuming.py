"""Resuming: whether a run continues what an earlier one left in its folder, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastdata.checkpoint.files import Checkpoints
from fastdata.errors import FastDataError, warn_user
from fastdata.train.options import Options
from fastdata.train.records import Records

__all__ = ["Resuming"]


class Resuming:
    """Applies the Trainer's argument `resume`.

    Attributes:
        settled: a state was loaded, or the folder holds nothing of another run.
    """

    def __init__(
        self, mode: bool | Literal["require"], checkpoints: Checkpoints | None, options: Options, records: Records
    ) -> None:
        self._mode = mode
        self._checkpoints = checkpoints
        self._options = options
        self._records = records
        self.settled = False

    def load(self, into: Callable[[dict[str, Any]], object]) -> bool:
        """Pass the state to continue from to `into`, if there is one and `resume` allows it. Returns whether it did.

        Raises:
            FastDataError: if the state cannot be read or does not fit.
        """
        if self._checkpoints is None:
            return False
        if not self._mode:
            self.start_anew()
            return False
        state = self._checkpoints.newest()
        self.settled = True
        if state is None:
            if self._mode == "require":
                folder = self._checkpoints.folder.parent
                raise FastDataError(f"resume is 'require', but {folder} has no checkpoint: pass the right dir, or leave resume out")
            return False
        try:
            into(state)
        except FastDataError as error:
            raise FastDataError(
                f"{self._checkpoints.read} does not fit this Trainer: for a new run, pass resume=False or another dir; to "
                f"continue, make the Trainer as it was: {error}"
            ) from error
        return True

    def start_anew(self) -> None:
        """Move the files of an earlier run away, unless this run continues it."""
        aside = self._checkpoints.set_aside() if self._checkpoints and not self.settled else None
        self.settled = True
        if aside and self._mode:
            warn_user(
                f"{aside.parent} has checkpoints of an earlier run that was not resumed; they are in {aside} now. To continue it, "
                "call trainer.resume() before trainer.steps()"
            )
        elif aside:
            self._records.meter.tell(f"resume=False: files of an earlier run in {aside.parent} are in {aside} now")

    def report(self, update: int, epoch: int) -> None:
        """Report once where a run resumes, and which options differ from the saved ones."""
        differences = self._options.differences()
        if differences is None or not self._records.main:
            return
        text = f"resumed after update {update}, in epoch {epoch + 1}"
        self._records.write("resume", {"differences": differences})
        if differences:
            warn_user(f"{text}. {differences}")
        else:
            self._records.meter.tell(f"{text}.")
