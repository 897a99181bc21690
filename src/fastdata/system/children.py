"""Child processes: Ctrl-C is left to their parent, and they end with it, however it ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys

MAIN = "import gc, sys; gc.set_threshold(50_000); sys.path.remove(''); from {} import {} as main; main(*map(int, sys.argv[1:]))"


def start_python(function: str, *descriptors: int) -> subprocess.Popen[bytes]:
    """Start a Python that calls a function, such as "fastdata.prepare.worker:main", with descriptors that it inherits.

    It finds the packages that this process finds, but a random.py in the working folder does not replace Python's. It starts
    with Ctrl-C blocked, so it is not interrupted, even while it imports.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-c", MAIN.format(*function.split(":")), *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUTF8": "1"},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(descriptor: int) -> None:
    """Let the kernel kill this process when the last writer of a pipe is gone. Nobody may write to it.

    The kernel does it at once and at no cost, also in the middle of a decoder, or while this process is stopped.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(descriptor)
    if poll.poll(0):  # it was gone before
        os._exit(1)
