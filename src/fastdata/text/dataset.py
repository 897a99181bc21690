"""Tokens for language models: rows of them, out of a store of documents."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fastdata.data.random import LOW, SHIFT, SPLIT_EPOCH, philox, repeated, uniforms
from fastdata.data.shown import counted_of, in_one_line, shown
from fastdata.data.splitting import check_split
from fastdata.data.transforms import TakesNoTransform
from fastdata.data.unsharded import warn_if_unsharded
from fastdata.errors import FormatError
from fastdata.shared_memory import SharedArray
from fastdata.store.store import Store
from fastdata.text.memory import RowCopier, Runs, TokenMemory
from fastdata.text.sections import Tokens
from fastdata.text.tokenizer import Spec, load

__all__ = ["TokenDataset"]

Array = np.ndarray[Any, np.dtype[Any]]

MODES = ("random", "sequential", "document")
DOCUMENTS = ("join", "mask", "align")
AT_ONCE = 1 << 18  # inputs to gather at once: half a megabyte of uint16, which stays in the cache


class TokenDataset(TakesNoTransform, Dataset[Any]):
    """Rows of tokens, of a store that was prepared with `--tokenizer` or `--train-bpe`.

    `ds[i]` is a tensor [block_size + 1], uint16 or uint32: inputs and, one further, targets, which `NextToken` makes of a batch on
    the device. The largest number of the dtype (65535, say) stands where there is no token: behind the last one of a row that is
    not full. A store that uses this id comes as uint32.

    Rows are copied straight from the mapped file (or memory), so a `Loader` makes batches [B, block_size + 1] without worker
    processes: they would cost more than they bring. It copies 262,144 tokens at once, and small batches are views of these: one
    that is kept, saved or sent keeps, saves or sends them all (half a megabyte of uint16), unless it is cloned.

    Args:
        path: the store.
        block_size: inputs of a row.
        mode: "random": each row begins anywhere, all places alike, as nanoGPT draws them; under a Loader that depends on (seed,
            epoch, row), outside on torch's default generator. An epoch has tokens // block_size rows. "sequential": row i begins at
            token i * block_size, so that an epoch has each token once as a target; the last row may not be full. "document": row i
            is the beginning of document i, and a second value its number of tokens, at most block_size + 1.
        documents: what happens where one ends. "join": rows go on into the next. "mask": they do, and a second value, uint16
            [block_size + 1], numbers the documents of a row from 0, for `NextToken` and for attention within documents. "align": a
            row begins with a document, or block_size further in it, and ends with it.
        in_memory: hold all tokens in memory, once for all processes, instead of mapping the files; as
            `RAMDataset(path, block_size=...)` does, which takes max_bytes too.

    Attributes:
        vocab_size: ids are below it.
        end: the id behind each document, or None.
        num_documents, num_tokens: of this dataset.

    Raises:
        StoreError: there is no such store, it holds something else, or its tokens don't fit into memory.
        FormatError: it is damaged.
        ValueError: a wrong argument, or a store with too few tokens for one row.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int,
        *,
        mode: str = "random",
        documents: str = "join",
        in_memory: bool = False,
    ) -> None:
        for name, value, known in (("mode", mode, MODES), ("documents", documents, DOCUMENTS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
        if mode == "document" and documents != "join":
            raise ValueError(f"documents is {documents!r}, but in mode 'document' a row has one document: leave documents out")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}, but must be positive")
        store = Store(path, "tokens")
        self.path, self.block_size, self.mode, self.documents = store.path, block_size, mode, documents
        self._section: Tokens = store.manifest.section("tokens")
        self._memory = TokenMemory(store, held=in_memory)
        self._ends = SharedArray.of(_ends(store))
        self._chosen: SharedArray | None = None
        self._lay_out()

    def _lay_out(self) -> None:
        """Where in the stream of this dataset each document begins, and last its length; how many rows documents have."""
        ends = self._ends.array
        if self._chosen is None:
            self._bounds: Array = ends
        else:
            chosen = self._chosen.array
            self._bounds = np.append(0, np.cumsum(ends[chosen + 1] - ends[chosen]))
        rows = -(-np.maximum(np.diff(self._bounds) - 1, 0) // self.block_size)
        self._rows = np.append(0, np.cumsum(rows)) if self.documents == "align" else np.zeros(1, np.int64)
        self._stream: tuple[int, Runs] | None = None
        width = torch.iinfo(torch.uint16).max if self._memory.dtype.itemsize == 2 else torch.iinfo(torch.uint32).max
        self.dtype = np.dtype(np.uint32) if self._section.largest == width else self._memory.dtype
        self._none, self._kind = int(np.iinfo(self.dtype).max), torch.from_numpy(np.empty(0, self.dtype)).dtype
        if not self._possible():
            raise ValueError(
                f"{self.path} has {self.num_tokens} tokens in {self.num_documents} documents, which do not make a row of "
                f"{self.block_size} inputs and a target: choose a smaller block_size"
            )

    def _possible(self) -> bool:
        if self.mode == "document":
            return self.num_documents > 0
        if self.documents == "align":
            return bool(self._rows[-1] > 0)
        return self.num_tokens > (self.block_size if self.mode == "random" else 1)

    def __len__(self) -> int:
        warn_if_unsharded()
        if self.mode == "document":
            return self.num_documents
        if self.mode == "random":
            return max(self.num_tokens // self.block_size, 1)
        return int(self._rows[-1]) if self.documents == "align" else -(-(self.num_tokens - 1) // self.block_size)

    @property
    def num_tokens(self) -> int:
        return int(self._bounds[-1])

    @property
    def num_documents(self) -> int:
        return len(self._bounds) - 1

    @property
    def vocab_size(self) -> int:
        return self._section.vocab_size

    @property
    def end(self) -> int | None:
        return self._section.end

    @property
    def at_once(self) -> int:
        """How many rows a Loader gathers at once, for several batches if they are small."""
        return max(AT_ONCE // self.block_size, 1)

    @property
    def any_order(self) -> bool:
        """Whether rows are drawn one by one, so that shuffling them changes nothing but their numbers."""
        return self.mode == "random"

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index}, but the dataset has {len(self)} rows")
        u = torch.rand(1, dtype=torch.float64, device="cpu").numpy() if self.mode == "random" else None
        made = self.gather(self._located(np.array([index % len(self)]), u))
        return tuple(value[0] for value in made) if isinstance(made, tuple) else made[0]

    def locate(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None) -> Array:
        """Where in the stream the rows of some samples lie: what `gather` takes, one row for each sample."""
        ids = np.asarray(indices, np.int64)
        if len(ids) and not -len(self) <= ids.min() <= ids.max() < len(self):
            raise IndexError(f"indices from {ids.min()} to {ids.max()}, but the dataset has {len(self)} rows")
        ids = ids % len(self)
        keys = repeated(ids, repeats)
        return self._located(ids, _fractions(seed, epoch, keys) if self.mode == "random" else None)

    def _located(self, ids: Array, u: Array | None) -> Array:
        """Columns: the place in memory, or -1 if the row does not lie there as it is; its start in the stream; its length."""
        starts, lengths = self._spans(ids, u)
        found = np.full((3, len(ids)), -1)  # each column in one piece
        found[1:] = starts, lengths
        if self.dtype == self._memory.dtype:
            found[0] = np.where(lengths == self.block_size + 1, self._runs().find(starts, self.block_size + 1), -1)
        return found.T

    def _spans(self, ids: Array, u: Array | None) -> tuple[Array, Array]:
        """The start in the stream, and the tokens, of some rows. u: in [0, 1), of random ones."""
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

    def _runs(self) -> Runs:
        """The stream of this dataset in this process's memory."""
        if self._stream is None or self._stream[0] != os.getpid():
            runs, ends = self._memory.runs, self._ends.array
            if self._chosen is not None:
                chosen = self._chosen.array
                full = ends[chosen] < ends[chosen + 1]
                runs = runs.only(ends[chosen][full], ends[chosen + 1][full])
            self._stream = os.getpid(), runs
            self._copy = RowCopier(self._memory.flat, self.block_size + 1)
        return self._stream[1]

    def gather(self, located: Array, *, pin: bool = False) -> Any:
        """A batch of rows that `locate` found: [n, block_size + 1], or that and a second value, as `ds[i]`."""
        self._runs()
        places = located[:, 0]
        rows = self._copy(places, pin=pin) if places.min(initial=0) >= 0 else self._mended(located, pin)
        if self.mode == "document":
            return rows, torch.from_numpy(located[:, 2].copy())
        return (rows, torch.from_numpy(self._numbers(located[:, 1]))) if self.documents == "mask" else rows

    def _mended(self, located: Array, pin: bool) -> torch.Tensor:
        """Rows of which some don't lie in memory as they are. In the place of those any other is copied, and then overwritten."""
        places = located[:, 0]
        if places.max() >= 0:
            rows = self._copy(np.where(places < 0, places.max(), places), pin=pin)
        else:
            rows = torch.empty((len(places), self.block_size + 1), dtype=self._kind, pin_memory=pin, device="cpu")
        out = rows.numpy()
        for k in np.flatnonzero(places < 0).tolist():
            _, start, length = located[k].tolist()
            self._memory.copy(self._runs(), start, out[k, :length])
            out[k, length:] = self._none
        return rows

    def _numbers(self, starts: Array) -> Array:
        """Which document of its row each token belongs to: uint16 [n, block_size + 1]."""
        width = self.block_size + 1
        first, last = (np.searchsorted(self._bounds[1:-1], edge, "left") for edge in (starts + 1, starts + width))
        counts = last - first
        row = np.repeat(np.arange(len(starts)), counts)
        bound = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        marks = np.zeros((len(starts), width), np.uint16)
        marks[row, self._bounds[1:-1][bound] - starts[row]] = 1
        return np.cumsum(marks, axis=1, dtype=np.uint16)

    def split(self, fraction: float, *, seed: int) -> tuple[TokenDataset, TokenDataset]:
        """Two datasets of whole documents, the first with `fraction` of them, chosen by `seed`; each keeps their order."""
        check_split(fraction, seed)
        chosen = np.arange(self.num_documents) if self._chosen is None else self._chosen.array
        if not 0 < (count := round(fraction * len(chosen))) < len(chosen):
            raise ValueError(
                f"{fraction} of {len(chosen)} documents leaves one side empty; --split-lines or --split-on make more of a text file"
            )
        lot = np.argsort(uniforms(seed, SPLIT_EPOCH, chosen, 1)[0], kind="stable")
        return self._of(np.sort(chosen[lot[:count]])), self._of(np.sort(chosen[lot[count:]]))

    def _of(self, chosen: Array) -> TokenDataset:
        other = copy.copy(self)
        other._chosen = SharedArray.of(chosen)
        other._lay_out()
        return other

    def decode(self, tokens: Any) -> str:
        """The text of some ids, by the store's own tokenizer."""
        spec = Spec(self._section.engine, self._section.name, self._section.sha256)
        ids = [k for k in np.asarray(tokens).reshape(-1).tolist() if k != self._none]
        return load(spec, (self.path / spec.file).read_bytes() if spec.file else b"").decode(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_copy", "_bounds", "_rows")} | {"_stream": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_out()

    def __repr__(self) -> str:
        documents = counted_of(self.num_documents, len(self._ends.array) - 1, "documents")
        block = f"block_size={self.block_size}"
        return in_one_line(self, f"{self.num_tokens:,} tokens", documents, block, self.mode, self.documents, shown(self.path))


def _ends(store: Store) -> Array:
    """Where the documents of a store begin, and last where they end: int64 [documents + 1]."""
    ends = np.append(0, np.cumsum(store.samples["tokens"], dtype=np.int64))
    if ends[-1] != sum(store.manifest.section("tokens").counts) or not np.array_equal(ends[:-1], store.samples["start"]):
        raise FormatError(f"{store.path}: the table of documents does not fit its tokens; prepare it again")
    return ends


def _fractions(seed: int, epoch: int, keys: Array) -> Array:
    """Uniform numbers in [0, 1), one for each key, with 53 random bits: a store may have more than 2^32 tokens."""
    ids = keys.astype(np.uint64)
    high, low, _, _ = philox((ids & LOW, ids >> SHIFT, 0, seed >> 32), (seed & 0xFFFFFFFF, epoch))
    return ((high << np.uint64(21)) | (low >> np.uint64(11))) * 2.0**-53
