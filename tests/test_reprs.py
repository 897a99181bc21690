"""What datasets say of themselves in one line, and of wrong arguments of split and subset."""

from __future__ import annotations

import pytest

import stores
from fastdata import (
    ArrayDataset,
    CenterCrop,
    LMDBDataset,
    MaskDataset,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    TableDataset,
    TokenDataset,
)
from stores import store
from test_masks import masked
from test_ram import tokens, volumes

CROP = RandomResizedCrop(24)
CASES = {  # and the path that ends the line
    "images": (
        lambda: LMDBDataset(store(), size=64, crop=CROP),
        store,
        f"LMDBDataset(42 images, 3 classes, rgb, {CROP}, {{path}})",
    ),
    "part": (lambda: LMDBDataset(store()).subset([1, 2]), store, "LMDBDataset(2 of 42 images, 3 classes, rgb, {path})"),
    "memory": (lambda: RAMDataset(store()), store, "RAMImages(42 images, 3 classes, rgb, {path})"),
    "masks": (
        lambda: MaskDataset(masked(), crop=CenterCrop(9)),
        masked,
        "MaskDataset(12 images, masks of 153 classes, rgb, CenterCrop(9), {path})",
    ),
    "tokens": (
        lambda: TokenDataset(tokens()[0], 64),
        lambda: tokens()[0],
        "TokenDataset({count.num_tokens:,} tokens, {count.num_documents:,} documents, block_size=64, random, join, {path})",
    ),
    "arrays": (
        lambda: ArrayDataset(volumes()[0], crop=RandomCrop(4)),
        lambda: volumes()[0],
        "ArrayDataset({length} arrays of 3 axes, uint16, masks, RandomCrop(4), {path})",
    ),
    "table": (lambda: TableDataset(stores.table(), target="y"), stores.table, "TableDataset(10 rows of 1 columns, {path})"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_is_one_line(name):
    make, path, says = CASES[name]
    dataset = make()
    assert repr(dataset) == says.format(count=dataset, length=len(dataset), path=path())


DATASETS = {
    "images": lambda: LMDBDataset(store()),
    "table": lambda: TableDataset(stores.table(), target="y"),
    "tokens": lambda: TokenDataset(tokens()[0], 8),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"fraction": "0.8"}, TypeError, "fraction is '0.8', but must be a number between 0 and 1"),
        ({"fraction": 80}, ValueError, "fraction is 80, but must lie between 0 and 1: 0.8 puts 80 % of"),
        ({"seed": -1}, ValueError, "seed is -1, but must be from 0"),
    ],
)
def test_wrong_splits(name, arguments, error, says):
    with pytest.raises(error, match=says):
        DATASETS[name]().split(**{"fraction": 0.5, "seed": 0, **arguments})
