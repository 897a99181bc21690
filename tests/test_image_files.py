"""An image file of any format and mode, whole or cut, is read as it was meant, or refused: never as another picture.

Pixels are made in numpy. What loses some is compared with another decoder than the one that fastdata uses for the format. Targets
of tests/faults change bytes.
"""

from __future__ import annotations

import io
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
from support import PEAK_MEMORY, Array, run

# Writers in plain Python, which share no code with what reads the files

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))  # top, left, steps


def saved(pixels: Array | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image file, written by Pillow."""
    out = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(out, kind, **options)
    return out.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def write_png(values: Array, depth: int, color_type: int, *, interlaced: bool = False, **chunks: bytes) -> bytes:
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


def write_tiff(a: Array, photometric: int, *, order: str = "<", big: bool = False, tags: Any = (), **layout: Any) -> bytes:
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


def write_pnm(kind: int, values: Array, largest: int) -> bytes:
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


# Pictures

CUT = ("empty", "truncated", "undecodable", "unsupported", "not-an-image")


class Picture:
    """Numbers for an image: runs of equal ones above, noise below."""

    def __init__(self, height: int, width: int, seed: int) -> None:
        self.height, self.width, self.rng = height, width, np.random.default_rng(seed)

    def blend(self, color: Array, alpha: Array, full: int = 255) -> Array:
        """On white, rounded."""
        part = alpha / full
        return np.floor(colors(color) * part + full * (1 - part) + 0.5 + 1e-9)

    def values(self, channels: int, largest: int = 255) -> Array:
        noise = self.rng.integers(0, largest + 1, (self.height, self.width, channels))
        runs = self.rng.integers(0, largest + 1, (self.height, self.width // 5 + 1, channels)).repeat(5, axis=1)
        lower = np.arange(self.height)[:, None, None] * 2 > self.height
        return np.where(lower, noise, runs[:, : self.width]).astype(np.uint8 if largest < 256 else np.uint16)

    def photo(self, channels: int = 3) -> Array:
        """A smooth one, for formats that lose something."""
        y, x = np.mgrid[: self.height, : self.width]
        waves = [x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256, (2 * x + y) % 256]
        return np.stack(waves[:channels], axis=2).astype(np.uint8)


@dataclass
class Made:
    """A file, and the pixels [H, W, 3] that it shows, of 8 or 16 bits."""

    data: bytes
    expected: Array
    bits: int = 8
    apart: int = 0  # how far the pixels may be from these
    gray: Array | None = None  # what the file's own luma is
    reason: str = ""  # why it is refused


def colors(gray_or_rgb: Array) -> Array:
    return np.broadcast_to(gray_or_rgb, (*gray_or_rgb.shape[:2], 3))


def through(ink: Array) -> Array:
    """RGB of CMYK."""
    light = 1 - ink / 255
    return np.floor(255 * light[..., :3] * light[..., 3:] + 0.5)


def other(data: bytes, mode: str = "RGB") -> Array:
    """What Pillow makes of a file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


GRAY, RGB, INDEXED, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, INDEXED: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), INDEXED: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGB_ALPHA: (8, 16)}


def png(p: Picture, kind: int, depth: int, *, interlaced: bool, clear: bool) -> Made:
    """clear: one colour, or some of a palette, are transparent."""
    largest = (1 << depth) - 1
    values = p.values(SAMPLES[kind], largest)
    chunks, full = dict[str, bytes](), 65535 if depth == 16 else 255
    color, alpha = values.astype(int) * full // largest, None
    if kind == INDEXED:
        palette = p.rng.integers(0, 256, (largest + 1, 3), np.uint8)
        chunks["PLTE"], color = palette.tobytes(), palette[values[..., 0]]
        if clear:
            alphas = p.rng.integers(0, 256, largest, np.uint8)
            chunks["tRNS"], alpha = alphas.tobytes(), np.append(alphas, 255)[values[..., 0], None]
    elif kind in (GRAY_ALPHA, RGB_ALPHA):
        color, alpha = color[..., :-1], color[..., -1:]
    elif clear:
        key = values[p.height // 2, p.width // 2]
        chunks["tRNS"], alpha = key.astype(">u2").tobytes(), np.where((values == key).all(axis=2, keepdims=True), 0, full)
    data = write_png(values, depth, kind, interlaced=interlaced, **chunks)
    expected = colors(color) if alpha is None else p.blend(color, alpha, full)
    return Made(data, expected, 16 if depth == 16 else 8)


def jpeg(p: Picture, mode: str, **options: Any) -> Made:
    pixels = p.photo({"L": 1, "RGB": 3, "CMYK": 4}[mode])
    image = Image.frombytes(mode, (p.width, p.height), pixels.tobytes())
    data = saved(image, "JPEG", quality=90, **options)
    if mode == "CMYK":
        return Made(data, other(data), apart=2)
    again = Image.open(io.BytesIO(data))
    if "keep_rgb" not in options:
        again.draft("L", (p.width, p.height))  # the file's own Y
    return Made(data, other(data), gray=np.asarray(again.convert("L")))


def indexed(p: Picture, count: int) -> tuple[Image.Image, Array, Array]:
    """A Pillow image of mode P, its colours, and its indices."""
    indices = p.values(1, count - 1)[..., 0]
    palette = p.rng.permutation(256 * 3).reshape(256, 3)[:count].astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette(palette.tobytes())
    return image, palette[indices], indices


CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}


