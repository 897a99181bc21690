"""Concatenation, and a change of crop: the same samples, still on the fast path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import fastdata
from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, RandomResizedCrop
from fastdata.images.dataset import ImageDataset
from stores import store
from support import write_pictures


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def test_a_concatenation_holds_the_samples_of_both_in_order() -> None:
    first = LMDBDataset(store(), size=64, crop=CenterCrop(20)).subset([5, 1, 1])
    second = RAMDataset(store(), size=96, crop=CenterCrop(20))
    both = first + second
    assert isinstance(both, ImageDataset) and len(both) == 3 + len(second)
    for k in (0, 1, 2, 3, 7, len(both) - 1, -1):
        part, local = (first, k) if 0 <= k < 3 else (second, k % len(both) - 3)
        assert _same(both[k][0], part[local][0]) and both[k][1] == part[local][1] and both.name(k) == part.name(local)
    np.testing.assert_array_equal(both.targets, np.concatenate([first.targets, second.targets]))
    assert both.classes == first.classes


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    part = LMDBDataset(store(), crop=CenterCrop(20))
    with pytest.raises(ValueError, match="differ in views"):
        _ = part + LMDBDataset(store(), crop=CenterCrop(21))
    write_pictures(tmp_path / "in" / "a", 1)
    gray = fastdata.prep(tmp_path / "in", tmp_path / "gray.fds", gray=True).out
    with pytest.raises(ValueError, match="differ in labels or pixels: prepare both with the same --classes"):
        _ = part + LMDBDataset(gray, crop=CenterCrop(20))


def test_with_crop_changes_how_and_not_which() -> None:
    train, val = LMDBDataset(store(), size=64, crop=RandomResizedCrop(16), hflip=0.5).split(0.5, seed=3)
    plain = val.with_crop(CenterCrop(24))
    assert type(plain) is LMDBDataset and [plain.name(k) for k in range(len(plain))] == [val.name(k) for k in range(len(val))]
    assert _same(plain[2][0], plain[2][0]) and plain[2][0].shape[1:] == (24, 24)
    assert val[2][0].shape[1:] == (16, 16) and train.crop == RandomResizedCrop(16)
    with pytest.raises(ValueError, match="hflip is 3"):
        val.with_crop(None, hflip=3)


def _looks(dataset: ImageDataset, sampler: list[int] | None, num_workers: int = 0) -> torch.Tensor:
    with Loader(dataset, 4, sampler=sampler, num_workers=num_workers, seed=5) as loader:
        return torch.cat([images for images, _ in loader])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_is_drawn_again_looks_otherwise_each_time(num_workers: int) -> None:
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(16))
    looks = _looks(dataset, [2, 4, 2, 2, 4, 2], num_workers)
    assert len({look.numpy().tobytes() for look in looks}) == 6
    assert torch.equal(looks[[0, 1]], _looks(dataset, [2, 4])), "the first time is the one of an epoch without repeats"


def test_a_row_that_stands_in_a_subset_again_looks_otherwise_each_time() -> None:
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(16))
    twice = dataset.subset([2, 4, 2, 2])
    looks = _looks(twice, None)
    assert len({look.numpy().tobytes() for look in looks}) == 4
    assert torch.equal(looks[:2], _looks(dataset.subset([2, 4]), None))
    assert torch.equal(_looks(twice.subset([2, 3]), None), looks[2:]), "in a subset of it, samples keep their random numbers"
    assert [twice.name(k) for k in range(4)] == [dataset.name(k) for k in (2, 4, 2, 2)]
    assert twice.targets.tolist() == dataset.targets[[2, 4, 2, 2]].tolist()


# ---------------------------------------------------------------------------------------------- indices and states that lie


def test_indices_mean_what_they_mean_to_torch_s_datasets() -> None:
    data = LMDBDataset(store(), size=64, crop=CenterCrop(20))
    drawn: list[list[int]] = [[0, -1], [-len(data), 3]]
    given: dict[str, Any]
    for given in ({"batch_sampler": drawn}, {"sampler": sum(drawn, []), "batch_size": 2}):  # noqa: RUF017
        with Loader(data, num_workers=0, **given) as loader:
            for (images, labels), (torchs, wanted) in zip(loader, DataLoader(data, **given), strict=True):
                assert _same(images, torchs) and torch.equal(labels, wanted)
    for wrong in (42, -43, (1 << 63) - 1):
        for given in ({"sampler": [1, wrong], "batch_size": 2}, {"batch_sampler": [[1], [wrong, 2]]}):
            message = f"gave the index {wrong}, but the dataset has 42 samples"
            with Loader(data, num_workers=0, **given) as loader, pytest.raises(IndexError, match=message):
                list(loader)

    class Names(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index * 2

    with Loader(Names(), 2, sampler=[1_000_000, -5], num_workers=0) as loader:
        assert [batch.tolist() for batch in loader] == [[2_000_000, -10]]


def test_a_state_that_does_not_fit_is_refused_and_nothing_moves() -> None:
    data = LMDBDataset(store(), size=64, crop=CenterCrop(20))
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 0}
    loader, generator = Loader(data, 8, **options), torch.Generator()
    next(iter(loader))
    before = loader.state_dict()
    places = [*(("consumed", value) for value in (-1, 43, 1.5, None)), *(("epoch", value) for value in (-1, 1 << 32, 0.0))]
    wrong = [({**before, key: value}, f"{key} is {value}") for key, value in places]
    wrong += [(Loader(data, 8, **{**options, "seed": 6}).state_dict(), "taken with seed 6, and this loader has 5: make them equal")]
    wrong += [(Loader(data, 8, **{**options, "shuffle": False}).state_dict(), "taken with shuffle False, and this loader has True")]
    wrong += [(Loader(data.subset(range(7)), 7, **options).state_dict(), "taken with num_samples 7, and this loader has 42")]
    wrong += [({**before, "sampler": True}, "sampler True, and this loader has False"), ({"epoch": 1}, "it has no consumed")]
    for state, match in wrong:
        with pytest.raises((TypeError, ValueError), match=match):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
    loader.load_state_dict(before)
    numpy_s = RandomSampler(data)
    numpy_s.rng = np.random.default_rng(0)  # type: ignore[attr-defined]
    for sampler in (RandomSampler(data, generator=generator), numpy_s):
        one, two = (Loader(data, 12, sampler=sampler, num_workers=0) for _ in range(2))
        next(iter(one))
        with pytest.raises(ValueError, match="the sampler's own generator"):
            two.load_state_dict(one.state_dict())
