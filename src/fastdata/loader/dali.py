"""The engine of `Loader(backend="dali")`: the same samples, decoded by NVIDIA DALI."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastdata.data.targets import to_tensors
from fastdata.errors import FastDataError, LoaderError, needs
from fastdata.gpu.copies import numbered
from fastdata.images.dataset import ImageDataset
from fastdata.images.view import EncodedBatch, Sample, View
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Fetch, Reply, Request
from fastdata.loader.requests import Requests
from fastdata.types import Array

HARDWARE_SHARE = 0.9  # of a batch, for the JPEG decoders of data centre GPUs; threads take the rest (benchmarks/LOG.md)


def import_dali(dataset: Any) -> Any:
    """Import the package nvidia.dali, for the CUDA that torch was built with, to decode the images of a dataset.

    Raises:
        ValueError: DALI cannot decode them.
        MissingExtraError: DALI is not installed.
    """
    if reason := dataset.no_jpegs() if isinstance(dataset, ImageDataset) else f"a {type(dataset).__name__} has no images":
        raise ValueError(f'backend is "dali", but DALI cannot decode this dataset: {reason}; use backend="torch"')
    with needs(f"nvidia-dali-cuda{'130' if (torch.version.cuda or '').startswith('13') else '120'}"):
        import nvidia.dali.fn
    return nvidia.dali


class Dali(Engine):
    """DALI, decoding some batches ahead in threads of this process.

    A batch stays valid while its tensor lives: DALI's dynamic executor does not reuse its memory, and the end of the pipeline does
    not free this. On a GPU the batch is copied into torch's own memory, so that torch's rules for streams hold.

    Args:
        loader: the Loader whose batches are made.
        requests: the requests, in order.
    """

    def __init__(self, loader: Any, requests: Requests) -> None:
        dataset, device = loader.dataset, loader.device
        dali = import_dali(dataset)  # which a transform may have been set on since the loader was made
        self._device = numbered(device) if device is not None and device.type == "cuda" else None
        self._pin = loader.pin_memory and self._device is None and torch.cuda.is_available()
        self._fetch = Fetch(dataset)
        self._requests = iter(requests)
        self._ahead = loader.prefetch_factor
        # The dynamic executor schedules any number of runs ahead; a deeper queue would have to be filled before the first output.
        self._pipe: Any = dali.Pipeline(
            batch_size=requests.rows(),
            num_threads=max(loader.num_workers, 1),
            device_id=None if self._device is None else self._device.index,
            exec_dynamic=True,
            prefetch_queue_depth=1,
        )
        with self._pipe:
            self._inputs = _graph(dali, self._pipe, dataset.views[0], dataset.channels, self._device is not None)
        self._pipe.build()
        self._pending = deque[tuple[Request, EncodedBatch | FastDataError, list[Array]]]()  # with the bytes that DALI reads
        self._copying = deque[tuple[torch.cuda.Event, Any]]()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation: (images [n, C, H, W], targets)."""
        started = time.perf_counter()
        while self._pending and self._pending[0][0].generation != generation:
            _, batch, fed = self._pending.popleft()
            if isinstance(batch, EncodedBatch):
                self._decode(fed)  # DALI returns batches in order
        while len(self._pending) <= self._ahead:
            self._submit(next(self._requests))
        work_s = time.perf_counter() - started
        request, batch, fed = self._pending.popleft()
        if isinstance(batch, FastDataError):
            raise batch
        images, why = None, ""
        try:
            images = self._decode(fed)
        except Exception as error:  # noqa: BLE001  DALI has no errors of its own; their tracebacks keep its threads
            why = " ".join(str(error).split())
        wanted = (len(batch.plan), *batch.shape)
        if images is None or images.shape != wanted:
            self._fetch.__getitems__(request)  # says which image cannot be decoded
            why = why or f"the batch is {list(images.shape)}, where {list(wanted)} was expected"  # type: ignore[union-attr]
            raise LoaderError(f'DALI could not decode a batch: {why}; use backend="torch", which can')
        images = images.pin_memory() if self._pin else images
        return Reply(request, work_s=work_s), (images.permute(0, 3, 1, 2), to_tensors(batch.targets))

    def _submit(self, request: Request) -> None:
        """Submit a batch to DALI. An error in it is raised when the batch is received."""
        dataset = self._fetch.at(request.size)
        try:
            batch = dataset.encode_batch(request.indices, seed=request.seed, epoch=request.epoch, repeats=request.repeats)
        except FastDataError as error:
            self._pending.append((request, error.with_traceback(None), []))
            return
        jpegs = [np.frombuffer(jpeg, np.uint8) for jpeg in batch.jpegs]
        for name, make in self._inputs.items():
            self._pipe.feed_input(name, jpegs if make is None else make(batch.plan))
        self._pending.append((request, batch, jpegs))
        self._pipe.schedule_run()

    def _decode(self, fed: list[Array]) -> torch.Tensor:
        """Return the oldest submitted batch, uint8 [n, H, W, C]. On a GPU the current stream waits for it; the host does not."""
        stream = None if self._device is None else torch.cuda.current_stream(self._device)
        (out,) = self._pipe.share_outputs(cuda_stream=stream)
        batch: torch.Tensor = torch.utils.dlpack.from_dlpack(out.as_tensor())
        self._pipe.release_outputs()
        if stream is None:
            return batch
        while self._copying and self._copying[0][0].query():  # type: ignore[no-untyped-call]
            self._copying.popleft()
        copy = batch.clone()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        self._copying.append((event, (batch, fed)))  # kept until the copy is done
        return copy

    def close(self) -> None:
        """End DALI's threads, and wait for pending copies (host sync). Batches still held keep their memory."""
        while self._copying:
            self._copying.popleft()[0].synchronize()
        self._pipe = None  # which waits for running work
        self._pending.clear()


