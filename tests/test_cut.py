"""Crop before decode: what is cut out of the compressed bytes, alone or with others, decodes to the pixels of the whole."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata import CenterCrop, LMDBDataset
from fastdata.codecs.jpeg_crop import find_cells, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import add_index, decode_jpeg, decode_jpeg_into, encode_jpeg, restart_interval
from fastdata.codecs.pixels import Window, decode_window
from fastdata.errors import CodecError, FormatError
from fastdata.store.manifest import Form
from stores import square
from support import Array, images_of, picture

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
    form, memory = Form("jpeg", 3, "uint8"), np.empty(1 << 16, np.uint8)
    data = encode_jpeg(picture(2, 70, 90))
    for height, width in ((60, 90), (70, 100), (90, 70), (140, 180), (139, 179)):
        for window in ((0, 0, height, width), (height - 20, width - 20, 20, 20), (0, 0, height, width, 2), (0, 0, 20, 20)):
            with pytest.raises(CodecError):
                decode_window(data, form, height, width, Window(*window), lambda _: memory)


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
