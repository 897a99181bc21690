"""What is attacked with damaged bytes: readers, each with valid inputs and what it promises about damaged ones.

A target is a function that reads the file of a `Case` and returns what it found:

    @target(lambda: {"a.png": PNG}, exact="always")
    def png(case: Case) -> Any:
        return SourceImage(case.data).decode()

It must return, or raise one of the errors that it allows. `exact` says when a result has to be that of the undamaged input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Literal

from fastdata.errors import FastDataError
from mutate import mutated
from support import plain

__all__ = ["TARGETS", "Case", "Target", "plain", "target"]


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

    def attempt(self, case: Case) -> None:
        """Read a case, and raise what is not allowed."""
        try:
            found = plain(self.read(case))
        except self.allowed as error:
            if isinstance(error, MemoryError):
                raise
            return
        if self.exact == "never" or (self.exact == "truncated" and not case.original.startswith(case.data)):
            return
        if case.name not in self.results:
            whole = Case(case.name, case.original, case.folder, case.original)
            self.results[case.name] = plain(self.read(whole))
        whole = self.results[case.name]
        assert found == whole, f"another result without an error: {found!r:.1500}\n{whole!r:.1500}"


TARGETS: dict[str, Target] = {}


def target(files: Callable[[], Mapping[str, bytes]], **options: Any) -> Callable[[Callable[[Case], Any]], Callable[[Case], Any]]:
    """Register a function as a target, under its own name."""

    def register(read: Callable[[Case], Any]) -> Callable[[Case], Any]:
        TARGETS[read.__name__] = Target(read, files, **options)
        return read

    return register


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
