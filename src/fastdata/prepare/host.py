"""What of a machine decides the bytes of a store, and whether this one would make the same as the one that planned."""

from __future__ import annotations

import socket
from importlib import metadata
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.prepare.plan import Work, machine_of, version_of
from fastdata.sources.urls import to_path

__all__ = ["check_host", "check_libraries"]


def _version(library: str) -> str:
    try:
        return version_of(library)
    except metadata.PackageNotFoundError:
        return "none"


def check_libraries(work: Work, planned: dict[str, str] | None = None, here: dict[str, str] | None = None) -> None:
    """Raise a PrepError if the libraries here are not those of the plan, or other properties differ."""
    planned = {**work.plan.libraries, **(planned or {})}
    here = {**{name: _version(name) for name in work.plan.libraries}, **(here or {})}
    differ = [name for name in planned if planned[name] != here.get(name)]
    if lines := [f"  {name} {planned[name]}, here {here.get(name, 'unknown')}" for name in differ]:
        raise PrepError(
            f"{socket.gethostname()} would not make the bytes that the plan of {work.place} means:\n"
            + "\n".join(lines)
            + "\nRun on a machine with the same libraries and processor features as the one that planned, or plan again here, to "
            "another OUT or with --overwrite."
        )


def check_host(work: Work) -> None:
    """Raise a PrepError if this machine would make other bytes than the plan means, or the inputs are not there."""
    check_libraries(work, work.plan.machine, machine_of(work.plan.libraries))
    for root in map(to_path, work.plan.roots):
        if isinstance(root, Path) and not (root.is_dir() and (root.samefile(".") or any(root.iterdir()))):
            raise PrepError(
                f"{root}, where the plan of {work.place} has its inputs, is not there, or empty, on {socket.gethostname()}: mount "
                "it there"
            )
