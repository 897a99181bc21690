"""The contact sheet of tokens: how documents begin, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastdata.errors import FastDataError
from fastdata.store.canvas import DARK, GAP, GREY, TITLE, Canvas, text_width
from fastdata.store.store import Store
from fastdata.text.sections import RECORD_BYTES
from fastdata.tokenizer import Spec, load
from fastdata.words import human_bytes, number_of

__all__ = ["decoder", "draw_documents", "read_tokens"]

Array = np.ndarray[Any, np.dtype[Any]]

WIDTH, LINE = 1224, 19
DOCUMENTS, LINES, FIRST = 24, 2, 200  # documents, lines for each, and tokens read from each
SHADES = (226, 235, 247), (249, 237, 219)  # alternate from token to token


def draw_documents(store: Store) -> tuple[Canvas, int, str]:
    """Draw the first tokens of evenly spaced documents, with room for a title. Return also their number and a line about all."""
    section = store.manifest.section("tokens")
    names = store.names()
    decode, problem = decoder(store)
    count = min(len(store), DOCUMENTS)
    tall = LINE * (LINES + 1) + GAP
    canvas = Canvas(WIDTH, TITLE + max(1, count) * tall)
    for place in range(count):
        index, y = place * len(store) // count, TITLE + place * tall
        row = store.samples[index]
        caption = f"{index}: {names[int(row['source'])]}, {number_of(int(row['tokens']), 'token')}"
        canvas.text(GAP, y + 13, caption, width=WIDTH - 2 * GAP, color=GREY)
        ids = read_tokens(store, int(row["start"]), min(FIRST, int(row["tokens"])))
        _draw(canvas, [decode([k]) for k in ids.tolist()], y + LINE, more=int(row["tokens"]) > FIRST)
    size = sum(section.counts) * np.dtype(store.manifest.variants[0].form.dtype).itemsize
    name = "unknown" if section.engine == "none" else section.name
    summary = f"{number_of(len(store), 'document')}, {sum(section.counts)} tokens, {human_bytes(size)}, tokenizer {name}"
    return (
        canvas,
        count,
        summary + ("" if count == len(store) else f"; {count} of them, evenly spaced") + (problem and f"; {problem}"),
    )


def decoder(store: Store) -> tuple[Callable[[Sequence[int]], str], str]:
    """Return what makes text of ids; and, if it shows the ids themselves, why."""
    section = store.manifest.section("tokens")
    spec = Spec(section.engine, section.name, section.sha256)
    try:
        return load(spec, (store.path / spec.file).read_bytes() if spec.file else b"").decode, ""
    except FastDataError as error:  # there is no tokenizer, or its library is not installed
        return lambda ids: " ".join(map(str, ids)), f"shown as ids: {error}"


def read_tokens(store: Store, start: int, count: int) -> Array:
    """Return `count` tokens from a place in the store on. All must lie in one shard, as those of a document do."""
    section, (variant,) = store.manifest.section("tokens"), store.manifest.variants
    assert variant.records is not None
    dtype = np.dtype(variant.form.dtype).newbyteorder("<")
    ends = np.cumsum(section.counts)
    each = RECORD_BYTES // dtype.itemsize
    shard = int(np.searchsorted(ends, start, "right"))
    first = start - int(ends[shard - 1] if shard else 0)
    reader = store.reader(variant)
    before = sum(variant.records[:shard])
    found: list[Array] = []
    for record in range(first // each, (first + max(count, 1) - 1) // each + 1):
        found.append(np.frombuffer(bytes(reader.get(before + record)), dtype))
    return np.concatenate(found)[first % each : first % each + count]


def _draw(canvas: Canvas, tokens: list[str], y: int, *, more: bool) -> None:
    """Draw tokens as shaded boxes, as many as fit into the lines."""
    x = GAP
    line = 0
    for k, token in enumerate(tokens):
        text = token.replace("\n", "\\n").replace("\t", "\\t")
        wide = max(6, text_width(text.replace("\ufffd", "?")) + 4)
        last = line == LINES - 1
        if x + wide > canvas.pixels.shape[1] - GAP - 20 * last:
            if last:
                more = True
                break
            x = GAP
            line += 1
        wide = min(wide, canvas.pixels.shape[1] - GAP - x)
        canvas.box(x, y + line * LINE, wide, LINE - 2, SHADES[k % 2])
        canvas.text(x + 2, y + line * LINE + 13, text, width=wide - 2, color=DARK)
        x += wide + 1
    if more:
        canvas.text(x + 3, y + line * LINE + 13, "..", width=20, color=GREY)
