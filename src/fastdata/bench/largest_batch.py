"""The largest batch that fits into memory, found by trying."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable

import torch

__all__ = ["largest_batch"]

# What allocators of PyTorch say: CUDA's, the CPU's on Linux and on Windows, C++'s, cuDNN's and cuBLAS's.
_SAYINGS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "_alloc_failed")


def largest_batch(step: Callable[[int], object], *, start: int = 1, limit: int = 65536) -> int:
    """Finds the largest batch with which one training step runs, to the sample: doubles until memory runs out, then bisects.

    A probe to be run once, by hand; nothing is retried behind your back in training. Don't train with exactly this number: in
    a long run memory fragments, samples differ in size, and evaluation or another program wants some too. Take about nine
    tenths of it, rounded down to a multiple of 8 (or of 64), which suits the kernels: ``largest_batch(step) * 9 // 80 * 8``.

    The step shall do all that training does: forward, backward, the optimizer, with the precision, compilation and
    channels_last that will be used. It really trains the model: make another one for training. `start` runs twice, as the first
    step of an optimizer allocates its state only at the end. That a batch fits is taken to mean that smaller ones do.
    On several GPUs each process finds its own number; use the least.

    Between trials the failed step's tensors and the allocator's cache are freed.

    Args:
        step: Called with a batch size; runs one step with so many samples. What it returns is dropped.
        start: The first batch size.
        limit: The greatest one that is tried.

    Returns:
        The batch size, at most `limit`.

    Raises:
        ValueError: `start` or `limit` are not 1 <= start <= limit.
        MemoryError: `start` does not fit.

    Any other exception of the step is passed on as it is.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"start and limit must be 1 <= start <= limit, found start={start} and limit={limit}")
    if said := _refused(step, start) or _refused(step, start):
        advice = "pass a smaller start" if start > 1 else "make the model or the samples smaller, or use lower precision"
        raise MemoryError(f"a step with a batch of {start} must fit, found {said!r}: {advice}")
    fits, fails = start, limit + 1
    while fails - fits > 1:
        size = min(2 * fits, limit) if fails > limit else (fits + fails) // 2
        fits, fails = (fits, size) if _refused(step, size) else (size, fails)
    return fits


def _refused(step: Callable[[int], object], size: int) -> str | None:
    """Runs one step, and frees what it left; what was said when memory ran out, or None."""
    said = None
    try:
        step(size)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        _clear(error)
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return said


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in _SAYINGS)


def _clear(error: BaseException | None) -> None:
    """Forgets the variables of the failed calls: a logger or a debugger may keep the exception, which keeps them."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
        for earlier in {error.__context__, error.__cause__}:
            _clear(earlier)
