"""Facts and previews of a store of tokens, for `fastdata info`, contact sheets and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.errors import FastDataError
from fastdata.store.info import Preview
from fastdata.store.store import Store
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
    """Yield the beginnings of documents, as ids if there is no tokenizer, or its library is not installed."""
    names, problem, section = store.names(), "", store.manifest.section("tokens")
    try:
        decode = section.load_tokenizer(store.path).decode
        decode(())
    except FastDataError as error:
        decode, problem = lambda ids: " ".join(map(str, ids)), f", shown as ids: {error}"
    for row in rows.tolist():
        document = store.samples[row]
        ids = _read_tokens(store, int(document["start"]), min(FIRST, int(document["tokens"])))
        note = f"{row}: {names[int(document['source'])]}, {number_of(int(document['tokens']), 'token')}{problem}"
        yield Preview("", note, text=decode(ids.tolist()))


def _read_tokens(store: Store, start: int, count: int) -> Array:
    """Return `count` tokens of the store from a position on."""
    (variant,) = store.manifest.variants
    dtype, reader = np.dtype(variant.form.dtype).newbyteorder("<"), store.reader(variant)
    ends = np.append(0, np.cumsum(store.index(variant).lengths)) // dtype.itemsize
    first, last = np.searchsorted(ends, [start, start + count - 1], "right") - 1
    parts = [np.frombuffer(reader.get(k), dtype) for k in range(first, last + 1)] if count else [np.empty(0, dtype)]
    return np.concatenate(parts)[start - ends[first] :][:count]
