"""Crops of a user's own: what they say of themselves holds wherever batches are made."""

from __future__ import annotations

import doctest
from dataclasses import dataclass

import numpy as np
import pytest

from fastdata import Crop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize
from fastdata.errors import LoaderError
from fastdata.images import crops
from stores import square, store, whole
from support import Corner

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
