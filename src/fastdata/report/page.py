"""The page of a report: its sections, with style and script inside, so that it needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from fastdata._version import __version__
from fastdata.report.html import Html, tag

__all__ = ["Section", "listing", "page", "tiles"]


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        key: its name in the address of the page, and in the JSON.
        title: its heading.
        body: its contents.
        facts: its numbers, as JSON values.
        findings: sentences on what deserves a look, which the top of the page lists.
        tiles: (number, what it counts), for the top of the page.
    """

    key: str
    title: str
    body: Html
    facts: dict[str, Any] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    tiles: tuple[tuple[str, str], ...] = ()


def tiles(numbers: Sequence[tuple[str, str]]) -> Html:
    """Return (number, what it counts) as tiles."""
    return tag("div", [tag("div", tag("b", value), tag("span", what), class_="tile") for value, what in numbers], class_="tiles")


def listing(head: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table whose first column names the rows.

    Args:
        head: titles of the columns.
        rows: the cells.
        numbers: columns that are aligned to the right.
    """
    body = []
    for first, *others in rows:
        cells = [tag("td", cell, class_="number" if k in numbers else None) for k, cell in enumerate(others, 1)]
        body.append(tag("tr", tag("th", first, scope="row"), cells))
    titles = tag("tr", [tag("th", title, scope="col", class_="number" if k in numbers else None) for k, title in enumerate(head)])
    table = tag("table", tag("thead", titles) if any(head) else None, tag("tbody", body), class_="list")
    return tag("div", table, class_="scroll")


def page(title: str, subtitle: str, numbers: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """Return a whole page.

    Its policy forbids browsers to load anything, and to run any script but its own.

    Args:
        title: the name of what is reported.
        subtitle: a line about it.
        numbers: the tiles below, as (number, what it counts).
        sections: the parts.
    """
    style, script = (Html((files(__package__) / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    found = [(section, text) for section in sections for text in section.findings]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="generator", content=f"fastdata {__version__}"),
        tag("title", f"{title}: report"),
        tag("style", style),
    )
    top = tag(
        "header",
        tag(
            "div",
            tag("div", tag("h1", title), tag("p", subtitle)),
            tag("button", "Light / dark", id="theme", type="button", title="Switch between light and dark"),
        ),
    )
    links = [tag("a", section.title, href=f"#{section.key}") for section in sections]
    body = tag(
        "body",
        tag("a", "Skip to the contents", href="#contents", class_="skip"),
        top,
        tag("nav", tag("div", links), aria_label="Sections"),
        tag("main", tiles(numbers), _findings(found), [_section(section) for section in sections], id="contents"),
        tag("footer", tag("p", f"Made by fastdata {__version__}. This page is complete in itself: it loads nothing.")),
        _dialog(),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Html:
    heading = tag("h2", section.title, id=f"{section.key}-title")
    return tag("section", heading, section.body, id=section.key, class_="card", aria_labelledby=f"{section.key}-title")


def _findings(found: Sequence[tuple[Section, str]]) -> Html:
    if not found:
        return tag("p", "Nothing was found that deserves a closer look.", class_="fine")
    lines = [tag("li", tag("a", text, href=f"#{section.key}")) for section, text in found]
    return tag("section", tag("h2", "Worth a look"), tag("ul", lines), class_="findings", aria_label="Worth a look")


def _dialog() -> Html:
    steps = (("← Previous", -1), ("Next →", 1))
    buttons = [tag("button", text, type="button", data_step=step) for text, step in steps]
    tools = tag("div", buttons[0], tag("button", "Close", type="button", data_close=True), buttons[1], class_="tools")
    return tag("dialog", tag("div", class_="shown"), tools, aria_label="Picture")
