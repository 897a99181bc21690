"""What `fastdata info` prints of a store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from fastdata.store.info import store_facts
from fastdata.store.store import Store
from fastdata.store.typed import typed_options

__all__ = ["human_bytes", "info_lines", "number_of"]

Facts = dict[str, Any]

MOST = 20  # classes that are listed
CHECKSUM = re.compile(r"[0-9a-f]{32,}")


def human_bytes(size: float) -> str:
    """Such as "21.3 MB"; decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def number_of(count: int, what: str) -> str:
    """Such as "1 image" or "3 classes"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('s') else 's'}"


def info_lines(store: Store) -> Iterator[str]:
    """What is in a store and how it was made."""
    facts = store_facts(store)
    lines = {"images": _image_lines, "arrays": _image_lines, "tokens": _token_lines, "table": _table_lines}[facts["kind"]]
    yield from lines(facts)
    yield f"  memory: {_memory(facts)}"
    yield f"  rejected: {', '.join(f'{reason} {count}' for reason, count in facts['rejected'].items()) or 'none'}"
    yield "  options: " + ", ".join(_options(typed_options(facts["options"])))
    yield "  made with: " + ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())


def _listed(items: Iterable[str]) -> str:
    """The first of them."""
    found = list(items)
    return ", ".join(found[:MOST]) + (f", and {len(found) - MOST} more (--json lists all)" if len(found) > MOST else "")


def _image_lines(facts: Facts) -> Iterator[str]:
    labels = facts["labels"]
    said = {
        "class": number_of(len(labels.get("classes", ())), "class"),
        "vector": f"float labels {', '.join(column['name'] for column in labels.get('columns', ()))}",
        "none": "no labels",
    }[labels["kind"]]
    yield f"{facts['path']}: {number_of(facts['samples'], facts['kind'][:-1])}, {said}, format {facts['format']}"
    yield from _label_lines(labels, facts["kind"])
    for variant in facts["variants"]:
        yield _variant_line(variant, facts)
    if "masks" in facts:
        total = max(1, sum(entry["pixels"] for entry in facts["masks"]))
        shares = (f"{entry['name'] or entry['class']} {entry['pixels'] / total:.1%}" for entry in facts["masks"])
        yield f"  masks: {number_of(len(facts['masks']), 'class')}, {_listed(shares)}"


def _label_lines(labels: Facts, what: str) -> Iterator[str]:
    if labels["kind"] == "class":
        counts = [entry["samples"] for entry in labels["classes"]]
        line = "  classes: " + _listed(f"{entry['name']} {entry['samples']}" for entry in labels["classes"])
        if len(counts) > MOST:
            line += f"; {_spread(min(counts), max(counts), what)} each"
        yield line
        if labels["unlabelled"]:
            yield f"  without a class: {labels['unlabelled']} {what}, whose target is -1"
    elif "min" in next(iter(labels["columns"]), ()):
        yield "  labels: " + _listed(
            f"{c['name']} {c['min']:.4g} to {c['max']:.4g}, mean {c['mean']:.4g}"
            if None not in c.values()
            else f"{c['name']} with values that are not finite"
            for c in labels["columns"]
        )


def _spread(low: int, high: int, what: str) -> str:
    """Such as "3 images" or "1 to 2 images"."""
    return number_of(low, what.removesuffix("s")) if low == high else f"{low} to {high} {what}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _variant_line(variant: Facts, facts: Facts) -> str:
    size = f"{human_bytes(variant['file_bytes'])} in {number_of(variant['shards'], 'shard')}"
    each = f", {human_bytes(variant['record_bytes'] / facts['samples'])} " if facts["samples"] else ""
    if facts["kind"] == "arrays":
        line = f"  {'masks' if variant['mask'] else 'arrays'}: {variant['dtype']}, {size}"
        if not facts["samples"]:
            return line
        low, high, chunk = (
            " x ".join(map(str, sides)) for sides in (variant["smallest"], variant["largest"], facts["arrays"]["chunk"])
        )
        line += f", {_range(low, high)} in chunks of {chunk}"
    else:
        name = variant["name"].removeprefix("mask-")
        line = f"  {'masks of size' if variant['mask'] else 'size'} {name}: {variant['codec']}, "
        line += f"{variant['channels']} x {variant['dtype']}, {size}"
        if facts["samples"]:
            (low, high), (narrow, wide) = variant["height"], variant["width"]
            line += f", {_range(f'{narrow} x {low}', f'{wide} x {high}')} pixels"
    if "originals" in variant:
        each = f", {variant['originals']} with their files' own bytes, {facts['samples'] - variant['originals']} encoded{each}"
    return line + (each + ("a mask" if variant["mask"] else f"an {facts['kind'][:-1]}") if each else "")


def _token_lines(facts: Facts) -> Iterator[str]:
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
        yield f"  documents: {_spread(found['shortest'], found['longest'], 'tokens')}, {mean:.0f} on average"


def _table_lines(facts: Facts) -> Iterator[str]:
    """Its size, its targets, and a line for each column."""
    table, labels, (variant,) = facts["table"], facts["labels"], facts["variants"]
    said = {
        "class": number_of(len(labels.get("classes", ())), "class"),
        "integer": "whole numbers as targets",
        "vector": "float targets",
        "none": "no target",
    }[labels["kind"]]
    yield (
        f"{facts['path']}: {number_of(facts['samples'], 'row')} of {number_of(len(table['columns']), 'column')}, {said}, "
        f"{human_bytes(variant['file_bytes'])} in {number_of(variant['shards'], 'shard')}, format {facts['format']}"
    )
    if labels["kind"] == "class":
        yield from _label_lines(labels, "rows")
    for column in table["columns"]:
        yield f"  {column['name']}: {_column(column)}{' (target)' if column['name'] in table['targets'] else ''}"


def _column(column: Facts) -> str:
    parts = [column["dtype"], column["kind"] if column["kind"] == column["type"] else f"{column['kind']} ({column['type']})"]
    if column["kind"] == "category":
        names = column["names"]
        parts.append(f"{number_of(len(names), 'name')}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
    if column["kind"] == "decimal":
        parts.append(f"times 10^{column['scale']}")
    if column["missing"] is not None:
        parts.append(f"{column['missing']} missing")
    return ", ".join(parts)


def _memory(facts: Facts) -> str:
    """What holding the store takes, of how much."""
    parts = []
    for entry in facts["memory"]:
        part = human_bytes(entry["bytes"])
        if entry.get("decoded_bytes", entry["bytes"]) != entry["bytes"]:
            part += f" ({human_bytes(entry['decoded_bytes'])} with decoded=True)"
        parts.append(part + (f" at size {entry['size'] or 'full'}" if len(facts["memory"]) > 1 else ""))
    dataset = "TableDataset" if facts["kind"] == "table" else "RAMDataset"
    return f"{dataset} takes {', '.join(parts)}; {human_bytes(facts['free_memory'])} are free here"


def _options(options: Facts) -> Iterator[str]:
    """Names and values; without those that are not set, and without checksums."""
    for name, value in options.items():
        if value is True:
            yield name
        elif isinstance(value, list) and value:
            yield f"{name} {','.join('own' if item is None else str(item) for item in value)}"
        elif isinstance(value, str | int | float) and value != "" and value is not False and not CHECKSUM.fullmatch(str(value)):
            yield f"{name} {value if str(value).isprintable() else repr(value)}"