def by_pillow(p: Picture, kind: str, mode: str, *, apart: int = 0, clear: bool = False, **options: Any) -> Made:
    """A file of a format that keeps every pixel, or at its best quality (apart) nearly so. clear: one colour is transparent."""
    save = {"JXL": jxl, "HEIF": heif}.get(kind, partial(saved, kind=kind))
    if mode.startswith("P"):
        image, shown, indices = indexed(p, int(mode[1:]))
        if clear:
            shown, options["transparency"] = np.where(indices[..., None] == 1, 255, shown), 1
        return Made(save(image, **options), shown)
    if mode == "1":
        bits = p.values(1, 1)[..., 0] > 0
        return Made(save(Image.fromarray(bits), **options), colors(bits[..., None] * 255))
    if mode == "I;16":
        deep = p.values(1, 65535)
        return Made(save(deep[..., 0], **options), colors(deep), 16)
    pixels = p.photo(CHANNELS[mode]) if apart else p.values(CHANNELS[mode])
    data = save(Image.frombytes(mode, (p.width, p.height), pixels.tobytes()), **options)
    if mode == "CMYK":
        return Made(data, through(pixels), apart=1)
    shown = colors(pixels[..., :1]) if mode in ("L", "LA") else pixels[..., :3]
    if mode in ("LA", "RGBA") and kind != "BMP":  # whose fourth byte is none, without masks
        shown = p.blend(shown, pixels[..., -1:])
    return Made(data, shown, apart=apart)


def webp(p: Picture, mode: str) -> Made:
    """One that loses something, as libwebp decodes it."""
    data = saved(np.dstack([p.photo(3), p.values(1)])[..., : CHANNELS[mode]], "WEBP", quality=80)
    shown = other(data, mode)
    return Made(data, p.blend(shown[..., :3], shown[..., 3:]) if mode == "RGBA" else shown)


TIFFS = {"white-is-0": (0, 1), "gray": (1, 1), "rgb": (2, 3), "rgb-unused": (2, 4), "rgb-unsaid": (2, 4), "rgba": (2, 4)}
TIFFS |= {"premultiplied": (2, 4), "cmyk": (5, 4)}  # photometric interpretation, samples


def tiff(p: Picture, kind: str, largest: int, order: str, **layout: Any) -> Made:
    """rgb-unsaid: a fourth sample that nothing explains, which is alpha, as in Pillow."""
    photometric, samples = TIFFS[kind]
    refused = kind in ("premultiplied", "cmyk") and (largest > 255 or (kind == "premultiplied" and "planar" in layout))
    pixels = p.values(samples, largest)
    if kind == "premultiplied":
        pixels[..., :3] = np.minimum(pixels[..., :3], pixels[..., 3:])
    extra = {"rgb-unused": {"alpha": 0}, "rgba": {"alpha": 2}, "premultiplied": {"alpha": 1}}.get(kind, {})
    data = write_tiff(pixels, photometric, order=order, **layout, **extra)
    shown, apart = colors(pixels[..., :1] if samples == 1 else pixels[..., :3]), 0
    if kind == "premultiplied":  # Pillow divides by alpha first, and rounds
        shown = np.floor(shown + largest * (1 - pixels[..., 3:] / largest) + 0.5)
        apart = 1 if largest > 255 or "planar" in layout else 2
    elif kind == "cmyk":
        light = 1 - pixels / largest
        shown, apart = np.floor(largest * light[..., :3] * light[..., 3:] + 0.5), 1
    elif kind == "white-is-0":
        shown = largest - shown.astype(int)
    elif samples == 4 and kind != "rgb-unused":
        shown = p.blend(pixels[..., :3], pixels[..., 3:], largest)
    return Made(data, shown, 8 if largest == 255 else 16, apart=apart, reason="unsupported" if refused else "")


