"""TensorBoard's file of a run, written by the training itself: without a thread, and whole after each record."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import BinaryIO

from fastdata.errors import needs

__all__ = ["EventFile"]

_numbers = count()  # of the files of this process


class EventFile:
    """Appends points to the curves in a file of its own in a folder, which is made with the first point.

    torch's SummaryWriter writes in a thread, which ends with the first error. Here an error loses the points of one call: the next
    one goes on after the last whole record, since TensorBoard reads nothing behind one that was cut off.

    Args:
        folder: of the run.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        with needs("tensorboard"):
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        self._event, self._summary, self._records = Event, Summary, RecordWriter
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._path = folder / name
        self._size = 0  # bytes of whole records

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Append a point to each of some curves, by their names.

        Raises:
            OSError: they cannot be written.
        """
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as file:
            file.truncate(self._size)
            if not self._size:
                self._append(file, self._event(wall_time=time.time(), file_version="brain.Event:2"))
            self._append(file, self._event(wall_time=time.time(), step=step, summary=self._summary(value=points)))
            file.flush()
            self._size = file.tell()

    def _append(self, file: BinaryIO, event: object) -> None:
        self._records(file).write(event.SerializeToString())  # type: ignore[attr-defined]
