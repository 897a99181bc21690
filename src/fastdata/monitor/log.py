"""The files of a run: log.jsonl, TensorBoard's, and train.png. None of them can end it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fastdata.errors import MissingExtraError, needs, warn_user
from fastdata.monitor.plot import draw_log

__all__ = ["Log"]

NAME, PICTURE = "log.jsonl", "train.png"
DRAW_S = 60.0  # between two pictures, at least
SHARE = 100  # or so many times what one takes


class Log:
    """What can't be written, on a full disk say, is told once, and left out; the run goes on.

    Args:
        folder: where the files are; None: there are none.
        tensorboard: write its files too.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        self._folder = folder
        self._file: TextIO | None = None  # opened by the first record
        self._writer: Any = None
        if tensorboard and folder is not None:
            with needs("tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._writer = SummaryWriter
        self._board: Any = None
        self._told, self._draws = set[str](), True
        self._next_picture = 0.0

    def write(self, record: dict[str, Any]) -> None:
        """One line of the log, and a point on each of TensorBoard's curves."""
        if self._folder is None:
            return
        with self._told_once(NAME):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _appended(self._folder / NAME)
                self._next_picture = self._next_picture or time.monotonic() + DRAW_S
            self._file.write(json.dumps({"time": time.time(), **record}) + "\n")
            self._file.flush()
        with self._told_once("TensorBoard's file"):
            if self._board is None and self._writer is not None:
                self._board = self._writer(str(self._folder))
            for name, value in record.items() if self._board is not None else ():
                if isinstance(value, int | float) and name not in ("update", "epoch"):
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["update"])

    def due(self) -> bool:
        """Whether it is time for a new picture: a minute has passed, or more where drawing takes long."""
        return self._draws and self._file is not None and time.monotonic() >= self._next_picture

    def draw(self) -> None:
        """The picture, of all that is in the log."""
        if self._folder is None or not self._draws or not (self._folder / NAME).exists():
            return
        started = time.monotonic()
        try:
            draw_log(self._folder / NAME, self._folder / PICTURE)
        except Exception as error:  # noqa: BLE001  a picture is not worth a run
            self._draws = not isinstance(error, MissingExtraError)
            self._tell(PICTURE, error)
        ended = time.monotonic()
        self._next_picture = ended + max(DRAW_S, SHARE * (ended - started))

    def close(self) -> None:
        """Close the files, and draw the last picture, if there was a record."""
        if self._board is not None:
            with self._told_once("TensorBoard's file"):
                self._board.close()
            self._board = None
        if self._file is not None:
            self._close()
            self.draw()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self._told_once(NAME):
                file.close()

    @contextmanager
    def _told_once(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if what == NAME:
                self._close()  # the rest of the line is lost; the next record tries anew
            self._tell(what, error)

    def _tell(self, what: str, error: Exception) -> None:
        if what not in self._told:
            self._told.add(what)
            warn_user(f"{what} could not be written into {self._folder}: {error}. The training goes on without it")


def _appended(path: Path) -> TextIO:
    """Open a log to append to it. A line that a killed run, or a full disk, cut off is ended."""
    file = path.open("a+b")
    try:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
                file.flush()
    finally:
        file.close()
    return path.open("a", encoding="utf-8")
