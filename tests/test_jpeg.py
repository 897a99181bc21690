"""JPEG records: ordinary JPEG files on a restart grid with an index; and raw and PNG records."""

from __future__ import annotations

import io
import struct
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg, index_segments, read_index
from fastdata.codecs.pixels import Window, decode_record, decode_window, encode_record
from fastdata.errors import CodecError
from fastdata.store.manifest import Form
from stores import script
from support import encode, picture


def _lengths(data: bytes | memoryview) -> Any:
    return (read_index(data) or [None])[0]


def _segments(data: bytes) -> list[tuple[int, bytes]]:
    """(marker, body) of every segment before the scan's data, and at last (0xDA, all that follows the scan's header)."""
    at, found = 2, []
    assert data[:2] == b"\xff\xd8"
    while True:
        assert data[at] == 0xFF
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            return [*found, (marker, data[at + 2 + size :])]
        found.append((marker, data[at + 4 : at + 2 + size]))
        at += 2 + size


SIDES = st.integers(1, 130)


@given(SIDES, SIDES, st.booleans(), st.integers(0, 5), st.sampled_from([1, 30, 75, 90, 95, 100]))
@settings(max_examples=100, deadline=None)
def test_any_size_is_an_ordinary_jpeg_on_a_grid(height: int, width: int, gray: bool, seed: int, quality: int) -> None:
    image = picture(seed, height, width)[:, :, 0].copy() if gray else picture(seed, height, width)
    data = encode_jpeg(image, quality=quality)
    with Image.open(io.BytesIO(data)) as opened:
        assert (opened.format, opened.size, opened.mode) == ("JPEG", image.shape[1::-1], "L" if gray else "RGB")
        pillow = np.asarray(opened)
    decoded = decode_jpeg(data, gray=gray)
    np.testing.assert_array_equal(decoded[:, :, 0] if gray else decoded, pillow)
    _check_grid(data, width, height, 8 if gray else 16)
    for shrink in (1, 2) if min(height, width) > 8 else (1,):
        found = decode_jpeg_into(lambda n: np.empty(n, np.uint8), data, (-(-height // shrink), -(-width // shrink)), gray=gray)
        with Image.open(io.BytesIO(data)) as opened:
            opened.draft(None, (width // shrink, height // shrink))
            np.testing.assert_array_equal(found[:, :, 0] if gray else found[:, :, :3], np.asarray(opened))
    with pytest.raises(CodecError):
        decode_jpeg_into(lambda n: np.empty(n, np.uint8), data, (height + 1, width), gray=gray)


def _check_grid(data: bytes, width: int, height: int, mcu: int) -> None:
    segments = _segments(data)
    intervals = [int.from_bytes(body, "big") for marker, body in segments if marker == 0xDD]
    row, rows = -(-width // mcu), -(-height // mcu)
    assert len(intervals) == 1 and row % intervals[0] == 0
    assert intervals[0] * mcu >= min(16, row * mcu) or row == 1 or intervals[0] == 1
    lengths = _lengths(data)
    assert lengths is not None and len(lengths) == row * rows // intervals[0]
    scan = segments[-1][1]
    assert int(lengths.sum()) == len(scan), "the segments are all of the scan"
    ends = np.cumsum(lengths.astype(int))
    for k, end in enumerate(ends):
        assert scan[end - 2 : end] == (b"\xff\xd9" if k == len(ends) - 1 else bytes([0xFF, 0xD0 + k % 8]))
    starts = [0, *ends]
    for start, end in pairwise(starts):  # no other marker inside
        body = np.frombuffer(scan[start : end - 2], np.uint8)
        assert (body[np.flatnonzero(body[:-1] == 0xFF) + 1] == 0).all()


@pytest.mark.slow
def test_a_long_index_chains_over_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """One segment holds 65,533 bytes, so a wide image needs more, which together give one list."""
    height, width = 16 * 60, 16 * 2800
    image = np.full((height, width, 3), 99, np.uint8)
    image[::3, ::5] = 180
    data = encode_jpeg(image, quality=60)
    index = [body for marker, body in _segments(data) if marker == 0xE9]
    assert len(index) == 3 and max(map(len, index)) <= 65_533
    _check_grid(data, width, height, 16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(io.BytesIO(data)) as opened:
        np.testing.assert_array_equal(decode_jpeg(data), np.asarray(opened))


def _chunk(number: int, chunks: int, content: bytes) -> bytes:
    """A segment of an index."""
    body = b"fastdata\0" + struct.pack("<BHH", 1, number, chunks) + content
    return b"\xff\xe9" + struct.pack(">H", len(body) + 2) + body


def _unpacked(packed: bytes) -> list[int] | None:
    """The lengths in an index, as docs/format.md defines it."""
    count, rest = int.from_bytes(packed[:4], "little"), packed[4:]
    if len(packed) < 4 or len(rest) < count or (len(rest) - count) % 6:
        return None
    high = dict(struct.iter_unpack("<IH", rest[count:]))
    return [low + 256 * high.get(place, 0) for place, low in enumerate(rest[:count])] if all(k < count for k in high) else None


@given(
    st.integers(0, 6).flatmap(
        lambda n: st.tuples(st.sampled_from([n, n, n, n + 1, n + 6, n + (1 << 24)]), st.binary(min_size=n, max_size=n))
    ),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 65_535)), max_size=3),
    st.sampled_from([b"", b"", b"", b"x", b"xyzuvw"]),
    st.lists(st.integers(0, 30), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_an_index_holds_what_the_format_says_or_is_none(
    lows: tuple[int, bytes], longs: list[tuple[int, int]], more: bytes, cuts: list[int]
) -> None:
    packed = lows[0].to_bytes(4, "little") + lows[1] + b"".join(struct.pack("<IH", *one) for one in longs) + more
    cuts = [0, *sorted(cuts), len(packed)]
    chunks = [_chunk(number, len(cuts) - 1, packed[a:b]) for number, (a, b) in enumerate(pairwise(cuts))]
    head = b"\xff\xd8\xff\xe0\0\x03J" + b"".join(chunks)
    found, want = read_index(head + b"\xff\xda" + b"\0" * 20), _unpacked(packed)
    assert (found is None) == (want is None)
    assert found is None or (found[0].tolist(), found[1]) == (want, len(head))


def test_an_index_stands_in_the_header_and_its_segments_side_by_side() -> None:
    whole, foreign = index_segments(np.array([3, 4])), b"\xff\xe1\0\x03?"
    for header, there in ((foreign, True), (b"\xff\xda\0\x02", False), (b"\xfe\xe1\0\x03?", False), (b"\xff\xe9\0\x03?", True)):
        assert (_lengths(b"\xff\xd8" + header + whole) is not None) == there
    parts = [_chunk(k, 2, part) for k, part in enumerate((b"\x02\0\0\0\x03", b"\x04"))]
    for between, there in ((b"", True), (foreign, False)):
        assert (_lengths(b"\xff\xd8" + parts[0] + between + parts[1]) is not None) == there


def test_index_bytes_are_those_of_the_format() -> None:
    """Those of a later version, out of order, or of another file are ignored."""
    head = b"\xff\xe9\x00\x24fastdata\0" + b"\x01" + b"\x00\x00" + b"\x01\x00"
    low, long = b"\x02\x03\xff\xff", b"\0\0\0\0\x01\x00" + b"\x03\0\0\0\xff\x00"
    assert index_segments(np.array([258, 3, 255, 65_535])) == head + b"\x04\0\0\0" + low + long
    for foreign in (encode(picture(0, 40, 50), ".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 2), b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"):
        assert _lengths(memoryview(foreign)) is None
    data = encode_jpeg(picture(0, 60, 70))
    at = data.index(b"fastdata\0") + 9
    for place, value in ((0, 2), (1, 1), (3, 2)):  # version, number of the chunk, number of chunks
        assert _lengths(data[: at + place] + bytes([value]) + data[at + place + 1 :]) is None


def test_too_large_for_a_jpeg_is_said() -> None:
    with pytest.raises(CodecError, match="65500") as caught:
        encode_jpeg(np.zeros((1, 65_501), np.uint8))
    assert caught.value.reason == "too-large"
    assert decode_jpeg(encode_jpeg(np.full((1, 65_500), 128, np.uint8)), gray=True).shape == (1, 65_500, 1)


FORMS = [("rgb", "uint8"), ("rgb", "uint16"), ("png", "uint8"), ("png", "uint16"), ("jpeg", "uint8")]


@pytest.mark.parametrize(("codec", "dtype"), FORMS)
@pytest.mark.parametrize("channels", [1, 3])
def test_records_come_back(codec: str, channels: int, dtype: str) -> None:
    """As they were; a JPEG as Pillow decodes it."""
    image = picture(5, 31, 47).astype(dtype) * (257 if dtype == "uint16" else 1)
    image = image if channels == 3 else image[:, :, 1].copy()
    data = encode_record(image, codec, quality=100)
    if codec == "rgb":
        assert data == image.astype("<u2" if dtype == "uint16" else "u1").tobytes()
    elif dtype == "uint8":
        with Image.open(io.BytesIO(data)) as opened:
            shown = np.asarray(opened)
        assert codec == "jpeg" or np.array_equal(shown, image)
        image = shown
    found = decode_record(memoryview(data), Form(codec, channels, dtype), 31, 47)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, image.reshape(31, 47, channels))


@pytest.mark.parametrize(("codec", "dtype"), FORMS)
def test_damaged_records_are_codec_errors(codec: str, dtype: str) -> None:
    form = Form(codec, 3, dtype)
    data = encode_record(picture(0, 20, 30).astype(dtype), codec)
    for damaged in (b"", b"x", data[: len(data) // 2], data[:-1] if codec == "rgb" else data[:100], b"\0" * 99):
        with pytest.raises(CodecError):
            decode_record(damaged, form, 20, 30)
    for height, width in ((30, 20), (20, 31), (10, 30), (0, 0)):
        if codec != "rgb" or height * width != 600:
            with pytest.raises(CodecError):
                decode_record(data, form, height, width)
            with pytest.raises(CodecError):
                decode_window(data, form, height, width, Window(0, 0, height, width), lambda n: np.zeros(n, np.uint8))
    gray = encode_record(picture(0, 20, 30)[:, :, 0].copy(), codec)
    if codec == "rgb":
        with pytest.raises(CodecError):
            decode_record(gray, form, 20, 30)


HUGE = """
import json, resource, sys
from fastdata.errors import CodecError
from fastdata.store.manifest import Form
from fastdata.codecs.pixels import decode_record
from support import encode, picture

resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
said = []
for codec, ending, mark in (("jpeg", ".jpg", b"\\xff\\xc0"), ("png", ".png", b"IHDR")):
    data = bytearray(encode(picture(0, 20, 30), ending))
    at = data.index(mark) + (5 if codec == "jpeg" else 4)
    data[at : at + (4 if codec == "jpeg" else 8)] = (65_000).to_bytes(2 if codec == "jpeg" else 4, "big") * 2
    try:
        decode_record(bytes(data), Form(codec, 3, "uint8"), 20, 30)
    except CodecError as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_a_header_that_asks_for_gigabytes_is_refused_before_it_is_decoded() -> None:
    assert script(HUGE) == [f"a {codec} record holds (65000, 65000) pixels, the index says (20, 30)" for codec in ("jpeg", "png")]
