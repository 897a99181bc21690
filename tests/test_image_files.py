"""SourceImage: layouts, orientation, sizes, oddities, reasons; against Pillow, OpenCV, numpy and libjpeg-turbo.

`test_properties_images.py` has formats, modes, cuts and damage.
"""

from __future__ import annotations

import io
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, features

from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
from image_files import heif, jxl, png_chunk, pnm, saved
from image_files import tiff as _tiff
from support import PEAK_MEMORY, Array, run

H, W = 37, 53
needs_jp2 = pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow writes no JPEG 2000")


def _rgb(h: int = H, w: int = W) -> Array:
    y, x = np.mgrid[:h, :w]
    rgb = np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256], axis=2).astype(np.uint8)
    rgb[5:20, 5:20] = np.random.default_rng(0).integers(0, 256, (15, 15, 3))
    return rgb


def _small() -> Array:
    return _rgb()[:13, :21].copy()


def _alpha() -> Array:
    alpha = (np.mgrid[:H, :W][1] * 5 % 256).astype(np.uint8)
    alpha[:5], alpha[5:9] = 0, 255
    return alpha


def _image(mode: str) -> Image.Image:
    rgb = _rgb()
    if mode == "RGBA":
        return Image.fromarray(np.dstack([rgb, _alpha()]))
    if mode == "P":
        return Image.fromarray(rgb).quantize(200)
    if mode == "CMYK":
        return Image.frombytes("CMYK", (W, H), np.dstack([rgb, _alpha()]).tobytes())
    return Image.fromarray(rgb).convert(mode)


def _encode(mode: str, kind: str, **options: Any) -> bytes:
    return saved(_image(mode), kind, **options)


def _decoded(data: bytes, **options: Any) -> Array:
    source = SourceImage(data)
    decoded = source.decode(**options)
    assert decoded.shape[:2] == (source.height, source.width) and decoded.flags.c_contiguous
    return decoded


def _pillow(data: bytes) -> Array:
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def _opencv(data: bytes, flags: int = cv2.IMREAD_COLOR_RGB) -> Array:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if decoded is None and data.startswith(b"GIF"):
        pytest.skip("this version of OpenCV, which the pixels are compared with, reads no GIF")
    return decoded


def _apart(a: Array, b: Array) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def _reason(data: bytes, **options: Any) -> str:
    with pytest.raises(CodecError) as caught:
        SourceImage(data, **options).decode()
    return caught.value.reason


def _random(samples: int, dtype: Any, full: int) -> Array:
    return np.random.default_rng(samples).integers(0, full + 1, (40, 33, samples)).astype(dtype)


@pytest.mark.parametrize("mode", ["P", "L"])
def test_gif_first_frame_smaller_than_its_screen(mode: str) -> None:
    data = bytearray(_encode(mode, "GIF"))
    struct.pack_into("<HH", data, 6, W + 9, H + 4)
    at = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H))
    struct.pack_into("<HH", data, at + 1, 6, 2)
    decoded = SourceImage(bytes(data)).decode()
    assert decoded.shape == (H + 4, W + 9, 3)
    assert _apart(decoded[2 : 2 + H, 6 : 6 + W], _opencv(_encode(mode, "GIF"))) == 0
    decoded[2 : 2 + H, 6 : 6 + W] = 255
    assert (decoded == 255).all()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_first_of_several_pictures(kind: str) -> None:
    out = io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    first, other = _image("RGB"), ImageOps.mirror(_image("RGB"))
    first.save(out, kind, save_all=True, append_images=[other], **options)
    reference = _opencv(out.getvalue()) if kind == "GIF" else _rgb()
    assert _apart(SourceImage(out.getvalue()).decode(), reference) == 0


def _bmp(bits: int, masks: tuple[int, ...], pixels: bytes, height: int, width: int) -> bytes:
    size = 56 if masks else 40
    info = struct.pack("<IiiHHIIiiII", size, width, height, 1, bits, 3 if masks else 0, 0, 0, 0, 0, 0)
    info += struct.pack(f"<{len(masks)}I", *masks)
    return b"BM" + struct.pack("<III", 0, 0, 14 + len(info)) + info + pixels


