"""SourceImage: layouts, orientation, sizes, oddities, reasons. `test_properties_images.py` has formats, modes and cuts."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from fastdata.images.jpeg import decode_buffer
from image_files import png_chunk
from image_files import tiff as _tiff

Array = np.ndarray[Any, np.dtype[Any]]
H, W = 37, 53


def _rgb(h: int = H, w: int = W) -> Array:
    y, x = np.mgrid[:h, :w]
    rgb = np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256], axis=2).astype(np.uint8)
    rgb[5:20, 5:20] = np.random.default_rng(0).integers(0, 256, (15, 15, 3))
    return rgb


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


def _encode(mode: str, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    _image(mode).save(out, format, **options)
    return out.getvalue()


def _pillow(data: bytes) -> Array:
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def _opencv(data: bytes, flags: int = cv2.IMREAD_COLOR_RGB) -> Array:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if decoded is None and data.startswith(b"GIF"):
        pytest.skip("this version of OpenCV, which the pixels are compared with, reads no GIF")
    return decoded


def _blend(rgba: Array, background: tuple[int, int, int], full: int = 255) -> Array:
    alpha = rgba[..., 3:].astype(float) / full
    ground = np.array(background) * (full // 255)
    return np.floor(rgba[..., :3] * alpha + ground * (1 - alpha) + 0.5 + 1e-9).astype(int)


def _apart(a: Array, b: Array) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def _reason(data: bytes) -> str:
    with pytest.raises(CodecError) as caught:
        SourceImage(data).decode()
    return caught.value.reason


def _random(samples: int, dtype: Any, full: int) -> Array:
    return np.random.default_rng(samples).integers(0, full + 1, (40, 33, samples)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [{}, {"planar": True}, {"tile": 16}, {"tile": 16, "planar": True, "deflate": True}])
def test_tiff_layouts(layout: dict[str, Any], order: str, dtype: Any) -> None:
    pytest.importorskip("tifffile")
    full = int(np.iinfo(dtype).max)
    bits = 8 if full == 255 else 16

    def read(a: Array, photometric: int, **extra: Any) -> Array:
        return SourceImage(_tiff(a, photometric, order=order, **layout, **extra)).decode(bits=bits, background=(10, 200, 77))

    rgb, four = _random(3, dtype, full), _random(4, dtype, full)
    assert _apart(read(rgb, 2), rgb) == 0
    assert _apart(read(four, 2, alpha=0), four[..., :3]) == 0
    assert _apart(read(four, 2), _blend(four, (10, 200, 77), full)) == 0  # a fourth sample that nothing explains
    assert _apart(read(four, 2, alpha=2), _blend(four, (10, 200, 77), full)) == 0
    associated = four.copy()
    associated[..., :3] = np.minimum(four[..., :3], four[..., 3:])
    weight = four[..., 3:] / full
    ground = np.array((10, 200, 77)) * (full // 255)
    apart = 2 if bits == 8 and "planar" not in layout else 0.5 + 1e-6  # Pillow divides by alpha first, and rounds
    assert np.abs(read(associated, 2, alpha=1) - (associated[..., :3] + ground * (1 - weight))).max() <= apart
    ink = 1 - four / full
    assert np.abs(read(four, 5) - full * ink[..., :3] * ink[..., 3:]).max() <= 0.5 + 1e-6
    assert _apart(read(rgb[..., :1], 1)[..., 0], rgb[..., 0]) == 0
    assert _apart(read(rgb[..., :1], 0)[..., 1], full - rgb[..., 0].astype(int)) == 0


@pytest.mark.parametrize("mode", ["P", "L"])
def test_gif_first_frame_smaller_than_its_screen(mode: str) -> None:
    data = bytearray(_encode(mode, "GIF"))
    struct.pack_into("<HH", data, 6, W + 9, H + 4)
    at = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H))
    struct.pack_into("<HH", data, at + 1, 6, 2)
    decoded = SourceImage(bytes(data)).decode(background=(1, 2, 3))
    assert decoded.shape == (H + 4, W + 9, 3)
    assert _apart(decoded[2 : 2 + H, 6 : 6 + W], _opencv(_encode(mode, "GIF"))) == 0
    decoded[2 : 2 + H, 6 : 6 + W] = (1, 2, 3)
    assert (decoded == (1, 2, 3)).all()


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


@pytest.mark.parametrize(
    ("bits", "masks"),
    [(16, ()), (16, (0xF800, 0x7E0, 0x1F, 0)), (32, ()), (32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)), (24, ())],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_bmp_layouts(bits: int, masks: tuple[int, ...], sign: int) -> None:
    pixels = np.random.default_rng(bits).integers(0, 256, (6, 24), dtype=np.uint8)
    data = _bmp(bits, masks, pixels.tobytes(), 6 * sign, 24 * 8 // bits)
    expected = _unpacked_bmp(pixels, bits, masks or ((0x7C00, 0x3E0, 0x1F, 0) if bits == 16 else (0xFF0000, 0xFF00, 0xFF, 0)))
    assert _apart(SourceImage(data).decode(), expected if sign < 0 else expected[::-1]) <= (1 if bits == 16 else 0)


def _unpacked_bmp(pixels: Array, bits: int, masks: tuple[int, ...]) -> Array:
    """On white; rows as they are stored."""
    if bits == 24:
        return pixels.reshape(6, -1, 3)[..., ::-1]
    packed = pixels.view(f"<u{bits // 8}")
    color = np.stack([(packed & mask) / mask * 255 for mask in masks[:3]], axis=2)
    alpha = (packed & masks[3]) / masks[3] if masks[3] else np.ones(packed.shape)
    return np.floor(color * alpha[..., None] + 255 * (1 - alpha[..., None]) + 0.5 + 1e-9).astype(int)


def test_bmp_with_an_alpha_of_zeros_is_opaque() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    pixels[..., 3] = 0
    data = _bmp(32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000), pixels.tobytes(), -6, 5)
    assert _apart(SourceImage(data).decode(), pixels[..., :3]) == 0


@pytest.mark.parametrize("bits", [8, 4])
def test_bmp_of_runs_and_its_cuts(bits: int) -> None:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 1 << bits, (7, 9)).repeat(3, axis=1)[:, :26]
    palette = rng.integers(0, 256, (1 << bits, 4), dtype=np.uint8)
    packed = b""
    for row in indices:
        for start in range(0, 24, 3):
            packed += bytes([3, int(row[start]) * (17 if bits == 4 else 1)])
        packed += bytes([2, int(row[24]) * (17 if bits == 4 else 1), 0, 0])
    packed += b"\0\1"
    info = struct.pack("<IiiHHIIiiII", 40, 26, 7, 1, bits, 1 if bits == 8 else 2, len(packed), 0, 0, 0, 0)
    start = 14 + len(info) + palette.size
    data = b"BM" + struct.pack("<III", start + len(packed), 0, start) + info + palette.tobytes() + packed
    expected = palette[indices[::-1]][..., 2::-1]
    assert _apart(SourceImage(data).decode(), expected) == 0
    for size in range(start, len(data)):
        with contextlib.suppress(CodecError):
            assert _apart(SourceImage(data[:size]).decode(), expected) == 0


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
    ):
        assert _pillow(data).shape == (W, H, 3)  # which turns them
        assert _apart(SourceImage(data).decode(), SourceImage(plain).decode()) == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_turns_an_image_where_pillow_turns_it(kind: str) -> None:
    """A wrong count, a type that does not exist, a value behind the end, and EXIF that is cut at every byte."""
    exif = Image.Exif()
    exif[0x10E], exif[0x112], exif[0x131] = "a caption", 6, "a program"
    whole = exif.tobytes()
    at = whole.index(b"\x01\x12\0\x03\0\0\0\1" if b"MM" in whole[:9] else b"\x12\1\3\0\1\0\0\0")
    broken = [whole[: at + k] + bytes([value]) + whole[at + k + 1 :] for k in range(-12, 24) for value in (0, 2, 255)]
    turned = 0
    for block in [whole, *broken, *(whole[:size] for size in range(6, len(whole)))]:
        data = _encode("RGB", kind, exif=block, **({"lossless": True} if kind == "WEBP" else {}))
        expected = 1
        with warnings.catch_warnings(), contextlib.suppress(SyntaxError, struct.error):
            warnings.simplefilter("ignore")
            expected = Image.open(io.BytesIO(data)).getexif().get(0x112, 1)
        source = SourceImage(data)
        assert source.header.orientation == (expected if expected in range(1, 9) else 1)
        turned += source.height == W
    assert 20 < turned < len(broken) + len(whole)


def _jpeg(rgb: Array, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, "JPEG", **options)
    return out.getvalue()


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


def test_scratch_is_used_when_large_enough() -> None:
    rgb = _rgb()
    source = SourceImage(_jpeg(rgb))
    fresh = source.decode()
    scratch = decode_buffer(3 * H * W + 5)
    view = source.decode(scratch=scratch)
    assert np.shares_memory(view, scratch) and _apart(view, fresh) == 0
    assert _apart(source.decode(scratch=decode_buffer(3 * H * W - 1)), fresh) == 0


def test_cmyk_jpeg_with_and_without_adobe_and_as_ycck() -> None:
    plain = _encode("CMYK", "JPEG", quality=95)
    at = plain.index(b"\xff\xee")
    for data in (plain, plain[:at] + plain[at + 16 :], plain[: at + 15] + b"\x02" + plain[at + 16 :]):
        assert _apart(SourceImage(data).decode(), _pillow(data)) <= 2


def _mid(data: bytes) -> int:
    return data.index(b"\xff\xda") + 2


@pytest.mark.parametrize("progressive", [False, True])
def test_harmless_oddities_of_jpegs_are_read(progressive: bool) -> None:
    data = _jpeg(_rgb(), progressive=progressive)
    clean = SourceImage(data).decode()
    version = data.index(b"JFIF\0") + 5
    oddities = {
        "junk after EOI": data + b"junk" * 9,
        "another JPEG after it": data + data,
        "filler before EOI": data[:-2] + b"\0" * 24 + b"\xff\xd9",
        "junk between segments": data[:20] + b"\0\1\2" + data[20:],
        "fill bytes": data[:20] + b"\xff\xff" + data[20:],
        "unknown JFIF": data[:version] + b"\x03" + data[version + 1 :],
    }
    if not progressive:
        last = _mid(data) + int.from_bytes(data[_mid(data) : _mid(data) + 2], "big") - 1
        oddities["odd spectral parameters"] = data[:last] + b"\x03" + data[last + 1 :]
        oddities["no EOI"] = data[:-2]
        oddities["half an EOI"] = data[:-1]
    for name, odd in oddities.items():
        assert _apart(SourceImage(odd).decode(), clean) == 0, name


@pytest.mark.parametrize("kind", [b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"])
def test_a_flipped_bit_in_any_chunk_of_a_png_is_noticed(kind: bytes) -> None:
    """Among them a height of 31 in place of 63, a colour, the transparency of an index, and the orientation."""
    exif = Image.Exif()
    exif[0x112] = 6
    data = _encode("P", "PNG", transparency=b"\0\x80\xff", exif=exif)
    start = data.index(kind) - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    for place in range(start + 4, end, 1 + (end - start) // 60):
        for bit in range(8):
            broken = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
            assert _reason(broken) in ("undecodable", "truncated", "unsupported"), (place - start, bit)


def _icc(number: int, count: int, body: bytes = b"profile") -> bytes:
    """A piece of an ICC profile, as a segment of a JPEG."""
    return b"\xff\xe2" + struct.pack(">H12sBB", 16 + len(body), b"ICC_PROFILE", number, count) + body


@pytest.mark.parametrize("progressive", [False, True])
def test_profiles_and_previews_of_jpegs_are_ignored_whatever_they_say(progressive: bool) -> None:
    data = _jpeg(_rgb(), progressive=progressive)
    clean = SourceImage(data).decode()
    for name, segments in {
        "whole": _icc(1, 1),
        "one of two": _icc(1, 2),
        "number zero": _icc(0, 0),
        "twice": _icc(1, 1) * 2,
        "two counts": _icc(1, 2) + _icc(2, 3),
        "empty": _icc(1, 1, b""),
        "previews of a phone": b"\xff\xe2\0\x0eMPF\0MM\0*\0\0\0\x08",
        "previews and a profile": b"\xff\xe2\0\x06MPF\0" + _icc(2, 2),
        "filler before EOI too": _icc(1, 2),
    }.items():
        end = b"\0" * 24 + data[-2:] if "filler" in name else data[-2:]
        odd = data[:20] + segments + data[20:-2] + end
        assert _apart(SourceImage(odd).decode(), clean) == 0, name
        assert _reason(odd[: len(odd) * 3 // 4]) == "truncated", name


def test_damage_behind_a_harmless_oddity_is_found() -> None:
    data = _jpeg(_rgb())
    for odd in (data[:20] + b"\0\1\2" + data[20:], data[:20] + _icc(1, 2) + data[20:]):
        assert _reason(odd[: len(odd) * 3 // 4]) == "truncated"
        assert _reason(odd[: len(odd) * 3 // 4] + b"\xff\xd9") == "truncated"
    assert _reason(data[:-2] + bytes(range(1, 99)) + b"\xff\xd9") == "undecodable"  # the decoder lost its place
    progressive = _jpeg(_rgb(), progressive=True)
    assert _reason(progressive[:-2]) == "truncated"
    assert _reason(progressive[: progressive.rindex(b"\xff\xda")]) == "truncated"


FILES = {
    "jpeg": _encode("RGB", "JPEG"),
    "jpeg-progressive": _encode("RGB", "JPEG", progressive=True),
    "jpeg-restarts": _encode("RGB", "JPEG", restart_marker_rows=1),
    "jpeg-cmyk": _encode("CMYK", "JPEG"),
    "png": _encode("RGB", "PNG"),
    "png-p": _encode("P", "PNG", transparency=3),
    "webp": _encode("RGB", "WEBP"),
    "webp-lossless": _encode("RGBA", "WEBP", lossless=True),
    "gif": _encode("P", "GIF", transparency=3),
    "bmp": _encode("RGB", "BMP"),
    "bmp-8": _encode("P", "BMP"),
    "tiff": _encode("RGB", "TIFF"),
    "tiff-end": _tiff(_random(4, np.uint8, 255), 2, tile=16, alpha=2),
    **{f"tiff-{c}": _encode("RGB", "TIFF", compression=c) for c in ("tiff_lzw", "tiff_adobe_deflate", "packbits")},
}


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_refused(name: str, part: float) -> None:
    assert _reason(FILES[name][: int(len(FILES[name]) * part)]) == "truncated"


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
        (b"#?RADIANCE\n", "unsupported"),
        (b"8BPS\0\1", "unsupported"),
        (b"qoif\0\0\0\1", "unsupported"),
        (b"\x59\xa6\x6a\x95", "unsupported"),
        (_encode("F", "TIFF"), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={339: ("H", [2])}), "unsupported"),
        (_tiff(_random(3, np.uint8, 255), 8), "unsupported"),
        (_tiff(_random(3, np.float32, 1), 2, tags={339: ("H", [3, 3, 3])}), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={259: ("H", [6])}), "unsupported"),
        (_tiff(_random(1, np.uint8, 255), 1, tags={259: ("H", [33005])}), "unsupported"),
        (_tiff(_random(3, np.uint8, 255), 2, tags={254: ("I", [1])}), "unsupported"),
        (_tiff(_random(3, np.uint16, 9), 2, tags={284: ("H", [33])}), "unsupported"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not-an-image"),
        (b"/annex/objects/SHA256E-s1--00.jpg\n", "not-an-image"),
        (b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nENDHDR\nabc", "unsupported"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    assert _reason(data) == reason


@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff_of_one_sample_in_planes(order: str) -> None:
    pytest.importorskip("tifffile")
    a = _random(1, np.uint8, 255)
    for photometric, expected in ((0, 255 - a), (1, a)):
        data = _tiff(a, photometric, planar=True, order=order)
        assert _apart(SourceImage(data).decode(gray=True), expected[..., 0]) == 0
    bits = _tiff(np.packbits(a > 100, axis=1), 0, planar=True, order=order, tags={256: ("I", [33]), 258: ("H", [1])})
    assert _reason(bits) == "unsupported"
