"""Numbers in words, for messages and summaries."""

from __future__ import annotations


def human_bytes(size: float) -> str:
    """Format a size in decimal units, such as "21.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def number_of(count: int, what: str) -> str:
    """Format a number of things, such as "1 image" or "3 classes"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith(('s', 'x')) else 's'}"


def was(count: int) -> str:
    """Return "was" or "were", for a count."""
    return "was" if count == 1 else "were"
