"""What datasets say of themselves in one line, and of wrong arguments of split and subset."""

from __future__ import annotations

import os

import numpy as np
import pytest

import stores
from fastdata import (
    ArrayDataset,
    CenterCrop,
    LMDBDataset,
    Loader,
    MaskDataset,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    TableDataset,
    TokenDataset,
)
from stores import floats, store, unlabelled
from test_masks import masked
from test_ram_kinds import tokens, volumes


def negative(image):
    return 255 - image


CROP = RandomResizedCrop(24)
CASES = {
    "images": (lambda: LMDBDataset(store(), size=64, crop=CROP), f"LMDBDataset(42 images, 3 classes, rgb, {CROP}, {{store}})"),
    "view": (
        lambda: LMDBDataset(store(), hflip=0.5, vflip=1, transform=negative),
        "LMDBDataset(42 images, 3 classes, rgb, hflip=0.5, vflip=1, transform=negative, {store})",
    ),
    "part": (
        lambda: LMDBDataset(store()).subset([1, 2]),
        "LMDBDataset(2 of 42 images, 3 classes, rgb, {store})",
    ),
    "vectors": (lambda: LMDBDataset(floats()), "LMDBDataset(6 images, 2 columns, jpeg, {floats})"),
    "unlabelled": (lambda: LMDBDataset(unlabelled()), "LMDBDataset(5 images, no labels, jpeg, {unlabelled})"),
    "memory": (lambda: RAMDataset(store()), "RAMImages(42 images, 3 classes, rgb, {store})"),
    "masks": (
        lambda: MaskDataset(masked(), crop=CenterCrop(9)),
        "MaskDataset(12 images, masks of 153 classes, rgb, CenterCrop(9), {masked})",
    ),
    "joined": (
        lambda: LMDBDataset(store()) + LMDBDataset(store("png")),
        "ImageDataset(84 images, 3 classes, rgb, {store} + {png})",
    ),
    "tokens": (
        lambda: TokenDataset(tokens()[0], 64),
        "TokenDataset({count.num_tokens:,} tokens, {count.num_documents:,} documents, block_size=64, random, join, {tokens})",
    ),
    "arrays": (
        lambda: ArrayDataset(volumes()[0], crop=RandomCrop(4)),
        "ArrayDataset({length} arrays of 3 axes, uint16, masks, RandomCrop(4), {volumes})",
    ),
    "table": (lambda: TableDataset(stores.table(), target="y"), "TableDataset(10 rows of 1 columns, {table})"),
}
PATHS = {
    "store": store,
    "png": lambda: store("png"),
    "floats": floats,
    "unlabelled": unlabelled,
    "masked": masked,
    "tokens": lambda: tokens()[0],
    "volumes": lambda: volumes()[0],
    "table": stores.table,
}


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_is_one_line(name):
    make, says = CASES[name]
    dataset = make()
    paths = {name: path() for name, path in PATHS.items() if "{" + name + "}" in says}
    assert repr(dataset) == says.format(count=dataset, length=len(dataset), **paths)


def test_a_path_below_this_folder_is_short(monkeypatch):
    path = store()
    monkeypatch.chdir(path.parent)
    assert repr(LMDBDataset(path)) == f"LMDBDataset(42 images, 3 classes, rgb, {path.name})"
    assert os.fspath(path) not in repr(Loader(LMDBDataset(path), 4, num_workers=0))


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
        ({"fraction": True}, TypeError, "fraction is True, but must be a number"),
        ({"fraction": 80}, ValueError, "fraction is 80, but must lie between 0 and 1: 0.8 puts 80 % of"),
        ({"fraction": float("nan")}, ValueError, "fraction is nan, but must lie between"),
        ({"seed": None}, TypeError, "seed is None, but must be a whole number"),
        ({"seed": 1.5}, TypeError, "seed is 1.5, but must be a whole number"),
        ({"seed": -1}, ValueError, "seed is -1, but must be from 0"),
    ],
)
def test_wrong_splits(name, arguments, error, says):
    with pytest.raises(error, match=says):
        DATASETS[name]().split(**{"fraction": 0.5, "seed": 0, **arguments})


@pytest.mark.parametrize("name", ["images", "table"])
def test_splits_that_would_not_be_what_was_asked(name):
    dataset = DATASETS[name]()
    with pytest.raises(TypeError, match="stratify is 1, but must be True, for the same fraction of every class, or False"):
        dataset.split(0.5, seed=0, stratify=1)
    with pytest.raises(ValueError, match=r"0\.001 of .* samples, rounded, leaves one part empty"):
        dataset.split(0.001, seed=0)
    with pytest.raises(ValueError, match=r"0\.999 of .* samples, rounded, leaves one part empty"):
        dataset.split(0.999, seed=0)
    first, second = dataset.split(np.float32(0.5), seed=np.int64(3))
    assert len(first) + len(second) == len(dataset)
