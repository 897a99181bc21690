"""How fast storage delivers: bytes that are not in memory, with one reader and with several, and bytes that are."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["READERS", "Span", "Storage", "measure_storage"]

READERS = 8
FOLIO = 2 << 20  # the kernel drops whole folios only, which are up to 2 MiB large


class Span(NamedTuple):
    """Bytes of a file that are read for one sample."""

    path: str
    start: int
    length: int


@dataclass(frozen=True)
class Storage:
    """Seconds to read the bytes of one sample.

    Attributes:
        sample_bytes: the bytes of a sample, on average.
        data_bytes: the bytes of all samples; None: unknown.
        warm_s: if they are in memory.
        cold_s: if they are not, with one reader; None: they could not be removed from memory, as on tmpfs.
        many_s: the same per sample, with READERS readers at once.
    """

    sample_bytes: float
    data_bytes: float | None
    warm_s: float
    cold_s: float | None
    many_s: float | None

    def misses(self, memory: float, sample_bytes: float, data_bytes: float | None) -> tuple[float, float]:
        """Return the seconds for which a sample waits for storage, with one reader and with several, once all was read.

        Args:
            memory: bytes for the page cache.
            sample_bytes, data_bytes: of the data, which may be others than those that were measured.
        """
        if self.cold_s is None or not data_bytes:
            return 0.0, 0.0
        share = max(0.0, 1 - memory / data_bytes) * sample_bytes / self.sample_bytes
        return share * self.cold_s, share * min(self.many_s or self.cold_s, self.cold_s)


def measure_storage(spans: Sequence[Span], data_bytes: float | None, seconds: float) -> Storage | None:
    """Read spans that were removed from memory, then the same again. Return None if none can be read.

    Only these places are removed: others that use the files read them again from the disk.
    """
    spans = [span for span in spans if span.length > 0 and os.path.isfile(span.path)]
    if not spans:
        return None
    cold = [span for span in spans if _evict(span)]
    first, second = cold[::2], cold[1::2]
    one = _read_all(first, 1, seconds / 3)
    many = _read_all(second, READERS, seconds / 3)
    for span in spans:
        _read(span)
    warm = _read_all(spans, 1, seconds / 3)
    mean = sum(span.length for span in spans) / len(spans)
    return Storage(mean, data_bytes, warm or 0.0, one, many)


def _read_all(spans: Sequence[Span], readers: int, seconds: float) -> float | None:
    """Return the seconds for each span, reading until the time is over; None: there are none."""
    if not spans:
        return None
    started = time.perf_counter()

    def read(span: Span) -> int:
        if time.perf_counter() - started > seconds:
            return 0
        _read(span)
        return 1

    if readers == 1:
        count = sum(map(read, spans))
    else:
        with ThreadPoolExecutor(readers) as pool:
            count = sum(pool.map(read, spans))
    return (time.perf_counter() - started) / max(count, 1)


def _read(span: Span) -> None:
    descriptor = os.open(span.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if span.start and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # or it reads ahead, into other spans
        at, end = span.start, span.start + span.length
        while at < end and (data := os.pread(descriptor, end - at, at)):
            at += len(data)
    finally:
        os.close(descriptor)


def _evict(span: Span) -> bool:
    """Remove a span from the page cache. Return whether it is gone, which is not so on tmpfs, or while it is mapped."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return False
    descriptor = os.open(span.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start, stop = span.start // FOLIO * FOLIO, -(-(span.start + span.length) // FOLIO) * FOLIO
        os.fdatasync(descriptor)  # pages that are not written yet would stay
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
        os.preadv(descriptor, [bytearray(1)], span.start, os.RWF_NOWAIT)  # reads only what is in memory
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
