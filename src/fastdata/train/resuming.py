"""Whether a run goes on from what an earlier one left in its folder, and what it says of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastdata.checkpoint.files import Checkpoints
from fastdata.errors import FastDataError, warn_user
from fastdata.train.options import Options
from fastdata.train.records import Records

__all__ = ["Resuming"]


class Resuming:
    """See `resume` of the Trainer.

    Attributes:
        settled: a state was loaded, or there is nothing in the folder that is not of this run.
    """

    def __init__(
        self, wish: bool | Literal["require"], checkpoints: Checkpoints | None, options: Options, records: Records
    ) -> None:
        self._wish, self._checkpoints, self._options, self._records = wish, checkpoints, options, records
        self.settled = False

    def load(self, into: Callable[[dict[str, Any]], object]) -> bool:
        """Hand over the state to go on from, if there is one and it is wanted. Returns whether.

        Raises:
            FastDataError: it can't be had, or is of something else.
        """
        state = self._newest()
        if state is None or self._checkpoints is None:
            return False
        try:
            into(state)
        except FastDataError as error:
            raise FastDataError(
                f"{self._checkpoints.read} does not fit this Trainer: for a new run, pass resume=False or another dir; to go on, "
                f"make the Trainer as it was: {error}"
            ) from error
        return True

    def _newest(self) -> dict[str, Any] | None:
        """The state to go on from; None: there is none, or none is wanted."""
        if self._checkpoints is None:
            return None
        if not self._wish:
            self.start_anew()
            return None
        self.settled, state = True, self._checkpoints.newest()
        if state is None and self._wish == "require":
            folder = self._checkpoints.folder.parent
            raise FastDataError(f"resume is 'require', but {folder} has no checkpoint: look for the right dir, or leave resume out")
        return state

    def start_anew(self) -> None:
        """Put aside what an earlier run left, unless this one has gone on from it."""
        aside = self._checkpoints.set_aside() if self._checkpoints and not self.settled else None
        self.settled = True
        if aside and self._wish:
            warn_user(
                f"{aside.parent} has checkpoints of an earlier run, but nobody went on from them: they are in {aside} now. To go "
                "on, call trainer.resume() before trainer.steps()"
            )
        elif aside:
            self._records.meter.tell(f"resume=False: what an earlier run left in {aside.parent} is in {aside} now")

    def tell(self, update: int, epoch: int) -> None:
        """Say once where a run goes on, and which options differ from those that it was begun with."""
        differences = self._options.differences()
        if differences is None or not self._records.main:
            return
        text = f"resumed after update {update}, in epoch {epoch + 1}"
        self._records.write("resume", {"differences": differences})
        if differences:
            warn_user(f"{text}. {differences}")
        else:
            self._records.meter.tell(f"{text}.")
