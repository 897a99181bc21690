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


def saved(pixels: Array | Image.Image, kind: str, **options: Any) -> bytes:
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


TIFF_JPEGS: dict[str, tuple[int, dict[str, Any]]] = {  # photometric interpretation, and how the JPEGs are written
    "rgb": (2, {"keep_rgb": True, "subsampling": 0}),
    "ycc": (6, {"subsampling": 0}),
    "ycc-420": (6, {"subsampling": 2}),
    "ycc-422": (6, {"subsampling": 1}),
    "ycc-progressive": (6, {"subsampling": 2, "progressive": True}),
    "gray": (1, {}),
    "white-is-0": (0, {}),
}


def tiff_of_jpegs(a: Array, name: str, layout: str, *, split: bool = False, big: bool = False) -> bytes:
    """A TIFF of JPEGs of [33, 40, 3], as one strip, strips or tiles; split: their tables are in a tag."""
    photometric, options = TIFF_JPEGS[name]
    pixels = a if photometric in (2, 6) else a[..., :1]
    rows, tile = {"one": 33}.get(layout, 16), 16 if layout == "tiles" else None
    padded = np.pad(pixels, ((0, 15), (0, 8), (0, 0)))
    parts = [padded[top : top + 16, left : left + 16] for top in (0, 16, 32) for left in (0, 16, 32)]
    if tile is None:
        parts = [pixels[top : top + rows] for top in range(0, 33, rows)]
    jpegs = [saved(part if part.shape[2] == 3 else part[..., 0], "JPEG", quality=90, **options) for part in parts]
    tags: dict[int, Any] = {259: ("H", [7])}
    if photometric == 6:
        tags[530] = ("H", {0: [1, 1], 1: [2, 1], 2: [2, 2]}[options["subsampling"]])
    if split:
        tables, _ = _split_jpeg(jpegs[0])
        tags[347], jpegs = ("B", list(tables)), [_split_jpeg(jpeg)[1] for jpeg in jpegs]
    return tiff(pixels, photometric, big=big, tile=tile, rows=rows, pieces=jpegs, tags=tags)


def _split_jpeg(jpeg: bytes) -> tuple[bytes, bytes]:
    """(tables, the rest) of a JPEG, both with SOI and EOI."""
    at, tables, rest = 2, b"", b""
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] in (0xDB, 0xC4):
            tables += jpeg[at:end]
        else:
            rest += jpeg[at:end]
        at = end
    return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + rest + jpeg[at:]


# ------------------------------------------------------------------------------------------------------------------ PNM


def pnm(kind: int, values: Array, largest: int) -> bytes:
    """A PNM, P1 to P6, of numbers [H, W, samples]."""
    height, width = values.shape[:2]
    head = b"P%d\n# a comment 9 9\n%d %d\n" % (kind, width, height) + (b"%d\n" % largest if kind not in (1, 4) else b"")
    if kind == 1:
        return head + b"\n".join(b"".join(b"%d" % value for value in row.ravel()) for row in values) + b"\n"
    if kind == 4:
        return head + np.packbits(values[..., 0].astype(np.uint8), axis=1).tobytes()
    if kind in (2, 3):
        return head + b"\n".join(b" ".join(b"%d" % value for value in row.ravel()) for row in values) + b"\n"
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
