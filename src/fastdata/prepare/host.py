"""What of a machine decides the bytes of a store, and whether this one would make the same as the one that planned."""

from __future__ import annotations

import os
import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError
from fastdata.kinds import Kind
from fastdata.prepare.plan import Work, version_of
from fastdata.sources.urls import AnyPath

__all__ = ["check_host", "check_libraries", "machine_of"]

PROBES = 8  # inputs whose presence is checked


def machine_of(kind: Kind) -> dict[str, str]:
    """Return what of this machine decides the bytes of this kind of data."""
    return {"architecture": platform.machine(), **kind.machine()}


def _version(library: str) -> str:
    try:
        return version_of(library)
    except metadata.PackageNotFoundError:
        return "none"


def check_libraries(work: Work) -> None:
    """Raise PrepError if the libraries here are not those of the plan."""
    _refuse(work, work.plan.libraries, {name: _version(name) for name in work.plan.libraries})


def check_host(work: Work) -> None:
    """Check that this machine makes the bytes that the plan means.

    Raises:
        PrepError: libraries or the processor differ, or the inputs are not there.
    """
    here = {name: _version(name) for name in work.plan.libraries}
    _refuse(work, {**work.plan.libraries, **work.machine}, {**here, **machine_of(work.kind)})
    host, plan = socket.gethostname(), work.plan
    for root in work.roots:
        if isinstance(root, Path) and not root.is_dir():
            raise PrepError(
                f"{root}, where the plan of {work.place} has its inputs, is not there on {host}: mount it in this place"
            )
    first = plan.shard(0)
    tried = [path for source in first[:: -(-len(first) // PROBES) or 1] if (path := _path_of(work.roots[0], source)) is not None]
    if tried and not any(os.path.lexists(path) if isinstance(path, Path) else path.exists() for path in tried):
        raise PrepError(
            f"inputs of the plan of {work.place} are not there on {host}, such as {tried[0]}: mount their disk in this place; they "
            "would all be rejected"
        )


def _path_of(root: AnyPath, source: Any) -> AnyPath | None:
    """Return the file or archive that an input lies in; None: it was missing when it was planned, or lies in a Python module."""
    if getattr(source, "place", ("",))[:1] == ("python",):
        return None
    archive, files = getattr(source, "place", ()), getattr(source, "files", ())
    return None if getattr(source, "problem", "") else root / str(archive[1] if archive else files[0] if files else source.name)


def _refuse(work: Work, planned: dict[str, str], here: dict[str, str]) -> None:
    differ = [name for name in planned if planned[name] != here.get(name)]
    if lines := [f"  {name} {planned[name]}, here {here.get(name, 'unknown')}" for name in differ]:
        raise PrepError(
            f"{socket.gethostname()} would not make the bytes that the plan of {work.place} means:\n"
            + "\n".join(lines)
            + "\nRun on a machine with the same libraries and processor features as the one that planned, or plan again here, to "
            "another OUT or with --overwrite."
        )
