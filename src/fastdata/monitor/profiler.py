"""Profile some updates with torch.profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["SPANS", "StepProfiler"]

SPANS = ("data", "copy", "forward", "backward", "optimizer")
WARMUP = 3


class StepProfiler:
    """Profiles updates after a warm-up of three.

    Args:
        updates: number of updates to profile.
        folder: folder of trace.json, for chrome://tracing or Perfetto.
        rank: ranks above 0 write into a folder of their own, such as rank1.
    """

    def __init__(self, updates: int, folder: Path, *, rank: int = 0) -> None:
        self._updates = updates
        self._left = WARMUP + updates
        self._folder = folder / f"rank{rank}" if rank else folder
        self._torch: Any = None

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Mark a part of an update in the trace, and as an NVTX range."""
        stack = ExitStack()
        stack.enter_context(record_function(name))
        if torch.cuda.is_available():
            stack.enter_context(torch.cuda.nvtx.range(name))
        return stack

    def updated(self) -> str | None:
        """Count an update; return the report after the last one."""
        self._left -= 1
        if self._left == self._updates:
            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._torch = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._torch.__enter__()
        return self._finish() if self._left == 0 else None

    def close(self) -> None:
        """Stop profiling."""
        if self._torch is not None and self._left >= 0:
            self._left = -1
            self._torch.__exit__(None, None, None)

    def _finish(self) -> str:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._torch.export_chrome_trace(str(self._folder / "trace.json"))
        events = self._torch.key_averages()
        gpu = torch.cuda.is_available()
        spent = {event.key: event.device_time_total if gpu else event.cpu_time_total for event in events if event.key in SPANS}
        spent["data"] = sum(event.cpu_time_total for event in events if event.key == "data")  # the device takes no part in it
        total = sum(spent.values()) or 1
        shares = ", ".join(f"{name} {spent.get(name, 0) / total:.0%}" for name in SPANS)
        by = "self_device_time_total" if gpu else "self_cpu_time_total"
        text = f"{self._updates} updates: {shares}\n{events.table(sort_by=by, row_limit=12, max_name_column_width=40)}"
        return text + f"{self._folder / 'trace.json'}: open it with https://ui.perfetto.dev"
