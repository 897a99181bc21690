"""How TIFF and GIF pack bytes: LZW, deflate, PackBits, and values of less than a byte.

Each unpacker takes the number of bytes that must come out, raises `CodecError` (truncated, undecodable) when the packed ones
are damaged, and never makes much more than was asked for.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import imdecode

__all__ = ["inflate", "split_bits", "unpack_bits", "unpack_lzw", "unpack_tiff_lzw"]

Array = np.ndarray[Any, np.dtype[Any]]


def unpack_lzw(packed: bytes, size: int, *, depth: int, tiff: bool) -> bytes:
    """LZW of values of `depth` bits as in GIF (low bits first) or TIFF (high bits first, codes widen one early)."""
    clear, end = 1 << depth, (1 << depth) + 1
    single = [bytes([value]) for value in range(clear)] + [b"", b""]
    table, width, previous = single.copy(), depth + 1, b""
    out, at, bits = bytearray(), 0, 8 * len(packed)
    padded = packed + b"\0\0"
    while len(out) < size:
        window = padded[at >> 3 : (at >> 3) + 3]
        if tiff:
            code = int.from_bytes(window, "big") >> (24 - width - (at & 7)) & ((1 << width) - 1)
        else:
            code = int.from_bytes(window, "little") >> (at & 7) & ((1 << width) - 1)
        at += width
        if at > bits or code == end:
            raise CodecError("the compressed pixels end early", "truncated")
        if code == clear:
            table, width, previous = single.copy(), depth + 1, b""
            continue
        if code > len(table) or (code == len(table) and not previous):
            raise CodecError("the compressed pixels are damaged", "undecodable")
        entry = table[code] if code < len(table) else previous + previous[:1]
        if previous and len(table) < 4096:
            table.append(previous + entry[:1])
            if len(table) + tiff == 1 << width and width < 12:
                width += 1
        out += entry
        previous = entry
    return bytes(out[:size])


def unpack_tiff_lzw(packed: bytes, rows: int, row: int) -> bytes:
    """`rows` of `row` bytes, much faster than `unpack_lzw`: by OpenCV's libtiff, as a one-strip file of 16-bit grey.

    Only for 16 bits does OpenCV report damage, so an odd number of bytes takes the slow way, and so does any failure,
    which finds the reason.
    """
    height, width = (rows, row // 2) if row % 2 == 0 else (rows // 2, row)
    if 2 * height * width == rows * row:
        tags = {256: width, 257: height, 258: 16, 259: 5, 262: 1, 273: 122, 277: 1, 278: height, 279: len(packed)}
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        with contextlib.suppress(CodecError):
            decoded = imdecode(b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + b"\0" * 4 + packed)
            if decoded.dtype == np.uint16 and decoded.shape == (height, width):
                return decoded.astype("<u2", copy=False).tobytes()
    return unpack_lzw(packed, rows * row, depth=8, tiff=True)


def inflate(packed: bytes, size: int) -> bytes:
    """Deflate with its checksum, which zlib reads with the byte after the last: hence `size + 1`."""
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(packed, size + 1)
    except zlib.error as error:
        raise CodecError(f"the compressed pixels are damaged: {error}", "undecodable") from None
    if len(raw) < size or not (engine.eof or len(raw) > size):
        raise CodecError("the compressed pixels end early", "truncated")
    return raw[:size]


def unpack_bits(packed: bytes, size: int) -> bytes:
    """PackBits: runs of one byte, and stretches of bytes as they are."""
    out, at = bytearray(), 0
    while len(out) < size and at + 1 < len(packed):
        count = packed[at]
        if count < 128:
            out += packed[at + 1 : at + 2 + count]
            at += 2 + count
        elif count > 128:
            out += packed[at + 1 : at + 2] * (257 - count)
            at += 2
        else:
            at += 1
    if len(out) < size:
        raise CodecError("the compressed pixels end early", "truncated")
    return bytes(out[:size])


def split_bits(rows: Array, bits: int) -> Array:
    """[H, bytes] to [H, values] uint8 of `bits` (1, 2, 4, 8) each, high bits first."""
    if bits == 8:
        return rows
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    return ((rows[..., None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(rows.shape[0], -1)
