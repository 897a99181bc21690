"""Boxes of several JPEGs decoded as one: each gets the pixels that it has by itself, and damage of one harms no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastdata import CenterCrop, LMDBDataset
from fastdata.codecs import jpeg_batch
from fastdata.codecs.jpeg_batch import jpeg_batches
from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg
from fastdata.codecs.pixels import Window
from fastdata.errors import CodecError, FormatError
from stores import square
from support import Array, images_of, picture

Case = tuple[int, tuple[int, int], tuple[int, int, int, int], int, int]


def _fresh(size: int) -> Array:
    return np.empty(size, np.uint8)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """A picture's number, its size and a box of it, the quality and the scale."""
    height, width = draw(st.sampled_from([16, 17, 31, 64, 65, 79, 96])), draw(st.sampled_from([33, 48, 50, 64, 79, 80]))
    top, left = draw(st.integers(0, height - 1)), draw(st.sampled_from([0, 1, 15, 16, 17, 31]))
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
        for place, region in each.decode(each.join(), gray=gray, scratch=_fresh):
            assert place not in found
            found[place] = region
    return records, found, len(batches), alone


ABOVE: Case = 0, (64, 64), (0, 20, 40, 20), 90, 1  # a box at the image's upper edge
INSIDE: Case = 1, (64, 64), (20, 20, 20, 20), 90, 1
BELOW: Case = 2, (64, 64), (30, 20, 34, 20), 90, 1  # and one at its lower edge


@given(st.lists(_cases(), min_size=1, max_size=8), st.booleans(), st.booleans())
@example([INSIDE, ABOVE, INSIDE, BELOW, INSIDE, ABOVE, BELOW], False, False)
@example([INSIDE, ABOVE, INSIDE, BELOW, INSIDE, ABOVE, BELOW], False, True)
@example([INSIDE, INSIDE, (3, (65, 64), (30, 20, 34, 20), 90, 1), INSIDE], False, False)  # cells that end beyond the image
@example([(3, (68, 36), (64, 32, 4, 4), 90, 8)], False, True)  # a cell of 4 x 4 pixels, which two scales make one pixel
@settings(max_examples=400, deadline=None)
def test_each_of_a_pile_is_what_it_is_by_itself(cases: list[Case], gray: bool, fast: bool) -> None:
    records, found, _, alone = _decoded(cases, gray, fast)
    assert sorted([*found, *alone]) == list(range(len(cases)))
    assert all(cases[k][2][2:] == cases[k][1] for k in alone), "only whole images are left alone"
    for k, region in found.items():
        _, (height, width), (top, left, tall, wide), _, shrink = cases[k]
        times = region.shrink
        assert times in (1, shrink)
        whole = decode_jpeg_into(_fresh, records[k], (-(-height // times), -(-width // times)), gray=gray, fast=fast)
        assert region.top % times == region.left % times == 0
        y, x = region.top // times, region.left // times
        inner = np.s_[top // times : -(-(top + tall) // times), left // times : -(-(left + wide) // times)]
        pasted = np.zeros_like(whole)
        pasted[y : y + len(region.pixels), x : x + region.pixels.shape[1]] = region.pixels
        np.testing.assert_array_equal(pasted[inner], whole[inner])


def test_cells_of_equal_width_tables_and_scale_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _decoded([INSIDE] * 5, False, False)[2] == 1
    other_height, other_place = (4, (96, 64), (50, 20, 9, 20), 90, 1), (4, (64, 80), (20, 52, 20, 20), 90, 1)
    assert _decoded([INSIDE, other_height, other_place], False, False)[2] == 1
    wider, coarser, smaller = (4, (64, 64), (20, 20, 20, 30), 90, 1), (1, *INSIDE[1:3], 75, 1), (1, *INSIDE[1:4], 2)
    assert _decoded([INSIDE, wider, coarser, smaller], False, False)[2] == 4
    assert _decoded([INSIDE, ABOVE, BELOW, INSIDE], False, False)[2] == 3, "what depends on its image's edge stands alone"
    assert _decoded([INSIDE, ABOVE, BELOW, INSIDE], False, True)[2] == 1, "of a fast decode, nothing does"
    monkeypatch.setattr(jpeg_batch, "MOST_PIXELS", 2 * 32 * 32)
    assert _decoded([INSIDE] * 5, False, False)[2] == 3
    shrunk = *INSIDE[:4], 4
    assert _decoded([shrunk] * 32, False, False)[2] == 1, "pixels are counted after decoding"
    assert _decoded([shrunk] * 33, False, False)[2] == 2


def test_no_batch_is_higher_than_a_jpeg_can_be() -> None:
    data, window = memoryview(encode_jpeg(picture(1, 64, 64))), Window(20, 20, 9, 9, 8)
    batches, alone = jpeg_batches([data] * 5000, [(64, 64)] * 5000, [window] * 5000)  # of 80,000 rows together
    regions = [region for batch in batches for _, region in batch.decode(batch.join(), gray=False, scratch=_fresh)]
    assert len(batches) == 2 and not alone and len(regions) == 5000
    assert all(np.array_equal(region.pixels, regions[0].pixels) for region in regions)


def test_a_whole_image_or_an_empty_window_is_left_alone() -> None:
    record = memoryview(encode_jpeg(picture(0, 40, 50)))
    for window in (Window(0, 0, 40, 50), Window(0, 0, 0, 10), Window(5, 5, 10, 0)):
        assert jpeg_batches([record], [(40, 50)], [window]) == ([], [0])
    assert jpeg_batches([record], [(50, 40)], [Window(1, 1, 5, 5)]) == ([], [0]), "nor is another image than it should be"


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
        found = batches[0].decode(batches[0].join(), gray=False, scratch=_fresh)
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
