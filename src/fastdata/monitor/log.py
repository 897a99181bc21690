"""The files of a run: log.jsonl and TensorBoard's. A failure to write them never ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from fastdata.errors import needs, warn_user

__all__ = ["Log"]

NAME, BOARD = "log.jsonl", "TensorBoard's file"


class Log:
    """Writes the files of a run. A file that cannot be written, for example on a full disk, causes one warning; the run continues.

    The log is tried again with the next record; TensorBoard's file ends with its first error.

    Args:
        folder: the folder of the files; None: no files.
        tensorboard: whether to write TensorBoard's files too.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        self._folder = folder
        self._file: TextIO | None = None  # opened by the first record, as is TensorBoard's
        self._board: Any = None
        self._new_board: Any = None
        if tensorboard and folder is not None:
            with needs("tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._new_board = SummaryWriter
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
        if self._new_board is not None:
            with self._errors_as_warnings(BOARD):
                self._board = self._board or self._new_board(self._folder)
                for name, value in record.items():
                    if isinstance(value, int | float) and name not in ("update", "epoch"):
                        self._board.add_scalar(f"{record['kind']}/{name}", value, record["update"])
                self._board.flush()

    def close(self) -> None:
        """Close the files."""
        file, self._file = self._file, None
        if file is not None:
            with self._errors_as_warnings(NAME):
                file.close()
        board, self._board = self._board, None
        if board is not None:
            with self._errors_as_warnings(BOARD):
                board.close()

    @contextmanager
    def _errors_as_warnings(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if what == NAME and self._file is not None:
                with suppress(OSError):
                    self._file.close()
                self._file = None  # the rest of the line is lost; the next record tries again
            elif what == BOARD:
                self._board = self._new_board = None
            if what not in self._warned:
                self._warned.add(what)
                warn_user(f"{what} could not be written into {self._folder}: {error}. The training continues")


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
