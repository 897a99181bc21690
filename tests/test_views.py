"""Several views of an image: each equals what its crop alone gives, whatever is decoded together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stores
from fastdata import (
    Augment,
    Batch,
    CenterCrop,
    Crop,
    LMDBDataset,
    Loader,
    MaskDataset,
    MultiCrop,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    View,
)
from fastdata.data.random import uniforms
from support import Array

TWO = [RandomResizedCrop(24), RandomResizedCrop((16, 20), scale=(0.05, 0.4), antialias=False)]


def fixed(crop: Crop, boxes: Any) -> Crop:
    """A crop like another one, of boxes that are given, one for each image."""
    parts = {name: getattr(crop, name) for name in ("resizes", "antialias", "fast")}
    parts |= {"reaches_outside": not crop.resizes, "boxes": lambda self, u, heights, widths: boxes}
    return type("Given", (Crop,), parts)(crop.shape)


def alone(dataset: Any, index: int, *, seed: int, epoch: int) -> list[Array]:
    """The views of a sample, each rendered by itself from its box and flips."""
    crops = list(dataset.crop)
    u = uniforms(seed, epoch, np.array([index]), sum(2 + crop.draws for crop in crops))
    heights, widths = (sides[[index]] for sides in dataset.sides())
    found = []
    for crop in crops:
        flips, own, u = u[:2, 0], u[2 : 2 + crop.draws], u[2 + crop.draws :]
        box = crop.boxes(own, heights, widths)
        flipped = {"hflip": float(flips[0] < dataset.hflip), "vflip": float(flips[1] < dataset.vflip)}
        found.append(dataset.with_crop(fixed(crop, box), **flipped).subset([index]).read_batch([0], seed=0, epoch=0)[0][0])
    return found


@st.composite
def some_crops(draw: st.DrawFn) -> list[Crop]:
    low = draw(st.sampled_from([0.05, 0.3, 0.9]))
    kinds = {
        "box": lambda: RandomResizedCrop(
            draw(st.integers(4, 48)), scale=(low, 1), antialias=draw(st.booleans()), fast=draw(st.booleans())
        ),
        "cut": lambda: RandomCrop(draw(st.integers(1, 60)), fast=draw(st.booleans())),
        "centre": lambda: CenterCrop((draw(st.integers(1, 150)), draw(st.integers(1, 150)))),
        "whole": lambda: Resize((draw(st.integers(4, 60)), draw(st.integers(4, 60)))),
    }
    return [kinds[name]() for name in draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=6))]


@given(some_crops(), st.integers(0, 1000), st.sampled_from(["jpeg", "jpeg", "original", "png", "rgb"]))
@settings(max_examples=15, deadline=None)
def test_any_crops_give_views_that_do_not_depend_on_each_other(crops: list[Crop], seed: int, codec: str) -> None:
    dataset = LMDBDataset(stores.store(codec), crop=crops, hflip=0.5)
    rows = np.arange(seed % 30, seed % 30 + 6)
    images, _ = dataset.read_batch(rows, seed=seed, epoch=0)
    for place, k in enumerate(rows):
        for view, want in zip(images, alone(dataset, int(k), seed=seed, epoch=0), strict=True):
            np.testing.assert_array_equal(view[place], want)


def test_views_have_random_numbers_of_their_own() -> None:
    same = [RandomResizedCrop(24)] * 3
    dataset = LMDBDataset(stores.store("rgb"), crop=same)
    views, _ = dataset.read_batch(np.arange(20), seed=0, epoch=0)
    other, _ = dataset.read_batch(np.arange(20), seed=0, epoch=1)
    assert len({view.tobytes() for view in (*views, *other)}) == 6
    again, _ = dataset.read_batch(np.arange(20)[::-1], seed=0, epoch=0)
    assert all(np.array_equal(a, b[::-1]) for a, b in zip(views, again, strict=True))
    first, _ = dataset.with_crop(same[0]).read_batch(np.arange(20), seed=0, epoch=0)
    np.testing.assert_array_equal(first, views[0])  # more views leave the first as it is


def noisy(pixels: Array) -> Array:
    return np.full_like(pixels, np.random.randint(256))  # noqa: NPY002  users do


def test_a_view_has_flips_and_a_transform_of_its_own() -> None:
    """What it lacks is the dataset's, which may be set at any time."""
    crop, path = CenterCrop(24), stores.store("jpeg")
    whole = [LMDBDataset(path, crop=crop, **options) for options in ({}, {"hflip": 1.0}, {"vflip": 1.0})]
    plain, across, down = (dataset.read_batch(np.arange(9), seed=0, epoch=0)[0] for dataset in whole)
    views = [
        View(crop, hflip=1.0),
        crop,
        View(crop, vflip=1.0, hflip=0.0, transform=np.invert),
        View(Resize((8, 9)), transform=noisy),
    ]
    dataset = LMDBDataset(path, crop=views, transform=lambda pixels: pixels // 2)
    first, second, third, fourth = dataset.read_batch(np.arange(9), seed=0, epoch=0)[0]
    np.testing.assert_array_equal(first, across // 2)
    np.testing.assert_array_equal(second, plain // 2)
    np.testing.assert_array_equal(third, 255 - down)
    assert fourth.shape == (9, 8, 9, 3) and len(np.unique(fourth[:, 0, 0, 0])) > 6
    dataset.hflip, dataset.transform = 1.0, None
    first, second, third, _ = dataset.read_batch(np.arange(9), seed=0, epoch=0)[0]
    for found, want in ((first, across), (second, across), (third, 255 - down)):
        np.testing.assert_array_equal(found, want)
    alone = LMDBDataset(path, crop=View(crop, hflip=1.0, transform=np.invert))
    np.testing.assert_array_equal(alone.with_crop_size(24).read_batch(np.arange(9), seed=0, epoch=0)[0], 255 - across)
    assert "View(CenterCrop(24), hflip=1.0, transform=<ufunc 'invert'>)" in repr(alone)
    with pytest.raises(ValueError, match="its mask would not follow"):
        MaskDataset(stores.masked(), crop=View(crop, transform=np.invert))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_delivers_tuples_of_batches(workers: int) -> None:
    """Views that share a function draw different numbers, the same for any workers and batches."""
    crops = [*MultiCrop(32, 16, num_local=3), *[View(CenterCrop(8), transform=noisy)] * 2]
    dataset = LMDBDataset(stores.store("jpeg"), crop=crops, hflip=0.5)
    with Loader(dataset, 8, shuffle=True, seed=5, num_workers=workers) as loader:
        for batch in loader:
            views, targets = batch
            want, labels = dataset.read_batch(batch.ids, seed=5, epoch=0)
            assert type(batch) is Batch and batch.valid == len(batch.ids) == len(targets) and len(views) == 7
            assert torch.equal(targets, torch.from_numpy(labels))
            for view, expected in zip(views, want, strict=True):
                assert view.dtype == torch.uint8 and view.is_contiguous(memory_format=torch.channels_last)
                np.testing.assert_array_equal(view.permute(0, 2, 3, 1), expected)
            assert len(batch.ids) < 8 or (views[-1][:, 0, 0, 0] != views[-2][:, 0, 0, 0]).sum() > 4
        assert loader.stats().copies == 0


def test_multi_crop_is_that_of_dino() -> None:
    crops = list(MultiCrop())
    assert crops == [RandomResizedCrop(224, scale=(0.4, 1))] * 2 + [RandomResizedCrop(96, scale=(0.05, 0.4))] * 8
    assert MultiCrop(64, 32, num_local=1)[-1] == RandomResizedCrop(32, scale=(0.05, 0.4)) and len(MultiCrop(num_global=0)) == 8
    with pytest.raises(ValueError, match="RandomResizedCrop: scale is"):
        MultiCrop(local_scale=(0.4, 0.05))


def test_what_views_cannot_do_is_refused() -> None:
    path = stores.square("jpeg")
    dataset = LMDBDataset(path, crop=TWO)
    with pytest.raises(ValueError, match="crop is an empty list, but must have a crop for each view"):
        LMDBDataset(path, crop=[])
    with pytest.raises(ValueError, match="DALI cannot decode this dataset: it has several crops"):
        Loader(dataset, 8, backend="dali")
    with pytest.raises(ValueError, match="crop makes 2 views of an image, and its mask can follow only one"):
        MaskDataset(stores.masked(), crop=TWO)


def test_augment_gives_each_view_its_own_numbers() -> None:
    augment = Augment(pytest.importorskip("kornia").augmentation.RandomBrightness((0.0, 2.0), p=1.0))
    with Loader(LMDBDataset(stores.store("rgb"), crop=[CenterCrop(16)] * 3), 8, num_workers=0) as loader:
        batch = next(iter(loader))
    batch = batch.like((tuple(view * 0 + 100 for view in batch[0]), batch[1]))
    views = augment(batch)
    assert isinstance(views, tuple) and [list(view.shape) for view in views] == [[8, 3, 16, 16]] * 3
    drawn = torch.stack([view[:, 0, 0, 0] for view in views]).int()
    assert all((drawn[a] != drawn[b]).sum() > 5 for a, b in [(0, 1), (1, 2), (0, 2)])
    assert torch.equal(augment(batch[0][0], batch.ids, 0), views[0])  # the first view has those of an only one
    assert all(map(torch.equal, augment(batch[0], batch.ids, 0), views))
