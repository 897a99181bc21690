"""What `fastdata info`, contact sheets and pages show of a store of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.errors import FastDataError
from fastdata.store.preview import Preview
from fastdata.store.store import Store
from fastdata.text.sections import Tokens
from fastdata.types import Array
from fastdata.words import number_of

FIRST = 200  # tokens of a document that are shown


def facts(store: Store) -> dict[str, Any]:
    """Return the tokenizer, the number of tokens, and the lengths of documents."""
    tokens, lengths = store.manifest.section("tokens"), store.samples["tokens"]
    keys = ["engine", "name", "sha256", "vocab_size", "end", "largest", *["unknown"] * (tokens.unknown > 0)]
    known = {key: getattr(tokens, key) for key in keys}
    spread = {"longest": int(lengths.max(initial=0)), "shortest": int(lengths.min()) if len(lengths) else 0}
    return {"tokens": {**known, "count": sum(tokens.counts), **spread}}


def previews(store: Store, rows: Array) -> Iterator[Preview]:
    """Yield the beginnings of documents."""
    names, (decode, problem) = store.names(), _decoder(store)
    for row in rows.tolist():
        document = store.samples[row]
        ids = _read_tokens(store, int(document["start"]), min(FIRST, int(document["tokens"])))
        note = f"{row}: {names[int(document['source'])]}, {number_of(int(document['tokens']), 'token')}{problem}"
        yield Preview("", note, text=decode(ids.tolist()))


def _decoder(store: Store) -> tuple[Callable[[Sequence[int]], str], str]:
    """Return a function from ids to text; and, if it shows the ids themselves, why."""
    section: Tokens = store.manifest.section("tokens")
    try:
        return section.load_tokenizer(store.path).decode, ""
    except FastDataError as error:  # there is no tokenizer, or its library is not installed
        return lambda ids: " ".join(map(str, ids)), f", shown as ids: {error}"


def _read_tokens(store: Store, start: int, count: int) -> Array:
    """Return `count` tokens of the store from a position on."""
    (variant,) = store.manifest.variants
    dtype, reader = np.dtype(variant.form.dtype).newbyteorder("<"), store.reader(variant)
    ends = np.append(0, np.cumsum(store.index(variant).lengths)) // dtype.itemsize
    first, last = np.searchsorted(ends, [start, start + count - 1], "right") - 1
    parts = [np.frombuffer(reader.get(k), dtype) for k in range(first, last + 1)] if count else [np.empty(0, dtype)]
    return np.concatenate(parts)[start - ends[first] :][:count]
