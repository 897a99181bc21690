"""What DALI does not decode: single images of other kinds, batches that it fails at, and what nothing can decode."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import (
    CenterCrop,
    FormatError,
    LMDBDataset,
    Loader,
    LoaderError,
    RAMDataset,
    RandomResizedCrop,
    StoreError,
)
from fastdata.store.store import Store
from stores import store
from support import images_of, picture, until
from test_dali import WITH_DALI, WITH_TORCH, both, same, threads

pytest.importorskip("nvidia.dali")


def ended(data):
    """A JPEG whose pixels end in the middle, though the file does not."""
    middle = len(data) * 2 // 3
    return data[:middle] + b"\xff\xd9" + data[middle:]


def fail_at(monkeypatch, dataset, row):
    """Let DALI have noise for the JPEG of a row; no JPEG was found that it refuses and fastdata decodes."""
    images = images_of(dataset)
    real = images.jpeg

    def jpeg(index, data):
        return memoryview(b"noise" * 99) if index == row else real(index, data)

    monkeypatch.setattr(images, "jpeg", jpeg)


def files(path, **changed):
    """Eight images of 64 x 48, of all kinds but the first; `changed`: what becomes of the bytes of some."""
    path.mkdir(exist_ok=True)
    exif = Image.Exif()
    exif[274] = 3
    kinds = {
        "a.jpg": {},
        "b.png": {},
        "c.jpg": {"mode": "CMYK"},
        "d.jpg": {"progressive": True},
        "e.jpg": {"mode": "L"},
        "f.jpg": {"exif": exif},
        "g.jpg": {"quality": 95, "subsampling": 0},
        "h.jpg": {},
    }
    for k, (name, options) in enumerate(kinds.items()):
        image = picture(k, 48, 64)
        image = np.rot90(image, 2) if "exif" in options else image
        Image.fromarray(image).convert(options.pop("mode", "RGB")).save(path / name, **options)
        if change := changed.get(name[0]):
            (path / name).write_bytes(change((path / name).read_bytes()))
    return [path / name for name in kinds]


@pytest.mark.parametrize("crop", [CenterCrop(40), RandomResizedCrop(24), None])
def test_single_images_of_other_kinds(crop, tmp_path):
    paths = files(tmp_path, h=lambda data: data[:-2])  # which has lost its end
    dataset = RAMDataset(paths, list(range(8)), crop=crop, hflip=0.5)
    assert same(*both(dataset, batch_size=3))
    with Loader(dataset, 3, **WITH_DALI) as loader:
        rows = {i: image for images, targets in loader for i, image in zip(targets.tolist(), images, strict=True)}
        assert loader.stats().fallbacks == 5
        list(loader)
        assert loader.stats().fallbacks == 10 and loader.stats().samples == 16
    with Loader(dataset, 8, **WITH_TORCH) as loader:
        ((images, _),) = loader
    assert all(torch.equal(rows[k], images[k]) for k in (1, 2, 3, 5, 7)), "they are made as without DALI"


def test_a_batch_of_none_that_dali_decodes(tmp_path):
    dataset = RAMDataset(files(tmp_path)[1:4], crop=CenterCrop(40))
    assert same(*both(dataset, batch_size=2), mean=0, most=0)


def test_a_jpeg_that_dali_alone_fails_at_is_an_error(tmp_path, monkeypatch):
    dataset = RAMDataset(files(tmp_path), crop=CenterCrop(40))
    fail_at(monkeypatch, dataset, 4)
    with Loader(dataset, 3, **WITH_DALI) as loader, pytest.raises(LoaderError, match=r'DALI could not decode .*backend="torch"'):
        list(loader)


@pytest.mark.parametrize("damage", [ended, lambda data: data[: len(data) // 2]])
def test_what_nothing_can_decode_is_the_same_error(damage, tmp_path, monkeypatch):
    dataset = RAMDataset(files(tmp_path, g=damage), crop=CenterCrop(40))
    fail_at(monkeypatch, dataset, 6)
    told, before = [], threads()
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(dataset, 2, **backend) as loader:
            batches = iter(loader)
            seen = [next(batches).ids.tolist() for _ in range(3)]
            with pytest.raises(StoreError, match=r"g\.jpg cannot be decoded") as caught:
                next(batches)
            told.append((seen, str(caught.value), loader.state_dict()))
            until(lambda: not threads() - before)  # though the error is still held
            assert next(iter(loader)).ids.tolist() == [0, 1], "another pass begins anew"
    assert told[0] == told[1]


def test_a_damaged_record_of_a_store(tmp_path):
    path = tmp_path / "damaged.fds"
    shutil.copytree(store("jpeg"), path)
    opened = Store(path)
    reader = opened.reader(opened.variant(None))
    record = bytes(reader.get(3))
    del reader
    for shard in path.glob("*/shard-*.mdb"):
        data = shard.read_bytes()
        shard.write_bytes(data.replace(record, record[:700] + bytes(len(record) - 700)))
    told = []
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(LMDBDataset(path, crop=CenterCrop(80)), 2, **backend) as loader:
            batches = iter(loader)
            assert next(batches).ids.tolist() == [0, 1]
            with pytest.raises(FormatError, match=r"record 3 .*run fastdata verify") as caught:
                next(batches)
            told.append(str(caught.value))
    assert told[0] == told[1]
