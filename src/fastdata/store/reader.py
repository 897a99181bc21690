"""Random access to the records of a variant: shards are mapped, and an index says where each record lies in them."""

from __future__ import annotations

import mmap
import resource
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import FormatError, StoreError, lacking
from fastdata.store.files import FileSum, Stamp, check_size, check_sum, load_npy
from fastdata.types import Array

INDEX_ROW = np.dtype([("offset", "<u8"), ("length", "<u8"), ("xxh3", "<u8")])  # xxh3-64 of the record


class RecordIndex:
    """The location of each record of a variant: rows of INDEX_ROW over all shards in order, memory-mapped and not pickled.

    Attributes:
        starts: the index of each shard's first record, and the count of all records.
        words: the fields of all rows, three for each record. A memoryview is faster to index singly.

    Raises:
        FormatError: the file is not what was written, or leads out of a shard.
    """

    def __init__(self, path: Path, total: FileSum, counts: Sequence[int], sizes: Sequence[int], manifest: Stamp) -> None:
        self._arguments = path, total, tuple(counts), tuple(sizes), manifest
        self.starts = [0, *accumulate(counts)]
        with manifest.blamed():
            check_sum(path, total)
            self._rows = rows = load_npy(path, INDEX_ROW, (self.starts[-1],))
        limits = np.repeat(np.array(sizes, np.uint64), counts)
        if ((rows["length"] > limits) | (rows["offset"] > limits - np.minimum(rows["length"], limits))).any():
            raise FormatError(f"{path} leads beyond the end of a shard; copy it again, or prepare the store again")
        self.words = memoryview(rows.view(np.uint8).data if len(rows) else b"").cast("Q")

    def __len__(self) -> int:
        return self.starts[-1]

    def __reduce__(self) -> Any:
        return RecordIndex, self._arguments

    @property
    def lengths(self) -> Array:
        """The bytes of each record, int64 [n]."""
        return self._rows["length"].astype(np.int64)


class ShardReader:
    """Random access to the records of one variant. It maps a shard on the first read, works in forks, and has a small pickle.

    Args:
        index: where the records lie.
        shards: LocalShards, or another object with `open`, `describe` and `advice`.
        check: compare each record with its checksum when this process first reads it. If not, only the first and the last of each
            shard are compared, when it is mapped: this detects a wrong shard.
    """

    def __init__(self, index: RecordIndex, shards: Any, *, check: bool = False) -> None:
        self._index, self._shards, self._check = index, shards, check
        self._starts, self._words = index.starts, index.words
        self._opened: dict[int, memoryview] = {}
        self._unread = bytearray(b"\1") * len(index) if check else bytearray()

    def __reduce__(self) -> Any:
        return partial(type(self), check=self._check), (self._index, self._shards)

    def __len__(self) -> int:
        return self._starts[-1]

    def get(self, row: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held."""
        shard = bisect_right(self._starts, row) - 1
        try:
            view = self._opened[shard]
        except KeyError:
            view = self._open(shard)
        at = 3 * row
        start = self._words[at]
        record = view[start : start + self._words[at + 1]]
        if self._check and self._unread[row]:
            self._compare(shard, row, record)
            self._unread[row] = 0
        return record

    def _open(self, shard: int) -> memoryview:
        if not 0 <= shard < len(self._starts) - 1:
            raise IndexError(f"the index of the record is not from 0 to {len(self) - 1}")
        view: memoryview = self._shards.open(shard)
        first, last = self._starts[shard], self._starts[shard + 1] - 1
        for row in () if self._check else {first, last}:
            start, length = self._words[3 * row : 3 * row + 2]
            self._compare(shard, row, view[start : start + length])
        self._opened[shard] = view
        return view

    def _compare(self, shard: int, row: int, record: memoryview) -> None:
        if xxhash.xxh3_64_intdigest(record) != self._words[3 * row + 2]:
            raise FormatError(
                f"{self._shards.describe(shard)} is damaged: record {row} is not what was written: its checksum differs; "
                f"{self._shards.advice(shard)}"
            )

    def advice(self, row: int) -> str:
        """Return advice on a damaged record, as the end of a message."""
        return str(self._shards.advice(bisect_right(self._starts, row) - 1))


class LocalShards:
    """The shards of a variant in a folder. advice: for a damaged one. No shard is opened after the manifest changed."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int], advice: str, manifest: Stamp) -> None:
        self._paths, self._sizes, self._advice, self._manifest = list(paths), list(sizes), advice, manifest

    def open(self, shard: int) -> memoryview:
        """Map a shard. Raise a StoreError if it cannot be read or has another size, or if the store was replaced."""
        raise_file_limit()
        path = self._paths[shard]
        try:
            with self._manifest.blamed(), path.open("rb") as file:
                check_size(path, self._sizes[shard])
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # has a descriptor of its own
            mapped.madvise(mmap.MADV_RANDOM)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {lacking(error) or error.strerror}") from None
        self._manifest.check()  # after the file was opened: who replaces a store removes its manifest first
        return memoryview(mapped)

    def describe(self, shard: int) -> str:
        """Return how a message names a shard."""
        return str(self._paths[shard])

    def advice(self, shard: int) -> str:
        """Return advice on a damaged shard, as the end of a message."""
        return self._advice


@cache
def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: each mapped shard needs one, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 1 << 20, hard))
