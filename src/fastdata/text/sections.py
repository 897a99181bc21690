"""The description of tokens in a manifest and in samples.npy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fastdata.errors import FormatError
from fastdata.store.files import Count, Entry
from fastdata.store.manifest import Form, Manifest
from fastdata.store.store import Store
from fastdata.tokenizer import Spec, TokenizerEngine, load
from fastdata.types import Array

RECORD_BYTES = (256 << 12) - 16  # with LMDB's header of 16 bytes, a record fills whole pages
# `source` is the document's place in the list of inputs, `start` the place of its first token in the store.
SAMPLES_DTYPE: np.dtype[Any] = np.dtype([("source", "<u8"), ("start", "<u8"), ("tokens", "<u8")])


class Tokens(Entry, frozen=True, omit_defaults=True):
    """The section of a store of tokens."""

    engine: str  # "tokenizers", "bytes", "chars" or "none"
    name: str  # of the tokenizer, for people
    sha256: str  # of its file; empty if it has none
    vocab_size: Count  # all ids are below it
    end: Count | None  # the id after each document
    largest: Count  # id that occurs
    counts: tuple[Count, ...]  # of the tokens in each shard
    unknown: Count = 0  # tokens, of text that the tokenizer has none for

    def load_tokenizer(self, folder: Path) -> TokenizerEngine:
        """Load the tokenizer of a store in this folder."""
        spec = Spec(self.engine, self.name, self.sha256)
        return load(spec, (folder / spec.file).read_bytes() if spec.file else b"")


TYPES = {"tokens": Tokens}


def reads(form: Form, *, mask: bool) -> bool:
    """Return whether this version reads records of this form."""
    return form.codec == "tokens" and form.channels in (1, 3) and form.dtype in ("uint16", "uint32") and not mask


def samples_dtype(manifest: Manifest) -> np.dtype[Any]:
    """Return the dtype of a row of samples.npy."""
    return SAMPLES_DTYPE


def merge(stores: Sequence[Store], samples: Sequence[Array]) -> dict[str, Any]:
    """Number the tokens of all stores consecutively."""
    sections: list[Tokens] = [store.manifest.section("tokens") for store in stores]
    first = 0
    for section, rows in zip(sections, samples, strict=True):
        rows["start"] += first
        first += sum(section.counts)
    counts = tuple(count for section in sections for count in section.counts)
    largest, unknown = max(section.largest for section in sections), sum(section.unknown for section in sections)
    return {"tokens": structs.replace(sections[0], counts=counts, largest=largest, unknown=unknown)}


def check(store: Store) -> None:
    """Raise a FormatError unless the documents and each record are as long as the counts of tokens say."""
    counts = store.manifest.section("tokens").counts
    ends = np.append(0, np.cumsum(store.samples["tokens"], dtype=np.int64))
    if ends[-1] != sum(counts) or not np.array_equal(ends[:-1], store.samples["start"]):
        raise FormatError(f"{store.location}: the table of documents does not fit the tokens; prepare the store again")
    if len(store.manifest.variants) > 1 or len(counts) != len(store.manifest.shard_samples):
        raise FormatError(f"{store.path} has several variants, or its token counts do not match its shards; prepare it again")
    (variant,) = store.manifest.variants
    sizes = [count * np.dtype(variant.form.dtype).itemsize for count in counts]
    parts = [[min(size - start, RECORD_BYTES) for start in range(0, size, RECORD_BYTES)] for size in sizes]
    if variant.records != tuple(map(len, parts)) or [*chain.from_iterable(parts)] != store.index(variant).lengths.tolist():
        raise FormatError(f"{store.path} has records of other sizes than its manifest says; copy it again, or prepare it again")
