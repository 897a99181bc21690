"""Checkpoints: one atomic file each, written in the background."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.parallel.world import World

__all__ = ["Checkpoints"]

NAME = re.compile(r"update-(\d{8,})\.pt")
BEST = "best.pt"
LEFT = ("checkpoints/*.pt", "log.jsonl", "train.png", "events.out.tfevents.*")  # what a run leaves in its folder


class Checkpoints:
    """The files of one run: the last few, and the best.

    A file is written beside its place, synced, and renamed: whatever bears the name `update-NNNNNNNN.pt` is complete. Rank 0
    writes, in a thread, a copy that it took while the training waited; the next save waits for it, and raises its error.

    Attributes:
        read: the file of the state that `newest` gave.
    """

    def __init__(self, folder: Path, world: World, *, keep_last: int) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}, but at least one checkpoint has to stay")
        self.folder, self._world, self._keep = folder, world, keep_last
        self._written: Future[None] | None = None
        self._then: Callable[[], None]
        self.read: Path | None = None
        if world.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.part"):
                left.unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Updates after which there is a checkpoint, the newest first."""
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, update: int) -> Path:
        return self.folder / f"update-{update:08}.pt"

    def set_aside(self) -> Path | None:
        """Move what an earlier run left, its log too, into a folder of its own. Returns that folder; None: there was nothing."""
        run = self.folder.parent
        found = [path for pattern in LEFT for path in sorted(run.glob(pattern))] if self._world.rank == 0 else []
        if not found:
            return None
        number = 1
        while (aside := run / f"earlier-{number}").exists():
            number += 1
        for path in found:
            (aside / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            path.rename(aside / path.relative_to(run))
        return aside

    def save(self, update: int, state: dict[str, Any], *, best: bool, then: Callable[[Path], None]) -> None:
        """Write a state, which may change as soon as this returns; `then` is told, in this thread, when it is complete."""
        self.wait()
        if self._world.rank == 0:
            self._then = lambda: then(self.path(update))
            self._written = Future()
            threading.Thread(target=self._write, args=(self._written, update, _copied(state), best), name="checkpoint").start()

    def wait(self) -> None:
        """Until what is being written is complete."""
        if self._written is None:
            return
        error, self._written = self._written.exception(), None
        if error is not None:
            raise FastDataError(f"a checkpoint could not be written into {self.folder}: {error}") from error
        self._then()

    def _write(self, written: Future[None], update: int, state: dict[str, Any], best: bool) -> None:
        try:
            if best:  # first: whoever goes on from the other takes it for written
                _replace(self.folder / BEST, state)
            _replace(self.path(update), state)
            numbers = self.numbers()
            newer = numbers.index(update)  # damaged, or of a run that went back
            for other in numbers[:newer] + numbers[newer + self._keep :]:
                self.path(other).unlink(missing_ok=True)
            written.set_result(None)
        except BaseException as error:  # noqa: BLE001  raised by wait()
            written.set_exception(error)

    def newest(self) -> dict[str, Any] | None:
        """The state to go on from, the same on all ranks, or None. One that can't be read is passed over, with a warning."""
        chosen, state, trouble = self._newest() if self._world.rank == 0 else (None, None, None)
        chosen, trouble = self._world.gather((chosen, trouble))[0]
        if trouble:  # on all ranks: none waits for another
            raise FastDataError(trouble)
        if chosen is None:
            return None
        self.read = self.path(chosen)
        try:
            return _read(self.read) if state is None else state  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise FastDataError(f"rank 0 goes on from {self.read}, which this rank does not see: share the folder") from None

    def _newest(self) -> tuple[int | None, Any, str | None]:
        """Its update, it, and what is wrong."""
        numbers = self.numbers()
        for update in numbers:
            path = self.path(update)
            try:
                with zipfile.ZipFile(path) as file:  # torch.load does not compare checksums
                    if (part := file.testzip()) is not None:
                        raise FastDataError(f"{part} is damaged")
                return update, _read(path), None
            except Exception as error:  # noqa: BLE001  torch has no error of its own for damaged files
                warnings.warn(f"{path} can't be read ({error}): going on from an older one", stacklevel=3)
        return None, None, f"no checkpoint in {self.folder} can be read: remove them to start anew" if numbers else None


def _read(path: Path, **options: Any) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, **options)


def _replace(path: Path, state: dict[str, Any]) -> None:
    """Write a file that is there completely, so that it can be read, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        _read(part, mmap=True)  # its tensors are left alone; but a kind of object that can't be loaded is found now
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)  # the disk may be full
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copied(value: Any) -> Any:
    """The same on the CPU, in memory of its own."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {_copied(key): _copied(part) for key, part in value.items()}
    if type(value) is str:
        return sys.intern(value)  # pickle writes one string once: equal states then make equal files
    if isinstance(value, np.generic):
        return value.item()  # torch.load(weights_only=True) knows no numbers of numpy, such as a rate from np.logspace
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value
