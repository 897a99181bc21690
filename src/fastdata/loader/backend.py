"""The backend of a Loader: the requested one, or the fastest on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from itertools import islice
from typing import Any

import torch

from fastdata.errors import MissingExtraError
from fastdata.loader.dali import check_dali
from fastdata.loader.sizes import Size

__all__ = ["choose_backend", "requested_backend", "share_of"]

BACKENDS = "torch", "dali"
ROUNDS = 3
SLICE_S = 0.5  # the least time for each backend in each round
LIMIT_S = 10.0  # no round begins later
SHARED_ON = ("cuda",)  # devices on which DALI leaves cores for workers
STEPS, LEAST = 16, Fraction(1, 16)  # of a measured share
MOST_UNEVEN = Fraction(1, 64)  # with a smaller share, an engine would draw the requests of many epochs
WORTH = 1.05  # the least speedup for which two decoders are used instead of one


def requested_backend(backend: str, dataset: Any, *, resident: bool) -> tuple[str, str]:
    """Return the Loader's argument `backend`, and the reason for it.

    Raises:
        ValueError: there is no such backend, it cannot read this dataset, or it excludes `resident`.
        MissingExtraError: it is not installed.
    """
    share = share_of(str(backend))
    if backend not in (*BACKENDS, "auto") and share is None:
        raise ValueError(
            f'backend is {backend!r}, but must be "torch", "dali", "auto", or such as "hybrid:0.25", from 1/64 to 63/64'
        )
    if resident and backend != "torch":
        raise ValueError(f"resident decodes its images once, in worker processes: leave out backend={backend!r}, or resident")
    if backend == "dali" or share is not None:
        check_dali(dataset, backend)
    return backend, "not chosen yet: it is measured when the first pass begins" if backend == "auto" else "it was requested"


def share_of(backend: str) -> Fraction | None:
    """Return the share of the batches that DALI makes with a backend such as "hybrid:0.25"; None: it is another backend."""
    kind, _, share = backend.partition(":")
    try:
        found = Fraction(share) if kind == "hybrid" else Fraction(0)
    except (ValueError, ZeroDivisionError):
        return None
    return found if MOST_UNEVEN <= found <= 1 - MOST_UNEVEN else None


def choose_backend(loader: Any, rows: int, size: Size) -> tuple[str, str]:
    """Return the fastest backend for a loader's dataset, device and workers, and why. rows, size: of its batches.

    Over several ranks, rank 0 measures and all take its choice. What the loader delivers does not change.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or loader.part.world_size != torch.distributed.get_world_size():
        return _choose(loader, rows, size)
    choice = [_choose(loader, rows, size) if torch.distributed.get_rank() == 0 else ("", "")]
    torch.distributed.broadcast_object_list(choice, src=0)
    return choice[0]


def _choose(loader: Any, rows: int, size: Size) -> tuple[str, str]:
    try:
        check_dali(loader.dataset)
    except (ValueError, MissingExtraError) as error:
        return "torch", f"DALI cannot be used: {error}"
    try:
        rates = _measure(loader, rows, size, BACKENDS)
        best, why = _fastest(rates)
        if loader.device is not None and loader.device.type in SHARED_ON:
            share = Fraction(round(STEPS * rates["dali"] / sum(rates.values())), STEPS)
            both = f"hybrid:{float(min(max(share, LEAST), 1 - LEAST))}"
            more = _measure(loader, rows, size, (both, best))  # in this order, workers are forked before DALI has threads
            why = f"{why}; then {_fastest(more)[1]}"
            best = both if more[both] > WORTH * more[best] else best
    except Exception as error:  # noqa: BLE001  the pass itself reports it; other ranks wait for the choice
        return "torch", f"the backends could not be measured: {type(error).__name__}: {error}"
    return best, f"measured here: {why}"


def _fastest(rates: dict[str, float]) -> tuple[str, str]:
    """Return the fastest backend, and all rates in words."""
    return max(rates, key=lambda name: rates[name]), ", ".join(f"{name} {rate:,.0f} images/s" for name, rate in rates.items())


def _measure(loader: Any, rows: int, size: Size, backends: Sequence[str]) -> dict[str, float]:
    """Return the median images per second of each backend, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in backends}
    ahead = max(loader.num_workers, 1) * loader.prefetch_factor
    with ExitStack() as stack:
        passes = {}
        for k, name in enumerate(backends):  # with different orders, so that none reads from the page cache what another read
            passes[name] = _endless(stack.enter_context(_like(loader, rows, size, name, seed=k)))
        end = time.monotonic() + LIMIT_S
        for k in range(ROUNDS):
            for name, batches in passes.items():
                if k == 0 or time.monotonic() < end:
                    found[name].append(_rate(batches, ahead, loader.device))
    return {name: statistics.median(rates) for name, rates in found.items()}


def _like(loader: Any, rows: int, size: Size, backend: str, seed: int) -> Any:
    """Return a loader of the same samples with another backend and order."""
    same = {name: getattr(loader, name) for name in ("num_workers", "device", "prefetch_factor", "pin_memory")}
    own = {"shuffle": True, "seed": seed, "backend": backend, "rank": 0, "world_size": 1, "schedule": {0: tuple(size)}}
    return type(loader)(loader.dataset, rows, **same, **own)


def _endless(loader: Any) -> Iterator[int]:
    """Yield the number of samples of each batch, epoch after epoch."""
    while True:
        for batch in loader:
            yield batch.valid


def _rate(batches: Iterator[int], ahead: int, device: torch.device | None) -> float:
    """Return images per second, without batches made before, and over so many that each worker made some."""
    for _ in islice(batches, ahead):
        pass
    _wait(device)
    started = time.perf_counter()
    samples = sum(islice(batches, ahead))
    while time.perf_counter() - started < SLICE_S:
        samples += next(batches)
    _wait(device)
    return samples / (time.perf_counter() - started)


def _wait(device: torch.device | None) -> None:
    """Wait until a GPU is idle (host sync)."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
