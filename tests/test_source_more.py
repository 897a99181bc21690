"""SourceImage on PNM, JPEG 2000, BigTIFF and JPEG in TIFF, against numpy, OpenCV and libjpeg-turbo."""

from __future__ import annotations

import contextlib
import io
import struct
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, features

from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from image_files import pnm

Array = np.ndarray[Any, np.dtype[Any]]
H, W = 13, 21
needs_jp2 = pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow writes no JPEG 2000")


def _rgb(h: int = H, w: int = W) -> Array:
    y, x = np.mgrid[:h, :w]
    rgb = np.stack([x * 11 % 256, y * 17 % 256, (x + y) * 7 % 256], axis=2).astype(np.uint8)
    rgb[4:9, 4:12] = np.random.default_rng(0).integers(0, 256, (5, 8, 3))
    return rgb


def _decoded(data: bytes, **options: Any) -> Array:
    source = SourceImage(data)
    decoded = source.decode(**options)
    assert decoded.shape[:2] == (source.height, source.width) and decoded.flags.c_contiguous
    return decoded


def _opencv(data: bytes) -> Array:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def _same(a: Array, b: Array) -> None:
    assert a.shape == b.shape
    assert np.abs(a.astype(int) - b.astype(int)).max() == 0


def _reason(data: bytes, **options: Any) -> str:
    with pytest.raises(CodecError) as caught:
        SourceImage(data, **options).decode()
    return caught.value.reason


# PNM


def _values(channels: int, largest: int) -> Array:
    values = np.random.default_rng(largest).integers(0, largest + 1, (H, W, channels))
    values[0, 0], values[0, 1] = 0, largest
    return values


@pytest.mark.parametrize("largest", [1, 7, 100, 254, 256, 4095, 65534])
@pytest.mark.parametrize("kind", [2, 3])
def test_a_number_above_the_largest_is_refused(kind: int, largest: int) -> None:
    values = _values(1 if kind == 2 else 3, largest)
    values[5, 5] = largest + 1
    assert _reason(pnm(kind, values, largest)) == ("unsupported" if kind == 3 and largest > 255 else "undecodable")


def test_text_of_pnm_in_every_shape() -> None:
    for data in (
        b"P2 3 1 255 0 128 255 ",
        b"P2 #c\n3 #c 7\n1 255 #c\n0 #c\n128\t255\n#end",
        b"P2\r\n3 1\r\n255\r\n000\r\n0128\r\n255\r\nx".replace(b"x", b""),
        b"P2 3 1 255 0 128 255\n7 7 7\n",
    ):
        _same(_decoded(data, gray=True), np.array([[0, 128, 255]]))
    for data in (b"P1 3 1 101", b"P1 3 1\n1 0 1\n", b"P1 3 1\n1 #\n0 #101\n1", b"P1 3 1 1011111"):
        _same(_decoded(data, gray=True), np.array([[0, 255, 0]]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"P2 3 1 255 0 128 25", "truncated"),  # of 255?
        (b"P2 3 1 255 0 128 ", "truncated"),
        (b"P2 1 1 255 \n", "truncated"),
        (b"P2 3 1 255 0 -1 255 ", "undecodable"),
        (b"P2 3 1 255 0 1.5 255 ", "undecodable"),
        (b"P2 3 1 255 0 1 99999999999999999999999999999 ", "undecodable"),
        (b"P1 3 1 102", "undecodable"),
        (b"P1 3 1 1/1", "undecodable"),
        (b"P1 3 1 10", "truncated"),
        (b"P5 3 1 0 abc", "undecodable"),
        (b"P5 3 1 65536 abcdef", "undecodable"),
        (b"P5 0 1 255 abcdef", "undecodable"),
        (b"P5 3 1 ", "truncated"),
        (b"P5 3 # a com", "truncated"),
        (b"P1 was a car by McLaren", "undecodable"),
        (b"P2 9 9 255" + b"#c\n" * 10**6 + b"1 ", "unsupported"),
        (b"P2 60000 60000 255\n", "too-large"),
        (b"P1 60000 60000\n", "too-large"),
        (b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nENDHDR\nabc", "unsupported"),
        (b"P7 332\n", "unsupported"),
        (b"Pf\n1 1\n-1.0\nabcd", "unsupported"),
    ],
)
def test_pnm_that_is_refused(data: bytes, reason: str) -> None:
    assert _reason(data) == reason


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"P2 5000 2000 999" + b" 123" * 10**7 + b"\n", b"P1 5000 2000 " + b"01" * (5 * 10**6)])
def test_ten_megapixels_of_text_take_seconds(data: bytes) -> None:
    start = time.perf_counter()
    assert _decoded(data).shape == (2000, 5000, 3)
    assert time.perf_counter() - start < 40


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"P5 ", b"P2 1 1 1\n", b"P5 1 "])
@pytest.mark.parametrize("filler", [b" ", b"#\n", b"1", b"# ", b"1 ", b"\n"])
def test_senseless_text_takes_no_time(start: bytes, filler: bytes) -> None:
    begun = time.perf_counter()
    with contextlib.suppress(CodecError):
        SourceImage(start + filler * 10**6 + b"x").decode()
    assert time.perf_counter() - begun < 5


