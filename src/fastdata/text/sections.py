"""What a manifest and samples.npy say of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.store.format import Variant, counted, entry

__all__ = ["SAMPLES_DTYPE", "Tokens", "parse_tokens"]

# `source` is the document's place in the list of inputs, `start` that of its first token in the store.
SAMPLES_DTYPE: np.dtype[Any] = np.dtype([("source", "<u8"), ("start", "<u8"), ("tokens", "<u8")])


@dataclass(frozen=True)
class Tokens:
    """The section of a store of tokens.

    Attributes:
        engine: the library that made them, or "bytes".
        name: of the tokenizer, for people.
        sha256: of its file; empty if it has none.
        vocab_size: ids are below it.
        end: the id after each document; None: there is none.
        largest: the largest id that occurs.
        counts: tokens in each shard.
    """

    engine: str
    name: str
    sha256: str
    vocab_size: int
    end: int | None
    largest: int
    counts: tuple[int, ...]


def parse_tokens(found: Any, variant: Variant) -> Tokens:
    """Read the section."""
    engine, name, sha256 = (entry(found[key], str) for key in ("engine", "name", "sha256"))
    end, counts = found["end"], counted(found["counts"])
    if len(counts) != len(variant.shards) or variant.records is None:
        raise ValueError(f"{len(counts)} counts of tokens for {len(variant.shards)} shards")
    end = None if end is None else entry(end, int)
    return Tokens(engine, name, sha256, entry(found["vocab_size"], int), end, entry(found["largest"], int), counts)
