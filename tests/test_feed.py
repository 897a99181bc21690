"""Batches ahead of the consumer: none waits for a later one, none is lost, and what is held comes back."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
from torch.utils.data import Dataset

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from stores import sha, store
from support import engine_of, until, worker_processes


def augmented(**options: Any) -> LMDBDataset:
    return LMDBDataset(store("jpeg"), size=64, crop=RandomResizedCrop(16), hflip=0.5, **options)


class Slow(Dataset[int]):
    """Sample 3 waits for a file, and sample 9 is bad."""

    def __init__(self, flag: Any) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> int:
        while k == 3 and not self.flag.exists():
            time.sleep(0.001)
        if k == 9:
            raise OSError("sample 9 is bad")
        return k


@pytest.mark.parametrize("device", [None, "cpu"])
def test_no_batch_is_held_back_by_a_later_one_or_its_error(device, tmp_path):
    with Loader(Slow(tmp_path / "go"), 1, num_workers=2, device=device, device_prefetch=5) as loader:
        batches = iter(loader)
        assert [int(next(batches)) for _ in range(3)] == [0, 1, 2] and not engine_of(loader).ready()
        (tmp_path / "go").touch()
        until(lambda: engine_of(loader).ready())
        assert [int(next(batches)) for _ in range(6)] == [3, 4, 5, 6, 7, 8]
        with pytest.raises(OSError, match="sample 9 is bad"):
            next(batches)
        loader.set_epoch(0)
        again = iter(loader)
        assert [int(next(again)) for _ in range(2)] == [0, 1]
        loader.set_epoch(0)  # what was made ahead is dropped, with its errors
        assert [int(next(again)) for again in [iter(loader)] for _ in range(9)] == [*range(9)]


@pytest.mark.parametrize("workers", [0, 2])
def test_slots_come_back_after_passes_that_are_left(workers):
    in_flight = max(1, 2 * workers)
    with Loader(augmented(), 6, shuffle=True, num_workers=workers, device="cpu") as loader:
        first = sha(loader)
        for _ in range(12):
            loader.set_epoch(0)
            for batch in loader:
                assert sha([batch])[0] == first[0]
                break
        del batch
        loader.set_epoch(0)
        assert sha(loader) == first
        stats = loader.stats()
        assert (stats.copies, stats.slots) == (0, in_flight + 3 + 2 + 1) and stats.slots_in_use <= in_flight + 3
        feeding = engine_of(loader)
        slots = feeding.slots
    feeding.close()
    del feeding
    gc.collect()
    assert slots.in_use <= in_flight, "of these, nobody will hear"


def test_a_loader_that_is_let_go_leaves_nothing():
    before = worker_processes()
    loader = Loader(augmented(), 6, num_workers=2, device="cpu")
    next(iter(loader))
    feeding = weakref.ref(engine_of(loader))
    slots = weakref.ref(engine_of(loader).slots)
    del loader
    gc.collect()
    assert feeding() is None and slots() is None
    until(lambda: not worker_processes() - before, 5)