def _graph(dali: Any, pipe: Any, view: View, channels: int, gpu: bool) -> dict[str, Callable[[Sequence[Sample]], Array] | None]:
    """Define the pipeline. Return its inputs, each with the function that makes it from samples, or None for the JPEGs."""
    fn, types = dali.fn, dali.types
    crop = view.crop
    fast = crop is not None and crop.fast
    inputs = dict[str, Callable[[Sequence[Sample]], Array] | None]()

    def source(name: str, of_each: Callable[[Sample], Any] | None, dtype: Any = np.int32) -> Any:
        """Add an input: a value for each sample, or the JPEGs themselves."""
        inputs[name] = None if of_each is None else lambda plan: np.array([*map(of_each, plan)], dtype)
        return fn.external_source(name=name, no_copy=of_each is None)

    jpeg = source("jpeg", None)
    options = {
        "device": "mixed" if gpu else "cpu",
        "output_type": types.RGB if channels == 3 else types.GRAY,
        "use_fast_idct": fast,
        "jpeg_fancy_upsampling": not fast,
        "adjust_orientation": False,
        "hw_decoder_load": HARDWARE_SHARE,
    }
    images = fn.decoders.image(jpeg, **options)
    if crop is not None:  # The decoder would cut, too, but on a GPU it does so slowly if it interpolates colours
        start = source("start", lambda sample: sample.box[:2])
        shape = source("shape", lambda sample: sample.box[2:])
        images = fn.slice(images, start=start, shape=shape, axes=(0, 1), out_of_bounds_policy="pad", fill_values=0)
    if crop is not None and crop.resizes:
        size = source("sides", lambda sample: sample.shape, np.float32)
        images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=crop.antialias)
    if view.hflip or view.vflip:
        across = source("across", lambda sample: sample.flip[0])
        down = source("down", lambda sample: sample.flip[1])
        images = fn.flip(images, horizontal=across, vertical=down)
    pipe.set_outputs(images)
    return inputs
