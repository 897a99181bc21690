"""Crop before decode: what is cut out of the compressed bytes decodes to the pixels of the whole."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata.codecs.jpeg_crop import cut_jpeg, find_cells
from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg, restart_interval
from fastdata.codecs.pixels import Window, decode_window, encode_record
from fastdata.errors import CodecError
from fastdata.store.manifest import Form
from support import Array, picture, with_index

SAMPLINGS = {
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
}
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
    return with_index(cv2.imencode(".jpg", image, params)[1].reshape(-1))


def _pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Array, str, int, int, tuple[int, int, int, int]]:
    height, width = draw(st.integers(1, 140)), draw(st.integers(1, 140))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    sampling = draw(st.sampled_from([*SAMPLINGS, "grey"]))
    image = picture(draw(st.integers(0, 5)), height, width)
    image = image[:, :, 0].copy() if sampling == "grey" else image
    return image, sampling, draw(st.sampled_from([20, 75, 90, 100])), draw(st.sampled_from([0, 1, 2, 3])), box


def _fresh(size: int) -> Array:
    return np.empty(size, np.uint8)


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
    found = cut_jpeg(data, top, left, height, width)
    assert found is not None
    pixels = _pillow(found.data.tobytes())
    assert pixels.shape[:2] == (found.height, found.width)
    y, x = top - found.top, left - found.left
    np.testing.assert_array_equal(pixels[y : y + height, x : x + width], _pillow(data)[top : top + height, left : left + width])
    np.testing.assert_array_equal(decode_jpeg(found.data, gray=sampling == "grey").reshape(pixels.shape), pixels)


@given(_cases())
@settings(max_examples=300, deadline=None)
def test_a_cut_for_the_fast_decode_gives_its_pixels(case: Any) -> None:
    image, sampling, quality, cells, (top, left, height, width) = case
    data, space = _encoded(image, sampling, quality, cells), "GRAY" if sampling == "grey" else "RGB"
    found = cut_jpeg(data, top, left, height, width, exact=False)
    assert found is not None
    y, x = top - found.top, left - found.left
    pixels, whole = (simplejpeg.decode_jpeg(jpeg, space, fastdct=True, fastupsample=True) for jpeg in (found.data, data))
    np.testing.assert_array_equal(pixels[y : y + height, x : x + width], whole[top : top + height, left : left + width])


@given(_cases(), st.sampled_from([1, 2, 4, 8]), st.booleans())
@example((picture(0, 1, 17), "4:2:0", 20, 0, (0, 16, 1, 1)), 2, False)  # a cut too small for another scale
@settings(max_examples=300, deadline=None)
def test_a_window_is_that_part_of_the_whole_at_its_scale(case: Any, shrink: int, fast: bool) -> None:
    image, _, quality, _, (top, left, height, width) = case
    form = Form("jpeg", 1 if image.ndim == 2 else 3, "uint8")
    data = encode_record(image, "jpeg", quality=quality)
    region = decode_window(data, form, *image.shape[:2], Window(top, left, height, width, shrink, fast), _fresh)
    assert region.shrink == shrink or region.pixels.shape[0] <= 8
    times = region.shrink
    sides = tuple(-(-side // times) for side in image.shape[:2])
    whole = decode_jpeg_into(_fresh, data, sides, gray=image.ndim == 2, fast=fast)
    assert whole.shape[:2] == sides and region.top % times == region.left % times == 0
    y, x = region.top // times, region.left // times
    inner = np.s_[top // times : -(-(top + height) // times), left // times : -(-(left + width) // times)]
    pasted = np.zeros_like(whole)
    pasted[y : y + region.pixels.shape[0], x : x + region.pixels.shape[1]] = region.pixels
    np.testing.assert_array_equal(pasted[inner], whole[inner])


@given(_cases(), st.booleans())
@example(_narrow(20, 17), True)
@example(_narrow(21, 17), True)
@settings(max_examples=200, deadline=None)
def test_the_cells_are_those_of_the_box_and_of_a_pixel_around_it_where_colours_are_interpolated(case: Any, exact: bool) -> None:
    image, sampling, quality, cells, (top, left, height, width) = case
    data = _encoded(image, sampling, quality, cells)
    found = find_cells(data, top, left, height, width, exact=exact)
    assert found is not None
    margin = int(exact and sampling == "4:2:0")
    tall = MCU[sampling]
    wide = tall * int.from_bytes(data[data.index(b"\xff\xdd\0\4") + 4 :][:2], "big")
    below, right = image.shape[:2]
    rows = {y // tall for y in range(top - margin, top + height + margin) if 0 <= y < below}
    columns = {x // wide for x in range(left - margin, left + width + margin) if 0 <= x < right}
    if margin and right - min(columns) * wide < 5:  # libjpeg interpolates in another way in so few columns
        columns.add(max(min(columns) - 1, 0))
    assert (found.top, found.left) == (min(rows) * tall, min(columns) * wide)
    assert found.top + found.height == min(max(rows) * tall + tall, below)
    assert found.left + found.width == min(max(columns) * wide + wide, right)
    assert len(found.rows) == len(rows) and len(found.lengths) == len(rows) * len(columns)
    assert found.bounded == (margin > 0 and (top == 0 or top + height == below))


def test_segments_that_are_no_grid_are_not_cut() -> None:
    grid = cv2.cvtColor(picture(0, 32, 112), cv2.COLOR_RGB2BGR)  # 2 rows of 7 MCUs
    for interval, cut in ((1, True), (7, True), (4, False), (14, False)):  # 4 makes 4 segments, as if there were two in each row
        data = with_index(cv2.imencode(".jpg", grid, [cv2.IMWRITE_JPEG_RST_INTERVAL, interval])[1].reshape(-1))
        assert (cut_jpeg(data, 20, 70, 10, 30) is not None) == cut
    at = HEALTHY.index(b"\xff\xdd")
    never = HEALTHY[: at + 4] + b"\0\0" + HEALTHY[at + 6 :]
    without = HEALTHY[:at] + HEALTHY[at + 6 :]
    progressive = HEALTHY.replace(b"\xff\xc0", b"\xff\xc2")
    for data in (never, without, progressive):
        assert cut_jpeg(HEALTHY, 1, 2, 30, 40) is not None and cut_jpeg(data, 1, 2, 30, 40) is None


def test_without_a_usable_index_there_is_no_cut_and_a_window_still_comes() -> None:
    image = picture(2, 70, 90)
    plain = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_RST_INTERVAL, 1])[1].tobytes()
    good = encode_jpeg(image)
    at = good.index(b"fastdata\0") + 14
    wrong_count = good[:at] + (31).to_bytes(4, "little") + good[at + 4 :]
    wrong_sum = good[: at + 4] + bytes([good[at + 4] ^ 1]) + good[at + 5 :]
    form, memory = Form("jpeg", 3, "uint8"), np.empty(1 << 16, np.uint8)
    for data in (plain, wrong_count, wrong_sum):
        assert cut_jpeg(data, 1, 2, 30, 40) is None
        region = decode_window(data, form, 70, 90, Window(1, 2, 30, 40), lambda _: memory)
        assert (region.top, region.left) == (0, 0)
        np.testing.assert_array_equal(region.pixels[:, :, :3], _pillow(data))


def test_other_samplings_are_not_cut() -> None:
    """libjpeg interpolates the colours of 4:2:2 at smaller scales too, so more than a pixel beside the box would count."""
    image = cv2.cvtColor(picture(2, 70, 90), cv2.COLOR_RGB2BGR)
    for sampling in (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440):
        params = [cv2.IMWRITE_JPEG_RST_INTERVAL, 1, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
        assert cut_jpeg(with_index(cv2.imencode(".jpg", image, params)[1].reshape(-1)), 1, 2, 30, 40) is None


def test_a_record_of_another_size_is_an_error() -> None:
    form, memory = Form("jpeg", 3, "uint8"), np.empty(1 << 16, np.uint8)
    data = encode_jpeg(picture(2, 70, 90))
    for height, width in ((60, 90), (70, 100), (90, 70), (140, 180), (139, 179)):
        for window in (
            Window(0, 0, height, width),
            Window(height - 20, width - 20, 20, 20),
            Window(0, 0, height, width, 2),
            Window(0, 0, 20, 20),
        ):
            with pytest.raises(CodecError):
                decode_window(data, form, height, width, window, lambda _: memory)


def test_damage_inside_the_box_is_found() -> None:
    """A cut puts its own markers where the index says, so the old ones must be looked at by nobody but the index."""
    data = bytearray(encode_jpeg(picture(2, 96, 96)))
    start = data.index(b"\xff\xda") + 14
    for k in range(4):
        data[start + 40 + k] = 0xFF
    found = cut_jpeg(bytes(data), 0, 0, 40, 40)
    assert found is not None
    with pytest.raises(CodecError):
        decode_jpeg(found.data)


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
