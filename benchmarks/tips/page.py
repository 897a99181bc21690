"""Writes what was measured into the table of docs/speed.md, between markers: <!--cpu:NAME-->...<!--/-->."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["cell", "machine_line", "names", "write"]

BUSY = 0.5  # processes for each core from which a machine is not quiet
MARKED = re.compile(r"<!--(cpu|gpu):([a-z0-9_]+)-->(.*?)<!--/-->")


def names(text: str) -> dict[str, set[str]]:
    """Return the tips that a page has cells for: {"cpu": names, "gpu": names}."""
    found: dict[str, set[str]] = {"cpu": set(), "gpu": set()}
    for column, name, _ in MARKED.findall(text):
        found[column].add(name)
    return found


def write(page: Path, column: str, cells: Mapping[str, str]) -> list[str]:
    """Put cells into a column of a page. Return the names that the page has no place for."""
    text = page.read_text()

    def put(found: re.Match[str]) -> str:
        where, name, old = found.groups()
        return f"<!--{where}:{name}-->{cells.get(name, old) if where == column else old}<!--/-->"

    page.write_text(MARKED.sub(put, text))
    return sorted(set(cells) - names(text)[column])


def cell(found: Mapping[str, Any]) -> str:
    """Return what was found for a tip, as a cell of the table."""
    if found["state"] != "measured":
        return str(found["state"])
    parts = [f"{what}: {_number(b['median'])}, without {_number(a['median'])}" for what, a, b in _scores(found)]
    if "speed" in found:
        speed = found["speed"]
        parts.append(f"**{_number(speed['median'])} x** ({_number(speed['min'])} to {_number(speed['max'])})")
    parts += [f"{what} {_number(amount['ratio'])} x" for what, amount in found["amounts"].items()]
    return "; ".join(parts)


def _scores(found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(what, sides["baseline"], sides["tip"]) for what, sides in found["scores"].items()]


def _number(value: float) -> str:
    """Return a number with two or three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def machine_line(machine: Mapping[str, Any], date: str, load: float) -> str:
    """Return the machine in a sentence. load: the processes that ran or waited for a core before."""
    busy = ", while other programs used the cores, so the numbers are rough" if load > BUSY * machine["cores"] else ""
    device = f"{machine['gpu']}, " if machine["gpu"] else ""
    return (
        f"{device}{machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, "
        f"{date[:4]}-{date[4:6]}-{date[6:]}{busy}"
    )
