"""What one function, loss or module costs, and where the host waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastdata.bench.harness import table
from fastdata.bench.passes import Call, Operator, Times, looked_into, timed
from fastdata.bench.syncs import Sync, find_syncs

__all__ = ["Operator", "Profile", "Sync", "Times", "profile"]

LOOKS = 5  # calls that are looked into, for operators and for waits; neither is timed
SHOWN = 10  # rows of a table


@dataclass(frozen=True)
class Profile:
    """What `profile` found; ``str(...)`` is a table.

    Attributes:
        name: Of the function or the module's class.
        device: That ran it: "cpu", "cuda:0", ...
        steps: Timed calls.
        forward, backward: Times; `backward` is None where the output does not require grad.
        operators: By their own time, on the GPU if one ran them, the most expensive first.
        peak_bytes: What a call held at most beyond what was there before it; None if PyTorch does not say.
        syncs: Where the host waits for the GPU; on the CPU, where it would, if the tensors were on a GPU.
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
        """Waits of the host, all places together."""
        return sum(sync.per_call for sync in self.syncs)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def profile(fn: Callable[..., Any], *args: Any, steps: int = 20, warmup: int = 3) -> Profile:
    """Measures one function, loss or module on the arguments that it is given, and finds its host syncs.

    Where the output (a tensor, or tuples, lists and dicts with some) requires grad, backward is measured too, from ones; gradients
    of before are put back. Arguments that were computed from parameters are cut off, so that a loss is measured without the
    model in front of it. `fn` is called ``warmup + steps + 11`` times at most, just as it is: random numbers are drawn, a
    BatchNorm in training mode moves its statistics, a function that steps an optimizer trains.

    On a GPU, each pass is timed alone, on an idle device: where `host_ms` is not below `device_ms`, the host is what it waits
    for, and fewer, larger kernels help (torch.compile). Peak memory is CUDA's ``max_memory_allocated``, whose count is reset.

    Args:
        fn: The function or module; call it with keyword arguments through a lambda.
        *args: Its arguments, on the device that shall be measured.
        steps: Calls that are timed; the medians are given.
        warmup: Calls before: memory is allocated, kernels are chosen and compiled.

    Raises:
        TypeError: `fn` is not callable.
        ValueError: `steps` or `warmup` are out of range.

    Example:
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
        syncs, device = find_syncs(call, LOOKS)
        forward, backward, peak = timed(call, steps, device)
        operators, host_peak = looked_into(call, LOOKS, device)
    finally:
        call.restore()
    peak = host_peak if device is None else peak
    return Profile(_name(fn), str(device or "cpu"), steps, forward, backward, operators, peak, syncs)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def _lines(found: Profile) -> Iterator[str]:
    held = "" if found.peak_bytes is None else f", {found.peak_bytes / 1e6:,.1f} MB at most"
    yield f"{found.name} on {found.device}: {found.host_ms:.3f} ms a call{held}"
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
