"""The backends of a Loader, with DALI installed and without."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fastdata import LMDBDataset, Loader, RAMDataset, RandomResizedCrop
from fastdata.errors import MissingExtraError
from stores import sources, store


def photos(**options):
    return LMDBDataset(store("jpeg"), **{"crop": RandomResizedCrop(32), "hflip": 0.5, **options})


def test_torch_unless_asked_otherwise():
    assert Loader(photos(), 8).backend == "torch"
    with pytest.raises(ValueError, match=r'backend is .tensorflow., but must be "torch" or "dali"'):
        Loader(photos(), 8, backend="tensorflow")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: LMDBDataset(store()), "not held as a store's JPEGs"),
        (lambda: RAMDataset(store("jpeg"), decoded=True), "not held as a store's JPEGs"),
        (lambda: RAMDataset(sorted(sources().rglob("*.png"))), "not held as a store's JPEGs"),
        (lambda: photos(transform=np.flipud), "has a transform"),
        (lambda: [1, 2, 3], "a list has no images"),
    ],
)
def test_datasets_that_dali_does_not_take(make, reason):
    with pytest.raises(ValueError, match=f'backend is "dali".*{reason}.*use backend="torch"'):
        Loader(make(), 2, backend="dali")


def test_without_dali(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["nvidia", "dali"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingExtraError, match="pip install nvidia-dali-cuda1"):
        Loader(photos(), 8, backend="dali")
