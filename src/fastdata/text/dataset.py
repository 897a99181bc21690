"""The dataset of tokens for language models: rows cut from a store of documents."""

from __future__ import annotations

import copy
import zlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fastdata.data.choice import check_split, checked, part_of
from fastdata.data.dataset import Fixed, RowsDataset, counted_of, in_one_line, shown
from fastdata.data.in_memory import InMemoryRecords, how_many
from fastdata.data.opening import RAMDataset
from fastdata.data.random import LOW, SHIFT, philox, repeated
from fastdata.remote.bucket import Storage
from fastdata.remote.reader import locate
from fastdata.store.store import Store
from fastdata.system.shared_memory import SharedArray
from fastdata.text.memory import RowCopier, Runs
from fastdata.text.sections import Tokens
from fastdata.types import Array, StrPath

MODES = ("random", "sequential", "document")
DOCUMENTS = ("join", "mask", "align")
AT_ONCE = 1 << 18  # inputs gathered at once: 512 KiB of uint16 stay in the cache


class TokenDataset(Fixed, Dataset[Any]):
    """Rows of tokens from a store that was prepared with `--tokenizer` or `--train-bpe`. RAMDataset holds one in memory.

    `ds[i]` is a tensor [block_size + 1], uint16 or uint32: inputs and, from the second token on, their targets; `NextToken`
    makes both from a batch on the device. The largest number of the dtype (65535 for uint16) means "no token" and fills the end of
    a row that is not full. A store that uses this number as an id is read as uint32.

    A `Loader` makes batches [B, block_size + 1] without worker processes, which would cost more than they save. It copies 262,144
    tokens at once, and small batches are views of that copy: keeping, saving or sending one keeps, saves or sends the whole copy
    (512 KiB of uint16), unless you clone the batch.

    Args:
        path: the store.
        block_size: number of inputs in a row.
        mode: "random": each row begins at any token with equal probability, as in nanoGPT. Under a Loader, the position depends on
            (seed, epoch, row); elsewhere torch's default generator draws it. An epoch has tokens // block_size rows. "sequential":
            row i begins at token i * block_size, so each token but the first is a target once; the last row may not be full.
            "document": row i is the beginning of document i, with its number of tokens as a second value, at most block_size + 1.
        documents: what a row does where a document ends. "join": it continues with the next one. "mask": it continues, and a second
            value, uint16 [block_size + 1], numbers the documents of the row from 0, for `NextToken` and for attention within
            documents. "align": it ends; rows begin at the start of a document, or at a multiple of block_size after it.
        cache, cache_size, storage: as for LMDBDataset.

    Attributes:
        vocab_size: all ids are below it.
        end: the id after each document, or None.
        num_documents, num_tokens: how many this dataset has.

    Raises:
        StoreError, FormatError: as for LMDBDataset.
        ValueError: an argument is wrong, or the store has too few tokens for one row.
    """

    FIXED = "block_size", "mode", "documents"
    transform = RowsDataset.transform  # which cannot be set

    def __init__(
        self,
        path: StrPath,
        block_size: int,
        *,
        mode: str = "random",
        documents: str = "join",
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        for name, value, known in (("mode", mode, MODES), ("documents", documents, DOCUMENTS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
        if mode == "document" and documents != "join":
            raise ValueError(f"documents is {documents!r}, but in mode 'document' a row has one document: leave out documents=")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}, but must be positive")
        path = locate(path, cache, cache_size, storage)
        store = Store(path, "tokens")
        self.path, self._location, self._expected = store.path, store.location, store.manifest.xxh3_128
        self.block_size, self.mode, self.documents = block_size, mode, documents
        self._section: Tokens = store.manifest.section("tokens")
        self.vocab_size, self.end = self._section.vocab_size, self._section.end
        self.at_once = max(AT_ONCE // block_size, 1)  # rows that a Loader gathers at once, for several batches if they are small
        self.any_order = mode == "random"  # whether each row is drawn independently: shuffling changes only the rows' numbers
        variant = store.manifest.variants[0]
        self._reader, self._stored_dtype = store.reader(variant), np.dtype(variant.form.dtype)
        self._records: InMemoryRecords | None = None  # the first ones, copied into memory
        self._ends = SharedArray.of(np.append(0, np.cumsum(store.samples["tokens"], dtype=np.int64)))
        self._chosen: SharedArray | None = None
        self._lay_out()

    def _lay_out(self) -> None:
        """Compute where each document begins in the stream of this dataset, and how many rows precede it in mode "align"."""
        self._bounds: Array = self._ends.array
        if self._chosen is not None:
            self._bounds = np.append(0, np.cumsum(np.diff(self._bounds)[self._chosen.array]))
        self.num_tokens, self.num_documents = int(self._bounds[-1]), len(self._bounds) - 1
        rows = -(-np.maximum(np.diff(self._bounds) - 1, 0) // self.block_size)
        self._rows = np.append(0, np.cumsum(rows)) if self.documents == "align" else np.zeros(1, np.int64)
        self.__dict__.pop("_stream", None)  # of the documents before a split
        is_used = self._section.largest == np.iinfo(self._stored_dtype).max
        self.dtype = np.dtype(np.uint32) if is_used else self._stored_dtype
        self._no_token = int(np.iinfo(self.dtype).max)
        self._length = self._count_rows()
        if not self._length:
            raise ValueError(
                f"{self.path} has {self.num_tokens} tokens (documents: {self.num_documents}), which make no row with "
                f"block_size {self.block_size}: use a smaller block_size, or longer texts"
            )

    def _count_rows(self) -> int:
        tokens, block, aligned = self.num_tokens, self.block_size, int(self._rows[-1])
        if self.mode == "document":
            return self.num_documents
        if self.mode == "random":
            return max(tokens // block, 1) if aligned or (tokens > block and self.documents != "align") else 0
        return aligned if self.documents == "align" else -(-max(tokens - 1, 0) // block)

    def __len__(self) -> int:
        return self._length

    @property
    def identity(self) -> Any:
        """A key that is equal for datasets of the same documents."""
        return self._expected, zlib.crc32(self._bounds.data)

    def __getitem__(self, index: int) -> Any:
        ids = np.array([checked(index, len(self))])
        u = torch.rand(1, dtype=torch.float64, device="cpu").numpy() if self.mode == "random" else None
        batch = self.gather(self._locate(ids, u))
        return tuple(value[0] for value in batch) if isinstance(batch, tuple) else batch[0]

    def locate(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None) -> Array:
        """Return the positions of samples in the stream, for `gather`: one row for each sample."""
        ids, count = np.asarray(indices, np.int64), len(self)
        if not -count <= (low := ids.min(initial=0)) <= ids.max(initial=0) < count:
            raise IndexError(f"the indices go from {ids.min()} to {ids.max()}, but the dataset has {count} rows")
        ids = ids if low >= 0 else ids % count
        return self._locate(ids, _fractions(seed, epoch, repeated(ids, repeats)) if self.mode == "random" else None)

    def _locate(self, ids: Array, u: Array | None) -> Array:
        """Return columns: the offset in memory (-1 if the row is not contiguous there), the start in the stream, the length."""
        starts, lengths = self._spans(ids, u)
        located = np.full((3, len(ids)), -1)  # each column is contiguous
        located[1:] = starts, lengths
        if self.dtype == self._stored_dtype:
            located[0] = np.where(lengths == self.block_size + 1, self._stream[0].find(starts, self.block_size + 1), -1)
        return located.T

    def _spans(self, ids: Array, u: Array | None) -> tuple[Array, Array]:
        """Return the start in the stream and the number of tokens of each row. u: random numbers in [0, 1) for mode "random"."""
        block, bounds = self.block_size, self._bounds
        if self.mode == "document":
            starts, ends = bounds[ids], bounds[ids + 1]
        elif self.documents == "align":
            row = ids if u is None else (u * int(self._rows[-1])).astype(np.int64)
            document = np.searchsorted(self._rows, row, "right") - 1
            starts = bounds[document] + (row - self._rows[document]) * block
            ends = bounds[document + 1]
        else:
            starts = ids * block if u is None else (u * (self.num_tokens - block)).astype(np.int64)
            ends = np.full(len(ids), self.num_tokens)
        return starts, np.minimum(ends - starts, block + 1)

    def shards_of(self, indices: Any) -> Array:
        """Return the shard of the store in which each row begins, int64. Not for mode "random", where rows begin anywhere."""
        starts, _ = self._spans(np.asarray(indices, np.int64), None)
        if self._chosen is not None:
            document = np.searchsorted(self._bounds, starts, "right") - 1
            starts = self._ends.array[self._chosen.array[document]] + starts - self._bounds[document]
        ends = np.cumsum(self._section.counts)
        return np.searchsorted(ends[:-1], starts, "right")

    @cached_property
    def _stream(self) -> tuple[Runs, RowCopier]:
        """The stream of this dataset in memory, and what copies its rows."""
        first = 0 if self._records is None else len(self._records)
        parts = [np.frombuffer(self._reader.get(k), self._stored_dtype) for k in range(first, len(self._reader))]
        if self._records is not None and first:
            parts = [self._records.bytes.view(self._stored_dtype), *parts]
        runs = Runs.of(parts, self._stored_dtype)
        if self._chosen is not None:
            begins, ends = (self._ends.array[self._chosen.array + k] for k in (0, 1))
            full = begins < ends
            runs = runs.only(begins[full], ends[full])
        return runs, RowCopier(runs.memory, self.block_size + 1)

    def gather(self, located: Array, *, pin: bool = False) -> Any:
        """Return the rows that `locate` found as a batch [n, block_size + 1], with a second value where `ds[i]` has one."""
        offsets = located[:, 0]
        rows = self._stream[1](offsets, pin=pin) if offsets.min(initial=0) >= 0 else self._gather_pieces(located, pin)
        if self.mode == "document":
            return rows, torch.from_numpy(located[:, 2].copy())
        return (rows, torch.from_numpy(self._document_numbers(located[:, 1]))) if self.documents == "mask" else rows

    def _gather_pieces(self, located: Array, pin: bool) -> torch.Tensor:
        """Gather rows of which some are not contiguous in memory: copy another row in place of each, then overwrite it."""
        offsets = located[:, 0]
        if offsets.max() >= 0:
            rows = self._stream[1](np.where(offsets < 0, offsets.max(), offsets), pin=pin)
        else:
            torch_dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
            rows = torch.empty((len(offsets), self.block_size + 1), dtype=torch_dtype, pin_memory=pin, device="cpu")
        out = rows.numpy()
        for k in np.flatnonzero(offsets < 0).tolist():
            _, start, length = located[k].tolist()
            self._stream[0].copy(start, out[k, :length])
            out[k, length:] = self._no_token
        return rows

    def _document_numbers(self, starts: Array) -> Array:
        """Number the documents of each row from 0, for each of its tokens: uint16 [n, block_size + 1]."""
        width = self.block_size + 1
        first, last = (np.searchsorted(self._bounds[1:-1], edge, "left") for edge in (starts + 1, starts + width))
        counts = last - first
        row = np.repeat(np.arange(len(starts)), counts)
        bound = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        marks = np.zeros((len(starts), width), np.uint16)
        marks[row, self._bounds[1:-1][bound] - starts[row]] = 1
        return np.cumsum(marks, axis=1, dtype=np.uint16)

    def split(self, fraction: float, *, seed: int) -> tuple[TokenDataset, TokenDataset]:
        """Split the documents into two datasets, the first with `fraction` of them, chosen by `seed`; each keeps their order."""
        check_split(fraction, seed)
        chosen = np.arange(self.num_documents) if self._chosen is None else self._chosen.array
        try:
            first = part_of(fraction, seed, chosen, None)
        except ValueError as error:
            raise ValueError(f"{error}; to get more documents from a .txt, prepare with --split-lines or --split-on") from None
        parts = copy.copy(self), copy.copy(self)
        for part, documents in zip(parts, (first, ~first), strict=True):
            part._chosen = SharedArray.of(chosen[documents])
            part._lay_out()
        return parts

    def decode(self, tokens: Any) -> str:
        """Return the text of ids, decoded with the store's tokenizer."""
        ids = [k for k in np.asarray(tokens).reshape(-1).tolist() if k != self._no_token]
        return self._section.load_tokenizer(self.path).decode(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_stream", "_bounds", "_rows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_out()

    def __repr__(self) -> str:
        documents = counted_of(self.num_documents, len(self._ends.array) - 1, "documents")
        block = f"block_size={self.block_size}"
        return in_one_line(self, f"{self.num_tokens:,} tokens", documents, block, self.mode, self.documents, shown(self._location))


class RAMTokens(RAMDataset, TokenDataset):
    """Tokens in memory; see RAMDataset."""

    def __init__(self, source: StrPath, *, max_bytes: int | None = None, shared: bool = True, **options: Any) -> None:
        super().__init__(source, **options)
        store = Store(self._location, "tokens", expected=self._expected)
        variant = store.manifest.variants[0]
        sizes, key = store.index(variant).lengths, store.identity(variant) if shared else None
        sizes = sizes[: how_many(sizes, max_bytes)]
        self._records = InMemoryRecords(sizes, store.reader(variant, check=True).get, "record", key)


def _fractions(seed: int, epoch: int, keys: Array) -> Array:
    """Draw a number in [0, 1) for each key, with 53 random bits: a store may have more than 2^32 tokens."""
    ids = keys.astype(np.uint64)
    high, low, _, _ = philox((ids & LOW, ids >> SHIFT, 0, seed >> 32), (seed & 0xFFFFFFFF, epoch))
    return ((high << np.uint64(21)) | (low >> np.uint64(11))) * 2.0**-53
