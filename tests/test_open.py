"""fastdata.open: the dataset of whatever kind a store is."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastdata
import stores
from fastdata import ArrayDataset, LMDBDataset, MaskDataset, RAMDataset, RandomCrop, TokenDataset
from fastdata.errors import StoreError


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
    for path, message in (
        ("gone", "no store at .*/gone: there is no such folder; .*fastdata-prep SOURCE .*/gone"),
        (
            "photo.jpg",
            "no store at .*/photo.jpg: it is a file, and a store is a folder; make one with fastdata-prep .*photo.jpg OUT",
        ),
        ("photos", "no store at .*/photos: it has no manifest.json; make one with fastdata-prep .*/photos OUT"),
        ("both", "no store at .*/both: .*there are stores in it: .*/both/train, .*/both/val$"),
    ):
        with pytest.raises(StoreError, match=message):
            fastdata.open(tmp_path / path)


def test_a_star_import_leaves_the_builtin_open() -> None:
    names: dict[str, object] = {}
    exec("from fastdata import *\nfound = open", names)
    assert names["found"] is open and "LMDBDataset" in names
    assert "open" in dir(fastdata)
