"""SourceImage: orientation, sizes, oddities, reasons, memory; against Pillow and libjpeg-turbo.

`test_properties_images.py` has formats, modes, cuts and damage.
"""

from __future__ import annotations

import io
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, features

from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
from image_files import heif, png_chunk, pnm, saved, tiff
from support import PEAK_MEMORY, Array, run
from test_properties_images import FORMS, Picture, indexed, other, read

H, W = 37, 53
PICTURE = Picture(H, W, 0)
RGB, SMALL = PICTURE.photo(), Picture(13, 21, 0).photo()
JPEG, PROGRESSIVE = saved(RGB, "JPEG"), saved(RGB, "JPEG", progressive=True)
needs_jp2 = pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow writes no JPEG 2000")


def _same(data: bytes, expected: Array, most: int = 0) -> None:
    found = read(data, 8)
    assert not isinstance(found, str), found
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= most


def _random(samples: int, dtype: Any, full: int) -> Array:
    return np.random.default_rng(samples).integers(0, full + 1, (40, 33, samples)).astype(dtype)


@pytest.mark.parametrize("gray", [False, True])
def test_gif_first_frame_smaller_than_its_screen(gray: bool) -> None:
    image, shown, _ = indexed(PICTURE, 200)
    data = bytearray(saved(RGB[..., 0] if gray else image, "GIF"))
    struct.pack_into("<HH", data, 6, W + 9, H + 4)
    struct.pack_into("<HH", data, data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H)) + 1, 6, 2)
    expected = np.full((H + 4, W + 9, 3), 255)
    expected[2 : 2 + H, 6 : 6 + W] = RGB[..., :1] if gray else shown
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
    data = saved(RGB, kind, exif=_exif(orientation), **options)
    expected = _upright(SourceImage(saved(RGB, kind, **options)).decode(), orientation)
    _same(data, expected)
    if kind == "JPEG":
        height, width = expected.shape[:2]
        assert SourceImage(data).decode(at_least=(height // 2, width // 2)).shape[:2] == (-(-height // 2), -(-width // 2))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_turned_avif_heic_and_jpegs_in_jpeg_xl(orientation: int, tmp_path: Path) -> None:
    avif = saved(RGB, "AVIF", quality=100, subsampling="4:4:4", exif=_exif(orientation))
    for data in (avif, heif(RGB, exif=_exif(orientation).tobytes())):
        _same(data, _upright(RGB, orientation), most=6)
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    (tmp_path / "a.jpg").write_bytes(saved(RGB, "JPEG", exif=_exif(orientation)))
    with Image.open(tmp_path / "a.jpg") as image:  # the plugin reads the file again
        _same(saved(image, "JXL", lossless_jpeg=True), _upright(other(JPEG), orientation))


def test_an_orientation_outside_of_exif_is_ignored() -> None:
    """In XMP, and as text in a PNG from before there was eXIf."""
    description = b'<rdf:Description xmlns:tiff="t" tiff:Orientation="6"/>'
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="r">' + description + b"</rdf:RDF></x:xmpmeta>"
    block, png = _exif(6).tobytes(), saved(RGB, "PNG")
    old = zlib.compress(b"\nexif\n%8d\n" % len(block) + block.hex().encode() + b"\n")
    packet = b"http://ns.adobe.com/xap/1.0/\0" + xmp
    for expected, data in (
        (RGB, png[:33] + png_chunk(b"zTXt", b"Raw profile type exif\0\0" + old) + png[33:]),
        (RGB, png[:33] + png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp) + png[33:]),
        (other(JPEG), JPEG[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(packet)) + packet + JPEG[2:]),
        (RGB, saved(RGB, "WEBP", lossless=True, xmp=xmp)),
        (RGB, saved(RGB, "TIFF", tiffinfo={700: xmp})),
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
    whole = tiff(_random(3, np.uint8, 255), 2, deflate=True)
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
        (saved(Image.fromarray(RGB[..., 0]).convert("F"), "TIFF"), "unsupported"),
        *((tiff(_random(3, dtype, 99), 2), "unsupported") for dtype in (np.float32, np.int8)),
        (saved(RGB, "TIFF", compression="jpeg"), "unsupported"),
        *((tiff(_random(3, np.uint8, 255), 2, tags={tag: value}), "unsupported") for tag, value in ODD_TAGS),
        (tiff(_random(1, np.uint8, 255), 1, tags={259: 33005}), "undecodable"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not-an-image"),
        (b"/annex/objects/SHA256E-s1--00.jpg\n", "not-an-image"),
        (b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nENDHDR\nabc", "not-an-image"),
        (b"P2 3 1 255 0 128 25", "not-an-image"),
        (b"P5 3 1 65536 abcdef", "undecodable"),
        (pnm(6, _random(3, np.uint16, 999), 999), "unsupported"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    assert read(data, 8) == reason


@needs_jp2
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


@needs_jp2
def test_open_ends_and_lost_tiles_of_jpeg_2000() -> None:
    bare, tiled = (saved(SMALL, "JPEG2000", no_jp2=True, **options) for options in ({}, {"tile_size": (16, 8)}))
    first = bare.index(b"\xff\x90\0\x0a")
    open_end = bare[: first + 6] + b"\0\0\0\0" + bare[first + 10 :]
    _same(open_end, SMALL)
    assert read(open_end[:-2], 8) == read(open_end[: len(open_end) * 2 // 3], 8) == "truncated"
    tiles = [k for k in range(len(tiled)) if tiled.startswith(b"\xff\x90\0\x0a", k)]
    assert len(tiles) == 4
    assert read(tiled[: tiles[1]] + tiled[tiles[2] :], 8) == read(tiled[: tiles[3]] + b"\xff\xd9", 8) == "truncated"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [{"rows": 5}, {"tile": 16}])
def test_big_tiff(layout: dict[str, Any], order: str) -> None:
    _same(tiff(SMALL, 2, order=order, orientation=6, **layout), np.rot90(SMALL, -1))
    big = tiff(SMALL, 2, big=True, order=order, orientation=6, **layout)
    if order == ">":  # Pillow does not read these
        assert read(big, 8) == "not-an-image"
    else:
        _same(big, np.rot90(SMALL, -1))


def test_more_bits_than_are_read_are_refused_for_16_bits() -> None:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_bytes

    out = io.BytesIO()
    from_bytes("RGB;16", (W, H), (RGB.astype("<u2") * 257).tobytes()).save(out, quality=100, chroma=444)
    _same(out.getvalue(), RGB, most=5)
    with pytest.raises(CodecError, match="heif may have more than 8 bits, and is read with 8: make it a PNG, or do without --bits"):
        SourceImage(out.getvalue()).decode(bits=16)


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, data, package in (
        ("pillow_heif", b"\0\0\0\x18ftypheic" + bytes(12), "pillow-heif"),
        ("pillow_jxl", b"\xff\x0a" + bytes(40), "pillow-jxl-plugin"),
        ("tifffile", tiff(np.zeros((2, 2, 3), np.uint16), 2), "tifffile"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        message = rf"is read with {package}, which is not installed: pip install 'fastdata-torch\[formats\]'"
        with pytest.raises(CodecError, match=message) as caught:
            SourceImage(data).decode()
        assert caught.value.reason == "unsupported"


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PPM", "JPEG2000"])
@pytest.mark.parametrize("limit", [None, 10, W * H - 1])
def test_pillow_s_settings_play_no_part(kind: str, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(RGB, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
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
