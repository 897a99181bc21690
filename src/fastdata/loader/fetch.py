"""What runs in a worker: a request becomes a batch."""

from __future__ import annotations

import gc
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from fastdata.data.dataset import SlotDataset
from fastdata.data.random import lent_generators, loose_seeds, repeated
from fastdata.data.timing import Timing
from fastdata.errors import LoaderError
from fastdata.loader.sizes import Size, sized
from fastdata.loader.slots import ALIGN, Place, Span
from fastdata.torch_private import ExceptionWrapper, shared_storage

__all__ = ["Fetch", "Reply", "Request", "as_is", "quiet_worker", "ready_to_fork"]

Array = np.ndarray[Any, np.dtype[Any]]


NO_TIME = Timing()
SET_ASIDE = gc.get_freeze_count()  # Python 3.12 begins with some objects out of the collector's sight


class Request(NamedTuple):
    """One batch of one rank.

    Attributes:
        generation: counts the loader's changes of mind; replies to an earlier generation are dropped.
        epoch, start, stop: the global batch, as places of the epoch.
        indices: of this rank's rows, int64.
        repeats: which time in this epoch the user's sampler draws each; None: the first.
        valid: rows that are real; the others repeat.
        size: stored size to read, and side of the crop.
        seed: of the loader.
        slot: where the images are to be written; None: into fresh memory.
    """

    generation: int
    epoch: int
    start: int
    stop: int
    indices: Array
    repeats: Array | None
    valid: int
    size: Size
    seed: int
    slot: int | None = None


class Reply(NamedTuple):
    """A batch on its way to the loader.

    images: whether the data are (fresh arrays, targets) of a SlotDataset; targets are None when they are the second
    array. spans: of each array, where it lies in the slot of the request; None: it is fresh. error: of a worker, for the
    loader to raise if it still wants this batch. fallbacks: rows that DALI did not decode.
    """

    request: Request
    images: bool
    spans: tuple[Span | None, ...] = ()
    work_s: float = 0.0
    timing: Timing = NO_TIME
    error: Any = None
    fallbacks: int = 0


class Fetch(torch.utils.data.Dataset[Any]):
    """A dataset that takes whole requests, as torch's DataLoader hands them to `__getitems__`.

    Args:
        dataset: what to read.
        place: where the slots are, for datasets that write into them.
        collate: makes a batch of a list of items, for others; None: torch's default_collate.
    """

    def __init__(self, dataset: Any, place: Place | None = None, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset, self.place, self._collate = dataset, place, collate or default_collate
        self._sized: dict[Size, Any] = {}

    def __getitems__(self, request: Request) -> tuple[Reply, Any]:
        started = time.perf_counter()
        try:
            reply, data = self._images(request) if isinstance(self.dataset, SlotDataset) else self._items(request)
        except Exception as error:
            if get_worker_info() is None:
                raise
            reply, data = Reply(request, images=False, error=_wrapped(error)), None
        return reply._replace(work_s=time.perf_counter() - started), data

    def _images(self, request: Request) -> tuple[Reply, Any]:
        timing, spans, fresh = Timing(), list[Span | None](), list[torch.Tensor]()

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            used = max((span.stop for span in spans if span), default=0)
            span = Span(-(-used // ALIGN) * ALIGN, shape, dtype)
            array = None
            if request.slot is not None and self.place is not None and not fresh:  # all of a batch in its slot, or nothing
                array = self.place.array(request.slot, span)
            spans.append(None if array is None else span)
            if array is None:
                fresh.append(_empty(shape, dtype))
                array = fresh[-1].numpy()
            return array

        _, targets = self.at(request.size).read_batch(
            request.indices, seed=request.seed, epoch=request.epoch, repeats=request.repeats, allocate=allocate, timing=timing
        )
        return Reply(request, images=True, spans=tuple(spans), timing=timing), (fresh, targets if len(spans) == 1 else None)

    def _items(self, request: Request) -> tuple[Reply, Any]:
        indices = request.indices.tolist()
        seeds = loose_seeds(request.seed, request.epoch, repeated(request.indices, request.repeats))
        with lent_generators() as reseed:
            if hasattr(self.dataset, "__getitems__"):  # takes the batch as one, so its random numbers depend on the batch
                reseed(seeds[0])
                items = self.dataset.__getitems__(indices)
            else:
                items = []
                for index, seed in zip(indices, seeds, strict=True):
                    reseed(seed)
                    items.append(self.dataset[index])
        return Reply(request, images=False), self._collate(items)

    def at(self, size: Size) -> Any:
        """The dataset with that size."""
        if size not in self._sized:
            self._sized[size] = sized(self.dataset, size)
        return self._sized[size]


def _wrapped(error: Exception) -> ExceptionWrapper:
    """The error for its way to the loader; one whose class can't make it there would be lost, and the loader wait for ever."""
    where = "in a worker of fastdata's Loader"
    try:
        pickle.dumps(type(error))
    except Exception:  # noqa: BLE001  whatever a user's class does
        told = LoaderError("".join(traceback.format_exception(error)))
        return ExceptionWrapper((LoaderError, told, None), where)  # type: ignore[no-untyped-call]
    return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """A tensor; in a worker, in shared memory, as torch's own default_collate does it."""
    kind, size = torch.from_numpy(np.empty(0, dtype)).dtype, dtype.itemsize * int(np.prod(shape))
    if get_worker_info() is None:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.empty(0, dtype=kind, device="cpu").set_(shared_storage(size)).view(shape)


def as_is(data: Any) -> Any:
    """The batches are made: nothing is left to collate."""
    return data


def quiet_worker(_: int) -> None:
    """One thread a worker: the workers are the parallelism."""
    cv2.setNumThreads(1)


@contextmanager
def ready_to_fork() -> Iterator[None]:
    """For the time of a fork: the marks of the garbage collector would give each child a copy of the pages of all objects."""
    frozen = gc.get_freeze_count() > SET_ASIDE
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
