"""The files of a run: log.jsonl, TensorBoard's and train.png. A failure to write them never ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fastdata.errors import MissingExtraError, warn_user
from fastdata.monitor.events import EventFile
from fastdata.monitor.history import NAME
from fastdata.monitor.plot import draw_log

__all__ = ["Log"]

PICTURE = "train.png"
DRAW_S = 60.0  # least time between two pictures
SHARE = 100  # or this multiple of the time that a picture takes


class Log:
    """Writes the files of a run. A file that cannot be written, for example on a full disk, causes one warning; the run continues.

    What is written later is tried again.

    Args:
        folder: the folder of the files; None: no files.
        tensorboard: whether to write TensorBoard's files too.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        self._folder = folder
        self._file: TextIO | None = None  # opened by the first record
        self._events = EventFile(folder) if tensorboard and folder is not None else None
        self._warned = set[str]()
        self._draws = True
        self._next_picture = 0.0

    def write(self, record: dict[str, Any]) -> None:
        """Append a line to the log, and a point to each of TensorBoard's curves."""
        if self._folder is None:
            return
        with self._errors_as_warnings(NAME):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _open_log(self._folder / NAME)
                self._next_picture = self._next_picture or time.monotonic() + DRAW_S
            self._file.write(json.dumps({"time": time.time(), **record}) + "\n")
            self._file.flush()
        if self._events is None:
            return
        numbers = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
        points = {f"{record['kind']}/{name}": value for name, value in numbers.items() if name not in ("update", "epoch")}
        with self._errors_as_warnings("TensorBoard's file"):
            self._events.add(points, record["update"])

    def due(self) -> bool:
        """Return whether a new picture is due: after a minute, or later if drawing takes long."""
        return self._draws and self._file is not None and time.monotonic() >= self._next_picture

    def draw(self) -> None:
        """Draw the picture of the whole log."""
        if self._folder is None or not self._draws or not (self._folder / NAME).exists():
            return
        started = time.monotonic()
        try:
            draw_log(self._folder / NAME, self._folder / PICTURE)
        except Exception as error:  # noqa: BLE001  a picture must not end a run
            self._draws = not isinstance(error, MissingExtraError)
            self._warn(PICTURE, error)
        ended = time.monotonic()
        self._next_picture = ended + max(DRAW_S, SHARE * (ended - started))

    def close(self) -> None:
        """Close the log, and draw the last picture if there was a record."""
        if self._file is not None:
            self._close()
            self.draw()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self._errors_as_warnings(NAME):
                file.close()

    @contextmanager
    def _errors_as_warnings(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if what == NAME:
                self._close()  # the rest of the line is lost; the next record tries again
            self._warn(what, error)

    def _warn(self, what: str, error: Exception) -> None:
        if what not in self._warned:
            self._warned.add(what)
            goes_on = "without it" if isinstance(error, MissingExtraError) else "and tries again later"
            warn_user(f"{what} could not be written into {self._folder}: {error}. The training continues {goes_on}")


def _open_log(path: Path) -> TextIO:
    """Open a log to append to it. A last line that was cut off, by a killed run or a full disk, is ended."""
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
