"""An image file of any format and mode, whole or cut, is read as it was meant, or refused: never as another picture.

Pixels are made in numpy. What loses some is compared with another decoder than the one that fastdata uses for the format. Targets
of tests/faults change bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

import image_files
from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
from image_files import saved
from support import Array

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
    """A file and what it shows.

    Attributes:
        data: the file.
        expected: [H, W, 3] of 8 or of 16 bits.
        bits: which.
        apart: how far the pixels may be from it.
        gray: what the file's own luma is, or None.
        reason: why it is refused, or "".
    """

    data: bytes
    expected: Array
    bits: int = 8
    apart: int = 0
    gray: Array | None = None
    reason: str = ""


def colors(gray_or_rgb: Array) -> Array:
    return np.broadcast_to(gray_or_rgb, (*gray_or_rgb.shape[:2], 3))


def through(ink: Array) -> Array:
    """RGB of CMYK."""
    light = 1 - ink / 255
    return np.floor(255 * light[..., :3] * light[..., 3:] + 0.5)


def other(data: bytes, mode: str = "RGB") -> Array:
    """What Pillow makes of a file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def opencv(data: bytes) -> Array:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


# ------------------------------------------------------------------------------------------------------------- the formats

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
    data = image_files.png(values, depth, kind, interlaced=interlaced, **chunks)
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
    if kind == "JPEG2000" and not features.check("jpg_2000"):
        pytest.skip("this Pillow writes no JPEG 2000")
    save = {"JXL": image_files.jxl, "HEIF": image_files.heif}.get(kind, partial(saved, kind=kind))
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
    data = image_files.tiff(pixels, photometric, order=order, **layout, **extra)
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
    data = image_files.pnm(kind, values, largest)
    if kind == 4:
        return Made(data, colors(255 * (1 - values.astype(int))))
    if kind == 6 and largest > 255:
        return Made(data, colors(values), reason="unsupported")
    full = 255 if largest <= 255 else 65535
    scaled = np.floor(values * (full / largest) + 0.5).astype(int)
    return Made(data, colors(scaled), 8 if full == 255 else 16, apart=int(largest % 2 == 0))


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
        for layout in (
            dict[str, Any](),
            {"planar": True},
            {"tile": 16},
            {"tile": 16, "planar": True, "deflate": True},
        )
    },
    **{f"bmp-{mode}": partial(by_pillow, kind="BMP", mode=mode) for mode in ("RGB", "L", "P200", "P14", "1", "RGBA")},
    **{
        f"gif-{count}{'-interlaced' * interlace}{'-clear' * clear}": partial(
            by_pillow, kind="GIF", mode=f"P{count}", interlace=interlace, clear=clear
        )
        for count in (2, 14, 200, 256)
        for interlace in (0, 1)
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
    **{
        f"jp2-{name}": partial(by_pillow, kind="JPEG2000", mode="RGB", **options)
        for name, options in {
            "tiles": {"tile_size": (16, 8)},
            "bare-tiles": {"tile_size": (16, 8), "no_jp2": True},
            "no-mct": {"mct": 0},
            "one-resolution": {"num_resolutions": 1},
            "rpcl": {"progression": "RPCL", "plt": True},
        }.items()
    },
    "avif": partial(by_pillow, kind="AVIF", mode="RGB", apart=4, quality=100, subsampling="4:4:4"),
    "avif-alpha": partial(by_pillow, kind="AVIF", mode="RGBA", apart=5, quality=100, subsampling="4:4:4"),
    "heic": partial(by_pillow, kind="HEIF", mode="RGB", apart=5),
    "heic-alpha": partial(by_pillow, kind="HEIF", mode="RGBA", apart=6),
    "jxl": partial(by_pillow, kind="JXL", mode="RGB"),
    "jxl-boxes": partial(by_pillow, kind="JXL", mode="RGBA", use_container=True),
    "jxl-16": partial(by_pillow, kind="JXL", mode="I;16"),
}
# ---------------------------------------------------------------------------------------------------------- the properties


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
