"""What the benchmarks of this folder share: their arguments, their clocks, and the form of a result.

A benchmark is a program with a function `measure(setting) -> Result`. `run.py` starts each as a process of its own; alone it makes
its own inputs in a temporary folder, and prints what it found:

    python benchmarks/gpu/NAME.py [--device cpu] [--quick] [--photos FOLDER] [--work FOLDER] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from inputs import Inputs
from report import lines_of
from torch.profiler import ProfilerActivity, profile

from fastdata.bench.harness import Run
from fastdata.system.machine import available_cores


class Wrong(Exception):
    """What was delivered is not what was to be delivered."""


@dataclass(frozen=True)
class Setting:
    """What a benchmark is told.

    Attributes:
        quick: tiny sizes and one round: whether it works, not how fast it is.
        seconds, rounds: of a measurement; how many count.
    """

    device: torch.device
    quick: bool
    inputs: Inputs
    workers: int

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def target(self) -> torch.device | None:
        """What a Loader is told as its device."""
        return self.device if self.cuda else None

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 5

    @property
    def warmup(self) -> int:
        return 0 if self.quick else 1

    def seconds(self, full: float) -> float:
        return 0.05 if self.quick else full

    def wait(self) -> None:
        """For all that the device was asked to do."""
        if self.cuda:
            torch.cuda.synchronize()


@dataclass
class Result:
    """What a benchmark found; `report.py` makes tables of it.

    Attributes:
        about: sentences on what was measured.
        rows: see `rows_of`.
        asked: see `ask`.
        checked: what was found right in what was delivered.
        left_out: who did not take part, and why.
        found: further figures, by name.
    """

    about: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    def ask(self, what: str, bound: float, found: float | None, *, most: bool = False) -> None:
        """Beside what is asked, what was found; None: nothing, as who was to show it did not take part."""
        met = found is not None and (found <= bound if most else found >= bound)
        self.asked.append({"what": what, "bound": bound, "most": most, "found": found, "met": met})


def main(measure: Callable[[Setting], Result]) -> None:
    """Be a benchmark."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here: --device cpu --quick shows whether this runs")
    if args.device == "cpu":
        torch.set_num_threads(1)  # the workers need the cores
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        inputs = Inputs.at(args.work or Path(scratch), args.photos, quick=args.quick)
        result = asdict(measure(Setting(torch.device(args.device), args.quick, inputs, available_cores())))
    if args.out is not None:
        args.out.write_text(json.dumps(result, allow_nan=False))
    print("\n".join(lines_of(result)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of one benchmark and of all of them."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses; its figures mean nothing")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--photos", type=Path, help="folder of photos to cut images from")
    parser.add_argument("--work", type=Path, help="where the inputs are, or are made: 2 GB")


def repeat(setting: Setting, call: Callable[[int], Any], calls: int) -> float:
    """Seconds of so many calls, by the device's own clock."""
    if not setting.cuda:
        started = time.perf_counter()
        for k in range(calls):
            call(k)
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for k in range(calls):
        call(k)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def consume(setting: Setting, batches: Iterator[Any], rows: int, ready: int, seconds: float) -> Run:
    """What batches take that are not ready made: the first `ready` ones were made before, and do not count."""
    for _ in range(ready):
        next(batches)
    setting.wait()
    count, started = 0, time.perf_counter()
    while not count or time.perf_counter() - started < seconds:
        next(batches)
        count += 1
    setting.wait()
    return Run(count * rows, time.perf_counter() - started, 0.0)


class Activity(NamedTuple):
    """A kernel or a copy on the device; on a CPU, an operation. In microseconds."""

    name: str
    start: float
    stop: float


def activities(setting: Setting, call: Callable[[], Any]) -> list[Activity]:
    """What torch.profiler sees on the device while `call` runs and until it is done."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.cuda else [])]
    setting.wait()
    with profile(activities=kinds) as prof:
        call()
        setting.wait()
    device = torch.autograd.DeviceType.CUDA if setting.cuda else torch.autograd.DeviceType.CPU
    events = [e for e in prof.events() if e.device_type == device and e.cpu_parent is None]
    return [Activity(e.name, e.time_range.start, e.time_range.end) for e in events if not getattr(e, "is_user_annotation", False)]


def rows_of(runs: Mapping[str, Sequence[Run]], ceiling: str, unit: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """A row a contestant: its rates, and their ratios to the ceiling's within each round."""
    rates = {name: [run.images / run.seconds * scale for run in done] for name, done in runs.items()}
    return [
        {"name": name, "unit": unit, "rate": spread(own), "of_ceiling": spread(ratios(own, rates[ceiling])), "note": ""}
        for name, own in rates.items()
    ]


def ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(own, other, strict=True)]


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "rounds": list(values)}
