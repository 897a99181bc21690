"""Time and profile forward and backward of one function."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.utils.weak import WeakTensorKeyDictionary

from fastdata.torch_private import pytree

__all__ = ["Call", "Operator", "Times", "profile_operators", "time_passes"]


class Times(NamedTuple):
    """Median milliseconds. host_ms: until the call returned; device_ms: until the GPU was done, including gaps between kernels."""

    host_ms: float
    device_ms: float | None


class Operator(NamedTuple):
    """One operator. ms: its own time per call, without the operators inside it; share: of the time of all operators."""

    name: str
    calls: float
    ms: float
    share: float


class Call:
    """Runs forward and backward, each time as after ``zero_grad()``."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = pytree.tree_map(_detached, args)
        self.outputs: list[Tensor] = []
        self.ones: list[Tensor] = []
        self.grads = WeakTensorKeyDictionary()  # gradients from before; weak, because fn may make leaves of its own

    def __call__(self) -> None:
        self.clear()
        self.forward()
        self.seed()
        if self.outputs:
            self.backward()

    def forward(self) -> None:
        self.outputs = list(_differentiable(self.fn(*self.args)))

    def seed(self) -> None:
        """Make the gradients that backward starts from, and clear those of the leaves."""
        self.ones = [torch.ones_like(output) for output in self.outputs]
        for leaf in _leaves(self.outputs):
            if leaf not in self.grads:
                self.grads[leaf], leaf.grad = leaf.grad, None

    def backward(self) -> None:
        torch.autograd.backward(self.outputs, self.ones)
        self.outputs, self.ones = [], []

    def clear(self) -> None:
        """Free what the previous call left."""
        self.outputs, self.ones = [], []
        for leaf in list(self.grads):
            leaf.grad = None

    def restore(self) -> None:
        self.clear()
        for leaf in list(self.grads):
            leaf.grad = self.grads[leaf]


def _detached(value: Any) -> Any:
    """Return a tensor as a leaf of the graph, and anything else as it is."""
    return value.detach().requires_grad_() if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf else value


def _differentiable(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield from [output] if output.requires_grad else ()
    elif isinstance(output, list | tuple | dict):
        for item in output.values() if isinstance(output, dict) else output:
            yield from _differentiable(item)


def _leaves(outputs: list[Tensor]) -> set[Tensor]:
    """Return the tensors whose `grad` a backward from `outputs` fills."""
    found = {output for output in outputs if output.is_leaf}
    nodes = [output.grad_fn for output in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if type(node).__name__ == "AccumulateGrad":
            found.add(node.variable)  # type: ignore[attr-defined]
        new = {next_node for next_node, _ in node.next_functions} - seen
        seen |= new
        nodes.extend(new)
    return found


def time_passes(call: Call, steps: int, device: torch.device | None) -> tuple[Times, Times | None, int | None]:
    """Return median times of both passes, and CUDA's peak memory."""
    passes: list[tuple[Times, Times | None]] = []
    start = 0
    call.clear()
    if device is not None:
        start = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(steps):
        call.clear()
        forward = _time(call.forward, device)
        call.seed()
        passes.append((forward, _time(call.backward, device) if call.outputs else None))
    peak = None if device is None else torch.cuda.max_memory_allocated(device) - start
    backward = [times for _, times in passes if times]
    return _median([times for times, _ in passes]), _median(backward) if backward else None, peak


def _time(run: Callable[[], None], device: torch.device | None) -> Times:
    if device is None:
        start = time.perf_counter()
        run()
        return Times(1e3 * (time.perf_counter() - start), None)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    first.record(stream)
    start = time.perf_counter()
    run()
    host = 1e3 * (time.perf_counter() - start)
    last.record(stream)
    last.synchronize()
    return Times(host, first.elapsed_time(last))


def _median(times: list[Times]) -> Times:
    device = [t.device_ms for t in times if t.device_ms is not None]
    return Times(median(t.host_ms for t in times), median(device) if device else None)


def profile_operators(call: Call, calls: int, device: torch.device | None) -> tuple[tuple[Operator, ...], int | None]:
    """Return the operators of `calls` calls, and on the CPU the peak memory."""
    call.clear()  # or the profiler complains about memory that it sees freed but not allocated
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device is not None else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=activities, profile_memory=device is None) as prof:
            for _ in range(calls):
                call()
            if device is not None:
                torch.cuda.synchronize(device)
    events = [event for event in prof.key_averages() if event.device_type.name == "CPU"]
    own = [event.self_device_time_total for event in events]
    if not any(own):  # no GPU, or profiling it is not allowed
        own = [event.self_cpu_time_total for event in events]
    total = sum(own) or 1.0
    found = [Operator(e.key, e.count / calls, us / 1e3 / calls, us / total) for e, us in zip(events, own, strict=True) if us > 0]
    return tuple(sorted(found, key=lambda o: -o.ms)), _peak(prof) if device is None else None


def _peak(prof: torch.profiler.profile) -> int | None:
    """Return the greatest running sum of allocated minus freed bytes."""
    results = getattr(prof.profiler, "kineto_results", None)
    if results is None:
        return None
    events = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return max(accumulate((int(e.nbytes()) for e in events), initial=0))
