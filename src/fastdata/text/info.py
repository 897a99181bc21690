"""The part of `fastdata info` on tokens."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.store.info import Facts, spread
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = ["token_facts", "token_lines"]


def token_facts(store: Store) -> Facts:
    """Return the tokenizer, the number of tokens, and the lengths of documents."""
    tokens, lengths = store.manifest.section("tokens"), store.samples["tokens"]
    return {
        **{key: getattr(tokens, key) for key in ("engine", "name", "sha256", "vocab_size", "end", "largest")},
        "count": sum(tokens.counts),
        "longest": int(lengths.max(initial=0)),
        "shortest": int(lengths.min()) if len(lengths) else 0,
    }


def token_lines(facts: Facts) -> Iterator[str]:
    """Yield lines on the store, its tokenizer, its tokens and its documents."""
    found, (variant,) = facts["tokens"], facts["variants"]
    yield (
        f"{facts['path']}: {number_of(facts['samples'], 'document')}, {number_of(found['count'], 'token')}, "
        f"format {facts['format']}"
    )
    end = "no end token" if found["end"] is None else f"end token {found['end']}"
    name = f"{found['name']} ({found['engine']})" if found["engine"] != "none" else "unknown, the tokens came without it"
    yield f"  tokenizer: {name}, {found['vocab_size']} tokens, {end}"
    yield f"  tokens: {variant['dtype']}, {human_bytes(variant['file_bytes'])} in {number_of(variant['shards'], 'shard')}"
    if facts["samples"]:
        mean = found["count"] / facts["samples"]
        yield f"  documents: {spread(found['shortest'], found['longest'], 'tokens')}, {mean:.0f} on average"
