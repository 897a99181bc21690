"""JPEG records: ordinary files on a restart grid with an index, of which any part decodes, alone or with others, to the whole's
pixels; and raw and PNG records."""

from __future__ import annotations

import io
import struct
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata import CenterCrop, LMDBDataset
from fastdata.codecs.jpeg_crop import find_cells, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import (
    add_index,
    decode_jpeg,
    decode_jpeg_into,
    encode_jpeg,
    index_segments,
    read_index,
    restart_interval,
)
from fastdata.codecs.pixels import Window, decode_record, decode_window, encode_record
from fastdata.errors import CodecError, FormatError
from fastdata.store.manifest import Form
from stores import script, square
from support import Array, encode, images_of, picture


def _pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened)


def _fresh(size: int) -> Array:
    return np.empty(size, np.uint8)


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
        found = decode_jpeg_into(_fresh, data, (-(-height // shrink), -(-width // shrink)), gray=gray)
        with Image.open(io.BytesIO(data)) as opened:
            opened.draft(None, (width // shrink, height // shrink))
            np.testing.assert_array_equal(found[:, :, 0] if gray else found[:, :, :3], np.asarray(opened))
    with pytest.raises(CodecError):
        decode_jpeg_into(_fresh, data, (height + 1, width), gray=gray)


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
    np.testing.assert_array_equal(decode_jpeg(data), _pillow(data))


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
        shown = _pillow(data)
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
    assert script(HUGE) == [f"a {codec} record holds (65000, 65000) pixels, and not (20, 30)" for codec in ("jpeg", "png")]


# Crop before decode: what is cut out of the compressed bytes

SAMPLINGS = {
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
}
SAMPLING_422, SAMPLING_440 = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440
MCU = {"4:2:0": 16, "4:4:4": 8, "grey": 8}
HEALTHY = encode_jpeg(picture(2, 70, 90))


def _encoded(image: Array, sampling: str, quality: int = 90, cells: int = 0) -> bytes:
    """On the grid, with the index; `cells` a row, or as many as `encode_jpeg` makes."""
    mcus = -(-image.shape[1] // MCU[sampling])
    interval = mcus // cells if cells and mcus % cells == 0 else restart_interval(image.shape[1], MCU[sampling])
    params = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if sampling != "grey":
        params += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return add_index(cv2.imencode(".jpg", image, params)[1].reshape(-1))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Array, str, int, int, tuple[int, int, int, int]]:
    height, width = draw(st.integers(1, 140)), draw(st.integers(1, 140))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    sampling = draw(st.sampled_from([*SAMPLINGS, "grey"]))
    image = picture(draw(st.integers(0, 5)), height, width)
    image = image[:, :, 0].copy() if sampling == "grey" else image
    return image, sampling, draw(st.sampled_from([20, 75, 90, 100])), draw(st.sampled_from([0, 1, 2, 3])), box


def _narrow(width: int, left: int) -> Any:
    """A box at the right edge, where a cut of its cells alone would be a few pixels wide."""
    return picture(1, 40, width), "4:2:0", 90, 0, (3, left, 30, width - left)


@given(_cases())
@example(_narrow(17, 16))
@example(_narrow(20, 18))
@example(_narrow(21, 17))
@example(_narrow(36, 34))
@settings(max_examples=600, deadline=None)
def test_a_cut_decodes_to_the_pixels_of_pillow_s_full_decode(case: Any) -> None:
    image, sampling, quality, cells, (top, left, height, width) = case
    data = _encoded(image, sampling, quality, cells)
    found = find_cells(data, top, left, height, width)
    assert found is not None
    pixels = _pillow(join_cells([found]).tobytes())
    assert pixels.shape[:2] == (found.height, found.width)
    tall, wide = MCU[sampling], MCU[sampling] * int.from_bytes(data[data.index(b"\xff\xdd\0\4") + 4 :][:2], "big")
    assert found.top > top - 2 - tall and found.end <= top + height + tall and len(found.lengths) % len(found.rows) == 0
    assert found.left > left - 2 - 2 * wide and found.left + found.width <= left + width + wide, "no cells more than needed"
    y, x = top - found.top, left - found.left
    np.testing.assert_array_equal(pixels[y : y + height, x : x + width], _pillow(data)[top : top + height, left : left + width])
    np.testing.assert_array_equal(decode_jpeg(join_cells([found]), gray=sampling == "grey").reshape(pixels.shape), pixels)


def _check_region(region: Any, data: bytes, sides: Any, box: tuple[int, ...], gray: bool, fast: bool) -> None:
    """It is that part of the whole image, at its scale."""
    times, (top, left, height, width) = region.shrink, box
    whole = decode_jpeg_into(_fresh, data, (-(-sides[0] // times), -(-sides[1] // times)), gray=gray, fast=fast)
    assert region.top % times == region.left % times == 0
    y, x = region.top // times, region.left // times
    inner = np.s_[top // times : -(-(top + height) // times), left // times : -(-(left + width) // times)]
    pasted = np.zeros_like(whole)
    pasted[y : y + region.pixels.shape[0], x : x + region.pixels.shape[1]] = region.pixels
    np.testing.assert_array_equal(pasted[inner], whole[inner])


def _of_opencv(image: Array, *params: int) -> Array:
    return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), params)[1].reshape(-1)


def test_what_is_no_grid_with_its_index_is_not_cut_and_a_window_still_comes() -> None:
    """libjpeg interpolates the colours of 4:2:2 at smaller scales too, so more than a pixel beside the box would count."""
    image, at, count = picture(2, 70, 90), HEALTHY.index(b"\xff\xdd"), HEALTHY.index(b"fastdata\0") + 14
    interval, sampling = cv2.IMWRITE_JPEG_RST_INTERVAL, cv2.IMWRITE_JPEG_SAMPLING_FACTOR
    assert find_cells(HEALTHY, 1, 2, 30, 40) is not None
    assert all(find_cells(add_index(_of_opencv(image, interval, n)), 1, 2, 30, 40) is not None for n in (1, 6))
    for data in (HEALTHY[: at + 4] + b"\0\0" + HEALTHY[at + 6 :], HEALTHY[:at] + HEALTHY[at + 6 :]):  # of no restarts
        assert find_cells(data, 1, 2, 30, 40) is None
    for data in (
        _of_opencv(image, interval, 1).tobytes(),  # without an index
        HEALTHY[:count] + (31).to_bytes(4, "little") + HEALTHY[count + 4 :],  # of another number
        HEALTHY[: count + 4] + bytes([HEALTHY[count + 4] ^ 1]) + HEALTHY[count + 5 :],  # or another sum
        add_index(_of_opencv(image, interval, 4)),  # segments that go on in the next row
        add_index(_of_opencv(image, interval, 12)),
        *(add_index(_of_opencv(image, interval, 1, sampling, n)) for n in (SAMPLING_422, SAMPLING_440)),
    ):
        assert find_cells(data, 1, 2, 30, 40) is None
        region = decode_window(data, Form("jpeg", 3, "uint8"), 70, 90, Window(1, 2, 30, 40), _fresh)
        np.testing.assert_array_equal(region.pixels[:, :, :3], _pillow(data))


def test_a_record_of_another_size_is_an_error() -> None:
    form = Form("jpeg", 3, "uint8")
    for height, width in ((60, 90), (70, 100), (90, 70), (140, 180), (139, 179)):
        for window in ((0, 0, height, width), (height - 20, width - 20, 20, 20), (0, 0, height, width, 2), (0, 0, 20, 20)):
            with pytest.raises(CodecError):
                decode_window(HEALTHY, form, height, width, Window(*window), _fresh)


@given(st.integers(0, 620), st.integers(0, 255))
@settings(max_examples=500, deadline=None)
@example(-1, 0)
def test_a_damaged_header_is_a_codec_error_or_harmless(at: int, value: int) -> None:
    form, data = Form("jpeg", 3, "uint8"), bytearray(HEALTHY)
    data[at if at >= 0 else data.index(b"\xff\xc0") + 11] = value  # the sampling factors, for one
    try:
        region = decode_window(bytes(data), form, 70, 90, Window(1, 2, 30, 40), _fresh)
    except CodecError:
        return
    assert region.pixels.dtype == np.uint8


# Boxes of several JPEGs decoded as one

Case = tuple[int, tuple[int, int], tuple[int, int, int, int], int, int]


@st.composite
def _boxes(draw: st.DrawFn) -> Case:
    """A picture's number, its size and a box of it, the quality and the scale."""
    side = st.integers(1, 140) | st.sampled_from([16, 48, 64, 64])  # of which many are piled
    height, width = draw(side), draw(side)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    left -= left % draw(st.sampled_from([1, 16]))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    return draw(st.integers(0, 5)), (height, width), box, draw(st.sampled_from([75, 90])), draw(st.sampled_from([1, 1, 2, 4, 8]))


def _decoded(cases: list[Case], gray: bool, fast: bool) -> tuple[list[bytes], dict[int, Any], int, list[int]]:
    """The records, the regions of those that were batched, how many batches there were, and which were left alone."""
    images = [picture(number, *size) for number, size, *_ in cases]
    records = [encode_jpeg(i[:, :, 0].copy() if gray else i, quality=q) for i, (*_, q, _) in zip(images, cases, strict=True)]
    windows = [Window(*box, shrink, fast) for _, _, box, _, shrink in cases]
    batches, alone = jpeg_batches([memoryview(record) for record in records], [size for _, size, *_ in cases], windows)
    found = {}
    for each in batches:
        for place, region in each.decode(join_cells(each.cells), gray=gray, scratch=_fresh):
            assert place not in found
            found[place] = region
    return records, found, len(batches), alone


ABOVE: Case = 0, (64, 64), (0, 20, 40, 20), 90, 1  # a box at the image's upper edge
INSIDE: Case = 1, (64, 64), (20, 20, 20, 20), 90, 1
BELOW: Case = 2, (64, 64), (30, 20, 34, 20), 90, 1  # and one at its lower edge


@given(st.lists(_boxes(), min_size=1, max_size=8), st.booleans(), st.booleans())
@example([INSIDE, ABOVE, INSIDE, BELOW, INSIDE, ABOVE, BELOW], False, False)
@example([INSIDE, ABOVE, INSIDE, BELOW, INSIDE, ABOVE, BELOW], False, True)
@example([INSIDE, INSIDE, (3, (65, 64), (30, 20, 34, 20), 90, 1), INSIDE], False, False)  # cells that end beyond the image
@example([(3, (68, 36), (64, 32, 4, 4), 90, 8)], False, True)  # a cell of 4 x 4 pixels, which two scales make one pixel
@example([(0, (1, 17), (0, 16, 1, 1), 20, 2)], False, False)  # a cut too small for another scale
@settings(max_examples=400, deadline=None)
def test_each_of_a_pile_is_what_it_is_by_itself(cases: list[Case], gray: bool, fast: bool) -> None:
    records, found, _, alone = _decoded(cases, gray, fast)
    assert sorted([*found, *alone]) == list(range(len(cases)))
    assert all(cases[k][2][2:] == cases[k][1] for k in alone), "only whole images are left alone"
    form = Form("jpeg", 1 if gray else 3, "uint8")
    for k, (_, sides, box, _, shrink) in enumerate(cases):
        for region in (decode_window(records[k], form, *sides, Window(*box, shrink, fast), _fresh), found.get(k)):
            if region is not None:
                assert region.shrink == shrink or region.pixels.shape[0] <= 8
                _check_region(region, records[k], sides, box, gray, fast)


def test_a_transform_may_read_other_samples_of_the_same_thread() -> None:
    other = LMDBDataset(square("jpeg"), crop=CenterCrop(24))

    def mixed(pixels: Array) -> Array:
        return pixels // 2 + other.read_batch(np.arange(9)[::-1], seed=0, epoch=0)[0][8] // 2

    plain, mixing = (LMDBDataset(square("jpeg"), crop=CenterCrop(24), transform=made) for made in (None, mixed))
    samples, _ = plain.read_batch(np.arange(9), seed=0, epoch=0)
    found, _ = mixing.read_batch(np.arange(9), seed=0, epoch=0)
    np.testing.assert_array_equal(found, samples // 2 + samples[0] // 2)


@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_damage_of_one_changes_no_other(harmed: int, bytes_of_it: list[tuple[int, int]]) -> None:
    records = [bytearray(encode_jpeg(picture(k, 64, 64))) for k in range(4)]
    start = records[harmed].index(b"\xff\xda") + 14
    for at, value in bytes_of_it:
        records[harmed][start + at % (len(records[harmed]) - start)] = value
    batches, _ = jpeg_batches([memoryview(bytes(record)) for record in records], [(64, 64)] * 4, [Window(20, 20, 20, 20)] * 4)
    assert len(batches) == 1
    try:
        found = batches[0].decode(join_cells(batches[0].cells), gray=False, scratch=_fresh)
    except CodecError:
        return
    for place, region in found:
        if place != harmed:
            whole = decode_jpeg(bytes(records[place]))
            np.testing.assert_array_equal(region.pixels[4:24, 4:24, :3], whole[20:40, 20:40])


def test_one_damaged_record_is_named_and_the_others_of_its_batch_are_not() -> None:
    dataset = LMDBDataset(square("jpeg"), crop=CenterCrop(16))
    images = images_of(dataset)
    good, _ = dataset.read_batch(np.arange(8), seed=0, epoch=0)
    get = images.get

    def harmed(index: int) -> memoryview:
        data = bytearray(get(index))
        if index == 5:
            start = data.index(b"\xff\xda") + 14
            data[start + 2 : start + 12] = b"\xff" * 10
        return memoryview(bytes(data))

    images.get = harmed  # type: ignore[method-assign]
    with pytest.raises(FormatError, match=r"sample 5 of .* run fastdata verify"):
        dataset.read_batch(np.arange(8), seed=0, epoch=0)
    rest = np.array([0, 1, 2, 3, 4, 6, 7])
    np.testing.assert_array_equal(dataset.read_batch(rest, seed=0, epoch=0)[0], good[rest])
