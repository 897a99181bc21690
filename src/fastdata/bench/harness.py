"""Fair comparison of contestants: interleaved rounds, medians, ratios within a round, a description of the machine.

Other programs, clock rates and caches change over minutes. So contestants take turns, each round gives a ratio, and the median of
the rounds is reported with the minimum and the maximum.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import psutil

from fastdata._version import __version__
from fastdata.system.machine import available_cores

__all__ = [
    "Run",
    "interleave",
    "machine",
    "settle",
    "stream",
    "summarize",
    "table",
    "tree",
    "tree_cpu_s",
    "tree_pss",
    "write_json",
    "write_markdown",
]

LIBRARIES = ("torch", "numpy", "opencv-python-headless", "simplejpeg", "lmdb")


class Run(NamedTuple):
    """One measurement. seconds: wall clock; cpu_s: CPU time of all processes involved; bytes: compressed input."""

    images: int
    seconds: float
    cpu_s: float
    bytes: float = 0.0


Measure = Callable[[float], Run]
Key = TypeVar("Key")


def interleave(
    contestants: Mapping[Key, Measure],
    *,
    seconds: float,
    repeats: int,
    warmup: int = 1,
) -> dict[Key, list[Run]]:
    """Let each contestant measure itself for `seconds` once a round, and return its runs of the last `repeats` rounds.

    The `warmup` rounds before these fill caches and allocate memory.
    """
    runs: dict[Key, list[Run]] = {name: [] for name in contestants}
    for number in range(-warmup, repeats):
        for name in runs:
            settle()
            run = contestants[name](seconds)
            if number >= 0:
                runs[name].append(run)
    return runs


def stream(batches: Iterator[int], ahead: int, seconds: float) -> Run:
    """Measure an iterator without end, which yields the number of samples of each batch. The first `ahead` batches do not count,
    since they may be ready before the clock starts."""
    for _ in range(ahead):
        next(batches)
    samples, cpu, started = 0, tree_cpu_s(), time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not samples:
        samples += next(batches)
    return Run(samples, elapsed, tree_cpu_s() - cpu)


def summarize(runs: Mapping[str, Sequence[Run]], reference: str) -> list[dict[str, Any]]:
    """Return one plain dict per contestant: rates, cost, and the ratio of its rate to that of `reference` in the same round."""
    base = [run.images / run.seconds for run in runs[reference]]
    return [
        {
            "name": name,
            "images_per_s": _spread([run.images / run.seconds for run in done]),
            "ratio": _spread([run.images / run.seconds / other for run, other in zip(done, base, strict=True)]),
            "mb_per_s": median(run.bytes / run.seconds / 1e6 for run in done),
            "cpu_ms_per_image": median(1e3 * run.cpu_s / run.images for run in done),
            "cores_busy": median(run.cpu_s / run.seconds for run in done),
        }
        for name, done in runs.items()
    ]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "rounds": list(values)}


def tree(root: int | None = None) -> list[psutil.Process]:
    """Return a process, by default this one, and all its descendants; empty if it is gone."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_cpu_s(processes: Iterable[psutil.Process] | None = None, *, ended: bool = False) -> float:
    """Return the CPU seconds, in steps of 1/100 s, of processes, by default this one and its descendants; ended: and of their ended
    children."""
    total = 0.0
    for process in tree() if processes is None else processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[: 4 if ended else 2])  # user, system, and the same of children
    return total


def tree_pss(root: int | None = None) -> int | None:
    """Return the memory of a process, by default this one, and its descendants in bytes, with shared pages counted once (PSS).

    None if the kernel does not report it.
    """
    total = 0
    for process in tree(root):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except (psutil.AccessDenied, AttributeError):  # another user's process, or not Linux
            return None
    return total


def settle(step_s: float = 0.03, limit_s: float = 5.0) -> None:
    """Wait until the descendants of this process are idle: work that one contestant does ahead must not slow the next."""
    end = time.monotonic() + limit_s
    before, now = -1.0, tree_cpu_s(tree()[1:])
    while now != before and time.monotonic() < end:
        time.sleep(step_s)
        before, now = now, tree_cpu_s(tree()[1:])


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


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table that is also readable in a terminal: names on the left, numbers on the right."""
    widths = [max(len(line[k]) for line in (headers, *rows)) for k in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])} |"

    rule = "|" + "|".join("-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths)) + "|"
    return [line(headers), rule, *map(line, rows)]


def write_json(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write a result as JSON. Its folder is made if it does not exist."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def write_markdown(path: str | os.PathLike[str], title: str, lines: Iterable[str], found: Mapping[str, Any]) -> None:
    """Write lines as Markdown, between a title and what `machine` found."""
    about = [f"- {name}: {value}" for name, value in found.items() if value is not None]
    Path(path).write_text("\n".join([f"# {title}", "", *lines, "", *about]) + "\n")