def test_bmp_with_an_alpha_of_zeros_is_opaque() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    pixels[..., 3] = 0
    data = _bmp(32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000), pixels.tobytes(), -6, 5)
    assert _apart(SourceImage(data).decode(), pixels[..., :3]) == 0


def _upright(a: Array, orientation: int) -> Array:
    turned = [a, a[:, ::-1], a[::-1, ::-1], a[::-1], a.swapaxes(0, 1), np.rot90(a, -1), np.rot90(a, 2).swapaxes(0, 1), np.rot90(a)]
    return np.ascontiguousarray(turned[orientation - 1])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = _encode("RGB", kind, exif=exif, **options)
    reference = _pillow(data) if kind == "JPEG" else _upright(_rgb(), orientation)
    source = SourceImage(data)
    decoded = source.decode()
    assert (source.height, source.width) == reference.shape[:2] == decoded.shape[:2]
    assert _apart(decoded, reference) == 0 and decoded.flags.c_contiguous
    if kind == "JPEG":
        least = (reference.shape[0] // 2, reference.shape[1] // 2)
        half = source.decode(at_least=least)
        assert half.shape[:2] == (-(-reference.shape[0] // 2), -(-reference.shape[1] // 2))


XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="r">'
    b'<rdf:Description xmlns:tiff="t" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


def test_an_orientation_outside_of_exif_is_ignored() -> None:
    """In XMP, and as text in a PNG from before there was eXIf."""
    exif = Image.Exif()
    exif[0x112] = 6
    block = exif.tobytes()
    old = b"\nexif\n%8d\n" % len(block) + block.hex().encode() + b"\n"
    png = _encode("RGB", "PNG")
    jpeg = _jpeg(_rgb())
    packet = b"http://ns.adobe.com/xap/1.0/\0" + XMP
    for plain, data in (
        (png, png[:33] + png_chunk(b"tEXt", b"Raw profile type exif\0" + old) + png[33:]),
        (png, png[:33] + png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(old)) + png[33:]),
        (png, png[:33] + png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP) + png[33:]),
        (jpeg, jpeg[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(packet)) + packet + jpeg[2:]),
        (_encode("RGB", "WEBP", lossless=True), _encode("RGB", "WEBP", lossless=True, xmp=XMP)),
        (_encode("RGB", "TIFF"), _encode("RGB", "TIFF", tiffinfo={700: XMP})),
    ):
        if data[:2] != b"II":  # of which Pillow turns the pixels, when it loads them, but not the size
            assert _pillow(data).shape == (W, H, 3)
        assert _apart(SourceImage(data).decode(), SourceImage(plain).decode()) == 0


def _jpeg(rgb: Array, **options: Any) -> bytes:
    return saved(rgb, "JPEG", **options)


@pytest.mark.parametrize("size", [(37, 53), (64, 64), (9, 200), (7, 8), (1, 1), (6, 6)])
@pytest.mark.parametrize("gray", [False, True])
def test_scaled_jpeg_is_the_smallest_power_that_is_large_enough(size: tuple[int, int], gray: bool) -> None:
    data = _jpeg(_rgb(64, 200)[: size[0], : size[1]])
    source = SourceImage(data)
    for least in [(1, 1), (size[0] // 4 + 1, 1), (1, size[1] // 2), size, (size[0] + 1, 1), (0, 0), (10**6, 10**6)]:
        decoded = source.decode(at_least=least, gray=gray)
        fits = [d for d in (2, 4, 8) if -(-size[0] // d) >= least[0] and -(-size[1] // d) >= least[1]]
        den = max(fits, default=1) if max(least) > 0 and max(size) > 8 else 1
        image = Image.open(io.BytesIO(data))
        image.draft("L" if gray else "RGB", (-(-size[0] // den), -(-size[1] // den))[::-1])
        assert decoded.shape[:2] == (-(-size[0] // den), -(-size[1] // den))
        if den > 1 and image.size == decoded.shape[1::-1]:
            assert _apart(decoded, np.array(image)) == 0


def test_cmyk_jpeg_with_and_without_adobe_and_as_ycck() -> None:
    plain = _encode("CMYK", "JPEG", quality=95)
    at = plain.index(b"\xff\xee")
    for data in (plain, plain[:at] + plain[at + 16 :], plain[: at + 15] + b"\x02" + plain[at + 16 :]):
        assert _apart(SourceImage(data).decode(), _pillow(data)) <= 2


def _mid(data: bytes) -> int:
    return data.index(b"\xff\xda") + 2


def _icc(number: int, count: int, body: bytes = b"profile") -> bytes:
    """A piece of an ICC profile, as a segment of a JPEG."""
    return b"\xff\xe2" + struct.pack(">H12sBB", 16 + len(body), b"ICC_PROFILE", number, count) + body


@pytest.mark.parametrize("progressive", [False, True])
def test_harmless_oddities_of_jpegs_are_read(progressive: bool) -> None:
    data = _jpeg(_rgb(), progressive=progressive)
    clean = SourceImage(data).decode()
    version, filled = data.index(b"JFIF\0") + 5, data[:-2] + b"\0" * 24 + data[-2:]
    oddities = {
        "junk after EOI": data + b"junk" * 9,
        "another JPEG after it": data + data,
        "filler before EOI": filled,
        "unknown JFIF": data[:version] + b"\x03" + data[version + 1 :],
    }
    if not progressive:
        last = _mid(data) + int.from_bytes(data[_mid(data) : _mid(data) + 2], "big") - 1
        oddities["odd spectral parameters"] = data[:last] + b"\x03" + data[last + 1 :]
        oddities["no EOI"] = data[:-2]
        oddities["half an EOI"] = data[:-1]
    inserted = {
        "junk between segments": b"\0\1\2",
        "fill bytes": b"\xff\xff",
        "a whole profile": _icc(1, 1),
        "one of two pieces": _icc(1, 2),
        "piece number zero": _icc(0, 0),
        "a piece twice": _icc(1, 1) * 2,
        "two counts of pieces": _icc(1, 2) + _icc(2, 3),
        "an empty profile": _icc(1, 1, b""),
        "previews of a phone": b"\xff\xe2\0\x0eMPF\0MM\0*\0\0\0\x08",
        "previews and a profile": b"\xff\xe2\0\x06MPF\0" + _icc(2, 2),
    }
    oddities |= {name: data[:20] + segments + data[20:] for name, segments in inserted.items()}
    oddities["a profile and filler"] = filled[:20] + _icc(1, 2) + filled[20:]
    for name, odd in oddities.items():
        assert _apart(SourceImage(odd).decode(), clean) == 0, name
        assert name not in inserted or _reason(odd[: len(odd) * 3 // 4]) == "truncated", name


def test_damage_behind_a_harmless_oddity_is_found() -> None:
    data = _jpeg(_rgb())
    for odd in (data[:20] + b"\0\1\2" + data[20:], data[:20] + _icc(1, 2) + data[20:]):
        assert _reason(odd[: len(odd) * 3 // 4]) == "truncated"
        assert _reason(odd[: len(odd) * 3 // 4] + b"\xff\xd9") == "truncated"
    assert _reason(data[:-2] + bytes(range(1, 99)) + b"\xff\xd9") == "undecodable"  # the decoder lost its place
    progressive = _jpeg(_rgb(), progressive=True)
    assert _reason(progressive[:-2]) == "truncated"
    assert _reason(progressive[: progressive.rindex(b"\xff\xda")]) == "truncated"


def test_a_strip_of_tiff_that_lost_its_end_is_refused() -> None:
    """Its checksum is cut off."""
    whole = _tiff(_random(3, np.uint8, 255), 2, deflate=True)
    at = whole.rindex(struct.pack("<HHI", 279, 4, 1)) + 8
    count = struct.unpack_from("<I", whole, at)[0]
    for lost in (9, 100, count - 2):
        assert _reason(whole[:at] + struct.pack("<I", count - lost) + whole[at + 4 :]) == "undecodable"


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
        (_encode("F", "TIFF"), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={339: ("H", [2])}), "unsupported"),
        (_tiff(_random(3, np.uint8, 255), 8), "unsupported"),
        (_tiff(_random(3, np.float32, 1), 2, tags={339: ("H", [3, 3, 3])}), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={259: ("H", [6])}), "unsupported"),
        (_encode("RGB", "TIFF", compression="jpeg"), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={259: ("H", [33005])}), "undecodable"),
        (_tiff(_random(3, np.uint8, 255), 2, tags={254: ("I", [1])}), "unsupported"),
        (_tiff(_random(3, np.uint16, 9), 2, tags={284: ("H", [33])}), "unsupported"),
        (_tiff(_random(1, np.uint8, 9), 0, planar=True, tags={258: ("H", [1])}), "unsupported"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not-an-image"),
        (b"/annex/objects/SHA256E-s1--00.jpg\n", "not-an-image"),
        (b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nENDHDR\nabc", "not-an-image"),
        (b"P2 3 1 255 0 128 25", "not-an-image"),
        (b"P5 3 1 65536 abcdef", "undecodable"),
        (pnm(6, _random(3, np.uint16, 999), 999), "unsupported"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    assert _reason(data) == reason


# JPEG 2000


def _jp2(pixels: Array, mode: str | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels) if mode is None else Image.frombytes(mode, (21, 13), pixels.tobytes())
    image.save(out, "JPEG2000", **options)
    return out.getvalue()


def _gray16() -> Array:
    return _small()[..., 0].astype(np.uint16) * 250 + _small()[..., 1]


@needs_jp2
def test_jpeg_2000_that_is_refused() -> None:
    rgb, data, bare = _small(), _jp2(_small()), _jp2(_small(), no_jp2=True)
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
    assert _reason(bare, max_pixels=100) == _reason(data, max_pixels=100) == "too-large"
    assert _reason(data.replace(b"ftypjp2 ", b"ftyppclr")) == "unsupported"  # a palette
    for rgba in (_jp2(np.dstack([rgb, rgb[..., 0]])), _jp2(np.dstack([rgb, rgb[..., 0]]), no_jp2=True)):
        assert _reason(rgba) == "unsupported"
    assert _reason(data.replace(b"colr\1\0\0\0\0\0\x10", b"colr\1\0\0\0\0\0\x0e")) == "unsupported"  # Lab


@needs_jp2
def test_open_ends_and_lost_tiles_of_jpeg_2000() -> None:
    rgb = _small()
    bare, tiled = _jp2(rgb, no_jp2=True), _jp2(rgb, no_jp2=True, tile_size=(16, 8))
    first = bare.index(b"\xff\x90\0\x0a")
    open_end = bare[: first + 6] + b"\0\0\0\0" + bare[first + 10 :]
    assert _apart(_decoded(open_end), rgb) == 0
    assert _reason(open_end[:-2]) == _reason(open_end[: len(open_end) * 2 // 3]) == "truncated"
    tiles = [k for k in range(len(tiled)) if tiled.startswith(b"\xff\x90\0\x0a", k)]
    assert len(tiles) == 4
    assert _reason(tiled[: tiles[1]] + tiled[tiles[2] :]) == "truncated"
    assert _reason(tiled[: tiles[3]] + b"\xff\xd9") == "truncated"


# TIFF


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [{"rows": 5}, {"tile": 16}])
def test_big_tiff(layout: dict[str, Any], order: str) -> None:
    rgb = _small()
    for big in (False, True):
        data = _tiff(rgb, 2, big=big, order=order, orientation=6, **layout)
        if big and order == ">":  # Pillow does not read these
            assert _reason(data) == "not-an-image"
            continue
        assert SourceImage(data).header.format == "tiff"
        assert _apart(_decoded(data), np.rot90(rgb, -1)) == 0


# Pillow's formats


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_turned_avif_heic_and_jpegs_in_jpeg_xl(orientation: int, tmp_path: Path) -> None:
    upright = {3: np.rot90(_rgb(), 2), 6: np.rot90(_rgb(), -1), 8: np.rot90(_rgb())}[orientation]

    def exif() -> Image.Exif:
        tags = Image.Exif()
        tags[0x112] = orientation
        return tags

    made = [saved(_rgb(), "AVIF", quality=100, subsampling="4:4:4", exif=exif()), heif(_rgb(), exif=exif().tobytes())]
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    (tmp_path / "a.jpg").write_bytes(saved(_rgb(), "JPEG", quality=100, subsampling=0, exif=exif()))
    with Image.open(tmp_path / "a.jpg") as image:
        made.append(saved(image, "JXL", lossless_jpeg=True))
    for data in made:
        source = SourceImage(data)
        assert (source.height, source.width) == upright.shape[:2]
        assert np.abs(source.decode().astype(int) - upright).mean() < 2
    assert np.array_equal(SourceImage(made[2]).decode(), SourceImage((tmp_path / "a.jpg").read_bytes()).decode())


def test_more_bits_than_are_read_are_refused_for_16_bits() -> None:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_bytes

    out = io.BytesIO()
    from_bytes("RGB;16", (W, H), (_rgb().astype("<u2") * 257).tobytes()).save(out, quality=100, chroma=444)
    source = SourceImage(out.getvalue())
    assert np.abs(source.decode().astype(int) - _rgb()).max() <= 5
    with pytest.raises(
        CodecError, match="heif may have more than 8 bits, and is read with 8: make it a PNG, or do without --bits 16"
    ):
        source.decode(bits=16)


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ftyp, jxl = b"\0\0\0\x18ftypheic" + bytes(12), b"\xff\x0a" + bytes(40)
    deep = _tiff(np.zeros((2, 2, 3), np.uint16), 2)
    for module, data, package in (
        ("pillow_heif", ftyp, "pillow-heif"),
        ("pillow_jxl", jxl, "pillow-jxl-plugin"),
        ("tifffile", deep, "tifffile"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            CodecError, match=rf"is read with {package}, which is not installed: pip install 'fastdata-torch\[formats\]'"
        ) as caught:
            SourceImage(data).decode()
        assert caught.value.reason == "unsupported"


# Pillow's settings


@pytest.fixture
def settings() -> Iterator[None]:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    yield
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PPM", "JPEG2000"])
@pytest.mark.parametrize("limit", [None, 10, W * H - 1])
def test_pillow_s_settings_play_no_part(kind: str, limit: int | None) -> None:
    options = {"compression": "tiff_lzw"} if kind == "TIFF" else {}
    data = saved(_rgb(), kind, **options)
    expected = SourceImage(data).decode()
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limit, True
    filters = list(warnings.filters)
    np.testing.assert_array_equal(SourceImage(data).decode(), expected)
    with pytest.raises(CodecError):
        SourceImage(data[: len(data) * 3 // 4]).decode()
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (limit, True)
    assert warnings.filters == filters


# Memory

OPEN = f"""{PEAK_MEMORY}
import sys
from fastdata.errors import CodecError
from fastdata.codecs.decode import SourceImage
SourceImage(open(sys.argv[1], "rb").read())
before = peak_memory()
try:
    SourceImage(sys.stdin.buffer.read())
except CodecError as error:
    print(error.reason, peak_memory() - before)
"""


@pytest.mark.parametrize("disposal", range(4))
def test_a_gif_with_a_huge_frame_is_refused_before_memory_is_taken(disposal: int, tmp_path: Path) -> None:
    data = bytearray(saved(_image("P"), "GIF", transparency=3, disposal=disposal))
    (tmp_path / "small").write_bytes(data)
    frame = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H))
    struct.pack_into("<HH", data, frame + 5, 40_000, 40_000)
    done = run(sys.executable, "-c", OPEN, tmp_path / "small", input=bytes(data), text=False, errors=None)
    reason, taken = done.stdout.split()
    assert reason == b"too-large" and int(taken) < 1 << 26


PEAK = f"""{PEAK_MEMORY}
import sys
from fastdata.codecs.decode import SourceImage
data = sys.stdin.buffer.read()
small = SourceImage(open(sys.argv[1], "rb").read())
small.decode(bits=int(sys.argv[2]))
before = peak_memory()
image = SourceImage(data)
image.decode(bits=int(sys.argv[2]))
print(image.memory(), peak_memory() - before)
"""


def _flat(side: int, mode: str) -> Image.Image:
    return Image.linear_gradient("L").resize((side, side)).convert(mode)


def _png16(side: int) -> bytes:
    values = np.broadcast_to(np.arange(side, dtype=np.uint16)[:, None, None] * 7, (side, side, 4))
    return bytes(cv2.imencode(".png", np.ascontiguousarray(values))[1])


KINDS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "png-rgb": (lambda side: saved(_flat(side, "RGB"), "PNG", compress_level=1), 8),
    "png-rgba": (lambda side: saved(_flat(side, "RGBA"), "PNG", compress_level=1), 8),
    "png-la": (lambda side: saved(_flat(side, "LA"), "PNG", compress_level=1), 8),
    "png-key": (lambda side: saved(_flat(side, "RGB"), "PNG", compress_level=1, transparency=(1, 2, 3)), 8),
    "png-palette": (lambda side: saved(_flat(side, "P"), "PNG", compress_level=1, transparency=3), 8),
    "png-rgba-16": (_png16, 8),
    "png-8-to-16": (lambda side: saved(_flat(side, "RGBA"), "PNG", compress_level=1), 16),
    "jpeg": (lambda side: saved(_flat(side, "RGB"), "JPEG"), 8),
    "jpeg-progressive": (lambda side: saved(_flat(side, "RGB"), "JPEG", progressive=True, subsampling=0), 8),
    "jpeg-cmyk": (lambda side: saved(_flat(side, "CMYK"), "JPEG"), 8),
    "webp": (lambda side: saved(_flat(side, "RGBA"), "WEBP", lossless=True, method=0), 8),
    "gif": (lambda side: saved(_flat(side, "P"), "GIF", transparency=3), 8),
    "bmp": (lambda side: saved(_flat(side, "RGB"), "BMP"), 8),
    "tiff": (lambda side: saved(_flat(side, "RGBA"), "TIFF", compression="tiff_lzw"), 8),
    "tiff-cmyk": (lambda side: saved(_flat(side, "CMYK"), "TIFF"), 8),
    "tiff-16": (lambda side: _tiff(np.zeros((side, side, 4), np.uint16), 2, alpha=2), 8),
    "avif": (lambda side: saved(_flat(side, "RGBA"), "AVIF", speed=10), 8),
    "heic": (lambda side: heif(np.asarray(_flat(side, "RGBA"))), 8),
    "jxl": (lambda side: jxl(np.asarray(_flat(side, "RGBA")), effort=1), 8),
    "jp2": (lambda side: saved(_flat(side, "RGB"), "JPEG2000"), 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_takes_no_more_memory_than_the_header_says(kind: str, tmp_path: Path) -> None:
    """A small multiple of the pixels, in every format."""
    side = 2000
    make, bits = KINDS[kind]
    (tmp_path / "small").write_bytes(make(16))
    done = run(sys.executable, "-c", PEAK, tmp_path / "small", bits, input=make(side), text=False, errors=None)
    assert done.returncode == 0, done.stderr
    said, taken = map(int, done.stdout.split())
    assert taken <= said <= 40 * side * side
