"""HTML from elements. Every text is escaped, unless it is `Html` already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["Child", "Html", "join", "tag"]

VOID = {"br", "img", "input", "meta"}
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")  # also marks that turn text around


class Html(str):
    """A text that is HTML, and is not escaped again."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: Any) -> Html:
    """Return an element.

    Args:
        name: of the element.
        children: text, which is escaped; elements; lists of these; None, which is left out.
        attributes: "class_" stands for class, and "_" for "-". None and False: the attribute is left out; True: it has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{_escaped(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in VOID else f"{start}{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Return children as HTML, one after the other."""
    return Html("".join(map(_as_html, children)))


def _as_html(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return _escaped(str(child))
    return join(*child)


def _escaped(text: str) -> str:
    """Escape a text. What HTML cannot hold, such as undecodable bytes of file names, becomes U+FFFD."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return html.escape(UNPRINTABLE.sub("\ufffd", whole), quote=True)