def pnm(p: Picture, kind: int, largest: int = 1) -> Made:
    """What lies between the codes of 8 or 16 bits is rounded; Pillow rounds halves to even numbers."""
    values = p.values(3 if kind == 6 else 1, largest)
    data = write_pnm(kind, values, largest)
    if kind == 4:
        return Made(data, colors(255 * (1 - values.astype(int))))
    if kind == 6 and largest > 255:
        return Made(data, colors(values), reason="unsupported")
    full = 255 if largest <= 255 else 65535
    scaled = np.floor(values * (full / largest) + 0.5).astype(int)
    return Made(data, colors(scaled), 8 if full == 255 else 16, apart=int(largest % 2 == 0))


LAYOUTS: Any = {}, {"planar": True}, {"tile": 16}, {"tile": 16, "planar": True, "deflate": True}
Form = Callable[[Picture], Made]
FORMS: dict[str, Form] = {
    f"png-{kind}-{depth}{'-interlaced' * interlaced}{'-clear' * clear}": partial(
        png, kind=kind, depth=depth, interlaced=interlaced, clear=clear
    )
    for kind, depths in DEPTHS.items()
    for depth in depths
    for interlaced in (False, True)
    for clear in (False, True)
    if not (clear and kind in (GRAY_ALPHA, RGB_ALPHA))
}
FORMS |= {
    "jpeg": partial(jpeg, mode="RGB"),
    "jpeg-progressive": partial(jpeg, mode="RGB", progressive=True),
    "jpeg-444": partial(jpeg, mode="RGB", subsampling=0),
    "jpeg-422": partial(jpeg, mode="RGB", subsampling=1),
    "jpeg-rgb": partial(jpeg, mode="RGB", keep_rgb=True),
    "jpeg-restarts": partial(jpeg, mode="RGB", restart_marker_rows=1),
    "jpeg-gray": partial(jpeg, mode="L"),
    "jpeg-gray-progressive": partial(jpeg, mode="L", progressive=True),
    "jpeg-cmyk": partial(jpeg, mode="CMYK"),
    "webp": partial(webp, mode="RGB"),
    "webp-alpha": partial(webp, mode="RGBA"),
    "webp-lossless": partial(by_pillow, kind="WEBP", mode="RGB", lossless=True),
    "webp-lossless-alpha": partial(by_pillow, kind="WEBP", mode="RGBA", lossless=True, exact=True),
    **{
        f"tiff-{mode}-{compression}": partial(by_pillow, kind="TIFF", mode=mode, compression=compression)
        for mode in ("RGB", "L", "P200", "P14", "1", "CMYK", "RGBA", "LA", "I;16")
        for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits")
    },
    "tiff-predictor": partial(by_pillow, kind="TIFF", mode="RGB", compression="tiff_lzw", tiffinfo={317: 2, 278: 8}),
    **{f"tiff-{fax}": partial(by_pillow, kind="TIFF", mode="1", compression=fax) for fax in ("group3", "group4", "tiff_ccitt")},
    **{
        f"tiff-{kind}-{largest}-{order}-{'-'.join(layout)}": partial(tiff, kind=kind, largest=largest, order=order, **layout)
        for kind in TIFFS
        for largest in (255, 65535)
        for order in "<>"
        for layout in LAYOUTS
    },
    **{f"bmp-{mode}": partial(by_pillow, kind="BMP", mode=mode) for mode in ("RGB", "L", "P200", "P14", "1", "RGBA")},
    **{
        f"gif-{count}{'-clear' * clear}": partial(by_pillow, kind="GIF", mode=f"P{count}", interlace=1 - clear, clear=clear)
        for count in (2, 14, 200, 256)
        for clear in (False, True)
    },
    "gif-L": partial(by_pillow, kind="GIF", mode="L"),
    "pnm-4": partial(pnm, kind=4),
    **{
        f"pnm-{kind}-{largest}": partial(pnm, kind=kind, largest=largest)
        for kind in (5, 6)
        for largest in (1, 2, 7, 100, 254, 255, 256, 1023, 4095, 65534, 65535)
    },
    **{
        f"jp2-{mode}{'-bare' * bare}": partial(by_pillow, kind="JPEG2000", mode=mode, no_jp2=bare)
        for mode in ("L", "RGB", "I;16")
        for bare in (False, True)
    },
    "jp2-tiles": partial(by_pillow, kind="JPEG2000", mode="RGB", tile_size=(16, 8), progression="RPCL", plt=True),
    "avif": partial(by_pillow, kind="AVIF", mode="RGB", apart=4, quality=100, subsampling="4:4:4"),
    "avif-alpha": partial(by_pillow, kind="AVIF", mode="RGBA", apart=5, quality=100, subsampling="4:4:4"),
    "heic": partial(by_pillow, kind="HEIF", mode="RGB", apart=5),
    "heic-alpha": partial(by_pillow, kind="HEIF", mode="RGBA", apart=6),
    "jxl": partial(by_pillow, kind="JXL", mode="RGB"),
    "jxl-boxes": partial(by_pillow, kind="JXL", mode="RGBA", use_container=True),
    "jxl-16": partial(by_pillow, kind="JXL", mode="I;16"),
}


