"""What a result says of its machine, and how results are written."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fastdata._version import __version__
from fastdata.system.machine import available_cores

LIBRARIES = ("torch", "numpy", "opencv-python-headless", "simplejpeg", "lmdb")


def machine() -> dict[str, Any]:
    """Return what the numbers depend on, and nothing that identifies the machine."""
    import torch

    found = {
        "cpu": _cpu(),
        "cores": available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "command": _command(),
    }
    return found | {"fastdata": __version__} | {name: _version(name) for name in LIBRARIES}


def _version(library: str) -> str | None:
    """Return the version of a library; None if it is not installed, since not every benchmark needs all of them."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """Return the commit of the checkout of this file, with "-dirty" if it has changes; None for an installed package."""
    here = Path(__file__)
    try:
        for command in ("ls-files --error-unmatch " + here.name, "describe --always --dirty --abbrev=12 --exclude=*"):
            done = subprocess.run(
                ["git", *command.split()], cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _command() -> str:
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    arguments = [Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:]]  # leave out the machine's folders
    return f"{name} {shlex.join(arguments)}".strip()


def write_json(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write a result as JSON. Its folder is made if it does not exist."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def write_markdown(path: str | os.PathLike[str], title: str, lines: Iterable[str], found: Mapping[str, Any]) -> None:
    """Write lines as Markdown, between a title and what `machine` found."""
    about = [f"- {name}: {value}" for name, value in found.items() if value is not None]
    Path(path).write_text("\n".join([f"# {title}", "", *lines, "", *about]) + "\n")
