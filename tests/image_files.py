"""Writers of image files in plain Python, which share no code with what reads them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import Array

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))  # top, left, steps


def saved(pixels: Array | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image file, written by Pillow."""
    out = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(out, kind, **options)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------------------ PNG


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(values: Array, depth: int, color_type: int, *, interlaced: bool = False, filters: Any = None, **chunks: bytes) -> bytes:
    """A PNG of numbers [H, W, samples]; filters: says which of the five a row has; chunks: PLTE and tRNS, before the pixels."""
    height, width, _ = values.shape
    choose = filters or (lambda: 0)
    passes = [values[top::down, left::right] for top, left, down, right in ADAM7] if interlaced else [values]
    raw = b"".join(_png_rows(part, depth, choose) for part in passes if part.size)
    size = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, int(interlaced))
    packed = zlib.compress(raw)
    half = len(packed) // 2  # pixels may come in several chunks
    pieces = [(b"IHDR", size), *((name.encode(), body) for name, body in chunks.items())]
    pieces += [(b"IDAT", packed[:half]), (b"IDAT", packed[half:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*piece) for piece in pieces)


def _png_rows(values: Array, depth: int, choose: Any) -> bytes:
    """Rows as bytes, each behind its filter."""
    height, _, samples = values.shape
    flat = values.reshape(height, -1)
    if depth == 16:
        rows = flat.astype(">u2").view(np.uint8)
    elif depth == 8:
        rows = flat.astype(np.uint8)
    else:
        bits = np.unpackbits(flat.astype(np.uint8)[..., None], axis=2)[..., 8 - depth :]
        rows = np.packbits(bits.reshape(height, -1), axis=1)
    step, out = max(1, samples * depth // 8), b""
    above = np.zeros(rows.shape[1], int)
    for row in rows.astype(int):
        left, corner = (np.concatenate([np.zeros(step, int), line])[: len(line)] for line in (row, above))
        kind = choose()
        guess = (0 * row, left, above, (left + above) // 2, _paeth(left, above, corner))[kind]
        out += bytes([kind]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        above = row
    return out


def _paeth(left: Array, above: Array, corner: Array) -> Array:
    away = [np.abs(left + above - corner - each) for each in (left, above, corner)]
    return np.where((away[0] <= away[1]) & (away[0] <= away[2]), left, np.where(away[1] <= away[2], above, corner))


# ----------------------------------------------------------------------------------------------------------------- TIFF


def tiff(a: Array, photometric: int, *, order: str = "<", big: bool = False, **extra: Any) -> bytes:
    """A TIFF, or BigTIFF, of [H, W, samples]; extra: planar, tile, rows, deflate, orientation, alpha, tags, pieces for its own."""
    height, width, samples = a.shape
    a = a.astype(a.dtype.newbyteorder(order))
    tile, rows = extra.get("tile"), extra.get("tile") or extra.get("rows") or height
    pieces = list(extra.get("pieces", ()))
    for plane in [] if pieces else np.split(a, samples, axis=2) if extra.get("planar") else [a]:
        for top in range(0, height, rows):
            for left in range(0, width, tile or width):
                piece = plane[top : top + rows, left : left + (tile or width)]
                if tile:
                    piece = np.pad(piece, ((0, tile - piece.shape[0]), (0, tile - piece.shape[1]), (0, 0)))
                pieces.append(zlib.compress(piece.tobytes()) if extra.get("deflate") else piece.tobytes())
    word, size = ("Q", 8) if big else ("I", 4)
    starts = np.cumsum([16, *[len(piece) for piece in pieces]])
    tags: dict[int, tuple[str, list[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [a.dtype.itemsize * 8] * samples),
        259: ("H", [8 if extra.get("deflate") else 1]),
        262: ("H", [photometric]),
        274: ("H", [extra.get("orientation", 1)]),
        277: ("H", [samples]),
        284: ("H", [2 if extra.get("planar") else 1]),
        324 if tile else 273: (word, starts[:-1].tolist()),
        325 if tile else 279: (word, [len(piece) for piece in pieces]),
    }
    tags.update({322: ("H", [tile]), 323: ("H", [tile])} if tile else {278: ("I", [rows])})
    if "alpha" in extra:
        tags[338] = ("H", [extra["alpha"]])
    tags.update(extra.get("tags", {}))
    spill, at, entries = b"", int(starts[-1]), b""
    for tag, (code, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        field = packed.ljust(size, b"\0")
        if len(packed) > size:
            field, spill = struct.pack(order + word, at + len(spill)), spill + packed
        entries += struct.pack(order + "HH" + word, tag, {"B": 7, "H": 3, "I": 4, "Q": 16}[code], len(values)) + field
    at += len(spill)
    head = struct.pack(order + "HHHQ", 43, 8, 0, at) if big else struct.pack(order + "HI8x", 42, at)
    start = ((b"II" if order == "<" else b"MM") + head)[:16] + b"".join(pieces) + spill
    return start + struct.pack(order + ("Q" if big else "H"), len(tags)) + entries + b"\0" * size


# ------------------------------------------------------------------------------------------------------------------ PNM


def pnm(kind: int, values: Array, largest: int) -> bytes:
    """A PNM, P4 to P6, of numbers [H, W, samples]."""
    height, width = values.shape[:2]
    head = b"P%d\n# a comment 9 9\n%d %d\n" % (kind, width, height) + (b"%d\n" % largest if kind != 4 else b"")
    if kind == 4:
        return head + np.packbits(values[..., 0].astype(np.uint8), axis=1).tobytes()
    return head + values.astype(np.uint8 if largest <= 255 else ">u2").tobytes()


# --------------------------------------------------------------------------------------------------------------- others


def heif(pixels: Array, **options: Any) -> bytes:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_pillow

    out = io.BytesIO()
    from_pillow(Image.fromarray(pixels)).save(out, quality=100, chroma=444, **options)
    return out.getvalue()


def jxl(pixels: Array, **options: Any) -> bytes:
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    try:
        return saved(pixels, "JXL", lossless=True, **options)
    except NotImplementedError:
        pytest.skip("this version of pillow-jxl-plugin reads such a file, but writes none")
