"""A clock that jumps by years: a library moves what a process and its children are told of the time of day."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

YEAR = 365 * 86400
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    static volatile long *seconds;
    if (!seconds) seconds = mmap(0, sizeof *seconds, PROT_READ, MAP_SHARED, open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC), 0);
    return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process whose clock `jumps` moves. They need a compiler."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("there is no cc")
    source, library, shift = (folder / name for name in ("clock.c", "clock.so", "shift"))
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    shift.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}


@contextmanager
def jumps() -> Iterator[None]:
    """Let the clock of this process and its children jump, back and forth, until the body ends."""
    end = threading.Event()
    with Path(os.environ["CLOCK_SHIFT"]).open("r+b", buffering=0) as shift:

        def jump() -> None:
            for years in cycle((10, -10, 0, 30, -30)):
                os.pwrite(shift.fileno(), struct.pack("l", years * YEAR), 0)
                if end.wait(0.03):
                    break
            os.pwrite(shift.fileno(), bytes(8), 0)

        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
