"""The section on labels, for any kind of data."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.report.charts import bars, histogram, many, number
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section
from fastdata.store.store import Store

__all__ = ["label_sections"]

MOST = 40  # classes that have a bar each; of more, half this number at either end
SKEWED = 10  # a ratio of the largest class to the smallest that is worth a look
MOST_COLUMNS = 24


def label_sections(store: Store, labels: dict[str, Any]) -> list[Section]:
    """Return the section on classes, or on labels that are numbers. labels: what `store_facts` says of them."""
    if not len(store) or labels["kind"] == "none":
        return []
    if labels["kind"] == "class":
        return [_classes(store, labels)]
    if labels["kind"] == "vector" and len(store.samples):
        return [_numbers(store)]
    return []


def _classes(store: Store, labels: dict[str, Any]) -> Section:
    items, what = store.kind.item, labels["classes"]
    order = sorted(what, key=lambda entry: -entry["samples"])
    counts = [entry["samples"] for entry in order]
    unlabelled, empty = labels["unlabelled"], counts.count(0)
    least = next((count for count in reversed(counts) if count), 0)
    findings = []
    if counts and least and counts[0] >= SKEWED * least:
        large, small = order[0]["name"], next(entry["name"] for entry in reversed(order) if entry["samples"])
        times = f"{counts[0] / least:.0f} times as many as {small} ({number(least)})"
        findings.append(f"The classes are unbalanced: {large} has {number(counts[0])} {items}s, {times}.")
    if empty:
        findings.append(f"{many(empty, 'class', 'has')} no {items}.")
    if unlabelled:
        findings.append(f"{many(unlabelled, items, 'has')} no class: the target is -1.")
    facts = {
        "classes": len(what),
        "largest": counts[0] if counts else 0,
        "smallest": counts[-1] if counts else 0,
        "empty": empty,
        "unlabelled": unlabelled,
        "counts": {entry["name"]: entry["samples"] for entry in what},
    }
    tiles = ((number(len(what)), "classes"),)
    return Section("classes", "Classes", _class_bars(order, len(store), items), facts, tuple(findings), tiles)


def _class_bars(order: list[dict[str, Any]], whole: int, items: str) -> Html:
    pairs = [(entry["name"], entry["samples"]) for entry in order]
    if len(pairs) <= MOST:
        half = -(-len(pairs) // 2) if len(pairs) > 12 else len(pairs)
        parts = [bars(pairs[:half], what=f"{items}s in each class", whole=whole)]
        parts += [bars(pairs[half:], what="smaller classes", whole=whole, most=pairs[0][1])] if pairs[half:] else []
        return tag("div", parts, class_="columns") if len(parts) > 1 else parts[0]
    if pairs[0][1] == pairs[-1][1]:
        return tag("p", f"Each of the {number(len(pairs))} classes has {many(pairs[0][1], items)}.")
    half = MOST // 2
    between = pairs[half:-half]
    said = (
        f"{number(len(between))} more classes between these have {number(between[-1][1])} to {number(between[0][1])} {items}s each."
    )
    parts = [bars(pairs[:half], what=f"the {half} largest classes", whole=whole)]
    parts.append(bars(pairs[-half:], what=f"the {half} smallest classes", whole=whole, most=pairs[0][1]))
    spread = histogram(np.array([count for _, count in pairs]), f"{items}s of a class")
    return join(tag("div", parts, class_="columns"), tag("p", said, class_="soft"), spread)


def _numbers(store: Store) -> Section:
    names, values = store.manifest.labels.names, store.samples["label"]
    charts, facts, findings = [], dict[str, Any](), []
    for k, name in enumerate(names[:MOST_COLUMNS]):
        column = np.asarray(values[:, k], np.float64)
        finite = column[np.isfinite(column)]
        charts.append(histogram(column, name))
        facts[name] = (
            {"min": float(finite.min()), "mean": float(finite.mean()), "max": float(finite.max())} if len(finite) else None
        )
        if len(finite) < len(column):
            findings.append(f"{len(column) - len(finite)} values of the label {name} are not finite.")
    more = [tag("p", f"The first {MOST_COLUMNS} of {len(names)} labels.", class_="soft")] if len(names) > MOST_COLUMNS else []
    return Section("labels", "Labels", join(more, tag("div", charts, class_="columns")), {"labels": facts}, tuple(findings))
