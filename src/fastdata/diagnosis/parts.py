"""The time that each part of making samples takes in this thread: known functions are wrapped while it is measured.

Parts are measured in CPU time, which other programs do not change. What is left of the wall time is waiting: for the disk, the
network or a lock; or, as the kernel says, for a core that other threads had.
"""

from __future__ import annotations

import functools
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from fastdata.diagnosis.load import queued_s

__all__ = ["Parts"]

KNOWN = {  # what reads, decodes and resizes images for most people, if it is imported
    "read": ("fastdata.diagnosis.files:read_source", "torchvision.io.image:read_file"),
    "decode": (
        "PIL.Image:open",
        "PIL.Image:Image.convert",
        "PIL.ImageFile:ImageFile.load",
        "cv2:imread",
        "cv2:imdecode",
        "cv2:cvtColor",
        "simplejpeg:decode_jpeg",
        "torchvision.io.image:decode_image",
        "torchvision.io.image:decode_jpeg",
        "imageio.v2:imread",
        "imageio.v3:imread",
        "skimage.io:imread",
        "tifffile:imread",
    ),
    "resize": (
        "PIL.Image:Image.resize",
        "PIL.Image:Image.reduce",
        "PIL.Image:Image.thumbnail",
        "cv2:resize",
        "cv2:warpAffine",
        "torch.nn.functional:interpolate",
        "torchvision.transforms._functional_tensor:interpolate",
        "torchvision.transforms.v2.functional._geometry:interpolate",
    ),
}


@dataclass
class Parts:
    """Seconds of CPU time, in this thread.

    Attributes:
        samples: how many were made.
        wall_s: the time on the clock.
        cpu_s: all CPU time.
        waiting_s: the time without a core that no other thread had: waiting for the disk, the network or a lock.
        read_s, decode_s, resize_s, collate_s: parts of `cpu_s`; what is left of it is the transform.
    """

    samples: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    waiting_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
    collate_s: float = 0.0

    def per_sample(self) -> dict[str, float]:
        """Return the seconds for a sample, by part."""
        parts = {"waiting": self.waiting_s, "read": self.read_s, "decode": self.decode_s, "resize": self.resize_s}
        transform = self.cpu_s - self.read_s - self.decode_s - self.resize_s - self.collate_s
        parts |= {"transform": max(transform, 0.0), "collate": self.collate_s}
        return {name: seconds / max(self.samples, 1) for name, seconds in parts.items()}

    @contextmanager
    def timed(self, samples: int) -> Iterator[None]:
        """Add the time of the body, which makes so many samples."""
        wall, cpu, queued, switches = time.perf_counter(), time.thread_time(), queued_s(), _switches()
        yield
        wall, cpu, queued = time.perf_counter() - wall, time.thread_time() - cpu, queued_s() - queued
        self.samples += samples
        self.wall_s += wall
        self.cpu_s += cpu
        if _switches() > switches:  # or it never waited, and a hypervisor took the core
            self.waiting_s += max(wall - cpu - queued, 0.0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Wrap the known functions, to time them in this thread."""
        with ExitStack() as stack:
            clock = _Clock(self)
            for part, names in KNOWN.items():
                for name in names:
                    if (place := _find(name)) is not None:
                        stack.enter_context(_replaced(*place, functools.partial(clock.wrap, part)))
            yield


class _Clock:
    """Times nested calls, each without those inside it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._thread = threading.get_ident()
        self._inside = 0.0

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            outer, self._inside = self._inside, 0.0
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - started
                name = f"{part}_s"
                setattr(self._parts, name, getattr(self._parts, name) + max(spent - self._inside, 0.0))
                self._inside = outer + spent

        return timed


def _find(name: str) -> tuple[Any, str] | None:
    """Return the object and the attribute that a name of KNOWN means, if its module is imported."""
    module, _, path = name.partition(":")
    *outer, last = path.split(".")
    owner = functools.reduce(lambda found, part: getattr(found, part, None), outer, sys.modules.get(module))
    return (owner, last) if hasattr(owner, last) else None


@contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, wrap(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
