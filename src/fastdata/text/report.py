"""The sections of a report that only text has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.report.charts import bars, histogram, many, number, share
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section
from fastdata.store.store import Store
from fastdata.text.contact_sheet import decoder, read_tokens

__all__ = ["token_sections"]

Array = np.ndarray[Any, np.dtype[Any]]

DOCUMENTS, FIRST = 12, 240  # documents that are shown, and tokens of each
RECORDS = 32  # of at most 1 MB, whose tokens are counted
COMMON = 40
INPUTS = 20


def token_sections(store: Store) -> Iterator[Section]:
    """Yield the sections on a store's text."""
    decode, problem = decoder(store)
    yield _texts(store, decode, problem)
    yield _documents(store)
    yield _vocabulary(store, decode)


def _texts(store: Store, decode: Callable[[Sequence[int]], str], problem: str) -> Section:
    count = min(len(store), DOCUMENTS)
    names, parts = store.names(), []
    for k in range(count):
        index = k * len(store) // count
        row = store.samples[index]
        length = int(row["tokens"])
        ids = read_tokens(store, int(row["start"]), min(FIRST, length)).tolist()
        heading = tag("h3", f"{index}: {names[int(row['source'])]}", tag("small", f" {many(length, 'token')}"))
        shown = [tag("span", text) for text in _pieces(decode, ids)]
        parts.append(
            tag("div", heading, tag("p", shown, " …" if length > FIRST else None, class_="tokens", tabindex="0"), class_="text")
        )
    said = f"The first {FIRST} tokens of {number(count)} of {many(len(store), 'document')}, evenly spaced. "
    said += "Colours alternate from token to token."
    note = tag("p", problem) if problem else None
    return Section("samples", "Texts", join(tag("p", said, class_="soft"), note, parts), {"shown": count})


def _pieces(decode: Callable[[Sequence[int]], str], ids: list[int]) -> Iterator[str]:
    """Yield the text of each token; of tokens that are parts of a character, the text of all of them."""
    held: list[int] = []
    for k in ids:
        held.append(k)
        text = decode(held)
        if "\ufffd" not in text or len(held) > 3:
            yield text
            held = []
    if held:
        yield decode(held)


def _documents(store: Store) -> Section:
    section, lengths = store.manifest.section("tokens"), np.asarray(store.samples["tokens"])
    total, names = sum(section.counts), store.names()
    empty = int((lengths <= (section.end is not None)).sum())
    facts: dict[str, Any] = {
        "documents": len(store),
        "tokens": total,
        "shortest": int(lengths.min()),
        "median": float(np.median(lengths)),
        "mean": total / len(store),
        "longest": int(lengths.max()),
        "empty": empty,
    }
    parts: list[Html] = [histogram(lengths, "Tokens of a document", log=True)]
    sums = np.bincount(store.samples["source"].astype(np.int64), weights=lengths, minlength=len(names))
    facts["inputs"] = {names[k]: int(sums[k]) for k in np.argsort(-sums, kind="stable")[:INPUTS].tolist()}
    if len(names) > 1:
        few = f"the {INPUTS} largest of {number(len(names))} inputs" if len(names) > INPUTS else "inputs"
        parts.append(bars(list(facts["inputs"].items()), what=f"tokens of {few}", whole=total))
    longest = int(np.argmax(lengths))
    said = (
        f"The longest is document {longest}, of {names[int(store.samples['source'][longest])]}: {number(facts['longest'])} tokens."
    )
    parts.append(tag("p", said, class_="soft"))
    findings = []
    if empty:
        findings.append(f"{many(empty, 'document', 'has')} no text.")
    if len(store) > 1 and facts["longest"] > total / 2:
        findings.append(f"One document has {share(facts['longest'], total)} of all tokens.")
    tiles = ((number(total), "tokens"), (number(round(facts["mean"])), "tokens of a document, mean"))
    return Section("documents", "Documents", tag("div", parts[:-1], parts[-1], class_=None), facts, tuple(findings), tiles)


def _vocabulary(store: Store, decode: Callable[[Sequence[int]], str]) -> Section:
    section, (variant,) = store.manifest.section("tokens"), store.manifest.variants
    reader = store.reader(variant)
    dtype = np.dtype(variant.form.dtype).newbyteorder("<")
    counts = np.zeros(max(section.vocab_size, section.largest + 1), np.int64)
    read = min(len(reader), RECORDS)
    for k in range(read):
        counts += np.bincount(np.frombuffer(reader.get(k * len(reader) // read), dtype), minlength=len(counts))
    total, used = int(counts.sum()), int((counts > 0).sum())
    order = np.argsort(-counts, kind="stable")
    common = [(_shown(decode, k), int(counts[k])) for k in order[:COMMON].tolist() if counts[k]]
    whole = sum(section.counts)
    said = f"Counted in {number(total)} of {number(whole)} tokens" + (", from evenly spaced parts." if total < whole else ".")
    half = -(-len(common) // 2)
    columns = [
        bars(common[:half], what="the most frequent tokens", whole=total),
        bars(common[half:], what="and the next", whole=total, most=common[0][1]),
    ]
    ranked = counts[order[:used]]
    shares = [(number(n), float(ranked[:n].sum()) / total) for n in (10, 100, 1000, 10_000, 100_000) if n < used]
    name = "unknown" if section.engine == "none" else section.name
    facts = {
        "tokenizer": name,
        "vocab_size": section.vocab_size,
        "counted": total,
        "used": used,
        "common": [[int(k), int(counts[k])] for k in order[:COMMON].tolist() if counts[k]],
    }
    body = join(
        tag("p", f"Tokenizer {name}, {number(section.vocab_size)} tokens; {number(used)} of them occur. {said}", class_="soft"),
        tag("div", columns, class_="columns"),
        bars(shares, what="share of the text that the N most frequent tokens make up", most=1, form=lambda part: share(part, 1)),
    )
    tiles = ((number(section.vocab_size), "in the vocabulary"),)
    return Section("vocabulary", "Vocabulary", body, facts, (), tiles)


def _shown(decode: Callable[[Sequence[int]], str], token: int) -> str:
    """Return a token with visible white space."""
    text = decode([token])
    return f"{text.replace(' ', '␣').replace(chr(10), '⏎').replace(chr(9), '⇥') or 'nothing'} ({token})"