# JPEG 2000


def _jp2(pixels: Array, mode: str | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels) if mode is None else Image.frombytes(mode, (W, H), pixels.tobytes())
    image.save(out, "JPEG2000", **options)
    return out.getvalue()


def _gray16() -> Array:
    return _rgb()[..., 0].astype(np.uint16) * 250 + _rgb()[..., 1]


@needs_jp2
def test_jpeg_2000_with_alpha_and_of_16_bits() -> None:
    rgba = np.dstack([_rgb(), _rgb()[..., 2]])
    alpha = rgba[..., 3:] / 255
    expected = np.floor(rgba[..., :3] * alpha + np.array([9, 8, 7]) * (1 - alpha) + 0.5 + 1e-9)
    data = _jp2(rgba)
    _same(_decoded(data, background=(9, 8, 7)), expected)
    _same(_decoded(_jp2(rgba, no_jp2=True), background=(9, 8, 7)), expected)
    at = data.index(b"cdef") + 4 + 2 + 3 * 6  # the channel definition of alpha
    assert struct.unpack_from(">HHH", data, at) == (3, 1, 0)
    premultiplied = data[: at + 2] + b"\0\2" + data[at + 4 :]
    assert _reason(premultiplied) == "unsupported"
    assert _reason(data[: at + 2] + b"\xff\xff" + data[at + 4 :]) == "unsupported"
    assert _reason(data[: at - 2] + b"\0\1" + data[at:]) == "unsupported"
    _same(_decoded(_jp2(_gray16()), gray=True, bits=16), _gray16())


@needs_jp2
def test_jpeg_2000_of_many_colours() -> None:
    rgb = _rgb()
    assert np.abs(_decoded(_jp2(np.asarray(Image.fromarray(rgb).convert("YCbCr")), "YCbCr")).astype(int) - rgb).max() <= 3
    ink = np.dstack([rgb, rgb[..., 0]])
    light = 1 - ink / 255
    _same(_decoded(_jp2(ink, "CMYK")), np.floor(255 * light[..., :3] * light[..., 3:] + 0.5))
    gray, alpha = rgb[..., :1].astype(int), rgb[..., 1:2] / 255
    _same(_decoded(_jp2(rgb[..., :2].copy(), "LA"), gray=True), np.floor(gray * alpha + 255 * (1 - alpha) + 0.5 + 1e-9)[..., 0])


@needs_jp2
def test_jpeg_2000_that_is_refused() -> None:
    rgb, data, bare = _rgb(), _jp2(_rgb()), _jp2(_rgb(), no_jp2=True)
    deep = _jp2(_gray16(), no_jp2=True)
    assert deep[42] == 15 and _reason(deep[:42] + b"\x0b" + deep[43:]) == "unsupported"  # 12 bits
    deep = bytearray(bare)
    deep[42:51:3] = b"\x0f" * 3
    assert _reason(bytes(deep)) == "unsupported"  # colours of 16 bits
    assert _reason(_jp2(rgb, signed=True)) == "unsupported"
    assert _reason(_jp2(rgb, offset=(8, 8), tile_size=(16, 16), tile_offset=(4, 4), no_jp2=True)) == "unsupported"
    assert _reason(bare[:43] + b"\2\2" + bare[45:]) == "unsupported"  # subsampled
    assert _reason(bare[:42] + b"\x87" + bare[43:]) == "unsupported"  # signed
    assert _reason(bare[:6] + b"\x40" + bare[7:]) == "unsupported"  # Part 15
    assert _reason(bare[:8] + struct.pack(">II", 60000, 60000) + bare[16:]) in ("too-large", "truncated")
    siz = data.index(b"\xff\x4f\xff\x51") + 8
    assert _reason(data[:siz] + struct.pack(">II", 60000, 60000) + data[siz + 8 :]) == "undecodable"
    assert _reason(bare, max_pixels=100) == _reason(data, max_pixels=100) == "too-large"
    inside = data.index(b"jp2h")  # a palette of one entry
    size, palette = struct.unpack_from(">I", data, inside - 4)[0], struct.pack(">I4sHBBB", 13, b"pclr", 1, 1, 7, 0)[:13]
    with_palette = data[: inside - 4] + struct.pack(">I4s", size + 13, b"jp2h") + palette + data[inside + 4 :]
    assert _reason(with_palette) == "unsupported"
    at = data.index(b"colr") - 4  # a profile instead of an enumerated space
    for space, reason in ((b"RGB ", ""), (b"Lab ", "unsupported")):
        box = struct.pack(">I4sBBB", 31, b"colr", 2, 0, 0) + b"\0" * 16 + space
        changed = data[: inside - 4] + struct.pack(">I", size + 16) + data[inside:at] + box + data[at + 15 :]
        if reason:
            assert _reason(changed) == reason
        else:
            _same(_decoded(changed), rgb)


