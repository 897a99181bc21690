"""The largest batch that fits into memory, found by trying."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable

import torch

__all__ = ["largest_batch"]

# Parts of the messages of PyTorch's allocators: CUDA's, the CPU's on Linux and on Windows, C++'s, cuDNN's and cuBLAS's.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "_alloc_failed")


def largest_batch(step: Callable[[int], object], *, start: int = 1, limit: int = 65536) -> int:
    """Find the largest batch size with which one training step runs: double it until memory runs out, then bisect.

    Run this once, by hand. Do not train with exactly this number: in a long run memory fragments, samples differ in size, and
    evaluation or another program needs some too. Take about nine tenths of it, rounded down to a multiple of 8 (or of 64), which
    suits the kernels: ``largest_batch(step) * 9 // 80 * 8``.

    The step must do everything that training does: forward, backward and the optimizer, with the same precision, compilation and
    channels_last. It really trains the model, so make another one for training. `start` runs twice, because the first step of an
    optimizer allocates its state only at the end. If a batch fits, smaller ones are assumed to fit. On several GPUs each process
    finds its own number; use the smallest.

    After a failed step, its tensors and the allocator's cache are freed.

    Args:
        step: called with a batch size; runs one step with that many samples. Its result is dropped.
        start: the first batch size.
        limit: the largest batch size to try.

    Returns:
        The batch size, at most `limit`.

    Raises:
        ValueError: not 1 <= start <= limit.
        MemoryError: `start` does not fit.

    Other exceptions of the step propagate.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"start and limit must be 1 <= start <= limit, found start={start} and limit={limit}")
    if failure := _memory_error(step, start) or _memory_error(step, start):
        advice = "pass a smaller start" if start > 1 else "make the model or the samples smaller, or use lower precision"
        raise MemoryError(f"a step with a batch of {start} must fit, found {failure!r}: {advice}")
    fits, fails = start, limit + 1
    while fails - fits > 1:
        size = min(2 * fits, limit) if fails > limit else (fits + fails) // 2
        fits, fails = (fits, size) if _memory_error(step, size) else (size, fails)
    return fits


def _memory_error(step: Callable[[int], object], size: int) -> str | None:
    """Run one step and free its memory; return the error message if memory ran out, else None."""
    message = None
    try:
        step(size)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        message = (str(error).splitlines() or [""])[0] or type(error).__name__
        _clear(error)
    gc.collect()
    torch.cuda.empty_cache()  # does nothing if CUDA is not in use
    return message


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in _MESSAGES)


def _clear(error: BaseException | None) -> None:
    """Clear the variables of the failed calls: a logger or a debugger may keep the exception, which would keep them."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
        for earlier in {error.__context__, error.__cause__}:
            _clear(earlier)
