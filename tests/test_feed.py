"""Batches ahead of the consumer: none waits for a later one, none is lost, and what is held comes back."""

from __future__ import annotations

import gc
import os
import re
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.errors import LoaderError
from fastdata.loader.engine import DevicePrefetchEngine as Feed
from fastdata.system.torch_private import arrived
from stores import sha, store
from support import engine_of, until, worker_processes


def augmented(**options: Any) -> LMDBDataset:
    return LMDBDataset(store("jpeg"), size=64, crop=RandomResizedCrop(16), hflip=0.5, **options)


# The queue, over an engine that does as it is told


class Engine:
    """Gives numbers; `made` says how many of them it has without waiting."""

    slots = None

    def __init__(self, made: int = 1 << 30, bad: Any = None) -> None:
        self.made, self.bad, self.given = made, bad or {}, list[int]()

    def receive(self, generation: int) -> Any:
        k = len(self.given)
        self.given.append(k)
        if k in self.bad:
            raise self.bad[k]
        return SimpleNamespace(request=SimpleNamespace(generation=generation)), (torch.tensor(k),)

    def ready(self) -> bool:
        return len(self.given) < self.made

    def alive(self) -> bool:
        return True

    def died(self, error: BaseException) -> bool:
        return "died" in str(error)


def feed(engine: Any, depth: int = 2) -> Feed:
    return Feed(engine, torch.device("cpu"), depth, pin=False)


def number(subject: Feed, generation: int = 0) -> int:
    return int(subject.receive(generation)[1][0])


def test_a_batch_is_not_held_back_by_one_that_is_not_made():
    engine = Engine(made=3)
    subject = feed(engine, depth=5)
    assert [number(subject) for _ in range(3)] == [0, 1, 2] and len(engine.given) == 3
    assert not subject.ready()
    assert number(subject) == 3 and len(engine.given) == 4, "the one that is asked for is waited for, no further one"
    engine.made = 9
    assert number(subject) == 4 and len(engine.given) == 9 and subject.ready()
    assert [number(subject) for _ in range(4)] == [5, 6, 7, 8] and len(engine.given) == 9


def test_another_generation_drops_batches_and_the_errors_of_batches_but_not_a_death():
    subject = feed(Engine(bad={2: OSError("of an old batch")}))
    assert number(subject, 0) == 0 and number(subject, 1) == 3 and number(subject, 1) == 4
    assert number(subject, 2) == 7, "5 and 6 were of generation 1"
    subject = feed(Engine(bad={1: RuntimeError("died")}))
    assert number(subject, 0) == 0
    with pytest.raises(RuntimeError, match="died"):
        number(subject, 1)


# What is there already, of torch's DataLoader


class Slow(Dataset[int]):
    """Sample 0 waits for a file."""

    def __init__(self, flag: Any) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> int:
        while k == 0 and not self.flag.exists():
            time.sleep(0.001)
        if k == 9:
            raise OSError("sample 9 is bad")
        return k


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_whether_the_next_batch_is_there_is_known_exactly(tmp_path):
    flag = tmp_path / "go"
    batches = iter(DataLoader(Slow(flag), 1, num_workers=2))
    until(lambda: arrived(batches) is False and len(batches._task_info[1]) == 2, 60)  # another one is there, not the next
    assert arrived(batches) is False
    flag.touch()
    until(lambda: arrived(batches))
    found = []
    with pytest.raises(OSError, match="sample 9 is bad"):
        while True:
            until(lambda: arrived(batches))
            started = time.perf_counter()
            found.append(int(next(batches)))
            assert time.perf_counter() - started < 1
    assert found == list(range(9)), "as without looking, in order, and an error in its place"
    found = [int(next(batches)) for _ in range(2)]
    assert found == [10, 11] and arrived(batches) is False, "the end is for the next one to find"
    assert next(batches, None) is None
    assert arrived(iter(DataLoader(TensorDataset(torch.arange(4)), 2))) is False, "made when it is asked for"
    assert arrived(iter([1])) is None


# The Loader


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


class Dies(Dataset[Any]):
    """Its worker ends at the fifth sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, k: int) -> torch.Tensor:
        if k == 4 and torch.utils.data.get_worker_info():
            time.sleep(0.2)
            os._exit(7)
        return torch.tensor(k)


def test_a_worker_that_dies_is_an_error_after_what_was_made_and_the_next_pass_works():
    with Loader(Dies(), 1, num_workers=1, device="cpu") as loader:
        found = []
        with pytest.raises(
            (LoaderError, RuntimeError), match=r"epoch 0, batch 4: a worker died|exited unexpectedly|exit"
        ) as caught:
            for batch in loader:
                found.append(int(batch))
        assert found == list(range(len(found))) and (len(found) == 4 or not isinstance(caught.value, LoaderError))
        assert not re.search("killed", str(caught.value))
