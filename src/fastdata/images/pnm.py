"""PNM (P1 to P6: bitmap, grey and colour, as text and as bytes) and PAM (P7).

The last number of a text has to be followed by white space, as netpbm wants it too: one cut short is a number as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, stretch
from fastdata.images.header import Header, unsupported
from fastdata.images.unpack import split_bits

__all__ = ["read_pam", "read_pnm"]

Array = np.ndarray[Any, np.dtype[Any]]

GAP = rb"(?:\s|#[^\r\n]*[\r\n])"
NUMBER = GAP + rb"+(\d{1,9})"
PNM = re.compile(rb"(?:P[14]" + 2 * NUMBER + rb"()|P[2356]" + 3 * NUMBER + rb")" + GAP)
UNFINISHED = re.compile(rb"P[1-6](?:%b|\d)*(?:#[^\r\n]*)?" % GAP)
COMMENT = re.compile(rb"#[^\r\n]*")
SPACE = b" \t\n\v\f\r"
PAM = {b"BLACKANDWHITE": 1, b"GRAYSCALE": 1, b"RGB": 3}  # samples of colour


@dataclass(frozen=True, kw_only=True)
class PnmHeader(Header):
    format = "other"
    channels: int
    largest: int
    start: int
    alpha: bool = False

    def pixels(self, data: bytes) -> Pixels:
        values = stretch(self._values(data), self.largest).reshape(self.height, self.width, self.channels)
        alpha = np.ascontiguousarray(values[..., -1]) if self.alpha else None
        color = values[..., :3] if self.channels >= 3 else values[..., 0]
        return Pixels(np.ascontiguousarray(color), alpha)

    @property
    def _count(self) -> int:
        return self.height * self.width * self.channels

    def _values(self, data: bytes) -> Array:
        """All values, in one row, as they are stored."""
        dtype = np.dtype(np.uint8 if self.largest <= 255 else ">u2")
        _demand(len(data) - self.start, self._count * dtype.itemsize)
        return np.frombuffer(data, dtype, self._count, self.start)


class TextHeader(PnmHeader):
    def _values(self, data: bytes) -> Array:
        text = _text(data, self.start)
        if text.translate(None, SPACE + b"0123456789"):
            raise CodecError("the PNM has something else among its numbers", "undecodable")
        values = np.fromstring(text.strip(), np.int64, sep=" ")
        _demand(values.size - (not text[-1:].isspace()), self._count)
        return values[: self._count]


class BitmapHeader(PnmHeader):
    def _values(self, data: bytes) -> Array:
        row = -(-self.width // 8)
        _demand(len(data) - self.start, self.height * row)
        rows = np.frombuffer(data, np.uint8, self.height * row, self.start).reshape(self.height, row)
        return 1 - split_bits(rows, 1)[:, : self.width]


class TextBitmapHeader(PnmHeader):
    def _values(self, data: bytes) -> Array:
        digits = _text(data, self.start).translate(None, SPACE)
        _demand(len(digits), self._count)
        return ord("1") - np.frombuffer(digits, np.uint8, self._count)


def _text(data: bytes, start: int) -> bytes:
    """What follows the header, without comments."""
    return COMMENT.sub(b"", data[start:])


def _demand(there: int, wanted: int) -> None:
    if there < wanted:
        raise CodecError("the PNM ends inside its pixels", "truncated")


def read_pnm(data: bytes) -> PnmHeader:
    """The header of P1 to P6."""
    found = PNM.match(data)
    if not found:
        reason = "truncated" if UNFINISHED.fullmatch(data[:1000]) else "not-an-image"
        raise CodecError("the header of the PNM is not whole", reason)
    width, height, largest = (int(number or b"1") for number in found.groups() if number is not None)
    kind = data[1:2]
    reader = {b"1": TextBitmapHeader, b"4": BitmapHeader, b"2": TextHeader, b"3": TextHeader}.get(kind, PnmHeader)
    channels = 3 if kind in b"36" else 1
    return reader(height=height, width=width, channels=channels, largest=_largest(largest), start=found.end())


def read_pam(data: bytes) -> PnmHeader:
    """The header of P7: lines of a name and a value."""
    end = data.find(b"\nENDHDR\n")
    if end < 0:
        raise CodecError("the header of the PAM is not whole", "truncated")
    lines = [line.split(None, 1) for line in data[3:end].splitlines() if line.strip() and not line.startswith(b"#")]
    values = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    numbers = [values.get(name, b"") for name in (b"HEIGHT", b"WIDTH", b"DEPTH", b"MAXVAL")]
    if not all(re.fullmatch(rb"\d{1,9}", number) for number in numbers):
        raise CodecError("the PAM does not say its size, depth or largest value", "undecodable")
    height, width, channels, largest = (int(number) for number in numbers)
    kind = values.get(b"TUPLTYPE", {1: b"GRAYSCALE", 3: b"RGB"}.get(channels, b""))
    colors, alpha = PAM.get(kind.removesuffix(b"_ALPHA"), 0), kind.endswith(b"_ALPHA")
    if not colors or channels != colors + alpha:
        raise unsupported(f"PAM of {channels} channels with tuples {kind.decode(errors='replace')!r}")
    return PnmHeader(height=height, width=width, channels=channels, largest=_largest(largest), start=end + 8, alpha=alpha)


def _largest(value: int) -> int:
    if not 1 <= value <= 65535:
        raise CodecError(f"the PNM says {value} as its largest value", "undecodable")
    return value
