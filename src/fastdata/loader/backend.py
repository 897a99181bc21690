"""Which backend a Loader has: the one that was asked for, or the quickest on this machine."""

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
SLICE_S = 0.5  # of each backend in each round, at least
LIMIT_S = 10.0  # no round begins later
SHARED_ON = ("cuda",)  # where DALI leaves cores for workers
STEPS, LEAST = 16, Fraction(1, 16)  # of a share
MOST_UNEVEN = Fraction(1, 64)
WORTH = 1.05  # how much quicker two decoders must be than one


def requested_backend(backend: str, dataset: Any, *, resident: bool) -> tuple[str, str]:
    """The argument `backend` of a Loader, and what to say about it.

    Raises:
        ValueError: there is no such backend, it does not take this dataset, or it goes without `resident`.
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
    return backend, "not chosen yet: that happens when the first pass begins" if backend == "auto" else "it was asked for"


def share_of(backend: str) -> Fraction | None:
    """The share of the batches that DALI makes, of a backend such as "hybrid:0.25"; None: it is another one."""
    kind, _, share = backend.partition(":")
    try:
        found = Fraction(share) if kind == "hybrid" else Fraction(0)
    except (ValueError, ZeroDivisionError):
        return None
    return found if MOST_UNEVEN <= found <= 1 - MOST_UNEVEN else None  # beyond, one engine would draw the requests of many epochs


def choose_backend(loader: Any, rows: int, size: Size) -> tuple[str, str]:
    """The quicker backend for the dataset, the device and the workers of a loader, and why. rows, size: of its batches.

    Over several ranks, rank 0 measures and all do as it says. What the loader delivers is not touched.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or loader.part.world_size != torch.distributed.get_world_size():
        return _chosen(loader, rows, size)
    told = [_chosen(loader, rows, size) if torch.distributed.get_rank() == 0 else ("", "")]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]


def _chosen(loader: Any, rows: int, size: Size) -> tuple[str, str]:
    try:
        check_dali(loader.dataset)
    except (ValueError, MissingExtraError) as error:
        return "torch", f"DALI is out of the question: {error}"
    try:
        rates = _measured(loader, rows, size, BACKENDS)
        best, why = _told(rates)
        if loader.device is not None and loader.device.type in SHARED_ON:
            share = Fraction(round(STEPS * rates["dali"] / sum(rates.values())), STEPS)
            both = f"hybrid:{float(min(max(share, LEAST), 1 - LEAST))}"
            more = _measured(loader, rows, size, (both, best))  # whose workers are forked before DALI has threads
            why = f"{why}; and then, {_told(more)[1]}"
            best = both if more[both] > WORTH * more[best] else best
    except Exception as error:  # noqa: BLE001  the pass itself will say what is wrong, on this rank and on others that wait for this one
        return "torch", f"the backends could not be measured: {type(error).__name__}: {error}"
    return best, f"measured here: {why}"


def _told(rates: dict[str, float]) -> tuple[str, str]:
    """The quickest, and all in words."""
    return max(rates, key=lambda name: rates[name]), ", ".join(f"{name} {rate:,.0f} images/s" for name, rate in rates.items())


def _measured(loader: Any, rows: int, size: Size, backends: Sequence[str]) -> dict[str, float]:
    """Images per second of some backends, in turns; medians."""
    found: dict[str, list[float]] = {name: [] for name in backends}
    ahead = max(loader.num_workers, 1) * loader.prefetch_factor
    with ExitStack() as stack:
        passes = {}
        for k, name in enumerate(backends):  # of other orders, so that none finds in the page cache what the other one read
            other = _like(loader, rows, size, name, seed=k)
            passes[name] = _endless(stack.enter_context(other))
        end = time.monotonic() + LIMIT_S
        for k in range(ROUNDS):
            for name, batches in passes.items():
                if k == 0 or time.monotonic() < end:
                    found[name].append(_rate(batches, ahead, loader.device))
    return {name: statistics.median(rates) for name, rates in found.items()}


def _like(loader: Any, rows: int, size: Size, backend: str, seed: int) -> Any:
    """A loader of the same batches in another order."""
    same = {name: getattr(loader, name) for name in ("num_workers", "device", "prefetch_factor", "pin_memory")}
    own = {"shuffle": True, "seed": seed, "backend": backend, "rank": 0, "world_size": 1, "schedule": {0: tuple(size)}}
    return type(loader)(loader.dataset, rows, **same, **own)


def _endless(loader: Any) -> Iterator[int]:
    """The number of samples of each batch."""
    while True:
        for batch in loader:
            yield batch.valid


def _rate(batches: Iterator[int], ahead: int, device: torch.device | None) -> float:
    """Images per second; not counting batches that were made before, and over so many that each worker made some."""
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
    """For what a GPU has to do (host sync)."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
