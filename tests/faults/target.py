"""What the campaign attacks: readers of bytes, each with valid inputs and what it promises about damaged ones.

A target is a function that reads the file of a `Case` and returns what it found:

    @target(lambda: {"a.png": PNG}, exact="always")
    def png(case: Case) -> Any:
        return SourceImage(case.data).decode()

It must return, or raise one of the errors that it allows. `exact` says when a result has to be that of the undamaged input.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch

import fastdata
from fastdata.errors import FastDataError
from mutate import mutated

__all__ = ["TARGETS", "Case", "Problem", "Target", "plain", "target"]

PACKAGE = Path(fastdata.__file__).parent


@dataclass(frozen=True)
class Case:
    """One input: the name of its file, its bytes, and an empty folder for files. `original`: the bytes before the damage."""

    name: str
    data: bytes
    folder: Path
    original: bytes

    def write(self) -> Path:
        """Write the input to a new file of its name: what an earlier case mapped keeps its bytes."""
        path = self.folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(self.data)
        return path


@dataclass(frozen=True)
class Problem:
    """What must not happen. signature: equal for cases with one cause, as far as one can tell."""

    signature: str
    detail: str


@dataclass(frozen=True)
class Target:
    """A reader under attack.

    Attributes:
        read: reads a case, and returns something comparable.
        files: makes valid inputs: bytes by file name. The ending of the name chooses the damage.
        exact: when a result must be the original's: always (the format has checksums, and they are compared), for truncated
            inputs, or never.
        allowed: the errors that damaged inputs may raise. A MemoryError never is: sizes are to be checked before.
        cases: how many `make test-faults` tries.
    """

    read: Callable[[Case], Any]
    files: Callable[[], Mapping[str, bytes]]
    exact: Literal["always", "truncated", "never"] = "never"
    allowed: tuple[type[Exception], ...] = (FastDataError,)
    cases: int = 1000
    results: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> dict[str, bytes]:
        return dict(self.files())

    def case(self, seed: int, number: int, folder: Path) -> Case:
        """Make a case again from its numbers."""
        rng = Random(f"{seed} {number}")
        name = rng.choice(list(self.inputs))
        data = self.inputs[name]
        return Case(name, mutated(rng, name, data, number), folder, data)

    def undamaged(self, folder: Path) -> Iterator[Case]:
        """Yield the valid inputs."""
        for name, data in self.inputs.items():
            yield Case(name, data, folder, data)

    def attempt(self, case: Case) -> Problem | None:
        """Read a case."""
        try:
            found = plain(self.read(case))
        except Exception as error:  # noqa: BLE001  what is not allowed is a find
            if isinstance(error, self.allowed) and not isinstance(error, MemoryError):
                return None
            return Problem(_signature(error), "".join(traceback.format_exception(error))[-4000:])
        if self.exact == "never" or (self.exact == "truncated" and not case.original.startswith(case.data)):
            return None
        if case.name not in self.results:
            whole = Case(case.name, case.original, case.folder, case.original)
            self.results[case.name] = plain(self.read(whole))
        if found != self.results[case.name]:
            return Problem("another result without an error", f"{found!r:.1500}\n{self.results[case.name]!r:.1500}")
        return None


def _signature(error: Exception) -> str:
    """The type of an error, and the innermost line of fastdata, or of the target, that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    frame = ours[-1]
    text = f": {error}" if isinstance(error, AssertionError) else ""
    return f"{type(error).__name__} at {Path(frame.filename).name}, {frame.name}{text}"


TARGETS: dict[str, Target] = {}


def target(files: Callable[[], Mapping[str, bytes]], **options: Any) -> Callable[[Callable[[Case], Any]], Callable[[Case], Any]]:
    """Register a function as a target, under its own name."""

    def register(read: Callable[[Case], Any]) -> Callable[[Case], Any]:
        TARGETS[read.__name__] = Target(read, files, **options)
        return read

    return register


def plain(value: Any) -> Any:
    """Turn a result into what compares by value: arrays and tensors become their dtype, shape and bytes."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def each(items: Iterable[Any], read: Callable[[Any], Any]) -> list[Any]:
    """Read all of several items, though some of them may be damaged; None stands for those."""
    found = []
    for item in items:
        result = None
        with suppress(FastDataError):
            result = read(item)
        found.append(result)
    return found


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
