"""Checkpoints: the state of a run as tensors, numbers and text, and files of it, each atomic and written in the background."""

from __future__ import annotations

import itertools
import random
import re
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fastdata.errors import FastDataError
from fastdata.store.files import publish, sync
from fastdata.train.world import World

NAME = re.compile(r"update-(\d{8,})\.pt")
FOLDER = 0x10  # the bit of a part's attributes for which torch.load leaves its tensor as the memory happens to be, without an error
RUN_FILES = ("checkpoints/*.pt", "log.jsonl", "events.out.tfevents.*")  # that a run writes into its folder
FULL = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
SET_BY_SCHEDULERS = ("lr", "momentum", "betas", "max_lr", "min_lr", "base_momentum", "max_momentum")


class Checkpoints:
    """The last few checkpoint files of one run, complete if they are there.

    Rank 0 copies the state while training waits, then writes the copy in a thread. The next save waits for that thread and raises
    its error.
    """

    def __init__(self, folder: Path, world: World, *, keep_last: int) -> None:
        self.folder = folder
        self._world = world
        self._keep = keep_last
        self._written: Future[Path] | None = None
        if world.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for part in folder.glob("*.part"):
                part.unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Return the updates that have a checkpoint, the newest first."""
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, update: int) -> Path:
        return self.folder / f"update-{update:08}.pt"

    def set_aside(self) -> Path | None:
        """Move the files of an earlier run, with its log, into a new folder. Returns that folder, or None if nothing moved."""
        run = self.folder.parent
        found = [path for pattern in RUN_FILES for path in sorted(run.glob(pattern))] if self._world.rank == 0 else []
        aside = next(path for number in itertools.count(1) if not (path := run / f"earlier-{number}").exists())
        for path in found:
            new = aside / path.relative_to(run)
            new.parent.mkdir(parents=True, exist_ok=True)
            path.rename(new)
        return aside if found else None

    def save(self, update: int, state: dict[str, Any]) -> None:
        """Start to write a state; call `wait` before. The state may change once this returns."""
        if self._world.rank == 0:
            with_thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self._written = with_thread.submit(self._write, update, _copied(state))
            with_thread.shutdown(wait=False)

    def wait(self) -> Path | None:
        """Wait until the current write is complete, and raise its error. Returns its file, or None if nothing was being written."""
        written, self._written = self._written, None
        return None if written is None else written.result()

    def _write(self, update: int, state: dict[str, Any]) -> Path:
        """Write a complete and readable file, or none, and remove checkpoints that need not be kept."""
        path = self.path(update)
        part = path.with_name(path.name + ".part")
        try:
            with part.open("wb") as file:
                torch.save(state, file)
            _read(part, mmap=True)  # fails now if an object cannot be loaded; mmap leaves the tensors unread
            publish(part, path)
            sync(path.parent)
        except Exception as error:
            part.unlink(missing_ok=True)  # the disk may be full
            cause: BaseException | None = error  # on a full disk, torch says "unexpected pos", and the system's error is behind it
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            hint = "Remove the cause, then run the same command again"
            raise FastDataError(f"{path} could not be written: {cause or error}. {hint}") from error
        numbers = self.numbers()
        newer = numbers.index(update)  # newer files are damaged, or from a run that resumed from an older one
        for other in numbers[:newer] + numbers[newer + self._keep :]:
            self.path(other).unlink(missing_ok=True)
        return path

    def newest(self) -> dict[str, Any] | None:
        """Return the newest readable state, the same on all ranks, or None. Warn about files that cannot be read."""
        updates = self.numbers() if self._world.rank == 0 else []
        readable = next(filter(self._is_whole, updates), None)
        some, update = self._world.gather((bool(updates), readable))[0]
        if update is None and some:  # raise on all ranks, so that none waits for another
            raise FastDataError(f"none of the checkpoints in {self.folder} can be read: remove them to start a new run")
        return None if update is None else _read(self.path(update))

    def _is_whole(self, update: int) -> bool:
        """Return whether a file can be read. torch.load compares no checksums."""
        path = self.path(update)
        try:
            with zipfile.ZipFile(path) as file:
                parts = file.infolist()
                folders = [part for part in parts if part.is_dir() or part.external_attr & FOLDER]
                if folders or file.testzip() or min((part.header_offset for part in parts), default=0):
                    raise FastDataError("it is damaged")
            _read(path, mmap=True)  # leaves the tensors unread
        except Exception as error:  # noqa: BLE001  torch has no error of its own for damaged files
            warnings.warn(f"{path} cannot be read ({error}): trying an older one", stacklevel=3)
            return False
        return True


def _read(path: Path, **options: Any) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, **options)


def _copied(value: Any) -> Any:
    """Return a copy on the CPU, in its own memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = OrderedDict((_copied(key), _copied(part)) for key, part in value.items())
        if not hasattr(value, "_metadata"):
            return dict(copied)
        copied._metadata = _copied(value._metadata)  # type: ignore[attr-defined]  # the versions of the model's modules
        return copied
    if type(value) is str:
        return sys.intern(value)  # pickle writes one string object once, so equal states make equal files
    if isinstance(value, np.generic):
        return value.item()  # torch.load(weights_only=True) refuses numpy's numbers, such as a rate from np.logspace
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def states(model: nn.Module, *optimizers: Optimizer) -> list[dict[str, Any]]:
    """Return the state of a model, and of its optimizer if given. Sharded parameters are put together on rank 0."""
    if _is_sharded(model):
        parts: Any = sharded.get_state_dict(model, optimizers, options=FULL)
        whole: Any = OrderedDict(parts[0])
        whole._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]  # versions of modules, which torch leaves out
        return [whole, *parts[1:]][: 1 + len(optimizers)]
    return [model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers)]


