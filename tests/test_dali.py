"""Loader(backend="dali"): the batches of backend="torch", whose order it must share exactly and whose pixels nearly."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import fastdata
from fastdata import Batch, CenterCrop, Crop, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, Resize
from stores import COUNT, once, sha, store
from support import until

pytest.importorskip("nvidia.dali")

WITH_DALI = {"backend": "dali", "num_workers": 2}
WITH_TORCH = {"backend": "torch", "num_workers": 0}


def augmented(**options):
    return LMDBDataset(store("jpeg"), **{"crop": RandomResizedCrop(48), "hflip": 0.5, "vflip": 0.3, **options})


def same(batches, others, mean=0.5, most=4):
    """Whether batches are the same but for how exactly their pixels are decoded and resized."""
    for batch, other in zip(batches, others, strict=True):
        assert batch.ids.tolist() == other.ids.tolist() and batch.ids.dtype == other.ids.dtype
        assert (batch.valid, batch.position) == (other.valid, other.position)
        assert torch.equal(batch[1], other[1]) and batch[1].dtype == other[1].dtype
        images, expected = batch[0], other[0]
        assert images.dtype == torch.uint8 and images.shape == expected.shape and images.stride() == expected.stride()
        off = (images.int() - expected.int()).abs().float()
        assert off.mean((1, 2, 3)).max() <= mean and off.max() <= most
    return True


def both(dataset, passes=2, **options):
    """The batches of some passes, with DALI and without."""
    found = []
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(dataset, **{"batch_size": 8, "shuffle": True, "seed": 5, **options, **backend}) as loader:
            found.append([batch for _ in range(passes) for batch in loader])
    return found


class Corner(Crop):
    """A corner of the image, resized."""

    draws = 2

    def boxes(self, u, heights, widths):
        h, w = heights // 2, widths // 2
        return np.stack([(u[0] < 0.5) * (heights - h), (u[1] < 0.5) * (widths - w), h, w], axis=1)


class Shifted(Crop):
    """A box that is not resized, and reaches outside."""

    draws, resizes, reaches_outside = 2, False, True

    def boxes(self, u, heights, widths):
        top, left = ((20 * (place - 0.5)).astype(int) for place in u)
        return np.stack([top, left, *(np.full_like(top, side) for side in self.shape)], axis=1)


CROPS = {
    "random": (RandomResizedCrop(48), 0.5, 4),
    "plain": (RandomResizedCrop((56, 72), antialias=False), 0.5, 4),
    "large": (RandomResizedCrop(16, scale=(0.9, 1.0)), 1.0, 8),  # decoded at half the size without DALI
    "center": (CenterCrop(60), 0.0, 0),
    "beyond": (CenterCrop((110, 90)), 0.0, 0),
    "padded": (RandomCrop(60, padding=12), 0.0, 0),
    "resize": (Resize((50, 60)), 0.5, 4),
    "upscaled": (Resize((150, 170), antialias=False), 0.5, 4),
    "own, resized": (Corner((30, 40)), 0.5, 4),
    "own, cut": (Shifted(60), 0.0, 0),
}


@pytest.mark.parametrize("name", CROPS)
def test_every_crop(name):
    crop, mean, most = CROPS[name]
    assert same(*both(augmented(crop=crop)), mean=mean, most=most)


def test_a_transform_that_is_set_meanwhile_is_refused():
    dataset = augmented()
    with Loader(dataset, 8, **WITH_DALI) as loader:
        batches = iter(loader)
        next(batches)
        dataset.transform = np.negative
        with pytest.raises(ValueError, match=r'it has a transform, .*use backend="torch"'):
            next(batches)


def gray_ramps(path, rows, columns):
    """A store of one image whose codes are 4 times the row, or the column; its JPEG is exact to a code."""
    image = np.add.outer(4 * np.arange(60) * rows, 4 * np.arange(60) * columns).astype(np.uint8)
    (path / "in").mkdir(parents=True)
    assert cv2.imwrite(str(path / "in" / "a.png"), image)
    fastdata.prep(path / "in", path / "out.fds", size=None, gray=True, quality=100, workers=1)
    return path / "out.fds"


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("flip", [False, True])
def test_boxes_lie_where_they_should(axis, flip, tmp_path):
    """On a ramp, each pixel of a sample says which place of the image it shows: half a pixel would be two codes."""
    path = gray_ramps(tmp_path, axis == 0, axis == 1)
    flips = {"vflip" if axis == 0 else "hflip": float(flip)}
    cases = (
        (Resize((30, 30)), np.arange(30) * 2 + 0.5),
        (Resize((120, 120)), np.clip(np.arange(120) / 2 - 0.25, 0, 59)),
        (CenterCrop(21), np.arange(21) + 20),  # torchvision rounds 19.5 up
    )
    for crop, places in cases:
        with Loader(LMDBDataset(path, crop=crop, **flips), 1, **WITH_DALI) as loader:
            ((images, _),) = loader
        assert images.shape[:2] == (1, 1)
        found = images[0, 0].float().mean(1 - axis).numpy()
        expected = (places[::-1] if flip else places) * 4
        inner = slice(2, -2)  # a triangle that reaches beyond the edge is cut off there
        assert np.abs(found - expected)[inner].max() < 1.0


def test_bytes_in_memory():
    assert same(*both(RAMDataset(store("jpeg"), crop=RandomResizedCrop(48), hflip=0.5)))
    one, two = RAMDataset(store("jpeg"), crop=CenterCrop(40)), LMDBDataset(store("jpeg"), crop=CenterCrop(40))
    assert same(*both(one + two.subset(range(5))), mean=0)


def test_set_epoch_and_a_schedule():
    schedule = {0: (64, 24), 1: (96, 48)}
    found = []
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(augmented(), 8, shuffle=True, seed=5, schedule=schedule, **backend) as loader:
            batches = [*loader, *loader]
            loader.set_epoch(7)
            batches += loader
        found.append(batches)
    assert same(*found)
    assert [b[0].shape[2] for b in found[0]] == [24] * 6 + [48] * 12


def test_a_batch_stays_as_it_is_while_it_is_held():
    with Loader(augmented(), 8, shuffle=True, **WITH_DALI) as loader:
        held = [batch for _ in range(8) for batch in loader]
        before = sha(held)
        assert len(list(loader)) == 6
    assert sha(held) == before
    with Loader(augmented(), 8, shuffle=True, **WITH_DALI) as loader:
        assert sha(b for _ in range(8) for b in loader) == before, "DALI makes the same again"


def threads():
    return {path.name for path in Path("/proc/self/task").iterdir()}


def test_a_pass_left_early_close_and_reopen():
    with Loader(augmented(), 8, shuffle=True, seed=5, **WITH_DALI) as loader:
        first = sha(loader)  # also starts the threads that libraries keep
        loader.close()
        before = threads()
        for stop in (1, 4):
            loader.set_epoch(0)
            assert sha(b for b, _ in zip(loader, range(stop), strict=False))[:stop] == first[:stop]
        old, new = iter(loader), iter(loader)
        with pytest.raises(fastdata.LoaderError, match="one pass at a time"):
            next(old)
        ids = [next(new).ids]
        assert threads() - before
        loader.close()
        until(lambda: not threads() - before)
        assert once(ids + [b.ids for b in new], COUNT), "a closed loader goes on where it was"
        assert loader.epoch == 2
        loader.set_epoch(0)
        assert sha(loader) == first
    until(lambda: not threads() - before)


def test_memory_stays_bounded():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with Loader(augmented(crop=RandomResizedCrop(256)), 32, **WITH_DALI) as loader:
        sizes = []
        for k in range(40):
            for batch in loader:
                assert len(batch[0])
            if k >= 10:
                sizes.append(resident())
    assert max(sizes) - sizes[0] < 10 * 32 * 3 * 256 * 256, "less than ten batches, where sixty were made"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CROPS)
def test_on_a_gpu(name):
    crop, *_ = CROPS[name]
    with Loader(augmented(crop=crop), 8, shuffle=True, seed=5, device="cuda", **WITH_DALI) as loader:
        batches = [*loader, *loader]
        assert all(each.is_cuda for batch in batches for each in batch) and loader.stats().fallbacks == 0
        before = sha(_on_cpu(batches))
        list(loader)
        assert sha(_on_cpu(batches)) == before, "held batches stay as they are"
    with Loader(augmented(crop=crop), 8, shuffle=True, seed=5, **WITH_TORCH) as loader:
        assert same(_on_cpu(batches), [*loader, *loader], mean=2, most=255)


def _on_cpu(batches):
    found = []
    for batch in batches:
        other = Batch(each.cpu() for each in batch)
        other.valid, other.ids, other.position = batch.valid, batch.ids, batch.position
        found.append(other)
    return found