def read(data: bytes, bits: int) -> Array | str:
    """The pixels, or why there are none."""
    try:
        source = SourceImage(data, max_pixels=1 << 18)
        pixels = source.decode(bits=bits)
    except CodecError as error:
        return error.reason
    assert pixels.shape == (source.height, source.width, 3) and pixels.flags.c_contiguous
    assert pixels.dtype == (np.uint8 if bits == 8 else np.uint16)
    return pixels


def apart(a: Array, b: Array) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(float) - b.astype(float)).max())


def check_whole(made: Made) -> Array | None:
    """The pixels, in colour and grey, of 8 and 16 bits; or None for what is refused."""
    found = read(made.data, made.bits)
    if made.reason:
        assert isinstance(found, str) and found == made.reason
        return None
    assert not isinstance(found, str), found
    assert apart(found, made.expected) <= made.apart
    source = SourceImage(made.data)
    if made.bits == 8:
        luma = made.expected @ [0.299, 0.587, 0.114] if made.gray is None else made.gray
        assert apart(source.decode(gray=True), luma) <= 1 + made.apart
        if not made.data.startswith((b"\0\0\0", b"\xff\x0a")):  # HEIC, AVIF, JPEG XL, which may have more bits than are read
            assert apart(source.decode(bits=16), found.astype(int) * 257) == 0
    else:
        assert apart(source.decode(), np.floor(found / 257 + 0.5)) == 0
    with pytest.raises(CodecError) as caught:
        SourceImage(made.data, max_pixels=source.height * source.width - 1)
    assert caught.value.reason == "too-large"
    return found


