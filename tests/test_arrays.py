"""Arrays and volumes from a store: every crop is numpy's slice, and only the chunks that it touches are read."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata
from fastdata import ArrayDataset, CenterCrop, Loader, RandomCrop, RandomResizedCrop
from fastdata.arrays.sections import touched
from fastdata.arrays.shards import default_chunk
from fastdata.data.random import uniforms
from fastdata.errors import LoaderError, StoreError
from stores import folder, write_files
from support import Array


def save(root: Path, arrays: dict[str, Array]) -> Path:
    """.npy files by name."""
    return write_files(root, {f"{name}.npy": array for name, array in arrays.items()})


def noise(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, 100, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, np.dtype(dtype).newbyteorder("="), endpoint=True).astype(dtype)


# Crops


CASES: dict[str, tuple[str, str, Any, list[tuple[int, ...]]]] = {  # dtype, channels, chunk, shapes as in the files
    "signals": ("uint8", "none", 100, [(1,), (250,), (99,)]),
    "images": ("uint16", "none", None, [(200, 300), (131, 90)]),
    "colours": ("uint8", "last", (20, 33), [(64, 64, 3), (50, 99, 3)]),
    "spectra": ("float16", "first", (9, 9), [(40, 20, 20), (40, 17, 31)]),
    "volumes": ("uint16", "none", None, [(40, 50, 70), (32, 32, 32), (65, 33, 12)]),
    "swapped": (">u2", "none", (16, 16, 16), [(20, 30, 40), (33, 17, 16)]),
    "scans": ("int16", "none", (10, 20, 30), [(11, 21, 31), (30, 40, 7)]),
    "modes": ("float32", "first", (8, 16, 16), [(4, 20, 30, 40), (4, 16, 16, 16)]),
    "films": ("float64", "none", None, [(5, 6, 20, 20), (3, 18, 17, 33)]),
    "counts": ("int32", "none", 7, [(8, 8, 8)]),
    "many": ("int64", "none", (2, 3, 2, 3, 2), [(3, 4, 5, 4, 3)]),
}


def mask_of(array: Array, channels: bool) -> Array:
    return (array[0] if channels else array).astype(np.int64) % 200


@cache
def made(case: str, masks: bool = False) -> tuple[Path, list[Array]]:
    """A store of a case, and its arrays as they should come: channels first."""
    dtype, channels, chunk, shapes = CASES[case]
    root, arrays = folder(), [noise(shape, dtype, k) for k, shape in enumerate(shapes)]
    save(root / "in", {f"{k}": np.asfortranarray(a) if k % 2 else a for k, a in enumerate(arrays)})
    options: dict[str, Any] = {"channels": channels, "chunk": chunk, "workers": 1}
    arrays = [np.moveaxis(a, -1, 0) if channels == "last" else a for a in arrays]
    if masks:
        options["masks"] = save(root / "masks", {f"{k}": mask_of(a, channels != "none") for k, a in enumerate(arrays)})
    made = fastdata.prep(root / "in", root / "o.fds", **options)
    for (found, _), whole in zip(ArrayDataset(made.out), arrays, strict=True):
        np.testing.assert_array_equal(found.numpy(), whole)
        assert found.numpy().dtype == whole.dtype.newbyteorder("=")
    return made.out, arrays


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from(list(CASES)), masks=st.booleans(), data=st.data())
def test_every_random_crop_is_numpy_s_slice_and_so_is_that_of_its_mask(case, masks, data):
    path, arrays = made(case, masks)
    channels = CASES[case][1] != "none"
    sides = tuple(data.draw(st.integers(1, 1 + min(a.shape[k] for a in arrays))) for k in range(channels, arrays[0].ndim))
    padding, seed, epoch = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 99))
    flips = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    dataset = ArrayDataset(path, crop=RandomCrop(sides, padding=padding), flips=flips)
    ids = np.arange(len(arrays))
    found, targets = dataset.read_batch(ids, seed=seed, epoch=epoch)
    u = uniforms(seed, epoch, ids, 2 * len(sides))
    for k, whole in enumerate(arrays):
        axes = [side + 2 * padding for side in whole.shape[channels:]]
        start = [int(x * (n - side + 1)) for x, n, side in zip(u[len(sides) :, k], axes, sides, strict=True)]
        box = tuple(slice(a, a + n) for a, n in zip(start, sides, strict=True))
        turned = tuple(slice(None, None, -1 if x < flips else 1) for x in u[: len(sides), k])
        every, around = (slice(None),) * channels, [(padding, padding)] * len(sides)
        padded = np.pad(whole, [(0, 0)] * channels + around)
        np.testing.assert_array_equal(found[k], padded[every + box][every + turned])
        if masks:
            assert targets.dtype == np.uint8
            np.testing.assert_array_equal(targets[k], np.pad(mask_of(whole, channels), around, constant_values=255)[box][turned])


def test_a_crop_of_a_large_volume_touches_at_most_four_times_its_bytes() -> None:
    """27 chunks of 32 x 32 x 32, wherever it begins."""
    chunk, starts = default_chunk(3, 2), np.random.default_rng(0).integers(0, 256 - 64 + 1, (200, 3)).tolist()
    read = [
        sum(math.prod(sides) for _, sides, _, _ in touched((256,) * 3, chunk, start, [n + 64 for n in start])) for start in starts
    ]
    assert chunk == (32, 32, 32) and max(read) <= 3.375 * 64**3


# Masks


def test_classes_of_masks():
    path, arrays = made("volumes", masks=True)
    want = np.bincount(np.concatenate([a.reshape(-1) % 200 for a in arrays]))
    dataset = ArrayDataset(path, crop=CenterCrop(99), ignore_index=7)
    assert dataset.class_voxels == dict(enumerate(want.tolist()))
    assert dataset[0][1][0, 0, 0] == 7
    for wrong in (-1, 256, 1.5):
        with pytest.raises(ValueError, match="ignore_index is"):
            ArrayDataset(path, ignore_index=wrong)


# The Loader


@cache
def labelled() -> Path:
    root = folder()
    save(root / "in", {f"{'ab'[k % 2]}/{k:02d}": noise((20 + k, 24, 30), "int16", k) for k in range(14)})
    return fastdata.prep(root / "in", root / "o.fds", workers=1).out


def test_subsets_and_splits():
    dataset = ArrayDataset(labelled(), crop=RandomCrop(6))
    train, val = dataset.split(0.5, seed=0, stratify=True)
    assert (len(train), len(val)) == (8, 6) and dataset.targets.tolist() == [0] * 7 + [1] * 7
    part = dataset.subset([9, 2, 9])
    found, targets = part.read_batch(np.arange(3), seed=0, epoch=0)
    assert targets.tolist() == [1, 0, 1] and not np.array_equal(found[0], found[2]), "each time it looks otherwise"
    whole = val.with_crop(CenterCrop((8, 8, 8)), flips=1.0)
    assert whole[0][0].shape == (8, 8, 8) and torch.equal(whole[0][0].flip(0, 1, 2), val.with_crop(CenterCrop(8))[0][0])


def test_arrays_of_unequal_shapes_make_no_batch():
    with Loader(ArrayDataset(labelled()), 2, num_workers=0) as loader:
        with pytest.raises(LoaderError, match=r"20 x 24 x 30, 22 x 24 x 30: give the dataset a crop"):
            next(iter(loader))
    with Loader(ArrayDataset(labelled()), 1, num_workers=1) as loader:
        assert [tuple(batch[0].shape) for batch in loader][:2] == [(1, 20, 24, 30), (1, 22, 24, 30)]


def test_wrong_arguments():
    wrong = {
        "must be None, RandomCrop, or CenterCrop without resize": [{"crop": RandomResizedCrop(8)}, {"crop": 8}],
        "an int or tuple of . ints": [{"crop": RandomCrop((8, 8))}],
        "flips is": [{"flips": 2}, {"flips": (0, 0, -1)}],
        "has no masks": [{"ignore_index": 0}],
    }
    for said, options in wrong.items():
        for option in options:
            with pytest.raises((TypeError, ValueError), match=said):
                ArrayDataset(labelled(), **option)
    with pytest.raises(StoreError, match="has no size 3"):
        Loader(ArrayDataset(labelled()), 1, schedule={0: 3})
