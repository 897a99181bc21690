"""Datasets of every kind: how they open, what they say of themselves in one line, and of wrong arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastdata
import stores
from fastdata import ArrayDataset, CenterCrop, LMDBDataset, MaskDataset, RAMDataset, RandomCrop, TableDataset, TokenDataset
from fastdata.errors import StoreError
from stores import store
from test_masks import masked
from test_ram import tokens


def test_each_kind_opens_as_its_dataset() -> None:
    images = fastdata.open(stores.store(), size=64, crop=RandomCrop(32), hflip=0.5)
    assert type(images) is LMDBDataset and images[0][0].shape == (3, 32, 32)
    image, mask = fastdata.open(stores.masked(), crop=RandomCrop(16))[2]
    assert image.shape == (3, 16, 16) and (mask == 2).all() and type(fastdata.open(stores.masked())) is MaskDataset
    rows = fastdata.open(stores.tokens(), block_size=10, mode="sequential")
    assert type(rows) is TokenDataset and rows[0].tolist() == list(range(11))
    volumes = fastdata.open(stores.arrays())
    assert type(volumes) is ArrayDataset and volumes[0][0][3, 2, 1] == 3 * 1200 + 2 * 40 + 1


def test_arguments_that_the_kind_does_not_take_or_lacks() -> None:
    for path, wrong in ((stores.store(), "block_size"), (stores.arrays(), "hflip"), (stores.masked(), "decoded")):
        with pytest.raises(TypeError, match=f"Dataset.* an unexpected keyword argument '{wrong}'"):
            fastdata.open(path, **{wrong: 1})
    for make in (fastdata.open, RAMDataset):
        with pytest.raises(TypeError, match=r"missing 1 required .*argument: 'block_size'"):
            make(stores.tokens())


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photo.jpg").write_bytes(b"x")
    (tmp_path / "both").mkdir()
    for name in ("val", "train"):
        (tmp_path / "both" / name).symlink_to(stores.store())
    messages = {
        "gone": "no store at .*/gone: there is no such folder; .*fastdata-prep SOURCE .*/gone",
        "photo.jpg": "no store at .*/photo.jpg: it is a file, and a store is a folder; .* fastdata-prep .*photo.jpg OUT",
        "photos": "no store at .*/photos: it has no manifest.json; .* fastdata-prep .*/photos OUT",
        "both": "no store at .*/both: .*give one of the stores in it: .*/both/train, .*/both/val$",
    }
    for name, message in messages.items():
        with pytest.raises(StoreError, match=message):
            fastdata.open(tmp_path / name)


def test_a_star_import_leaves_the_builtin_open() -> None:
    names: dict[str, object] = {}
    exec("from fastdata import *\nfound = open", names)
    assert names["found"] is open and "LMDBDataset" in names
    assert "open" in dir(fastdata)


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


def test_wrong_splits():
    for dataset in (LMDBDataset(store()), TableDataset(stores.table(), target="y"), TokenDataset(tokens(), 8)):
        with pytest.raises(ValueError, match=r"fraction is 80, but must lie between 0 and 1: 0.8 puts 80 % of"):
            dataset.split(80, seed=0)
        with pytest.raises(ValueError, match="seed is -1, but must be from 0"):
            dataset.split(0.5, seed=-1)
