"""The engine of `Loader(backend="dali")`: the same batches, decoded by NVIDIA DALI."""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import Any, NamedTuple

import torch

from fastdata.data.timing import Timing
from fastdata.errors import FastDataError
from fastdata.images.dataset import ImageDataset
from fastdata.images.encoded import EncodedBatch
from fastdata.loader.dali_decoder import DaliDecoder, import_dali
from fastdata.loader.fetch import Fetch, Reply, Request
from fastdata.loader.requests import Source
from fastdata.loader.slots import Slots

__all__ = ["Dali", "check_dali", "why_not_dali"]

CUT_ON_CPU = True  # cut JPEGs before DALI decodes them: its own decoder reads all of a JPEG, whatever part of it is wanted
CUT_ON_GPU = True


def why_not_dali(dataset: Any) -> str | None:
    """Why DALI can't decode the images of this dataset; None: it can."""
    return dataset.no_jpegs() if isinstance(dataset, ImageDataset) else f"a {type(dataset).__name__} has no images"


def check_dali(dataset: Any, backend: str = "dali") -> None:
    """Raises unless DALI is there and can decode the images of this dataset.

    Raises:
        ValueError: it can't.
        MissingExtraError: DALI is not installed.
    """
    if reason := why_not_dali(dataset):
        raise ValueError(
            f'backend is "{backend}", and DALI decodes JPEGs, but of this dataset it can\'t: {reason}; use backend="torch"'
        )
    import_dali()


class _Pending(NamedTuple):
    """A request; its batch, None where it can't be made; and the rows of it that DALI decodes."""

    request: Request
    batch: EncodedBatch | None
    rows: list[int]


class Dali:
    """DALI at work on some batches ahead, in threads of this process.

    What it can't decode, this process decodes itself: single images of other kinds, and the whole of a batch that DALI failed at.

    Args:
        dataset: of images, held as JPEGs.
        requests: what is asked for, in order.
        rows: the most samples of a batch.
        num_workers: threads; 0 counts as 1.
        prefetch_factor: batches that are made ahead.
        pin_memory: page-lock batches on the CPU, where there is a GPU.
        device: where the batches are made.
    """

    slots: Slots | None = None

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
        check_dali(dataset)  # it may have got a transform since the loader was made
        self._device = device if device is not None and device.type == "cuda" else None
        self._pin = pin_memory and self._device is None and torch.cuda.is_available()
        self._cut = CUT_ON_CPU if self._device is None else CUT_ON_GPU
        self._fetch, self._requests, self._ahead = Fetch(dataset), iter(requests), prefetch_factor
        self._made_of = dataset.view, dataset.channels, rows, max(num_workers, 1), self._device
        self._decoder: DaliDecoder | None = None
        self._pending: deque[_Pending] = deque()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation: (images [n, C, H, W], targets)."""
        started = time.perf_counter()
        while self._pending and self._pending[0].request.generation != generation:
            self._drop(self._pending.popleft())
        while len(self._pending) <= self._ahead:
            self._prepare(next(self._requests))
        prepared = time.perf_counter() - started
        pending = self._pending.popleft()
        images = self._decoded(pending)
        started = time.perf_counter()
        reply, made = self._completed(pending, images)
        return reply._replace(images=False, work_s=prepared + time.perf_counter() - started), made

    def _prepare(self, request: Request) -> None:
        """Let DALI begin with a batch. What is wrong with it comes to light when its turn has come."""
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
            self._decoder = self._decoder or DaliDecoder(*self._made_of)
            self._decoder.submit([pending.batch.jpegs[k] for k in pending.rows], [pending.batch.plan[k] for k in pending.rows])

    def _decoded(self, pending: _Pending) -> torch.Tensor | None:
        """What DALI made of a batch, [rows, H, W, C]; None: nothing."""
        if not pending.batch or not pending.rows or not self._decoder:
            return None
        try:
            return self._decoder.take((len(pending.rows), *pending.batch.shape))
        except Exception as error:  # noqa: BLE001  DALI has no errors of its own
            why = " ".join(str(error).split())
        self._end()  # it may not be used after an error
        for later in self._pending:
            self._submit(later)
        warnings.warn(f"DALI could not decode a batch, which the CPU decodes instead: {why}", RuntimeWarning, stacklevel=2)
        return None

    def _completed(self, pending: _Pending, images: torch.Tensor | None) -> tuple[Reply, Any]:
        """The batch with the rows that DALI did not make."""
        request, batch = pending.request, pending.batch
        if batch is None or images is None:
            reply, (fresh, targets) = self._fetch.__getitems__(request)
            images, fallbacks, timing = self._sent(fresh[0]), len(request.indices), reply.timing
        else:
            rest, timing = sorted(set(range(len(batch.plan))) - set(pending.rows)), Timing()
            if rest:
                whole = images.new_empty((len(batch.plan), *batch.shape))
                whole.index_copy_(0, self._sent(torch.tensor(pending.rows)), images)
                rendered = torch.from_numpy(batch.render(rest, timing))
                images = whole.index_copy_(0, self._sent(torch.tensor(rest)), self._sent(rendered))
            targets, fallbacks = batch.targets, len(rest)
        images = images.pin_memory() if self._pin else images
        reply = Reply(request, images=True, timing=timing, fallbacks=fallbacks)
        return reply, (images.permute(0, 3, 1, 2), torch.from_numpy(targets))

    def _sent(self, made: torch.Tensor) -> torch.Tensor:
        """On the device; the host does not wait."""
        return made if self._device is None else made.pin_memory().to(self._device, non_blocking=True)

    def _drop(self, pending: _Pending) -> None:
        """Let go of a batch that nobody wants any more."""
        if self._decoder and pending.batch and pending.rows:
            self._decoded(pending)

    def ready(self) -> bool:
        """Nobody can tell; and images are made on the device, so nothing is gained by asking for them early."""
        return False

    def alive(self) -> bool:
        return True

    def died(self, error: BaseException) -> bool:
        return False

    def _end(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None

    def close(self) -> None:
        """End DALI's threads. Batches that are still held keep their memory."""
        self._end()
        self._pending.clear()
