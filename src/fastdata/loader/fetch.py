"""Makes a batch for a request; runs in the workers."""

from __future__ import annotations

import math
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.ma  # numpy loads this and numpy.random at their first use: here once, and not in each worker
import numpy.random
import torch
from torch.utils.data import default_collate, get_worker_info

from fastdata.data.dataset import SlotDataset, Timing
from fastdata.data.random import isolated_global_rngs, repeated, seeds_for_user_code
from fastdata.errors import LoaderError
from fastdata.loader.slots import ALIGN, Span
from fastdata.system.shared_memory import SharedArray
from fastdata.system.torch_private import ExceptionWrapper, shared_storage
from fastdata.types import Array

NO_TIME = Timing()


class Size(NamedTuple):
    """A stored size of the store, and the side of the crop's output, or None for the dataset's own."""

    stored: int | None = None
    crop: int | None = None


def sized(dataset: Any, size: Size) -> Any:
    """Return the dataset with that size.

    Raises:
        TypeError: the dataset has no sizes.
        ValueError: the dataset has no crop.
    """
    if size != Size() and not isinstance(dataset, SlotDataset):
        raise TypeError(f"a schedule needs one of fastdata's datasets of images, but the dataset is a {type(dataset).__name__}")
    if size.stored is not None:
        dataset = dataset.with_size(size.stored)
    return dataset if size.crop is None else dataset.with_crop_size(size.crop)


class Request(NamedTuple):
    """One batch of one rank.

    Attributes:
        generation: the number of the loader's restarts; replies to an earlier generation are dropped.
        epoch, start, stop: the global batch, as positions in the epoch.
        indices: this rank's rows, int64.
        repeats: how often a user's sampler drew each index before in this epoch, or None for never.
        valid: the number of real rows; the others repeat samples.
        size: the stored size to read, and the side of the crop.
        seed: the loader's seed.
        slot: where to write the images, or None for fresh memory.
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
    """Describes the batch sent with it. A SlotDataset sends (arrays outside the slot, targets or, if an array holds them, None).

    Attributes:
        request: the request that it answers.
        spans: where the first arrays lie in the request's slot; the other arrays lie outside.
        work_s: seconds that making the batch took.
        timing: the parts of `work_s`.
        error: a worker's error, for the loader to raise if it still wants this batch.
    """

    request: Request
    spans: tuple[Span, ...] = ()
    work_s: float = 0.0
    timing: Timing = NO_TIME
    error: Any = None


class Fetch(torch.utils.data.Dataset[Any]):
    """A dataset whose `__getitems__` takes a whole request from torch's DataLoader.

    Args:
        dataset: the dataset to read.
        slots: the memory of the slots, for datasets that write into it.
        collate: makes a batch of a list of items, for other datasets.
    """

    def __init__(
        self, dataset: Any, slots: SharedArray | None = None, collate: Callable[[list[Any]], Any] = default_collate
    ) -> None:
        self._dataset = dataset
        self._slots = slots
        self._collate = collate
        self._sized: dict[Size, Any] = {}

    def __getitems__(self, request: Request) -> tuple[Reply, Any]:
        started = time.perf_counter()
        try:
            reply, data = self._images(request) if isinstance(self._dataset, SlotDataset) else self._items(request)
            if get_worker_info() is not None:
                data = _Pickled(data)
        except BaseException as error:  # also SystemExit and Rust's panics, which would end the worker without a word
            if get_worker_info() is None:
                raise
            reply, data = Reply(request, error=_wrap_error(error)), None
        return reply._replace(work_s=time.perf_counter() - started), data

    def _images(self, request: Request) -> tuple[Reply, Any]:
        timing = Timing()
        spans = list[Span]()
        fresh = list[torch.Tensor]()

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            span = Span(-(-spans[-1].stop // ALIGN) * ALIGN if spans else 0, shape, dtype)
            if request.slot is not None and self._slots is not None and not fresh:  # nothing follows what did not fit
                array = span.of(self._slots.array[request.slot])
                if array is not None:
                    spans.append(span)
                    return array
            fresh.append(_empty(shape, dtype))
            return fresh[-1].numpy()

        dataset = self.at(request.size)
        _, targets = dataset.read_batch(
            request.indices, seed=request.seed, epoch=request.epoch, repeats=request.repeats, allocate=allocate, timing=timing
        )
        return Reply(request, spans=tuple(spans), timing=timing), (fresh, None if dataset.large_targets else targets)

    def _items(self, request: Request) -> tuple[Reply, Any]:
        indices = request.indices.tolist()
        seeds = seeds_for_user_code(request.seed, request.epoch, repeated(request.indices, request.repeats))
        with isolated_global_rngs() as reseed:
            if hasattr(self._dataset, "__getitems__"):  # one call, so random numbers depend on the batch
                reseed(seeds[0])
                items = self._dataset.__getitems__(indices)
            else:
                items = []
                for index, seed in zip(indices, seeds, strict=True):
                    reseed(seed)
                    items.append(self._dataset[index])
        return Reply(request), self._collate(items)

    def at(self, size: Size) -> Any:
        """Return the dataset with that size."""
        if size not in self._sized:
            self._sized[size] = sized(self._dataset, size)
        return self._sized[size]


class _Pickled:
    """Data pickled before it enters a queue: the queue's thread would lose an error in pickling."""

    def __init__(self, data: Any) -> None:
        self._bytes = bytes(ForkingPickler.dumps(data))

    def __reduce__(self) -> Any:
        return pickle.loads, (self._bytes,)


def _wrap_error(error: BaseException) -> ExceptionWrapper:
    """Wrap an error for another process. Use LoaderError for a class that cannot be pickled or would end that process."""
    try:
        known = isinstance(error, Exception) and bool(pickle.dumps(type(error)))
    except Exception:  # noqa: BLE001  whatever a user's class does
        known = False
    instead = None if known else (LoaderError, LoaderError("".join(traceback.format_exception(error))), None)
    return ExceptionWrapper(instead, "in a worker of fastdata's Loader")  # type: ignore[no-untyped-call]


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """Allocate a tensor; in a worker, in shared memory, as torch's default_collate does."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    if get_worker_info() is None:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.empty(0, dtype=kind, device="cpu").set_(shared_storage(dtype.itemsize * math.prod(shape))).view(shape)


def as_is(data: Any) -> Any:
    """Collate nothing: batches arrive complete."""
    return data


def quiet_worker(_: int) -> None:
    """Use one OpenCV thread in a worker: the workers already run in parallel."""
    cv2.setNumThreads(1)
