"""The engine of `Loader(backend="dali")`: the same batches, decoded by NVIDIA DALI."""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import Any, NamedTuple

import torch

from fastdata.data.targets import to_tensors
from fastdata.data.timing import Timing
from fastdata.errors import FastDataError
from fastdata.gpu.streams import numbered
from fastdata.images.dataset import ImageDataset
from fastdata.images.encoded import EncodedBatch
from fastdata.loader.dali_decoder import DaliDecoder, import_dali
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Fetch, Reply, Request
from fastdata.loader.requests import Source

__all__ = ["Dali", "check_dali", "why_not_dali"]

CUT_ON_CPU = True  # cut JPEGs before DALI decodes them: its decoder reads a whole JPEG for any part of it
CUT_ON_GPU = True


def why_not_dali(dataset: Any) -> str | None:
    """Return why DALI cannot decode the images of this dataset; None: it can."""
    return dataset.no_jpegs() if isinstance(dataset, ImageDataset) else f"a {type(dataset).__name__} has no images"


def check_dali(dataset: Any, backend: str = "dali") -> None:
    """Check that DALI is installed and can decode the images of this dataset.

    Raises:
        ValueError: DALI cannot decode them.
        MissingExtraError: DALI is not installed.
    """
    if reason := why_not_dali(dataset):
        raise ValueError(f'backend is "{backend}", but DALI cannot decode this dataset: {reason}; use backend="torch"')
    import_dali()


class _Pending(NamedTuple):
    """A request; its batch, None if it cannot be made; and the rows that DALI decodes."""

    request: Request
    batch: EncodedBatch | None
    rows: list[int]


class Dali(Engine):
    """DALI, decoding some batches ahead in threads of this process.

    This process itself decodes what DALI cannot: images that are not such JPEGs, and all of a batch that DALI failed at.

    Args:
        dataset: a dataset of images stored as JPEGs.
        requests: the requests, in order.
        rows: the most samples of a batch.
        num_workers: DALI's threads; 0 counts as 1.
        prefetch_factor: batches that are made ahead.
        pin_memory: page-lock batches on the CPU, if there is a GPU.
        device: where the batches are made.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        requests: Source,
        rows: int,
        num_workers: int,
        prefetch_factor: int,
        *,
        pin_memory: bool,
        device: torch.device | None,
    ) -> None:
        check_dali(dataset)  # a transform may have been set since the loader was made
        self._device = numbered(device) if device is not None and device.type == "cuda" else None
        self._pin = pin_memory and self._device is None and torch.cuda.is_available()
        self._cut = CUT_ON_CPU if self._device is None else CUT_ON_GPU
        self._fetch = Fetch(dataset)
        self._requests = iter(requests)
        self._ahead = prefetch_factor
        self._decoder_args = dataset.views.each[0], dataset.channels, rows, max(num_workers, 1), self._device
        self._decoder: DaliDecoder | None = None
        self._pending: deque[_Pending] = deque()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation: (images [n, C, H, W], targets)."""
        started = time.perf_counter()
        while self._pending and self._pending[0].request.generation != generation:
            self._decode(self._pending.popleft())  # to discard it: DALI returns batches in order
        while len(self._pending) <= self._ahead:
            self._prepare(next(self._requests))
        prepared = time.perf_counter() - started
        pending = self._pending.popleft()
        images = self._decode(pending)
        started = time.perf_counter()
        reply, batch = self._complete(pending, images)
        return reply._replace(images=False, work_s=prepared + time.perf_counter() - started), batch

    def _prepare(self, request: Request) -> None:
        """Submit a batch to DALI. An error in it is raised when the batch is received."""
        dataset = self._fetch.at(request.size)
        try:
            batch = dataset.encode_batch(
                request.indices, seed=request.seed, epoch=request.epoch, repeats=request.repeats, cut=self._cut
            )
        except FastDataError:
            batch = None
        rows = [k for k, jpeg in enumerate(batch.jpegs) if jpeg is not None] if batch else []
        self._pending.append(_Pending(request, batch, rows))
        self._submit(self._pending[-1])

    def _submit(self, pending: _Pending) -> None:
        if pending.batch and pending.rows:
            self._decoder = self._decoder or DaliDecoder(*self._decoder_args)
            self._decoder.submit([pending.batch.jpegs[k] for k in pending.rows], [pending.batch.plan[k] for k in pending.rows])

    def _decode(self, pending: _Pending) -> torch.Tensor | None:
        """Return the rows that DALI decoded, [rows, H, W, C]; None: there are none."""
        if not pending.batch or not pending.rows or not self._decoder:
            return None
        try:
            return self._decoder.take((len(pending.rows), *pending.batch.shape))
        except Exception as error:  # noqa: BLE001  DALI has no errors of its own
            why = " ".join(str(error).split())
        self._end()  # a pipeline must not be used after an error
        for later in self._pending:
            self._submit(later)
        warnings.warn(f"DALI could not decode a batch, which the CPU decodes instead: {why}", RuntimeWarning, stacklevel=2)
        return None

    def _complete(self, pending: _Pending, images: torch.Tensor | None) -> tuple[Reply, Any]:
        """Return the batch, with the rows that DALI did not decode added."""
        request, batch = pending.request, pending.batch
        if batch is None or images is None:
            reply, (fresh, targets) = self._fetch.__getitems__(request)
            images = self._to_device(fresh[0])
            fallbacks = len(request.indices)
            timing = reply.timing
        else:
            rest = sorted(set(range(len(batch.plan))) - set(pending.rows))
            timing = Timing()
            if rest:
                whole = images.new_empty((len(batch.plan), *batch.shape))
                whole.index_copy_(0, self._to_device(torch.tensor(pending.rows)), images)
                rendered = torch.from_numpy(batch.render(rest, timing))
                images = whole.index_copy_(0, self._to_device(torch.tensor(rest)), self._to_device(rendered))
            targets = batch.targets
            fallbacks = len(rest)
        images = images.pin_memory() if self._pin else images
        reply = Reply(request, images=True, timing=timing, fallbacks=fallbacks)
        return reply, (images.permute(0, 3, 1, 2), to_tensors(targets))

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the device; the host does not wait."""
        return tensor if self._device is None else tensor.pin_memory().to(self._device, non_blocking=True)

    def _end(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None

    def close(self) -> None:
        """End DALI's threads. Batches still held keep their memory."""
        self._end()
        self._pending.clear()
