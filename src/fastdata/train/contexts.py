"""Context managers around the updates of a fit: SIGTERM and Ctrl-C as requests to end, and a profile of some updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, schedule

HANDLED = (signal.SIGTERM, signal.SIGINT)  # most cluster schedulers send SIGTERM some seconds before they kill a job
WARMUP = 3  # updates before those that are profiled


class Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C, raised once everything is saved. It ends a script without a traceback, with exit code 130."""

    code = 128 + signal.SIGINT


@contextmanager
def noted_signals(*, active: bool) -> Iterator[list[int]]:
    """If `active`, and in the main thread, only note the first SIGTERM and SIGINT in the list; a second one acts as before."""
    received = list[int]()
    before = dict[signal.Signals, Any]()

    def note(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in HANDLED if active and threading.current_thread() is threading.main_thread() else ():
        before[number] = signal.getsignal(number) or signal.SIG_DFL  # None: a handler not set from Python
        if before[number] is not signal.SIG_IGN or number != signal.SIGINT:  # ignored in background jobs
            signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def profiled(updates: int | None, folder: Path, tell: Callable[[str], None]) -> Iterator[profile | None]:
    """Profile `updates` updates after three others, and `tell` a table. Yields the profiler, to `step` after each, or None.

    The trace is trace.json in the folder, for Perfetto. On a GPU, torch warns of operations for which the host waits.
    """
    if updates is None:
        yield None
        return
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with profile(schedule=schedule(wait=0, warmup=WARMUP, active=updates, repeat=1)) as running:
            yield running
    finally:
        if gpu:
            torch.cuda.set_sync_debug_mode("default")
    folder.mkdir(parents=True, exist_ok=True)
    running.export_chrome_trace(str(folder / "trace.json"))
    table = running.key_averages().table(f"self_{'device' if gpu else 'cpu'}_time_total", row_limit=12, max_name_column_width=40)
    tell(f"{table}{folder / 'trace.json'}: open it with https://ui.perfetto.dev")
