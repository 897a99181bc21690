"""What datasets say of themselves in one line, and of wrong arguments of split."""

from __future__ import annotations

import pytest

import stores
from fastdata import ArrayDataset, CenterCrop, LMDBDataset, MaskDataset, RAMDataset, RandomCrop, TableDataset, TokenDataset
from stores import store
from test_masks import masked
from test_ram import tokens


def test_a_dataset_is_one_line():
    images, crop, text, arrays = store(), CenterCrop(9), TokenDataset(tokens(), 64), stores.masked_arrays()
    volume = ArrayDataset(arrays, crop=RandomCrop(4))
    counts = f"{text.num_tokens:,} tokens, {text.num_documents:,} documents"
    cases = (
        (LMDBDataset(images, size=64, crop=crop), f"LMDBDataset(42 images, 3 classes, rgb, CenterCrop(9), {images})"),
        (LMDBDataset(images).subset([1, 2]), f"LMDBDataset(2 of 42 images, 3 classes, rgb, {images})"),
        (RAMDataset(images), f"RAMImages(42 images, 3 classes, rgb, {images})"),
        (MaskDataset(masked(), crop=crop), f"MaskDataset(12 images, masks of 153 classes, rgb, CenterCrop(9), {masked()})"),
        (text, f"TokenDataset({counts}, block_size=64, random, join, {tokens()})"),
        (volume, f"ArrayDataset({len(volume)} arrays of 3 axes, int16, masks, RandomCrop(4), {arrays})"),
        (TableDataset(stores.table(), target="y"), f"TableDataset(10 rows of 1 columns, {stores.table()})"),
    )
    for dataset, says in cases:
        assert repr(dataset) == says


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"fraction": "0.8"}, TypeError, "fraction is '0.8', but must be a number between 0 and 1"),
        ({"fraction": 80}, ValueError, "fraction is 80, but must lie between 0 and 1: 0.8 puts 80 % of"),
        ({"seed": -1}, ValueError, "seed is -1, but must be from 0"),
    ],
)
def test_wrong_splits(arguments, error, says):
    for dataset in (LMDBDataset(store()), TableDataset(stores.table(), target="y"), TokenDataset(tokens(), 8)):
        with pytest.raises(error, match=says):
            dataset.split(**{"fraction": 0.5, "seed": 0, **arguments})
