"""Read files of tokens: .bin of nanoGPT and llm.c, and .bin with .idx of Megatron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.remote.path import AnyPath

__all__ = ["MEGATRON_MAGIC", "TokenFile", "open_tokens", "tokens_dtype"]

Array = np.ndarray[Any, np.dtype[Any]]

# llm.c, dev/data/data_common.py: 256 int32; the first three are magic, version and number of tokens
LLMC_HEADER = 1024
LLMC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # by magic: version and dtype
# Megatron-LM, megatron/core/datasets/indexed_dataset.py
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
LOOKED_AT = 1 << 20  # numbers of a file without a header
FEWEST, UPPER = 64, 16  # ids, and a bound on their upper halves: vocabularies have fewer than 2^20 ids
MEGATRON_DTYPES = {8: "<u2", 4: "<i4"}


@dataclass(frozen=True)
class TokenFile:
    """The tokens of a file. lengths: number of tokens in each document, if the format stores them."""

    tokens: Array
    lengths: Array | None = None

    def documents(self, end: int | None) -> Array:
        """Return the number of tokens in each document: as stored, else cut after each end token, else the whole file."""
        if self.lengths is not None:
            return self.lengths
        ends = np.zeros(0, np.int64) if end is None else np.flatnonzero(self.tokens == end) + 1
        bounds = np.unique(np.concatenate([[0], ends, [len(self.tokens)]]))
        return np.diff(bounds)


def open_tokens(path: AnyPath) -> TokenFile:
    """Map a file of tokens.

    Raises:
        CodecError: if the file does not match its header, or is truncated.
    """
    index = path.with_suffix(".idx")
    if index.is_file():
        return _megatron(path, index)
    head = np.fromfile(path, "<i4", 3)
    if len(head) == 3 and int(head[0]) in LLMC:
        version, kind = LLMC[int(head[0])]
        count = int(head[2])
        found = (path.stat().st_size - LLMC_HEADER) / np.dtype(kind).itemsize
        if int(head[1]) != version or count != found:
            raise CodecError(f"llm.c's header says version {head[1]} and {count} tokens, the file has {found}", "truncated")
        return TokenFile(np.memmap(path, kind, "r", LLMC_HEADER) if count else np.zeros(0, kind))
    if path.stat().st_size % 2:
        raise CodecError("its size is odd, so it is not uint16 tokens", "truncated")
    tokens = np.memmap(path, "<u2", "r") if path.stat().st_size else np.zeros(0, "<u2")
    if _are_wide(tokens[:LOOKED_AT]):
        raise CodecError(
            "every second number is small, as in a file of uint32, but a .bin without a header is read as uint16: write it with "
            "llm.c's header of version 7, or with an index of Megatron",
            "wrong-dtype",
        )
    return TokenFile(tokens)


def _are_wide(numbers: Array) -> bool:
    """Return whether what is read as uint16 seems to be uint32: the upper halves of ids are small, the lower ones are not."""
    low, high = numbers[::2], numbers[1::2]
    return len(high) >= FEWEST and int(high.max()) < UPPER and int(low.max()) >= 1 << 12


def tokens_dtype(path: AnyPath) -> str:
    """Return the dtype of a file's tokens, "uint16" or "uint32"; "uint16" if it cannot be read, since it becomes a reject."""
    try:
        return "uint16" if open_tokens(path).tokens.dtype.itemsize == 2 else "uint32"
    except (CodecError, OSError):
        return "uint16"


def _megatron(path: AnyPath, index: AnyPath) -> TokenFile:
    data = index.read_bytes()
    head = len(MEGATRON_MAGIC)
    if not data.startswith(MEGATRON_MAGIC) or len(data) < head + 25 or int.from_bytes(data[head : head + 8], "little") != 1:
        raise CodecError(f"{index.name} does not begin as version 1 of Megatron's index does", "wrong-magic")
    code = data[head + 8]
    sequences, documents = (int.from_bytes(data[head + k : head + k + 8], "little") for k in (9, 17))
    if code not in MEGATRON_DTYPES:
        raise CodecError(f"{index.name} has tokens of type {code}; 8 (uint16) and 4 (int32) can be read", "wrong-dtype")
    start = head + 25
    if len(data) < start + 12 * sequences + 8 * documents:
        raise CodecError(f"{index.name} is cut short", "truncated")
    sizes = np.frombuffer(data, "<i4", sequences, start).astype(np.int64)
    places = np.frombuffer(data, "<i8", sequences, start + 4 * sequences)
    bounds = np.frombuffer(data, "<i8", documents, start + 12 * sequences)
    kind = np.dtype(MEGATRON_DTYPES[code])
    ends = np.append(0, np.cumsum(sizes))
    if (
        (sizes < 0).any()
        or not np.array_equal(places, ends[:-1] * kind.itemsize)
        or ends[-1] * kind.itemsize != path.stat().st_size
    ):
        raise CodecError(f"{index.name} does not fit {path.name}", "truncated")
    if not documents or bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any():
        raise CodecError(f"{index.name} has documents that do not cover its sequences", "truncated")
    tokens = np.memmap(path, kind, "r") if ends[-1] else np.zeros(0, kind)
    return TokenFile(tokens, np.diff(ends[bounds]))
