"""The CPU time that each part of making a sample takes in this thread. Other programs do not change CPU time.

The rest of the time on the clock is waiting for the disk, the network or a lock. Time in which the thread was ready but had no core
does not count; the kernel reports it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import torch

from fastdata.data.dataset import Timing

QUEUED = Path("/proc/thread-self/schedstat")
KNOWN = {  # what reads, decodes and resizes images for most people, if it is imported
    "fastdata.bench.loaders:read_source": "read",
    "torchvision.io.image:read_file": "read",
    "PIL.Image:open": "decode",
    "PIL.Image:Image.convert": "decode",
    "PIL.ImageFile:ImageFile.load": "decode",
    "cv2:imread": "decode",
    "cv2:imdecode": "decode",
    "cv2:cvtColor": "decode",
    "simplejpeg:decode_jpeg": "decode",
    "torchvision.io.image:decode_image": "decode",
    "torchvision.io.image:decode_jpeg": "decode",
    "PIL.Image:Image.resize": "resize",
    "cv2:resize": "resize",
    "torch.nn.functional:interpolate": "resize",
}


def measure_parts(make: Callable[[Timing], int], seconds: float) -> dict[str, float]:
    """Make samples for about `seconds`, and return the seconds that a sample takes, by part.

    Args:
        make: makes a batch and returns its number of samples. It gets a Timing, to which a dataset that measures itself adds.
    """
    with _one_thread(), _clock() as clocked:
        make(Timing())  # opens files and imports modules
        clocked.clear()
        timing, samples = Timing(), 0
        started, cpu, queued = time.perf_counter(), time.thread_time(), _queued_s()
        while not samples or time.perf_counter() < started + seconds:
            samples += make(timing)
        wall, cpu, queued = time.perf_counter() - started, time.thread_time() - cpu, _queued_s() - queued
    known: dict[str, float] = {part: clocked[part] for part in ("read", "decode", "resize")}
    if timing != Timing():  # on the clock, with the known functions inside
        known = {part: getattr(timing, f"{part}_s") * cpu / wall for part in known}
    parts = {"waiting": wall - cpu - queued, **known, "transform": cpu - sum(known.values())}
    return {part: max(spent, 0.0) / samples for part, spent in parts.items()}


@contextmanager
def _clock() -> Iterator[dict[str, float]]:
    """Wrap the known functions, and yield the CPU seconds of each part. A call counts without the known calls inside it."""
    seconds, at, part = defaultdict[str, float](float), time.thread_time(), "transform"  # of the part that runs, since when

    def switch(to: str) -> str:
        nonlocal at, part
        now = time.thread_time()
        seconds[part] += now - at
        at, part, before = now, to, part
        return before

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                switch(before)

        return call

    known = [(owner, name, getattr(owner, name), part) for owner, name, part in _known_functions()]
    for owner, name, function, of in known:
        setattr(owner, name, timed(of, function))
    try:
        yield seconds
    finally:
        for owner, name, function, _part in known:
            setattr(owner, name, function)


def _known_functions() -> Iterator[tuple[Any, str, str]]:
    """Yield the owner and the name of each known function whose module is imported, and its part."""
    for name, part in KNOWN.items():
        module, _, path = name.partition(":")
        *outer, last = path.split(".")
        owner = functools.reduce(lambda found, attribute: getattr(found, attribute, None), outer, sys.modules.get(module))
        if hasattr(owner, last):
            yield owner, last, part


def _queued_s() -> float:
    """Return the seconds for which this thread was ready to run, but other threads had the cores; 0 if the kernel does not say."""
    try:
        return int(QUEUED.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let OpenCV and torch use one thread, as in a worker."""
    threads = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads[0])
        torch.set_num_threads(threads[1])
