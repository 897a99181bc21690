"""NVIDIA DALI: JPEGs and boxes become samples, on the CPU or on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastdata.errors import needs
from fastdata.images.view import View

__all__ = ["DaliDecoder", "import_dali"]

Array = np.ndarray[Any, np.dtype[Any]]


def import_dali() -> Any:
    """The package nvidia.dali, for the CUDA that torch was built with.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needs(f"nvidia-dali-cuda{'130' if (torch.version.cuda or '').startswith('13') else '120'}"):
        import nvidia.dali.fn
    return nvidia.dali


class DaliDecoder:
    """Batches, one after the other, several of them at a time.

    A batch belongs to whoever takes it, for as long as that one likes: DALI's dynamic executor does not use its memory again before
    the tensor is gone, nor does the end of the pipeline take it away. On a GPU the batch is copied into torch's own memory there,
    so that torch's rules of streams hold for it too.

    Args:
        view: crop and flips.
        channels: 3 or 1.
        rows: the most samples of a batch.
        threads: of the CPU.
        device: None for the CPU, else a GPU.
    """

    def __init__(self, view: View, channels: int, rows: int, threads: int, device: torch.device | None) -> None:
        dali = import_dali()
        self._device = device
        number = None if device is None else torch.cuda.current_device() if device.index is None else device.index
        # The dynamic executor takes any number of runs ahead; a deeper queue would only ask to be filled before the first one.
        executor = {"exec_dynamic": True, "prefetch_queue_depth": 1}
        self._pipe: Any = dali.Pipeline(batch_size=rows, num_threads=threads, device_id=number, **executor)
        with self._pipe:
            self._inputs = _graph(dali, self._pipe, view, channels, device is not None)
        self._pipe.build()
        self._fed: deque[Any] = deque()  # what DALI reads from, of batches that are not taken yet
        self._copying: deque[tuple[torch.cuda.Event, Any]] = deque()

    def submit(self, jpegs: Sequence[Any], plan: Sequence[Any]) -> None:
        """Begin with a batch: JPEGs that hold the windows of samples (`EncodedBatch`)."""
        data = [jpeg.data for jpeg in jpegs]
        for name, made in self._inputs.items():
            self._pipe.feed_input(name, data if made is None else made(jpegs, plan))
        self._fed.append(data)
        self._pipe.schedule_run()

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The batch that was submitted first, uint8 [n, H, W, C], if that is its shape.

        Raises:
            Exception: DALI could not decode it. The decoder is of no use any more.
        """
        stream = None if self._device is None else torch.cuda.current_stream(self._device)
        (out,) = self._pipe.share_outputs(cuda_stream=stream)  # the stream waits for the GPU, on the CPU the host for its threads
        fed = self._fed.popleft()
        lent: torch.Tensor = torch.utils.dlpack.from_dlpack(out.as_tensor())
        self._pipe.release_outputs()
        if lent.shape != shape:
            raise ValueError(f"DALI made {list(lent.shape)}, where {list(shape)} was expected")
        return lent if self._device is None else self._copied(lent, fed)

    def _copied(self, lent: torch.Tensor, fed: Any) -> torch.Tensor:
        """On the GPU, in torch's memory; what was lent is kept until it is read, and what it was made of until it is made."""
        while self._copying and self._copying[0][0].query():  # type: ignore[no-untyped-call]
            self._copying.popleft()
        copy, event = lent.clone(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(lent.device))
        self._copying.append((event, (lent, fed)))
        return copy

    def close(self) -> None:
        """End the threads, and wait (host sync) for copies that are under way."""
        while self._copying:
            self._copying.popleft()[0].synchronize()
        self._pipe = None  # waits for what it is doing
        self._fed.clear()


Input = Callable[[Sequence[Any], Sequence[Any]], Array]


def _graph(dali: Any, pipe: Any, view: View, channels: int, gpu: bool) -> dict[str, Input | None]:
    """Define what DALI does; returns its inputs, and how each is made of JPEGs and samples."""
    fn, types = dali.fn, dali.types
    crop, inputs = view.crop, dict[str, Input | None]()
    fast = crop is not None and crop.fast

    def given(name: str, made: Input | None) -> Any:
        inputs[name] = made
        return fn.external_source(name=name, no_copy=made is None)

    jpeg = given("jpeg", None)
    options = {
        "device": "mixed" if gpu else "cpu",
        "output_type": types.RGB if channels == 3 else types.GRAY,
        "use_fast_idct": fast,
        "jpeg_fancy_upsampling": not fast,
        "adjust_orientation": False,
    }
    if crop is None:
        images = fn.decoders.image(jpeg, **options)
    else:
        start, shape = given("start", _starts), given("shape", _shapes)
        images = fn.decoders.image_slice(jpeg, start, shape, axis_names="HW", **options)
    if crop is not None and crop.reaches_outside:
        box = {"start": given("offset", _offsets), "shape": given("size", _sizes), "axes": (0, 1)}
        images = fn.slice(images, **box, out_of_bounds_policy="pad", fill_values=0)
    elif crop is not None and crop.resizes:
        size = given("sides", lambda jpegs, plan: np.array([sample.shape for sample in plan], np.float32))
        images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=crop.antialias)
    if view.hflip or view.vflip:
        across = given("across", lambda jpegs, plan: np.array([sample.flip[0] for sample in plan], np.int32))
        down = given("down", lambda jpegs, plan: np.array([sample.flip[1] for sample in plan], np.int32))
        images = fn.flip(images, horizontal=across, vertical=down)
    pipe.set_outputs(images)
    return inputs


def _starts(jpegs: Sequence[Any], plan: Sequence[Any]) -> Array:
    """Where the windows begin in the JPEGs."""
    pairs = [(s.window.top - j.top, s.window.left - j.left) for j, s in zip(jpegs, plan, strict=True)]
    return np.array(pairs, np.int32)


def _shapes(jpegs: Sequence[Any], plan: Sequence[Any]) -> Array:
    return np.array([sample.window[2:4] for sample in plan], np.int32)


def _offsets(jpegs: Sequence[Any], plan: Sequence[Any]) -> Array:
    """Where the boxes begin in the windows: below 0 where they reach beyond the image."""
    return np.array([(s.box[0] - s.window.top, s.box[1] - s.window.left) for s in plan], np.int32)


def _sizes(jpegs: Sequence[Any], plan: Sequence[Any]) -> Array:
    return np.array([sample.box[2:] for sample in plan], np.int32)
