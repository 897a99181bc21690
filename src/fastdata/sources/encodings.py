"""Text in other encodings than UTF-8, which would be read as text full of zeros."""

from __future__ import annotations

import codecs
import shlex

from fastdata.errors import PrepError
from fastdata.sources.urls import AnyPath

__all__ = ["HEAD", "not_utf8", "refuse_utf16", "utf16_of"]

HEAD = 1024  # bytes of the beginning of a file that tell
LEAST = 8  # bytes without a mark that tell
MARKS = {  # the longer ones first: that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def utf16_of(head: bytes) -> str:
    """Return the encoding of a text if it is UTF-16 or UTF-32, else "". head: the first bytes.

    The mark at the beginning tells. Without one, UTF-16 is known by its zeros, most of which are at odd places, or at even ones.
    """
    for mark, name in MARKS.items():
        if head.startswith(mark):
            return name
    even, odd = head[::2], head[1::2]
    for name, with_zeros, without in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if len(head) >= LEAST and 2 * with_zeros.count(0) > len(with_zeros) and not without.count(0):
            return name
    return ""


def not_utf8(name: str, encoding: str) -> str:
    """Say that a file is not UTF-8, and how to convert it."""
    return f"it is {encoding}, not UTF-8: convert it with {shlex.join(['iconv', '-f', encoding, '-t', 'UTF-8', name])} > utf8.txt"


def refuse_utf16(path: AnyPath) -> None:
    """Raise PrepError if a file of text is UTF-16 or UTF-32."""
    with path.open("rb") as file:
        encoding = utf16_of(file.read(HEAD))
    if encoding:
        raise PrepError(f"cannot read {path}: {not_utf8(str(path), encoding)}")