def check_cut(made: Made, whole: Array | None, size: int) -> None:
    """Equal, where what was cut off says nothing, or refused."""
    found = read(made.data[:size], made.bits)
    if isinstance(found, str):
        assert found in CUT
    else:
        assert whole is not None and size > len(made.data) * 0.9
        assert apart(found, whole) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_and_its_cuts_are_noticed(name: str) -> None:
    made = FORMS[name](Picture(23, 37, 1))
    whole = check_whole(made)
    total = len(made.data)
    for size in sorted({*range(0, total, total // 12 + 1), *range(total - 12, total)}):
        check_cut(made, whole, size)


COMMON = [*(f"jpeg{kind}" for kind in ("", "-progressive", "-restarts", "-cmyk")), "png-2-8", "png-3-8-clear", "webp"]
COMMON += ["webp-lossless-alpha", "gif-200-clear", "bmp-RGB", "bmp-P200", "tiff-rgba-255-<-tile"]
COMMON += [f"tiff-RGB-{compression}" for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits")]


@pytest.mark.parametrize("name", COMMON)
def test_a_common_file_that_ends_early_is_called_truncated(name: str) -> None:
    data = FORMS[name](Picture(37, 53, 0)).data
    assert {read(data[: int(len(data) * part)], 8) for part in (0.3, 0.5, 0.75, 0.95)} == {"truncated"}


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.integers(8, 40), st.integers(8, 40), st.integers(0, 1 << 32), st.integers(1, 40))
def test_any_picture_whole_or_cut_is_itself_or_refused(name: str, height: int, width: int, seed: int, late: int) -> None:
    made = FORMS[name](Picture(height, width, seed))
    check_cut(made, check_whole(made), max(len(made.data) - late, 0))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6 ", b""]), st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_have_the_size_that_they_say(start: bytes, rest: bytes) -> None:
    read(start + rest, 8)


# Orientation, sizes, oddities, reasons and memory; against Pillow and libjpeg-turbo

H, W = 37, 53
PICTURE = Picture(H, W, 0)
PHOTO, SMALL = PICTURE.photo(), Picture(13, 21, 0).photo()
JPEG, PROGRESSIVE = saved(PHOTO, "JPEG"), saved(PHOTO, "JPEG", progressive=True)


def _same(data: bytes, expected: Array, most: int = 0) -> None:
    found = read(data, 8)
    assert not isinstance(found, str), found
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= most


def _random(samples: int, dtype: Any, full: int) -> Array:
    return np.random.default_rng(samples).integers(0, full + 1, (40, 33, samples)).astype(dtype)


@pytest.mark.parametrize("gray", [False, True])
def test_gif_first_frame_smaller_than_its_screen(gray: bool) -> None:
    image, shown, _ = indexed(PICTURE, 200)
    data = bytearray(saved(PHOTO[..., 0] if gray else image, "GIF"))
    struct.pack_into("<HH", data, 6, W + 9, H + 4)
    struct.pack_into("<HH", data, data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H)) + 1, 6, 2)
    expected = np.full((H + 4, W + 9, 3), 255)
    expected[2 : 2 + H, 6 : 6 + W] = PHOTO[..., :1] if gray else shown
    _same(bytes(data), expected)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_first_of_several_pictures(kind: str) -> None:
    image, shown, _ = indexed(PICTURE, 200)
    options = {"lossless": True} if kind == "WEBP" else {}
    _same(saved(image, kind, save_all=True, append_images=[ImageOps.mirror(image)], **options), shown)


def test_bmp_with_an_alpha_of_zeros_is_opaque() -> None:
    pixels = PICTURE.values(4)
    pixels[..., 3] = 0
    info = struct.pack("<IiiHHIIiiII4I", 56, W, -H, 1, 32, 3, 0, 0, 0, 0, 0, 0xFF, 0xFF00, 0xFF0000, 0xFF000000)
    _same(b"BM" + struct.pack("<III", 0, 0, 14 + len(info)) + info + pixels.tobytes(), pixels[..., :3])


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


def _upright(a: Array, orientation: int) -> Array:
    turned = [a, a[:, ::-1], a[::-1, ::-1], a[::-1], a.swapaxes(0, 1), np.rot90(a, -1), np.rot90(a, 2).swapaxes(0, 1), np.rot90(a)]
    return np.ascontiguousarray(turned[orientation - 1])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(kind: str, orientation: int) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(PHOTO, kind, exif=_exif(orientation), **options)
    expected = _upright(SourceImage(saved(PHOTO, kind, **options)).decode(), orientation)
    _same(data, expected)
    if kind == "JPEG":
        height, width = expected.shape[:2]
        assert SourceImage(data).decode(at_least=(height // 2, width // 2)).shape[:2] == (-(-height // 2), -(-width // 2))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_turned_avif_heic_and_jpegs_in_jpeg_xl(orientation: int, tmp_path: Path) -> None:
    avif = saved(PHOTO, "AVIF", quality=100, subsampling="4:4:4", exif=_exif(orientation))
    for data in (avif, heif(PHOTO, exif=_exif(orientation).tobytes())):
        _same(data, _upright(PHOTO, orientation), most=6)
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    (tmp_path / "a.jpg").write_bytes(saved(PHOTO, "JPEG", exif=_exif(orientation)))
    with Image.open(tmp_path / "a.jpg") as image:  # the plugin reads the file again
        _same(saved(image, "JXL", lossless_jpeg=True), _upright(other(JPEG), orientation))


def test_an_orientation_outside_of_exif_is_ignored() -> None:
    """In XMP, and as text in a PNG from before there was eXIf."""
    description = b'<rdf:Description xmlns:tiff="t" tiff:Orientation="6"/>'
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="r">' + description + b"</rdf:RDF></x:xmpmeta>"
    block, png = _exif(6).tobytes(), saved(PHOTO, "PNG")
    old = zlib.compress(b"\nexif\n%8d\n" % len(block) + block.hex().encode() + b"\n")
    packet = b"http://ns.adobe.com/xap/1.0/\0" + xmp
    for expected, data in (
        (PHOTO, png[:33] + png_chunk(b"zTXt", b"Raw profile type exif\0\0" + old) + png[33:]),
        (PHOTO, png[:33] + png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp) + png[33:]),
        (other(JPEG), JPEG[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(packet)) + packet + JPEG[2:]),
        (PHOTO, saved(PHOTO, "WEBP", lossless=True, xmp=xmp)),
        (PHOTO, saved(PHOTO, "TIFF", tiffinfo={700: xmp})),
    ):
        _same(data, expected)


@pytest.mark.parametrize("size", [(37, 53), (64, 64), (9, 200), (7, 8), (1, 1), (6, 6)])
@pytest.mark.parametrize("gray", [False, True])
def test_scaled_jpeg_is_the_smallest_power_that_is_large_enough(size: tuple[int, int], gray: bool) -> None:
    data = saved(Picture(*size, 0).photo(), "JPEG")
    for least in [(1, 1), (size[0] // 4 + 1, 1), (1, size[1] // 2), size, (size[0] + 1, 1), (0, 0), (10**6, 10**6)]:
        decoded = SourceImage(data).decode(at_least=least, gray=gray)
        fits = [d for d in (2, 4, 8) if -(-size[0] // d) >= least[0] and -(-size[1] // d) >= least[1]]
        den = max(fits, default=1) if max(least) > 0 and max(size) > 8 else 1
        image = Image.open(io.BytesIO(data))
        image.draft("L" if gray else "RGB", (size[1] // den, size[0] // den))
        assert decoded.shape[:2] == (-(-size[0] // den), -(-size[1] // den))
        if den > 1 and image.size == decoded.shape[1::-1]:
            np.testing.assert_array_equal(decoded, np.array(image))


def test_cmyk_jpeg_with_and_without_adobe_and_as_ycck() -> None:
    plain = saved(Image.frombytes("CMYK", (W, H), PICTURE.photo(4).tobytes()), "JPEG", quality=95)
    at = plain.index(b"\xff\xee")
    for data in (plain, plain[:at] + plain[at + 16 :], plain[: at + 15] + b"\x02" + plain[at + 16 :]):
        _same(data, other(data), most=2)


def _icc(number: int, count: int, body: bytes = b"profile") -> bytes:
    """A piece of an ICC profile, as a segment of a JPEG."""
    return b"\xff\xe2" + struct.pack(">H12sBB", 16 + len(body), b"ICC_PROFILE", number, count) + body


@pytest.mark.parametrize("progressive", [False, True])
def test_harmless_oddities_of_jpegs_are_read(progressive: bool) -> None:
    data = PROGRESSIVE if progressive else JPEG
    version, filled = data.index(b"JFIF\0") + 5, data[:-2] + b"\0" * 24 + data[-2:]
    inserted = (
        b"\0\1\2",  # junk between segments
        b"\xff\xff",  # fill bytes
        *(_icc(1, 1), _icc(1, 2), _icc(0, 0), _icc(1, 1) * 2, _icc(1, 2) + _icc(2, 3), _icc(1, 1, b"")),
        b"\xff\xe2\0\x0eMPF\0MM\0*\0\0\0\x08",  # previews of a phone
        b"\xff\xe2\0\x06MPF\0" + _icc(2, 2),
    )
    odd = [data[:20] + segments + data[20:] for segments in inserted]
    assert {read(one[: len(one) * 3 // 4], 8) for one in odd} == {"truncated"}
    odd += [data + b"junk" * 9, data + data, filled, data[:version] + b"\x03" + data[version + 1 :]]  # an unknown JFIF
    odd.append(filled[:20] + _icc(1, 2) + filled[20:])
    if not progressive:
        scan = data.index(b"\xff\xda") + 2
        last = scan + int.from_bytes(data[scan : scan + 2], "big") - 1
        odd += [data[:last] + b"\x03" + data[last + 1 :], data[:-2], data[:-1]]  # odd spectral parameters, no EOI, half of one
    for one in odd:
        _same(one, other(data))


def test_damage_behind_a_harmless_oddity_is_found() -> None:
    for odd in (JPEG[:20] + b"\0\1\2" + JPEG[20:], JPEG[:20] + _icc(1, 2) + JPEG[20:]):
        assert read(odd[: len(odd) * 3 // 4] + b"\xff\xd9", 8) == "truncated"
    assert read(JPEG[:-2] + bytes(range(1, 99)) + b"\xff\xd9", 8) == "undecodable"  # the decoder lost its place
    assert read(PROGRESSIVE[:-2], 8) == read(PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")], 8) == "truncated"


def test_a_strip_of_tiff_that_lost_its_end_is_refused() -> None:
    """Its checksum is cut off."""
    whole = write_tiff(_random(3, np.uint8, 255), 2, deflate=True)
    at = whole.rindex(struct.pack("<HHI", 279, 4, 1)) + 8
    count = struct.unpack_from("<I", whole, at)[0]
    for lost in (9, 100, count - 2):
        assert read(whole[:at] + struct.pack("<I", count - lost) + whole[at + 4 :], 8) == "undecodable"


ODD_TAGS = ((262, 8), (259, 6), (254, 1), (284, 33))  # Lab, JPEG, a thumbnail, no planes that there are


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello, world", "not-an-image"),
        (b"\xff\xd8", "truncated"),
        (b"\x89PNG\r\n\x1a\n", "truncated"),
        (b"P6 60000 60000 255\n", "too-large"),
        (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)), "truncated"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "truncated"),
        (saved(Image.fromarray(PHOTO[..., 0]).convert("F"), "TIFF"), "unsupported"),
        *((write_tiff(_random(3, dtype, 99), 2), "unsupported") for dtype in (np.float32, np.int8)),
        (saved(PHOTO, "TIFF", compression="jpeg"), "unsupported"),
        *((write_tiff(_random(3, np.uint8, 255), 2, tags={tag: value}), "unsupported") for tag, value in ODD_TAGS),
        (write_tiff(_random(1, np.uint8, 255), 1, tags={259: 33005}), "undecodable"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not-an-image"),
        (b"/annex/objects/SHA256E-s1--00.jpg\n", "not-an-image"),
        (b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nENDHDR\nabc", "not-an-image"),
        (b"P2 3 1 255 0 128 25", "not-an-image"),
        (b"P5 3 1 65536 abcdef", "undecodable"),
        (write_pnm(6, _random(3, np.uint16, 999), 999), "unsupported"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    assert read(data, 8) == reason


def test_jpeg_2000_that_is_refused() -> None:
    def jp2(pixels: Array, **options: Any) -> bytes:
        return saved(pixels, "JPEG2000", **options)

    rgba, data, bare = np.dstack([SMALL, SMALL[..., 0]]), jp2(SMALL), jp2(SMALL, no_jp2=True)
    deep = jp2(SMALL[..., 0].astype(np.uint16) * 250, no_jp2=True)
    assert deep[42] == 15
    for refused in (
        deep[:42] + b"\x0b" + deep[43:],  # 12 bits
        bare[:42] + b"\x0f\1\1" * 3 + bare[51:],  # colours of 16 bits
        jp2(SMALL, signed=True),
        jp2(SMALL, offset=(8, 8), tile_size=(16, 16), tile_offset=(4, 4), no_jp2=True),
        bare[:43] + b"\2\2" + bare[45:],  # subsampled
        bare[:42] + b"\x87" + bare[43:],  # signed
        bare[:6] + b"\x40" + bare[7:],  # Part 15
        data.replace(b"ftypjp2 ", b"ftyppclr"),  # a palette
        jp2(rgba),
        jp2(rgba, no_jp2=True),
        data.replace(b"colr\1\0\0\0\0\0\x10", b"colr\1\0\0\0\0\0\x0e"),  # Lab
    ):
        assert read(refused, 8) == "unsupported"


def test_open_ends_and_lost_tiles_of_jpeg_2000() -> None:
    bare, tiled = (saved(SMALL, "JPEG2000", no_jp2=True, **options) for options in ({}, {"tile_size": (16, 8)}))
    first = bare.index(b"\xff\x90\0\x0a")
    open_end = bare[: first + 6] + b"\0\0\0\0" + bare[first + 10 :]
    _same(open_end, SMALL)
    assert read(open_end[:-2], 8) == read(open_end[: len(open_end) * 2 // 3], 8) == "truncated"
    tiles = [k for k in range(len(tiled)) if tiled.startswith(b"\xff\x90\0\x0a", k)]
    assert len(tiles) == 4
    assert read(tiled[: tiles[1]] + tiled[tiles[2] :], 8) == read(tiled[: tiles[3]] + b"\xff\xd9", 8) == "truncated"


@pytest.mark.parametrize("layout", [{"rows": 5}, {"tile": 16}])
def test_big_tiff(layout: dict[str, Any]) -> None:
    made = partial(write_tiff, SMALL, 2, orientation=6, **layout)
    for data in (made(order="<"), made(order=">"), made(order="<", big=True)):
        _same(data, np.rot90(SMALL, -1))
    assert read(made(order=">", big=True), 8) == "not-an-image"  # Pillow does not read these


def test_more_bits_than_are_read_are_refused_for_16_bits() -> None:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_bytes

    out = io.BytesIO()
    from_bytes("RGB;16", (W, H), (PHOTO.astype("<u2") * 257).tobytes()).save(out, quality=100, chroma=444)
    _same(out.getvalue(), PHOTO, most=5)
    with pytest.raises(CodecError, match="heif may have more than 8 bits, but only 8 are read: make it a PNG, or leave out --bits"):
        SourceImage(out.getvalue()).decode(bits=16)


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, data, package in (
        ("pillow_heif", b"\0\0\0\x18ftypheic" + bytes(12), "pillow-heif"),
        ("pillow_jxl", b"\xff\x0a" + bytes(40), "pillow-jxl-plugin"),
        ("tifffile", write_tiff(np.zeros((2, 2, 3), np.uint16), 2), "tifffile"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        message = rf"is read with {package}, which is not installed: pip install 'fastdata-torch\[formats\]'"
        with pytest.raises(CodecError, match=message) as caught:
            SourceImage(data).decode()
        assert caught.value.reason == "unsupported"


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PPM", "JPEG2000"])
@pytest.mark.parametrize("limit", [None, 10, W * H - 1])
def test_pillow_s_settings_play_no_part(kind: str, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(PHOTO, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
    expected = SourceImage(data).decode()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    filters = list(warnings.filters)
    _same(data, expected)
    assert isinstance(read(data[: len(data) * 3 // 4], 8), str)
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (limit, True)
    assert warnings.filters == filters


# Memory, beyond that for a small image

PEAK = f"""{PEAK_MEMORY}
import sys
from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
bits = int(sys.argv[2])
SourceImage(open(sys.argv[1], "rb").read()).decode(bits=bits)
data = sys.stdin.buffer.read()
before, said = peak_memory(), 0
try:
    image = SourceImage(data)
    said = image.memory()
    image.decode(bits=bits)
except CodecError as error:
    print(error.reason, file=sys.stderr)
print(said, peak_memory() - before)
"""


@pytest.mark.parametrize("disposal", [0, 3])
def test_a_gif_with_a_huge_frame_is_refused_before_memory_is_taken(disposal: int, tmp_path: Path) -> None:
    data = bytearray(saved(indexed(PICTURE, 200)[0], "GIF", transparency=3, disposal=disposal))
    (tmp_path / "small").write_bytes(data)
    struct.pack_into("<HH", data, data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H)) + 5, 40_000, 40_000)
    done = run(sys.executable, "-c", PEAK, tmp_path / "small", 8, input=bytes(data), text=False, errors=None)
    assert done.stderr.strip() == b"too-large" and int(done.stdout.split()[1]) < 1 << 26


KINDS = ("png-2-8", "png-6-8", "png-4-8", "png-2-8-clear", "png-3-8-clear", "png-6-16", "jpeg", "jpeg-444", "jpeg-progressive")
KINDS += ("jpeg-cmyk", "webp-lossless-alpha", "gif-200-clear", "bmp-RGB", "tiff-RGBA-tiff_lzw", "tiff-CMYK-None")
KINDS += ("tiff-rgba-65535-<-", "avif-alpha", "heic-alpha", "jxl-boxes", "jp2-RGB")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "bits"), [*((kind, 8) for kind in KINDS), ("png-6-8", 16)])
def test_decoding_takes_no_more_memory_than_the_header_says(kind: str, bits: int, tmp_path: Path) -> None:
    """A small multiple of the pixels, in every format."""
    side = 2000
    (tmp_path / "small").write_bytes(FORMS[kind](Picture(16, 16, 0)).data)
    large = FORMS[kind](Picture(side, side, 0)).data
    done = run(sys.executable, "-c", PEAK, tmp_path / "small", bits, input=large, text=False, errors=None)
    said, taken = map(int, done.stdout.split())
    assert not done.stderr and taken <= said <= 40 * side * side
