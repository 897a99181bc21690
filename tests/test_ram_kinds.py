"""RAMDataset of tokens and arrays: what the dataset that reads from disk gives, and what went in."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastdata
import stores
from fastdata import ArrayDataset, Loader, RAMDataset, RandomCrop, TokenDataset
from stores import folder, sha
from support import Array, memory_of, records_of


@cache
def tokens() -> tuple[Path, Array]:
    """Two and a half million tokens in two shards of several records, 0 between documents."""
    rng, root = np.random.default_rng(0), folder()
    everything = rng.integers(1, 60_000, 2_500_000).astype("<u2")
    everything[rng.integers(0, len(everything), 2000)] = 0
    everything[:1_500_000].tofile(root / "a.bin")
    everything[1_500_000:].tofile(root / "b.bin")
    return fastdata.prep(root, folder() / "o.fds", end_token="0", workers=1).out, everything


@cache
def volumes() -> tuple[Path, list[Array], list[Array]]:
    """A store, its arrays and their masks; chunks at the far ends are smaller."""
    rng, root = np.random.default_rng(1), folder()
    arrays = [rng.integers(0, 65_536, (40 + k, 33, 20), np.uint16) for k in range(6)]
    for name, found in (("in", arrays), ("masks", masks := [(a % 7).astype(np.uint8) for a in arrays])):
        (root / name).mkdir()
        for k, array in enumerate(found):
            np.save(root / name / f"{k}.npy", array)
    return fastdata.prep(root / "in", root / "o.fds", masks=root / "masks", chunk=16, workers=1).out, arrays, masks


# Tokens


MODES: list[dict[str, Any]] = [
    {"mode": "random"},
    {"mode": "sequential"},
    {"mode": "document"},
    {"mode": "sequential", "documents": "mask"},
    {"mode": "random", "documents": "align"},
]


def flat(batch: Any) -> list[Any]:
    """All tensors of a batch, in order, and its ids."""
    parts = [batch] if isinstance(batch, torch.Tensor) else list(batch)
    parts = [value for part in parts for value in (part.values() if isinstance(part, dict) else [part])]
    return [batch.ids.tolist(), *((p.dtype, p.shape, p.numpy().tobytes()) for p in parts)]


@pytest.mark.parametrize("share", [0, 0.4, None])
@pytest.mark.parametrize("options", MODES, ids=str)
def test_tokens_come_as_from_disk(options: dict[str, Any], share: float | None) -> None:
    path, everything = tokens()
    most = None if share is None else int(share * everything.nbytes)
    held = RAMDataset(path, block_size=700, max_bytes=most, **options)
    disk = TokenDataset(path, 700, **options)
    assert isinstance(held, RAMDataset) and isinstance(held, TokenDataset) and len(held) == len(disk)
    memory = memory_of(held)
    assert len(memory) == len(everything) if share is None else 2 * len(memory) <= most
    assert np.array_equal(memory, everything[: len(memory)]) and (share != 0.4 or len(memory) > 500_000)
    for one, two in ((held, disk), (held.split(0.6, seed=1)[0], disk.split(0.6, seed=1)[0])):
        first, second = (list(Loader(d, 64, shuffle=True, seed=3)) for d in (one, two))
        assert [flat(batch) for batch in first] == [flat(batch) for batch in second]


# Arrays


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("share", [0, 0.4, None])
def test_arrays_come_as_from_disk(share: float | None, workers: int) -> None:
    path, arrays, masks = volumes()
    total = sum(a.nbytes for a in (*arrays, *masks))
    options: dict[str, Any] = {"crop": RandomCrop((17, 9, 20), padding=2), "flips": (0.5, 0, 1), "ignore_index": 9}
    held = RAMDataset(path, max_bytes=None if share is None else int(share * total), **options)
    disk = ArrayDataset(path, **options)
    assert isinstance(held, RAMDataset) and isinstance(held, ArrayDataset)
    kept = sum(records.bytes.nbytes for records in records_of(held))
    assert kept == total if share is None else 0.9 * share * total <= kept <= share * total
    with Loader(held, 4, shuffle=True, seed=5, num_workers=workers) as one, Loader(disk, 4, shuffle=True, seed=5) as two:
        assert sha(one) == sha(two)
        assert not workers or one.stats().slots > 0
    assert len(held) == len(disk) and held.class_voxels == disk.class_voxels and held.name(2) == disk.name(2)


@pytest.mark.parametrize("most", [None, 200_000])
def test_whole_arrays_are_what_went_in(most: int | None) -> None:
    path, arrays, masks = volumes()
    held = RAMDataset(path, max_bytes=most).with_crop(None).subset([4, 0, 5])
    for (array, mask), k in zip(held, (4, 0, 5), strict=True):
        np.testing.assert_array_equal(array, arrays[k])
        np.testing.assert_array_equal(mask, masks[k])


def test_held_chunks_are_read_from_memory() -> None:
    path, arrays, _ = volumes()
    held = RAMDataset(path, shared=False)
    memory_of(held)[:] = 255
    assert (held[0][0] == 65_535).all() and not (ArrayDataset(path)[0][0] == 65_535).all()
    part = RAMDataset(path, max_bytes=100_000, shared=False)
    memory_of(part)[:] = 255
    np.testing.assert_array_equal(part[5][0], arrays[5])


# All kinds


MADE: dict[str, Any] = {
    "RAMImages": lambda: RAMDataset(stores.square()),
    "RAMTokens": lambda: RAMDataset(tokens()[0], block_size=64, mode="document"),
    "RAMArrays": lambda: RAMDataset(volumes()[0]),
}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[name], two[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


@pytest.mark.parametrize("name", MADE)
def test_it_pickles_small_and_says_what_it_is(name: str) -> None:
    dataset = MADE[name]()
    data = pickle.dumps(dataset)
    copy = pickle.loads(data)
    assert len(data) < 5000 and type(copy) is type(dataset) and type(copy).__name__ == name
    assert repr(copy) == repr(dataset) and repr(copy).startswith(f"{name}(")
    assert len(copy) == len(dataset) and all(same(copy[k], dataset[k]) for k in (0, 3, -1))
    assert all(isinstance(part, RAMDataset) for part in dataset.split(0.5, seed=0))


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("RAMTokens", {"crop": None, "block_size": 8}, TypeError, "unexpected keyword argument 'crop'"),
        ("RAMTokens", {}, TypeError, r"block_size"),
        ("RAMTokens", {"block_size": 8, "max_bytes": -1}, ValueError, r"max_bytes is -1, but must not be negative"),
        ("RAMArrays", {"hflip": 0.5}, TypeError, "unexpected keyword argument 'hflip'"),
        ("RAMImages", {"targets": [1]}, ValueError, "targets go with"),
    ],
)
def test_an_argument_of_another_kind_is_named(name: str, options: dict[str, Any], error: Any, message: str) -> None:
    path = {"RAMTokens": tokens, "RAMArrays": volumes}.get(name, lambda: [stores.square()])()[0]
    with pytest.raises(error, match=message):
        RAMDataset(path, **options)
