"""A contestant's processes: asked over stdin, stopped (SIGSTOP) while others have their turn, measured by psutil."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from fastdata.bench.harness import Run, tree, tree_cpu_s

TIMEOUT_S = 300.0
SAMPLE_S = 0.05  # between two looks at the memory
END_S = 3.0  # to end when it is asked to
SAID = 400  # characters of what a program says when it fails


def tree_pss(root: int | None = None) -> int | None:
    """Return the bytes of a process, by default this one, and its descendants, with shared pages counted once; None: unknown."""
    total = 0
    for process in tree(root):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except (psutil.AccessDenied, AttributeError):  # another user's process, or not Linux
            return None
    return total


class Failed(Exception):
    """A contestant ended, hung, or delivered something wrong."""


class Contestant:
    """One program. It has made an epoch that isn't counted, and is stopped, when this returns.

    Attributes:
        versions: of what it runs on.
        start_s: from its start until it was ready.
        pss_bytes: the most in the uncounted epoch, when looking costs the others nothing.
        replies: of the counted epochs.
    """

    def __init__(self, python: Path, program: Path, spec: Path, log: Path) -> None:
        started = time.perf_counter()
        self._log = log
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [python, program, "serve", spec],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        self.pss_bytes, self.replies = 0, list[dict[str, Any]]()
        try:
            self.versions = self._reply()["versions"]
            self.start_s = time.perf_counter() - started
        except Failed:
            self.close()
            raise

    def warm_up(self) -> dict[str, Any]:
        """The uncounted epoch."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(SAMPLE_S):
                self.pss_bytes = max(self.pss_bytes, tree_pss(self._process.pid) or 0)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            return self.ask("epoch")
        finally:
            over.set()
            looking.join()

    def ask(self, line: str) -> dict[str, Any]:
        """Go on, obey a line, stop. It works neither before the request is there nor after the answer."""
        pipe: Any = self._process.stdin
        try:
            pipe.write(f"{line}\n".encode())
            pipe.flush()
        except OSError:
            raise Failed(self._last_words()) from None
        self._signal(signal.SIGCONT)
        reply = self._reply()
        self._signal(signal.SIGSTOP)
        return reply

    def measure(self) -> Run:
        """One counted epoch."""
        before = self._cpu_s()
        reply = self.ask("epoch")
        self.replies.append(reply)
        return Run(reply["images"], reply["seconds"], self._cpu_s() - before)

    def _cpu_s(self) -> float:
        return tree_cpu_s(tree(self._process.pid))

    def close(self) -> None:
        """Let it end, and end what is left of it."""
        processes = tree(self._process.pid)
        self._signal(signal.SIGCONT)
        _close(self._process.stdin)
        try:
            self._process.wait(END_S)  # it takes its workers and its shared memory with it
        except subprocess.TimeoutExpired:
            processes = tree(self._process.pid)
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # psutil tells a later process of the same number apart
                process.kill()
        self._process.wait()
        _close(self._process.stdout)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            _send(-self._process.pid, number)  # its group at once; then those that have a group of their own
            for process in tree(self._process.pid)[1:]:
                _send(process.pid, number)

    def _reply(self) -> dict[str, Any]:
        pipe: Any = self._process.stdout
        ready, _, _ = select.select([pipe], [], [], TIMEOUT_S)
        line = pipe.readline() if ready else b""
        if not line:
            raise Failed(self._last_words() if ready else f"no answer for {TIMEOUT_S:.0f} s")
        return dict(json.loads(line))

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = max((k for k, line in enumerate(lines) if "Error" in line), default=len(lines) - 1)
        return without_paths(" / ".join(lines[last:]))[:SAID] if lines else "it ended without a word"


def without_paths(text: str) -> str:
    """Absolute paths cut down to their names: where things lie is the machine's business."""
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)+", "", text)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass
