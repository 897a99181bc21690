"""The files of a run: log.jsonl and TensorBoard's. A failure to write them never ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fastdata.errors import warn_user
from fastdata.monitor.events import EventFile

__all__ = ["Log"]

NAME = "log.jsonl"


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

    def write(self, record: dict[str, Any]) -> None:
        """Append a line to the log, and a point to each of TensorBoard's curves."""
        if self._folder is None:
            return
        with self._errors_as_warnings(NAME):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _open_log(self._folder / NAME)
            self._file.write(json.dumps({"time": time.time(), **record}) + "\n")
            self._file.flush()
        if self._events is None:
            return
        numbers = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
        points = {f"{record['kind']}/{name}": value for name, value in numbers.items() if name not in ("update", "epoch")}
        with self._errors_as_warnings("TensorBoard's file"):
            self._events.add(points, record["update"])

    def close(self) -> None:
        """Close the log."""
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
                self.close()  # the rest of the line is lost; the next record tries again
            if what not in self._warned:
                self._warned.add(what)
                text = f"{what} could not be written into {self._folder}: {error}"
                warn_user(f"{text}. The training continues and tries again later")


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
