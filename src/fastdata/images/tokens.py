"""`--tokenize`: text columns of a store as tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.store.columns import Column, ColumnTokens
from fastdata.tokenizer import find_tokenizer, load
from fastdata.types import Array

TOKENIZE = re.compile(r"(?P<name>[^=]+)=(?P<tokenizer>.+?)(:(?P<length>[0-9]+))?")


def with_tokens(columns: Sequence[Column], options: Sequence[str]) -> tuple[tuple[Column, ...], dict[str, bytes]]:
    """Return columns, after `--tokenize` has turned text, or JSON lists of texts, into tokens; and the tokenizers' files by name.

    Raise PrepError if an option does not fit its column, MissingExtraError if the tokenizer's library is not installed.
    """
    found, files = {column.name: column for column in columns}, dict[str, bytes]()
    for option in options:
        match = TOKENIZE.fullmatch(option)
        if match is None:
            raise PrepError(f"--tokenize {option}: give NAME=TOKENIZER or NAME=TOKENIZER:LENGTH, such as caption=tokenizer.json:77")
        name, tokenizer, length = match["name"], match["tokenizer"], int(match["length"]) if match["length"] else None
        column = found.get(name)
        if column is None or column.type not in ("text", "json"):
            known = ", ".join(map(str, found.values())) or "none"
            raise PrepError(f"--tokenize {option}: there is no text column {name} (columns: {known}); --fields adds columns")
        many = column.type == "json"  # several texts for each image
        if many and length is None:
            raise PrepError(f"--tokenize {option}: json columns need a length: give {name}={tokenizer}:LENGTH")
        spec, data = find_tokenizer(tokenizer, "--tokenize")
        engine = load(spec, data)
        if length is not None and length <= (added := len(engine.encode_row("", None)[0])):
            raise PrepError(f"--tokenize {option}: LENGTH must be above {added}, the number of tokens that {spec.name} adds")
        pad = next((token for token in (engine.pad, engine.end) if token is not None), 0)
        tokens = ColumnTokens(spec, engine.vocab_size, None if length is None else pad)
        type, shape = "uint16" if engine.vocab_size <= 1 << 16 else "uint32", () if length is None else (length,)
        found[name] = Column(name, type, shape, many or length is None, group=column.group, tokens=tokens)
        if file := found[name].tokenizer_file:
            files[file] = data
    return tuple(found.values()), files


def encode_columns(columns: Sequence[Column], values: Sequence[Any], files: Mapping[str, bytes], counts: Counter[str]) -> list[Any]:
    """Return the values of a sample, with texts as tokens. Count cut texts, tokens, and unknown tokens, for each column."""
    return [
        value if column.tokens is None else _encode(column, column.tokens, value, files.get(column.tokenizer_file, b""), counts)
        for column, value in zip(columns, values, strict=True)
    ]


def _encode(column: Column, tokens: ColumnTokens, value: Any, data: bytes, counts: Counter[str]) -> Array:
    engine, texts = load(tokens.tokenizer, data), [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CodecError(f"column {column.name}: {value!r:.60} is neither text nor a list of texts", "bad-field")
    length, rows = column.shape[0] if column.shape else None, [np.empty(0, column.dtype)]
    for text in texts:
        ids, was_cut = engine.encode_row(text, length)
        counts[f"cut {column.name}"] += was_cut
        counts[f"tokens {column.name}"] += len(ids)
        counts[f"unknown {column.name}"] += 0 if engine.unknown is None else int(np.count_nonzero(ids == engine.unknown))
        rows.append(ids if length is None else np.append(ids, np.full(length - len(ids), tokens.pad)))
    whole = np.concatenate(rows).astype(column.dtype)
    return whole.reshape(-1, *column.shape) if column.many else whole


def decode_tokens(root: Path, column: Column, tokens: Sequence[int]) -> str:
    """Return the text of tokens of a column of a store, without the padding at their end."""
    assert column.tokens is not None
    ids, file = list(tokens), column.tokenizer_file
    while ids and ids[-1] == column.tokens.pad:
        ids.pop()
    return load(column.tokens.tokenizer, (root / file).read_bytes() if file else b"").decode(ids)
