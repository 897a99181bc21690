"""Masks held in memory and under every start method; their colours; prepared with kills and with classes."""

from __future__ import annotations

import pickle
import re
import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastdata
from fastdata import (
    CenterCrop,
    CodecError,
    LMDBDataset,
    MaskDataset,
    RAMDataset,
    RandomResizedCrop,
    StoreError,
)
from fastdata.images.mask_file import MaskRecipe, count_classes, decode_mask
from fastdata.images.prepare import ImageRecipe, prepare_image
from stores import folder, unlabelled
from support import Array, encode, picture, records_of
from test_masks import COUNT, SHAPES, file, masked


@cache
def photographed(codec: str) -> Path:
    """A dozen pictures in three shapes, with masks that are noise."""
    root = folder()
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for k in range(COUNT):
        shape = SHAPES[k % len(SHAPES)]
        mask = np.random.default_rng(k).integers(0, 256, shape, np.uint8)
        (root / f"images/{k:02d}.png").write_bytes(encode(picture(k, *shape), ".png"))
        (root / f"masks/{k:02d}.png").write_bytes(file(mask))
    fastdata.prep(root / "images", root / "o.fds", masks=root / "masks", codec=codec, workers=1)
    return root / "o.fds"


# RAMDataset


def whole_bytes(path: Path, decoded: bool) -> int:
    """What a RAMDataset of all of a store of RGB images has to hold."""
    images, masks = (int(np.load(path / f"{name}full/index.npy")["length"].sum()) for name in ("", "mask-"))
    return (3 * masks if decoded else images) + masks


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.5, None])
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("codec", ["jpeg", "png", "rgb"])
def test_memory_gives_images_and_masks_as_the_disk_does(codec, decoded, share):
    path, options = photographed(codec), {"crop": RandomResizedCrop((40, 31)), "hflip": 0.5, "vflip": 0.3}
    total = whole_bytes(path, decoded)
    most = None if share is None else int(share * total)
    disk, ram = MaskDataset(path, **options), RAMDataset(path, decoded=decoded, max_bytes=most, **options)
    images, masks = records_of(ram)
    held = [records.bytes.size for records in (images, masks)]
    assert len(images) == len(masks)
    if share == 0.5:
        assert 0.35 * total < sum(held) <= most and min(held) > 0
    else:
        assert sum(held) == (total if share is None else 0)
    for epoch in range(3):
        found, want = (dataset.read_batch(range(COUNT), seed=1, epoch=epoch) for dataset in (ram, disk))
        np.testing.assert_array_equal(found[0], want[0])
        np.testing.assert_array_equal(found[1], want[1])
    for k in range(COUNT):
        items = []
        for dataset in (ram, disk):
            torch.manual_seed(k)
            items.append(dataset[k])
        assert all(map(torch.equal, *items))
        assert all(map(torch.equal, ram.with_crop(None)[k], disk.with_crop(None)[k]))


def test_a_dataset_of_masks_in_memory_is_a_ramdataset():
    ram = RAMDataset(masked(), crop=CenterCrop(90), ignore_index=7, shared=False)
    subset = ram.subset([3, 1])
    copy = pickle.loads(data := pickle.dumps(subset))
    assert isinstance(copy, RAMDataset) and len(data) < 4000 and copy.ignore_index == 7
    assert all(map(torch.equal, copy[0], ram[3])) and ram[3][1][0, 0] == 7
    records_of(copy)[1].bytes[:] = 9
    assert (ram.with_crop(None)[2][1] == 9).all(), "one memory, not a copy of it"
    disk = MaskDataset(masked())
    assert (ram.class_pixels, ram.classes, ram.targets.tolist()) == (disk.class_pixels, disk.classes, disk.targets.tolist())
    assert all(isinstance(part, RAMDataset) for part in ram.split(0.5, seed=0))
    fresh = RAMDataset(masked(), crop=CenterCrop(20))
    assert len(fresh + fresh) == 2 * COUNT and torch.equal((fresh + fresh)[COUNT + 2][1], fresh[2][1])


def test_images_alone_from_a_store_with_masks():
    ram, disk = RAMDataset(masked(), masks=False), MaskDataset(masked())
    assert torch.equal(ram[1][0], disk[1][0]) and ram[1][1] == -1
    assert ram.class_pixels == {} and ram.ignore_index is None


def test_masks_without_labels_are_no_store_of_labelled_images():
    with pytest.raises(StoreError, match=r"masks and no labels.*-1: use MaskDataset.*RAMDataset\(masks=False\)"):
        LMDBDataset(masked())


