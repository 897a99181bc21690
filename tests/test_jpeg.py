"""JPEG records: ordinary files on a restart grid with an index, of which any part decodes, alone or with others, to the whole's
pixels; files that keep their bytes; raw and PNG records."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import fastdata
from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, RandomResizedCrop, Resize
from fastdata.codecs.jpeg_crop import find_cells, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import (
    add_index,
    decode_buffer,
    decode_jpeg,
    decode_jpeg_into,
    encode_jpeg,
    index_segments,
    read_index,
    restart_interval,
)
from fastdata.codecs.pixels import Window, decode_record, decode_window, encode_record
from fastdata.errors import CodecError, FormatError
from fastdata.images.prepare import ImageRecipe, prepare_image
from fastdata.prepare.build_plan import build_plan
from fastdata.prepare.finish import Summary
from fastdata.prepare.run import for_workers
from fastdata.prepare.worker import ProgressReport, ShardTask, make_shard
from fastdata.report.drawing import draw_sheet
from fastdata.store.manifest import Form
from fastdata.store.store import Store
from stores import folder, square, write_files
from support import Array, encode, images_of, picture
from test_image_files import saved


def _pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened)


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
        found = decode_jpeg_into(decode_buffer, data, (-(-height // shrink), -(-width // shrink)), gray=gray)
        with Image.open(io.BytesIO(data)) as opened:
            opened.draft(None, (width // shrink, height // shrink))
            np.testing.assert_array_equal(found[:, :, 0] if gray else found[:, :, :3], np.asarray(opened))
    with pytest.raises(CodecError):
        decode_jpeg_into(decode_buffer, data, (height + 1, width), gray=gray)


def _interval(data: bytes) -> int:
    """The MCUs of a cell, as the last DRI says."""
    return int.from_bytes(data[data.rindex(b"\xff\xdd\0\4") + 4 :][:2], "big")


def _check_grid(data: bytes, width: int, height: int, mcu: int) -> None:
    interval, row, rows = _interval(data), -(-width // mcu), -(-height // mcu)
    assert row % interval == 0 and (interval * mcu >= min(16, row * mcu) or interval == 1)
    lengths, _ = read_index(data)
    assert len(lengths) == row * rows // interval
    start = data.rindex(b"\xff\xda") + 2
    scan = data[start + int.from_bytes(data[start : start + 2], "big") :]
    assert int(lengths.sum()) == len(scan), "the segments are all of the scan"
    ends = np.cumsum(lengths.astype(int))
    for k, end in enumerate(ends):
        assert scan[end - 2 : end] == (b"\xff\xd9" if k == len(ends) - 1 else bytes([0xFF, 0xD0 + k % 8]))
    starts = [0, *ends]
    for start, end in pairwise(starts):  # no other marker inside
        body = np.frombuffer(scan[start : end - 2], np.uint8)
        assert (body[np.flatnonzero(body[:-1] == 0xFF) + 1] == 0).all()


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


def test_index_bytes_are_those_of_the_format() -> None:
    """A long one is several segments. Those of a later version, out of order, or of another file are ignored."""
    head = b"\xff\xe9\x00\x24fastdata\0" + b"\x01" + b"\x00\x00" + b"\x01\x00"
    low, long = b"\x02\x03\xff\xff", b"\0\0\0\0\x01\x00" + b"\x03\0\0\0\xff\x00"
    assert index_segments(np.array([258, 3, 255, 65_535])) == head + b"\x04\0\0\0" + low + long
    for foreign in (encode(picture(0, 40, 50), ".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 2), b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"):
        assert read_index(memoryview(foreign)) is None
    data = encode_jpeg(picture(0, 60, 70))
    at = data.index(b"fastdata\0") + 9
    for place, value in ((0, 2), (1, 1), (3, 2)):  # version, number of the chunk, number of chunks
        assert read_index(data[: at + place] + bytes([value]) + data[at + place + 1 :]) is None
    long = np.arange(170_000) % 300
    whole = index_segments(long)
    assert whole.count(b"fastdata\0") == 5
    found, end = read_index(b"\xff\xd8\xff\xe1\0\3?" + whole + b"\xff\xda" + bytes(20))
    np.testing.assert_array_equal(found, long)
    assert end == 7 + len(whole)


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
    for height, width in ((30, 21), (20, 31), (10, 30), (40, 60), (39, 59), (0, 0)):
        with pytest.raises(CodecError):
            decode_record(data, form, height, width)
        for window in ((0, 0, height, width), (height - 9, width - 9, 9, 9), (0, 0, height, width, 2), (0, 0, 9, 9)):
            with pytest.raises(CodecError):
                decode_window(data, form, height, width, Window(*window), decode_buffer)


@pytest.mark.parametrize(("codec", "at", "size"), [("jpeg", 5, ">HH"), ("png", 4, ">II")])
def test_a_header_that_asks_for_gigabytes_is_refused_before_it_is_decoded(codec: str, at: int, size: str) -> None:
    data = bytearray(encode(picture(0, 20, 30), {"jpeg": ".jpg", "png": ".png"}[codec]))
    struct.pack_into(size, data, data.index({"jpeg": b"\xff\xc0", "png": b"IHDR"}[codec]) + at, 65_000, 65_000)
    with pytest.raises(CodecError, match=rf"a record of {codec} holds \(65000, 65000\) pixels, but the index says \(20, 30\)"):
        decode_record(bytes(data), Form(codec, 3, "uint8"), 20, 30)


# Crop before decode: what is cut out of the compressed bytes

SAMPLINGS = {"4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420, "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444}
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
    tall, wide = MCU[sampling], MCU[sampling] * _interval(data)
    assert found.top > top - 2 - tall and found.end <= top + height + tall and len(found.lengths) % len(found.rows) == 0
    assert found.left > left - 2 - 2 * wide and found.left + found.width <= left + width + wide, "no cells more than needed"
    y, x = top - found.top, left - found.left
    np.testing.assert_array_equal(pixels[y : y + height, x : x + width], _pillow(data)[top : top + height, left : left + width])
    np.testing.assert_array_equal(decode_jpeg(join_cells([found]), gray=sampling == "grey").reshape(pixels.shape), pixels)


def _check_region(region: Any, data: bytes, sides: Any, box: tuple[int, ...], gray: bool, fast: bool) -> None:
    """It is that part of the whole image, at its scale."""
    times, (top, left, height, width) = region.shrink, box
    whole = decode_jpeg_into(decode_buffer, data, (-(-sides[0] // times), -(-sides[1] // times)), gray=gray, fast=fast)
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
        region = decode_window(data, Form("jpeg", 3, "uint8"), 70, 90, Window(1, 2, 30, 40), decode_buffer)
        np.testing.assert_array_equal(region.pixels[:, :, :3], _pillow(data))


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


def _decoded(cases: list[Case], gray: bool, fast: bool) -> tuple[list[bytes], dict[int, Any], list[int]]:
    """The records, the regions of those that were batched, and which were left alone."""
    images = [picture(number, *size) for number, size, *_ in cases]
    records = [encode_jpeg(i[:, :, 0].copy() if gray else i, quality=q) for i, (*_, q, _) in zip(images, cases, strict=True)]
    windows = [Window(*box, shrink, fast) for _, _, box, _, shrink in cases]
    batches, alone = jpeg_batches([memoryview(record) for record in records], [size for _, size, *_ in cases], windows)
    found = {}
    for each in batches:
        for place, region in each.decode(join_cells(each.cells), gray=gray, scratch=decode_buffer):
            assert place not in found
            found[place] = region
    return records, found, alone


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
    records, found, alone = _decoded(cases, gray, fast)
    assert sorted([*found, *alone]) == list(range(len(cases)))
    assert all(cases[k][2][2:] == cases[k][1] for k in alone), "only whole images are left alone"
    form = Form("jpeg", 1 if gray else 3, "uint8")
    for k, (_, sides, box, _, shrink) in enumerate(cases):
        for region in (decode_window(records[k], form, *sides, Window(*box, shrink, fast), decode_buffer), found.get(k)):
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


# --codec original: JPEG files that need no change keep their bytes


def jpeg(pixels: Array | Image.Image, **options: Any) -> bytes:
    return saved(pixels, "JPEG", **{"quality": 85, **options})


def turned(orientation: int) -> Any:
    exif = Image.Exif()
    exif[274] = orientation
    return exif


@cache
def files() -> dict[str, bytes]:
    """Names, and whether the bytes stay: those in `k` do, those in `m` are made anew, those in `r` are rejects."""
    small = picture(1, 60, 90)
    return {
        "k/plain.jpg": jpeg(small),
        "k/full.jpg": jpeg(picture(2, 61, 45), subsampling=0),
        "k/half.jpg": jpeg(picture(3, 61, 45), subsampling=1, quality=100),
        "k/progressive.jpg": jpeg(picture(4, 97, 80), progressive=True),
        "k/gray.jpg": jpeg(picture(5, 40, 50)[:, :, 0]),
        "k/noted.jpg": jpeg(small, exif=turned(1), comment=b"by hand", icc_profile=b"profile"),
        "k/rgb.jpg": jpeg(small, keep_rgb=True),
        "k/behind.jpg": jpeg(small) + b"a short film",
        "k/wrong-ending.png": jpeg(picture(6, 40, 50)),
        "k/restarts.jpg": jpeg(picture(7, 80, 96), restart_marker_rows=1),
        "m/turned.jpg": jpeg(small, exif=turned(6)),
        "m/cmyk.jpg": jpeg(Image.fromarray(small).convert("CMYK")),
        "m/no-end.jpg": jpeg(small)[:-2],
        "m/photo.png": saved(small),
        "r/cut.jpg": jpeg(small)[:900],
    }


@cache
def sources() -> Path:
    return write_files(folder() / "in", files())


@cache
def made() -> Summary:
    return fastdata.prep(sources(), folder() / "o.fds", codec="original", workers=1)


def stored(path: Path, size: int | None = None) -> dict[str, bytes]:
    """The record of each sample, by name."""
    store = Store(path)
    reader = store.reader(store.variant(size))
    return {name: bytes(reader.get(k)) for k, name in enumerate(store.names())}


def test_files_that_need_no_change_keep_every_byte() -> None:
    summary, found = made(), stored(made().out)
    assert (summary.kept, summary.rejected) == (14, {"truncated": 1})
    for name, data in files().items():
        if not name.startswith("r"):
            assert (found[name] == data) == name.startswith("k"), name
    assert summary.originals == {"full": 10}


def test_the_samples_are_what_pillow_makes_of_the_files() -> None:
    dataset = LMDBDataset(made().out)
    for k in range(len(dataset)):
        name, (image, _) = dataset.name(k), dataset[k]
        if name.startswith("k"):
            with Image.open(sources() / name) as file:
                assert np.array_equal(image.permute(1, 2, 0), np.asarray(file.convert("RGB"))), name
    shape = {dataset.name(k): tuple(dataset[k][0].shape[1:]) for k in range(len(dataset))}
    assert shape["m/turned.jpg"] == (90, 60)


def test_a_size_keeps_the_images_that_have_it(tmp_path: Path) -> None:
    """And smaller ones, which are not enlarged."""
    options: dict[str, Any] = {"size": [60, 48], "upscale": False, "workers": 1}
    summary = fastdata.prep(sources(), tmp_path / "o.fds", codec="original", **options)
    encoded = fastdata.prep(sources(), tmp_path / "j.fds", **options)
    short = {name: min(_pillow(data).shape[:2]) for name, data in files().items() if name.startswith("k")}
    for size in (60, 48):
        jpegs, mixed, kept = stored(encoded.out, size), stored(summary.out, size), {name for name in short if short[name] <= size}
        assert {name for name, data in mixed.items() if data == files()[name]} == kept
        assert summary.originals[str(size)] == len(kept)
        assert all(mixed[name] == jpegs[name] for name in jpegs if name not in kept), "others are encoded as ever"
        assert (np.load(summary.out / f"{size}/index.npy")["length"] == [len(data) for data in mixed.values()]).all()


# The memory that JPEGs are decoded into begins at 40 modulo 64, in every caller: libjpeg-turbo is slow at multiples of 32


def _make_shard(out: Path, **options: Any) -> None:
    """What a worker does, in this process."""
    work = build_plan(sources(), out, **options)
    (out / "work").mkdir(parents=True)
    make_shard(for_workers(work, 1), ShardTask(0, 0, work.plan.shard(0), {}), ProgressReport([0] * 4))


CALLERS: dict[str, Callable[[Path], Any]] = {
    **{
        f"{crop}": lambda out, crop=crop: list(Loader(LMDBDataset(square("jpeg"), crop=crop), 3, num_workers=0))
        for crop in (RandomResizedCrop(16), Resize((16, 16)), CenterCrop(24))
    },
    "a sample": lambda out: LMDBDataset(square("jpeg"))[0],
    "in memory": lambda out: RAMDataset(square("jpeg"), decoded=True, shared=False),
    "files in memory": lambda out: RAMDataset([sources() / "k/plain.jpg"])[0],
    "sheet": lambda out: draw_sheet(square("jpeg"), out / "sheet.png"),
    "prepare": lambda out: _make_shard(out / "new.fds", size=40),
    "prepare original": lambda out: _make_shard(out / "new.fds", codec="original"),
    "prepare alone": lambda out: prepare_image(encode(picture(0, 90, 110)), ImageRecipe(sizes=(64,))),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_every_buffer_begins_at_40(caller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square("jpeg")
    decode, addresses = simplejpeg.decode_jpeg, set[int]()

    def spied(*args: Any, buffer: Any = None, **options: Any) -> Any:
        assert buffer is not None, "simplejpeg would allocate it"
        addresses.add(np.frombuffer(buffer, np.uint8).ctypes.data % 64)
        return decode(*args, buffer=buffer, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spied)
    CALLERS[caller](tmp_path)
    assert addresses == {40}
