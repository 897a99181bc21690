"""Crops of a user's own: what they say of themselves holds wherever batches are made."""

from __future__ import annotations

import doctest
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fastdata import Crop, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, Resize
from fastdata.errors import LoaderError, StoreError
from fastdata.images import crops
from stores import sha, square, store, whole
from support import Corner, records_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@dataclass(frozen=True)
class Even(Crop):
    """The largest box in the centre whose sides are multiples of a number."""

    step: int = 8
    resizes = False
    shape = None

    def boxes(self, u, heights, widths):
        h, w = heights - heights % self.step, widths - widths % self.step
        return np.stack([(heights - h) // 2, (widths - w) // 2, h, w], axis=1)

    def shapes(self, boxes):
        return list(map(tuple, boxes[:, 2:].tolist()))


def test_shapes_may_depend_on_the_image():
    dataset = LMDBDataset(store(), size=96, crop=Even(1, step=16))
    sides = [(h - h % 16, w - w % 16) for h, w, _ in (image.shape for image in whole(store(), 96))]
    assert [tuple(image.shape[1:]) for image, _ in dataset] == sides
    assert dataset.sample_bytes() == 3 * max(h * w for h, w in sides)
    with Loader(dataset.subset(np.flatnonzero([side == sides[0] for side in sides])), 3, num_workers=1) as loader:
        assert {tuple(batch[0].shape[1:]) for batch in loader} == {(3, *sides[0])}


class Wrong(Crop):
    box = 0, 0, 10, 10

    def boxes(self, u, heights, widths):
        return np.tile(self.box, (len(heights), 1))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            {"box": (0, -1, 10, 10)},
            r"Wrong\(8\).boxes gave \[0, -1, 10, 10\] .* which reaches beyond .*reaches_outside is",
        ),
        ({"box": (0, 0, 0, 8)}, "which has no pixels"),
        ({"resizes": False}, "does not have the size of the output, but resizes is False"),
        ({"box": (0, 0, 10)}, r"gave int64 \[1, 3\], but must give integers \[1, 4\]"),
        ({"shape": None}, "Wrong has no shape of its own, so it needs a method shapes"),
    ],
)
def test_boxes_that_are_not_what_a_crop_says(said, says):
    with pytest.raises((LoaderError, NotImplementedError), match=says):
        LMDBDataset(square(), crop=type("Wrong", (Wrong,), said)(8))[0]


def test_reprs_are_short_and_the_example_runs():
    assert repr(RandomResizedCrop(224)) == "RandomResizedCrop(224)"
    assert repr(RandomCrop((32, 24), padding=4)) == "RandomCrop((32, 24), padding=4)"
    assert repr(Resize(64, antialias=False)) == "Resize(64, antialias=False)"
    assert repr(Corner(8)) == "Corner(8)"
    results = doctest.testmod(crops)
    assert results.attempted >= 2 and results.failed == 0


# Progressive resizing in memory


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_holds_several_sizes_and_a_schedule_chooses(workers, decoded):
    def epochs(dataset):
        with Loader(dataset, 8, shuffle=True, seed=1, num_workers=workers, schedule={0: (64, 20), 1: (96, 40), 2: 64}) as loader:
            return [sha(loader) for _ in range(3)]

    crop = RandomResizedCrop(26)  # from 96 pixels by less than four: a JPEG is decoded whole
    held = RAMDataset(store("jpeg"), size=(64, 96), crop=crop, decoded=decoded)
    assert epochs(held) == epochs(LMDBDataset(store("jpeg"), crop=crop))
    assert torch.equal(held.with_crop(None)[3][0], LMDBDataset(store("jpeg"), size=64)[3][0]), "the first is its own"
    assert held.with_size(None).with_crop(None)[3][0].shape == LMDBDataset(store("jpeg"), size=96)[3][0].shape


def test_all_sizes_are_in_memory_and_within_max_bytes():
    sizes = {size: sum(image.nbytes for image in whole(store(), size)) for size in (64, 96)}
    held = RAMDataset(store(), size=(96, 64), shared=False)  # what is shared cannot be written to
    for size, total in sizes.items():
        (one,) = records_of(held.with_size(size))
        assert len(one) == 42 and one.bytes.nbytes == total
        one.bytes[:] = size
        assert (held.with_size(size)[5][0] == size).all()
    part = RAMDataset(store(), size=(96, 64), max_bytes=sum(sizes.values()) // 2)
    counts = {len(records_of(part.with_size(size))[0]) for size in sizes}
    assert len(counts) == 1 and 10 < counts.pop() < 30
    assert torch.equal(part.with_size(64)[41][0], LMDBDataset(store(), size=64)[41][0])
    one = RAMDataset(store(), size=96).with_size(64)
    assert records_of(one) == [None] and torch.equal(one[41][0], part.with_size(64)[41][0]), "a size that is not held is read"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RAMDataset(store(), size=(64, 96)).with_size(70), "has no size 70; it has 96, 64"),
        (lambda: RAMDataset(store(), size=(64, 70)), "has no size 70; it has 96, 64"),
        (lambda: RAMDataset(store(), size=()), r"size is \(\), but must be a stored size, or several different ones"),
        (lambda: RAMDataset(store(), size=(64, 64)), r"size is \(64, 64\), but must be"),
    ],
)
def test_sizes_that_are_not_there(call, says):
    with pytest.raises((StoreError, ValueError), match=says):
        call()
