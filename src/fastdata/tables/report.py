"""The sections of a report that only tables have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fastdata.report.charts import bars, histogram, many, number, share
from fastdata.report.html import Html, tag
from fastdata.report.page import Section
from fastdata.store.store import Store
from fastdata.tables.columns import Column
from fastdata.tables.contact_sheet import format_value, sampled_values

__all__ = ["table_sections"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 200  # columns that are shown
NAMES = 12  # names of a category
DATE = 10  # characters of a date
MISSING = 0.5  # a share of missing values that is worth a look


def table_sections(store: Store) -> Iterator[Section]:
    """Yield the section on a table's columns."""
    table = store.manifest.section("table")
    order = sorted(table.columns, key=lambda column: column.name not in table.targets)
    cards, facts, findings = [], dict[str, Any](), list[str]()
    for column in order[:MOST]:
        values, step = sampled_values(store, column)
        chart, found = _chart(column, values, len(store))
        facts[column.name] = found
        target = tag("span", "target", class_="badge target") if column.name in table.targets else None
        kind = column.kind if column.kind == column.type else f"{column.kind} ({column.type})"
        missing = f" · {number(column.missing)} missing ({share(column.missing, len(store))})" if column.missing else ""
        lines = [tag("h3", column.name, target), tag("p", f"{kind}, stored as {column.dtype}{missing}", class_="facts"), chart]
        cards.append(tag("div", lines, data_text=column.name))
        findings += _findings(column, found, len(store))
    said = many(len(table.columns), "column") + (f", the first {MOST} of them" if len(order) > MOST else "")
    said += f". Charts show every {step}th row." if step > 1 else "."
    search = tag("input", type="search", placeholder="Filter by name", aria_label="Filter by name")
    tools = tag("div", search, class_="tools") if len(order) > 8 else None
    body = tag("div", tag("p", said, class_="soft"), tools, tag("div", cards, class_="cards"))
    yield Section("columns", "Columns", body, facts, tuple(findings), ((number(len(table.columns)), "columns"),))


def _chart(column: Column, values: Array, rows: int) -> tuple[Html, dict[str, Any]]:
    facts: dict[str, Any] = {"kind": column.kind, "dtype": column.dtype, "missing": column.missing or 0}
    if not len(values):
        return tag("p", "no values", class_="none"), facts | {"values": 0}
    if column.kind in ("category", "bool"):
        names = column.names or ("false", "true")
        codes = values.astype(np.int64)
        counts = np.bincount(codes[codes < len(names)], minlength=len(names))
        order = np.argsort(-counts, kind="stable").tolist()
        facts |= {"names": len(names), "counts": {names[k]: int(counts[k]) for k in order[:1000]}}
        shown = [(names[k], int(counts[k])) for k in order[:NAMES]]
        more = f", the commonest {NAMES} of {number(len(names))}" if len(names) > NAMES else ""
        return bars(shown, what=f"rows{more}", whole=int(counts.sum())), facts
    form = partial(_form, column=column)
    scaled = values / 10**column.scale if column.kind == "decimal" else values
    facts |= {"min": form(values.min()), "max": form(values.max()), "values": len(values)}
    if facts["min"] == facts["max"]:
        return tag("p", f"always {facts['min']}", class_="none"), facts
    if not column.unit:
        facts |= {"mean": float(scaled.mean(dtype=np.float64)), "deviation": float(scaled.std(dtype=np.float64))}
        said = f"mean {number(facts['mean'])}, deviation {number(facts['deviation'])}"
    else:
        said = f"{form(values.min())} to {form(values.max())}"
    days = column.kind == "timestamp" and facts["min"][:DATE] != facts["max"][:DATE]
    return histogram(values, said, form=(lambda value: form(value)[:DATE]) if days else form), facts


def _form(value: float, column: Column) -> str:
    """Format a value as in the original table."""
    return format_value(np.int64(round(value)), column) if column.unit or column.kind == "decimal" else number(value)


def _findings(column: Column, found: dict[str, Any], rows: int) -> Iterator[str]:
    if column.missing and column.missing > MISSING * rows:
        yield f"{column.name}: {share(column.missing, rows)} of the values are missing."
    elif rows > 1 and not column.missing and (found.get("names") == 1 or ("min" in found and found["min"] == found["max"])):
        yield f"{column.name} has the same value in every row."
    if column.kind == "category" and rows >= 100 and len(column.names) > rows / 2:
        yield f"{column.name} has {number(len(column.names))} names in {number(rows)} rows: it may be an identifier."