def test_what_memory_cannot_do_for_masks(monkeypatch):
    with pytest.raises(ValueError, match=r"its mask would not follow.*RAMDataset\(masks=False\)"):
        RAMDataset(masked(), transform=np.flipud)
    with pytest.raises(ValueError, match="its mask would not follow"):
        MaskDataset(masked()).with_crop(None, transform=np.flipud)
    for wrong in ({"source": unlabelled()}, {"source": masked(), "masks": False}, {"source": []}):
        with pytest.raises(ValueError, match="ignore_index is 3, but there are no masks"):
            RAMDataset(**wrong, ignore_index=3)
    with pytest.raises(ValueError, match="ignore_index is 256, but a uint8 mask holds 0 to 255"):
        RAMDataset(masked(), ignore_index=256)
    total = whole_bytes(photographed("jpeg"), False)
    monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda: 0)
    with pytest.raises(StoreError, match="give max_bytes to keep"):
        RAMDataset(photographed("jpeg"), shared=False)
    monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda: total)
    assert len(RAMDataset(photographed("jpeg"), shared=False)) == COUNT


# The Loader


# Colours

COLORS = tuple(dict.fromkeys(tuple(c) for c in np.random.default_rng(0).integers(0, 256, (330, 3)).tolist()))[:300]


def colored(values: Array) -> bytes:
    return file(np.array(COLORS, np.uint8)[values])


@pytest.mark.parametrize(("shape", "count"), [((7, 9), 1), ((1, 65_537), 256), ((140, 1001), 2), ((65_536, 2), 300)], ids=str)
def test_colors_are_looked_up_in_bands(shape, count):
    values = np.random.default_rng(1).integers(0, count, shape)
    found = decode_mask(colored(values), colors=COLORS[:count], bits=16)
    assert found.dtype == np.uint16 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, values)
    if count <= 256:
        np.testing.assert_array_equal(decode_mask(colored(values), colors=COLORS[:count]), values)
        assert count_classes(found.astype(np.uint8)) == Counter(values.reshape(-1).tolist())
    assert count_classes(found) == Counter(values.reshape(-1).tolist())


def test_unknown_colors_of_all_bands_are_counted():
    values = np.zeros((300, 1000), int)
    values[70, 5:], values[299, 999] = 2, 3  # in the second band and in the last
    for known, count, first in ((COLORS[:2], 996, 2), (COLORS[:3], 1, 3)):
        message = rf"^{count} pixels have colours that the palette lacks, such as {re.escape(str(COLORS[first]))}$"
        with pytest.raises(CodecError, match=message) as error:
            decode_mask(colored(values), colors=known)
        assert error.value.reason == "unknown-color"
    with pytest.raises(CodecError, match="a mask has the value 299: 8 bits hold 255") as error:
        decode_mask(colored(np.full((300, 300), 299)), colors=COLORS)
    assert error.value.reason == "range"


def test_sixteen_bits_of_color_are_not_taken_for_eight():
    deep = np.full((4, 5, 3), (0, 0, 256), np.uint16)  # blue of 256 is no green of 1
    with pytest.raises(CodecError, match=r"20 pixels .* such as \(0, 0, 256\)"):
        decode_mask(encode(deep, ".png"), colors=((0, 1, 0),))
    np.testing.assert_array_equal(decode_mask(encode(deep % 256 + 3, ".png"), colors=((0, 0, 0), (3, 3, 3))), 1)


@pytest.mark.parametrize("kind", ["colors", "classes"])
def test_a_mask_takes_few_bytes_a_pixel(kind):
    values = np.random.default_rng(0).integers(0, 9, (1000, 1500), np.uint8)
    options = ImageRecipe(codec="rgb", gray=True, mask=MaskRecipe(8, COLORS[:9] if kind == "colors" else ()))
    image, mask = file(values), colored(values) if kind == "colors" else file(values)
    tracemalloc.start()
    try:
        prepare_image(image, options, companions=[("mask", mask)])
        peak = tracemalloc.get_traced_memory()[1] / values.size
    finally:
        tracemalloc.stop()
    assert peak < (13 if kind == "colors" else 7), f"{peak:.1f} bytes a pixel"


# Preparing


def test_classes_and_masks_of_the_same_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(18):
        name, shape = f"{('ant', 'bee', 'cat')[k % 3]}/{k:02d}", SHAPES[k % 2]
        for kind, data in (("images", encode(picture(k, *shape))), ("masks", file(rng.integers(0, 5, shape, np.uint8)))):
            path = (tmp_path / kind / name).with_suffix(".jpg" if kind == "images" else ".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    fastdata.prep(tmp_path / "images", tmp_path / "o.fds", masks=tmp_path / "masks", workers=2)
    disk, classes = MaskDataset(tmp_path / "o.fds"), LMDBDataset(tmp_path / "o.fds")
    assert classes.classes == ["ant", "bee", "cat"] and disk.classes == []
    for k in range(18):
        name = disk.name(k)
        assert classes[k][1] == disk.targets[k] == ["ant", "bee", "cat"].index(name.split("/")[0])
        with Image.open((tmp_path / "masks" / name).with_suffix(".png")) as mask:
            np.testing.assert_array_equal(disk[k][1], np.asarray(mask))
    for part in disk.split(0.5, seed=0, stratify=True):
        assert np.bincount(part.targets).tolist() == [3, 3, 3]