@needs_jp2
def test_open_ends_and_lost_tiles_of_jpeg_2000() -> None:
    rgb = _rgb()
    data, bare, tiled = _jp2(rgb), _jp2(rgb, no_jp2=True), _jp2(rgb, no_jp2=True, tile_size=(16, 8))
    at = data.index(b"jp2c") - 4
    _same(_decoded(data[:at] + b"\0\0\0\0" + data[at + 4 :]), rgb)  # the box ends with the file
    _same(_decoded(data[:at] + struct.pack(">I4sQ", 1, b"jp2c", len(data) - at + 8) + data[at + 8 :]), rgb)  # a size of eight bytes
    _same(_decoded(data + b"\0\0\0\x0cuuidabcd"), rgb)
    first = bare.index(b"\xff\x90\0\x0a")
    open_end = bare[: first + 6] + b"\0\0\0\0" + bare[first + 10 :]
    _same(_decoded(open_end), rgb)
    assert _reason(open_end[:-2]) == _reason(open_end[: len(open_end) * 2 // 3]) == "truncated"
    tiles = [k for k in range(len(tiled)) if tiled.startswith(b"\xff\x90\0\x0a", k)]
    assert len(tiles) == 4
    assert _reason(tiled[: tiles[1]] + tiled[tiles[2] :]) == "truncated"
    assert _reason(tiled[: tiles[3]] + b"\xff\xd9") == "truncated"
    assert _reason(bare[: len(bare) // 2] + b"\0" * (len(bare) - len(bare) // 2)) in ("truncated", "undecodable")


# TIFF

CODES = {"B": 7, "H": 3, "I": 4, "Q": 16}


def _tiff(pieces: list[bytes], tags: dict[int, Any], *, big: bool = False, order: str = "<", tile: int = 0) -> bytes:
    """A TIFF of (code, values) by tag; pieces are strips, or tiles of `tile` pixels a side."""
    word, size = ("Q", 8) if big else ("I", 4)
    starts = np.cumsum([16, *[len(piece) for piece in pieces]]).tolist()
    tags = {
        256: ("I", [W]),
        257: ("I", [H]),
        (324 if tile else 273): (word, starts[:-1]),
        (325 if tile else 279): (word, [len(piece) for piece in pieces]),
        **({322: ("H", [tile]), 323: ("H", [tile])} if tile else {}),
        **tags,
    }
    spill, at, entries = b"", starts[-1], b""
    for tag, (code, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        field = packed.ljust(size, b"\0")
        if len(packed) > size:
            field, spill = struct.pack(order + word, at + len(spill)), spill + packed
        entries += struct.pack(order + "HH" + word, tag, CODES[code], len(values)) + field
    start = at + len(spill)
    mark = b"II" if order == "<" else b"MM"
    head = struct.pack(order + "HHHQ", 43, 8, 0, start) if big else struct.pack(order + "HI8x", 42, start)
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return (mark + head)[:16] + b"".join(pieces) + spill + count + entries + b"\0" * size


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("tile", [0, 16])
def test_big_tiff(tile: int, order: str) -> None:
    rgb = _rgb()
    strips = [rgb[top : top + 5].tobytes() for top in range(0, H, 5)]
    if tile:
        padded = np.pad(rgb, ((0, 3), (0, 11), (0, 0)))
        strips = [padded[:, :16].tobytes(), padded[:, 16:].tobytes()]
    tags = {258: ("H", [8, 8, 8]), 262: ("H", [2]), 274: ("H", [6]), 277: ("H", [3]), **({} if tile else {278: ("H", [5])})}
    for big in (False, True):
        data = _tiff(strips, tags, big=big, order=order, tile=tile)
        if big and order == ">":  # Pillow does not read these
            assert _reason(data) == "unsupported"
            continue
        assert SourceImage(data).format == "tiff"
        _same(_decoded(data), np.rot90(rgb, -1))


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_tiff_with_its_bits_in_reverse(bits: int) -> None:
    gray = _gray16() if bits == 16 else _rgb()[..., 0]
    stored = {1: np.packbits(gray > 100, axis=1), 8: gray, 16: gray}[bits]
    raw = np.packbits(np.unpackbits(np.frombuffer(stored.tobytes(), np.uint8)).reshape(-1, 8)[:, ::-1], axis=1).tobytes()
    data = _tiff([raw], {258: ("H", [bits]), 262: ("H", [1]), 266: ("H", [2])})
    expected = {1: np.where(gray > 100, 65535, 0), 8: gray.astype(int) * 257, 16: gray}[bits]
    _same(_decoded(data, gray=True, bits=16), expected)


def _jpeg(pixels: Array, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def _apart(jpeg: bytes) -> tuple[bytes, bytes]:
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


RGB, YCC, GRAY, WHITE_IS_0 = 2, 6, 1, 0
JPEGS: dict[str, tuple[int, Callable[[Array], bytes]]] = {
    "rgb": (RGB, lambda a: _jpeg(a, keep_rgb=True, subsampling=0)),
    "ycc": (YCC, lambda a: _jpeg(a, subsampling=0)),
    "ycc-420": (YCC, lambda a: _jpeg(a, subsampling=2)),
    "ycc-422": (YCC, lambda a: _jpeg(a, subsampling=1)),
    "ycc-progressive": (YCC, lambda a: _jpeg(a, subsampling=2, progressive=True)),
    "rgb-that-has-a-jfif-marker": (RGB, lambda a: simplejpeg.encode_jpeg(np.ascontiguousarray(a), 90, "RGB", "444")),
    "gray": (GRAY, lambda a: _jpeg(a[..., 0])),
    "white-is-0": (WHITE_IS_0, lambda a: _jpeg(a[..., 0])),
}


def _jpeg_tiff(name: str, layout: str, *, split: bool = False, big: bool = False) -> bytes:
    photometric, encode = JPEGS[name]
    rgb = _rgb(40, 40)[: H + 20]
    padded = np.pad(rgb, ((0, 15), (0, 8), (0, 0)))
    if layout == "tiles":
        jpegs = [encode(padded[top : top + 16, left : left + 16]) for top in (0, 16, 32) for left in (0, 16, 32)]
    else:
        rows = 16 if layout == "strips" else 33
        jpegs = [encode(rgb[top : top + rows]) for top in range(0, 33, rows)]
    samples = 3 if photometric in (RGB, YCC) else 1
    tags = {256: ("I", [40]), 257: ("I", [33]), 258: ("H", [8] * samples), 259: ("H", [7]), 262: ("H", [photometric])}
    tags |= {277: ("H", [samples])} | ({} if layout == "tiles" else {278: ("H", [16 if layout == "strips" else 33])})
    if "ycc" in name:
        factors = {"ycc-420": [2, 2], "ycc-progressive": [2, 2], "ycc-422": [2, 1]}.get(name, [1, 1])
        tags[530] = ("H", factors)
    if split:
        tables = _apart(jpegs[0])[0]
        tags[347] = ("B", list(tables))
        jpegs = [_apart(jpeg)[1] for jpeg in jpegs]
    return _tiff(jpegs, tags, big=big, tile=16 if layout == "tiles" else 0)


@pytest.mark.parametrize("layout", ["one", "strips", "tiles"])
@pytest.mark.parametrize("name", JPEGS)
def test_jpeg_in_tiff_is_what_opencv_reads(name: str, layout: str) -> None:
    whole = _jpeg_tiff(name, layout)
    decoded = _decoded(whole)
    assert np.abs(decoded.astype(int) - _opencv(whole)).max() == 0
    if name != "ycc-progressive":  # which has other tables for each piece
        _same(_decoded(_jpeg_tiff(name, layout, split=True)), decoded)
    _same(_decoded(_jpeg_tiff(name, layout, big=True)), decoded)
    rgb = _rgb(40, 40)[:33]
    if name == "gray":
        assert np.abs(decoded[..., 0].astype(int) - rgb[..., 0]).mean() < 8


@pytest.mark.parametrize("mode", ["RGB", "L", "YCbCr", "CMYK", "RGBA"])
def test_jpeg_in_tiff_as_libtiff_writes_it(mode: str) -> None:
    out = io.BytesIO()
    Image.fromarray(_rgb()).convert(mode).save(out, "TIFF", compression="jpeg")
    image = np.asarray(Image.fromarray(_rgb()).convert(mode).convert("RGB")).astype(int)
    assert np.abs(_decoded(out.getvalue()) - image).mean() < 12


def test_jpeg_in_tiff_that_is_refused() -> None:
    piece = _jpeg(_rgb(), subsampling=0)
    tags = {258: ("H", [8, 8, 8]), 259: ("H", [7]), 262: ("H", [YCC]), 277: ("H", [3])}
    _same(_decoded(_tiff([piece], tags)), simplejpeg.decode_jpeg(piece))
    gray = {258: ("H", [8]), 262: ("H", [1]), 277: ("H", [1])}
    assert _reason(_tiff([piece], {**tags, **gray})) == "undecodable"
    assert _reason(_tiff([piece], {**tags, 256: ("I", [W + 1])})) == "undecodable"
    assert _reason(_tiff([piece], {**tags, 257: ("I", [H + 1])})) == "undecodable"
    assert _reason(_tiff([_jpeg(_rgb(500, 500))], tags)) == "undecodable"
    assert _reason(_tiff([piece], {**tags, 284: ("H", [2])})) == "unsupported"
    assert _reason(_tiff([piece], {**tags, 259: ("H", [6])})) == "unsupported"
    assert _reason(_tiff([piece], {**tags, 259: ("H", [1])})) == "unsupported"
    assert _reason(_tiff([piece], {**tags, 258: ("H", [12] * 3)})) == "unsupported"
    for part in (piece[:-2], piece[: len(piece) * 4 // 5], piece[:165], piece[: len(piece) // 2] + bytes(99)):
        assert _reason(_tiff([part], tags)) == "truncated"
    assert _reason(_tiff([b""], tags)) == "undecodable"


# JPEG of four inks


@pytest.mark.parametrize("subsampling", [1, 2])
def test_cmyk_jpeg_with_subsampled_ink_is_refused_by_name(subsampling: int) -> None:
    rgb, out = _rgb(), io.BytesIO()
    Image.frombytes("CMYK", (W, H), np.dstack([rgb, rgb[..., 1]]).tobytes()).save(out, "JPEG", subsampling=subsampling)
    data = out.getvalue()
    at = data.index(b"Adobe") + 11
    for transform in (b"\0", b"\2"):
        with pytest.raises(CodecError, match="4 components with these sampling factors") as caught:
            SourceImage(data[:at] + transform + data[at + 1 :]).decode()
        assert caught.value.reason == "unsupported"


# Damage

FILES: dict[str, Callable[[], bytes]] = {
    "big-tiff": lambda: _tiff([_rgb().tobytes()], {258: ("H", [8, 8, 8]), 262: ("H", [2]), 277: ("H", [3])}, big=True),
    "tiff-jpeg": lambda: _jpeg_tiff("ycc-420", "strips", split=True),
    "tiff-jpeg-gray": lambda: _jpeg_tiff("gray", "one", split=True, big=True),
}
PADDING = 8  # bytes at the end that carry nothing


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_noticed(name: str) -> None:
    data = FILES[name]()
    whole = _decoded(data)
    for size in range(len(data)):
        try:
            found = _decoded(data[:size])
        except CodecError:
            continue
        assert size >= len(data) - PADDING
        _same(found, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_flipped_bytes_give_pixels_or_a_codec_error(name: str) -> None:
    data, rng = FILES[name](), np.random.default_rng(0)
    early = min(len(data), 160)
    spots = [*range(early), *rng.integers(0, len(data), 150).tolist(), *range(max(len(data) - 300, 0), len(data))]
    for spot in spots:
        for value in (data[spot] ^ 1 << int(rng.integers(8)), int(rng.integers(256)), 255):
            with contextlib.suppress(CodecError):
                source = SourceImage(data[:spot] + bytes([value]) + data[spot + 1 :], max_pixels=1 << 18)
                assert source.decode().shape == (source.height, source.width, 3)
