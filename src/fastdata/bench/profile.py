"""Measure what a function, loss or module costs, and where the host waits for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastdata.bench.harness import table
from fastdata.bench.passes import Call, Operator, Times, profile_operators, time_passes
from fastdata.bench.syncs import Sync, find_syncs

__all__ = ["Operator", "Profile", "Sync", "Times", "profile"]

PROFILED = 5  # calls that are profiled for operators, and as many for waits; these are not timed
SHOWN = 10  # rows of a table


@dataclass(frozen=True)
class Profile:
    """The result of `profile`; ``str(...)`` is a table.

    Attributes:
        name: name of the function or of the module's class.
        device: the device that ran it: "cpu", "cuda:0", ...
        steps: number of timed calls.
        forward, backward: times; `backward` is None if the output does not require grad.
        operators: the operators with their own time, on the GPU if one ran them, the most expensive first.
        peak_bytes: the most memory that a call held beyond what was allocated before; None if PyTorch does not report it.
        syncs: where the host waits for the GPU; on the CPU, where it would wait if the tensors were on a GPU.
    """

    name: str
    device: str
    steps: int
    forward: Times
    backward: Times | None
    operators: tuple[Operator, ...]
    peak_bytes: int | None
    syncs: tuple[Sync, ...]

    @property
    def host_ms(self) -> float:
        """Milliseconds of forward and backward on the host."""
        return self.forward.host_ms + (self.backward.host_ms if self.backward else 0.0)

    @property
    def syncs_per_call(self) -> float:
        """Waits of the host per call, over all places."""
        return sum(sync.per_call for sync in self.syncs)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def profile(fn: Callable[..., Any], *args: Any, steps: int = 20, warmup: int = 3) -> Profile:
    """Measure a function, loss or module on the given arguments, and find its host syncs.

    If the output (a tensor, or tuples, lists and dicts of tensors) requires grad, backward is measured too, starting from ones.
    Gradients from before are restored. Arguments that were computed from parameters are detached, so that a loss is measured
    without the model that feeds it. `fn` is called ``warmup + steps + 11`` times at most, with its side effects: it draws random
    numbers, a BatchNorm in training mode updates its statistics, and a function that steps an optimizer trains.

    On a GPU, each pass is timed alone, on an idle device. If `host_ms` is not below `device_ms`, the host is the bottleneck, and
    fewer, larger kernels help (torch.compile). Peak memory is CUDA's ``max_memory_allocated``, which is reset.

    Args:
        fn: the function or module. To pass keyword arguments, use a lambda.
        *args: its arguments, on the device to be measured.
        steps: number of timed calls, of which the medians are reported.
        warmup: number of calls before these, which allocate memory, and choose and compile kernels.

    Raises:
        TypeError: `fn` is not callable.
        ValueError: `steps` is less than 1, or `warmup` is negative.

    Examples:
        >>> import torch
        >>> found = profile(torch.nn.functional.mse_loss, torch.ones(8, requires_grad=True), torch.zeros(8))
        >>> found.name, found.device, found.syncs
        ('mse_loss', 'cpu', ())
    """
    if not callable(fn):
        raise TypeError(f"profile measures a function or a module, found {type(fn).__name__}: pass fn, then its arguments")
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps must be 1 or more and warmup 0 or more, found steps={steps} and warmup={warmup}")
    call = Call(fn, args)
    try:
        for _ in range(warmup):
            call()
        syncs, device = find_syncs(call, PROFILED)
        forward, backward, peak = time_passes(call, steps, device)
        operators, host_peak = profile_operators(call, PROFILED, device)
    finally:
        call.restore()
    peak = host_peak if device is None else peak
    name = getattr(fn, "__qualname__", type(fn).__name__)
    return Profile(name, str(device or "cpu"), steps, forward, backward, operators, peak, syncs)


def _lines(found: Profile) -> Iterator[str]:
    memory = "" if found.peak_bytes is None else f", {found.peak_bytes / 1e6:,.1f} MB at most"
    yield f"{found.name} on {found.device}: {found.host_ms:.3f} ms a call{memory}"
    passes = [("forward", found.forward), ("backward", found.backward)]
    yield ""
    yield from table(["median of " + str(found.steps), "host, ms", "GPU, ms"], [_times(name, t) for name, t in passes if t])
    yield ""
    shown = found.operators[:SHOWN]
    yield from table(
        ["operator", "calls", "ms", "share"], [[o.name, f"{o.calls:g}", f"{o.ms:.3f}", f"{o.share:.0%}"] for o in shown]
    )
    yield ""
    waits = "would wait for a GPU" if found.device == "cpu" else "waits for the GPU"
    yield f"the host {waits} {found.syncs_per_call:g} times a call" + ":" * bool(found.syncs)
    if found.syncs:
        yield ""
        yield from table(["where", "what", "a call"], [[s.where, s.what, f"{s.per_call:g}"] for s in found.syncs[:SHOWN]])


def _times(name: str, times: Times) -> list[str]:
    return [name, f"{times.host_ms:.3f}", "" if times.device_ms is None else f"{times.device_ms:.3f}"]