def load_states(saved: Sequence[dict[str, Any]], model: nn.Module, *optimizers: Optimizer) -> None:
    """Load the result of `states`."""
    if _is_sharded(model):
        rest = saved[1] if optimizers else {}
        sharded.set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=rest, options=FULL)
        return
    model.load_state_dict(saved[0])
    for optimizer, state in zip(optimizers, saved[1:], strict=True):
        optimizer.load_state_dict(state)


def options_of(optimizer: Optimizer, **own: Any) -> dict[Any, Any]:
    """Return plain values: the options of a run by name, and those of its optimizer by (number of the group, name)."""
    options: dict[Any, Any] = {**own, "optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in {**group, "lr": group.get("initial_lr", group["lr"])}.items():
            value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
            if isinstance(value, bool | int | float | str | tuple | None) and name != "initial_lr":
                options[number, name] = value
    return options


def apply_options(optimizer: Optimizer, options: Mapping[Any, Any], saved: Mapping[Any, Any], *, of_torch: bool) -> list[str]:
    """Give a loaded optimizer its own options back where the saved ones differ. Return descriptions of the differences.

    Args:
        of_torch: keep the saved rates and momenta, which torch's scheduler has set.
    """
    differences = []
    for key, value in options.items():
        if value == saved.get(key, value):
            continue
        number, name = key if isinstance(key, tuple) else (None, key)
        kept = of_torch and name in SET_BY_SCHEDULERS
        text = f"{name}{f' (group {number})' if number else ''} {saved[key]} saved, {value} now"
        differences.append(f"{text}: the {'saved' if kept else 'new'} value is used")
        group = {} if number is None or kept else optimizer.param_groups[number]
        for part in {name, "initial_lr" if name == "lr" else name} & group.keys():
            if isinstance(group[part], Tensor):
                group[part].fill_(value)  # a captured or compiled step reads this very tensor
            else:
                group[part] = value
    return differences


def random_state() -> dict[str, Any]:
    """Return the state of the generators that a model or a loader may draw from, as tensors and numbers."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    kind, keys, *rest = legacy
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"torch": torch.get_rng_state(), "cuda": gpu, "numpy": (kind, keys.tolist(), *rest), "python": random.getstate()}


def restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
