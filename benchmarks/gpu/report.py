"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastdata.bench.harness import table

HEADERS = ["", "rate", "least - greatest", "of the ceiling", ""]
READING = (
    "Contestants of a part take turns. Rates are medians over the rounds; shares of the ceiling are formed within each round, their"
    " median stands here. What lay ready when a turn began does not count, and what was asked of the device is done when it ends."
)


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """One benchmark."""
    lines = list(result["about"])
    lines += ["", *table(HEADERS, [_cells(row) for row in result["rows"]])] if result["rows"] else []
    if result["asked"]:
        lines += ["", *(_asked(one) for one in result["asked"])]
    lines += ["", *(f"- {name}: {_number(value)}" for name, value in result["found"].items())] if result["found"] else []
    lines += [f"\nChecked: {'; '.join(result['checked'])}."] if result["checked"] else []
    return lines + [f"\nLeft out: {name}: {why}" for name, why in result["left_out"].items()]


def document(parts: Sequence[Mapping[str, Any]], inputs: str, *, rehearsal: bool) -> list[str]:
    """All of a run: how it went, then part by part."""
    lines = ["A REHEARSAL: no figure here means anything.", ""] if rehearsal else []
    lines += [READING, "", f"Inputs: {inputs}", ""]
    lines += table(["part", "seconds", "how it went"], [[p["name"], f"{p['seconds']:.0f}", p["state"]] for p in parts])
    for part in parts:
        lines += ["", f"## {part['name']}: {part['title']}", ""]
        if part["said"]:
            lines += [f"{part['state'].upper()}:", "", "```", part["said"], "```", ""]
        if part["result"] is not None:
            lines += lines_of(part["result"])
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate, ratio = row["rate"], row["of_ceiling"]
    spread = f"{_number(rate['min'])} - {_number(rate['max'])}"
    return [row["name"], f"{_number(rate['median'])} {row['unit']}", spread, f"{ratio['median']:.3f}", row["note"]]


def _asked(one: Mapping[str, Any]) -> str:
    bound = f"at {'most' if one['most'] else 'least'} {_number(one['bound'])}"
    if one["found"] is None:
        return f"- {one['what']}: asked {bound}, NOT SHOWN"
    return f"- {one['what']}: asked {bound}, found {_number(one['found'])}{'' if one['met'] else ', MISSED'}"


def _number(value: Any) -> str:
    """Three digits that count, at least."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
