"""The lines that `fastdata info` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from fastdata.store.info import store_facts
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = ["Facts", "info_lines", "label_lines", "listed", "span", "spread"]

Facts = dict[str, Any]

MOST = 20  # classes that are listed
CHECKSUM = re.compile(r"[0-9a-f]{32,}")


def info_lines(store: Store) -> Iterator[str]:
    """Yield the lines on what a store contains and how it was made."""
    facts = store_facts(store)
    yield from store.kind.lines(facts)
    yield f"  memory: {_memory(facts)}"
    yield f"  rejected: {', '.join(f'{reason} {count}' for reason, count in facts['rejected'].items()) or 'none'}"
    yield "  options: " + ", ".join(_options(store.kind.typed(facts["options"])))
    yield "  made with: " + ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())


def listed(items: Iterable[str]) -> str:
    """Join the first items, and say how many more there are."""
    names = list(items)
    return ", ".join(names[:MOST]) + (f", and {len(names) - MOST} more (--json lists all)" if len(names) > MOST else "")


def label_lines(labels: Facts, what: str) -> Iterator[str]:
    """Yield the lines on labels. what: the plural for samples, such as "images"."""
    if labels["kind"] == "class":
        counts = [entry["samples"] for entry in labels["classes"]]
        line = "  classes: " + listed(f"{entry['name']} {entry['samples']}" for entry in labels["classes"])
        if len(counts) > MOST:
            line += f"; {spread(min(counts), max(counts), what)} each"
        yield line
        if labels["unlabelled"]:
            yield f"  without a class: {labels['unlabelled']} {what}, whose target is -1"
    elif "min" in next(iter(labels["columns"]), ()):
        yield "  labels: " + listed(
            f"{c['name']} {c['min']:.4g} to {c['max']:.4g}, mean {c['mean']:.4g}"
            if None not in c.values()
            else f"{c['name']} with values that are not finite"
            for c in labels["columns"]
        )


def spread(low: int, high: int, what: str) -> str:
    """Format a range of counts, such as "3 images" or "1 to 2 images"."""
    return number_of(low, what.removesuffix("s")) if low == high else f"{low} to {high} {what}"


def span(low: str, high: str) -> str:
    """Format a range, such as "3" or "1 to 2"."""
    return low if low == high else f"{low} to {high}"


def _memory(facts: Facts) -> str:
    """Say how much memory holding the store takes, and how much is free."""
    parts = []
    for entry in facts["memory"]:
        part = human_bytes(entry["bytes"])
        if entry.get("decoded_bytes", entry["bytes"]) != entry["bytes"]:
            part += f" ({human_bytes(entry['decoded_bytes'])} with decoded=True)"
        parts.append(part + (f" at size {entry['size'] or 'full'}" if len(facts["memory"]) > 1 else ""))
    return f"RAMDataset takes {', '.join(parts)}; {human_bytes(facts['free_memory'])} are free here"


def _options(options: Facts) -> Iterator[str]:
    """Yield names and values, without options that are not set and without checksums."""
    for name, value in options.items():
        if value is True:
            yield name
        elif isinstance(value, list) and value:
            yield f"{name} {','.join('own' if item is None else str(item) for item in value)}"
        elif isinstance(value, str | int | float) and value != "" and value is not False and not CHECKSUM.fullmatch(str(value)):
            yield f"{name} {value if str(value).isprintable() else repr(value)}"
