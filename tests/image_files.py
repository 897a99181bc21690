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


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(values: Array, depth: int, color_type: int, *, interlaced: bool = False, **chunks: bytes) -> bytes:
    """A PNG of numbers [H, W, samples], whose rows have no filter; chunks: PLTE and tRNS, before the pixels."""
    height, width, _ = values.shape
    raw = b""
    for top, left, down, right in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        rows = values[top::down, left::right].astype(">u2" if depth == 16 else np.uint8)
        packed = rows.reshape(len(rows), -1).view(np.uint8) if rows.size else rows.reshape(0, 1)
        if depth < 8:
            packed = np.packbits(np.unpackbits(packed[..., None], axis=2)[..., 8 - depth :].reshape(len(rows), -1), axis=1)
        raw += np.pad(packed, ((0, 0), (1, 0))).tobytes()
    size = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, int(interlaced))
    body = zlib.compress(raw)
    half = len(body) // 2  # pixels may come in several chunks
    pieces = [(b"IHDR", size), *((name.encode(), chunk) for name, chunk in chunks.items())]
    pieces += [(b"IDAT", body[:half]), (b"IDAT", body[half:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*piece) for piece in pieces)


def tiff(a: Array, photometric: int, *, order: str = "<", big: bool = False, tags: Any = (), **layout: Any) -> bytes:
    """A TIFF, or BigTIFF, of [H, W, samples]; layout: planar, tile, rows, deflate, orientation, alpha; tags: other values.

    Without alpha, there is no tag that explains further samples.
    """
    tifffile = pytest.importorskip("tifffile")
    samples = a.shape[2]
    options = {"planarconfig": "separate" if layout.get("planar") else "contig"} if samples > 1 else {}
    extra = [layout.get("alpha", 0)] * (samples - {2: 3, 5: 4}.get(photometric, 1))
    out, stored, tags = io.BytesIO(), a[..., 0] if samples == 1 else a, {274: layout.get("orientation", 1), **dict(tags)}
    tifffile.imwrite(
        out,
        np.moveaxis(stored, 2, 0) if samples > 1 and layout.get("planar") else stored,
        photometric=photometric,
        byteorder=order,
        bigtiff=big,
        extrasamples=extra,
        tile=(layout["tile"],) * 2 if "tile" in layout else None,
        rowsperstrip=layout.get("rows"),
        compression="zlib" if layout.get("deflate") else None,
        metadata=None,
        software=False,
        extratags=[(tag, 3, 1, value, False) for tag, value in tags.items()],
        **options,
    )
    data = bytearray(out.getvalue())
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        found = {tag.code: tag for tag in file.pages[0].tags}
    if extra and "alpha" not in layout:
        struct.pack_into(order + "H", data, found[338].offset, 65_000)
    for tag, value in tags.items():  # which tifffile sets by itself
        struct.pack_into(order + "H", data, found[tag].valueoffset, value)
    return bytes(data)


def pnm(kind: int, values: Array, largest: int) -> bytes:
    """A PNM, P4 to P6, of numbers [H, W, samples]."""
    height, width = values.shape[:2]
    head = b"P%d\n# a comment 9 9\n%d %d\n" % (kind, width, height) + (b"%d\n" % largest if kind != 4 else b"")
    if kind == 4:
        return head + np.packbits(values[..., 0].astype(np.uint8), axis=1).tobytes()
    return head + values.astype(np.uint8 if largest <= 255 else ">u2").tobytes()


def heif(pixels: Array | Image.Image, **options: Any) -> bytes:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_pillow

    out = io.BytesIO()
    from_pillow(pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(
        out, quality=100, chroma=444, **options
    )
    return out.getvalue()


def jxl(pixels: Array | Image.Image, **options: Any) -> bytes:
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    try:
        return saved(pixels, "JXL", lossless=True, **options)
    except NotImplementedError:
        pytest.skip("this version of pillow-jxl-plugin reads such a file, but writes none")
