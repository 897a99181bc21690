"""Profile some updates with torch.profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import profile, schedule

WARMUP = 3


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
