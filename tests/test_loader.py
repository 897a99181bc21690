"""The Loader: one seed, one result; exact resume; errors that surface; nothing left behind."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

from fastdata import LMDBDataset, Loader, RandomResizedCrop, Resize
from fastdata.errors import CodecError, LoaderError
from fastdata.loader import ranks
from stores import COUNT, deep, once, sha, store
from support import run, until, worker_processes

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def augmented(transform=None):
    return LMDBDataset(store(), size=64, crop=RandomResizedCrop(16), hflip=0.5, transform=transform)


class Foreign(torch.utils.data.Dataset):
    """Somebody else's dataset, which draws from all the generators there are."""

    def __len__(self):
        return 30

    def __getitem__(self, k):
        return torch.rand(3), torch.tensor([random.random(), np.random.rand(), k])  # noqa: NPY002


def noisy(pixels):
    return pixels ^ np.random.randint(0, 256, pixels.shape, np.uint8) ^ random.randrange(256)  # noqa: NPY002


DATASETS = {"ours": augmented, "transform": lambda: augmented(noisy), "foreign": Foreign}


UNGUARDED = """
import sys, torch
from torch.utils.data import TensorDataset
from fastdata import Loader

torch.multiprocessing.set_start_method(sys.argv[1], force=True)
list(Loader(TensorDataset(torch.arange(9)), 4, num_workers=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_guard_is_told_of(method, tmp_path):
    (tmp_path / "train.py").write_text(UNGUARDED)
    found = run(sys.executable, tmp_path / "train.py", method)
    assert found.returncode == 1
    assert re.search("a worker died: |workers cannot be started: ", found.stderr)
    assert 'a script needs `if __name__ == "__main__":` around' in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_the_start_method_changes_nothing(name):
    before, found = multiprocessing.get_start_method(), []
    for method in ("fork", "forkserver", "spawn"):
        multiprocessing.set_start_method(method, force=True)
        try:
            with Loader(DATASETS[name](), 8, shuffle=True, seed=3, num_workers=1) as loader:
                found.append(sha(loader))
        finally:
            multiprocessing.set_start_method(before, force=True)
    assert found[0] == found[1] == found[2]


def test_the_first_epoch_stays_what_it_is():
    """A seed in a paper means the same batches for as long as possible."""
    with Loader(TensorDataset(torch.arange(12)), 4, shuffle=True, seed=1, num_workers=0) as loader:
        assert [b.ids.tolist() for b in loader] == [[11, 10, 8, 4], [2, 5, 6, 0], [7, 3, 1, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch(workers):
    with Loader(augmented(), 8, num_workers=workers) as loader:
        assert len(loader) == 6
        batches = list(loader)
    for k, batch in enumerate(batches):
        rows = 8 if k < 5 else 2
        images, targets = batch
        assert images.shape == (rows, 3, 16, 16) and images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last) and images.permute(0, 2, 3, 1).is_contiguous()
        assert targets.dtype == torch.int64 and targets.tolist() == loader.dataset.targets[batch.ids].tolist()
        assert batch.valid == rows and batch.ids.tolist() == list(range(8 * k, 8 * k + rows)) and batch.ids.dtype == np.int64
        assert batch.position == (0, 8 * k + rows)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (6, COUNT) and stats.work_s > 0 and stats.wait_s > 0


# Epochs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("other", ["another pass", "set_epoch", "load_state_dict"])
def test_a_pass_that_was_overtaken_says_so(other, workers):
    with Loader(augmented(), 8, num_workers=workers) as loader:
        old = iter(loader)
        next(old)
        if other == "another pass":
            new = iter(loader)
            assert next(new).position == (1, 8)
        elif other == "set_epoch":
            loader.set_epoch(3)
        else:
            loader.load_state_dict(loader.state_dict())
        with pytest.raises(LoaderError, match="one pass at a time"):
            next(old)
        if other == "another pass":
            assert next(new).position == (1, 16), "the newer pass is not disturbed"
        else:
            assert next(iter(loader)).position == ((3, 8) if other == "set_epoch" else (0, 16))


def test_the_batches_ahead_are_used_where_nobody_saw_the_end():
    """Workers make the next epoch's first batches meanwhile: a pass that is driven by its length must not throw them away."""
    seen = []

    class Told(TensorDataset):
        def __getitem__(self, k):
            seen.append(k)
            return super().__getitem__(k)

    with Loader(Told(torch.arange(COUNT)), 8, shuffle=True, num_workers=0) as loader:
        for _ in range(2):
            list(itertools.islice(loader, len(loader)))
        assert len(seen) == 2 * COUNT and once([seen[:COUNT]], COUNT)


def test_the_epoch_can_be_told_where_a_dataloader_has_its_sampler():
    with Loader(augmented(), 8, shuffle=True, num_workers=2) as loader:
        epochs = [sha(loader) for _ in range(3)]
        loader.sampler.set_epoch(2)  # timm and torch's examples
        assert sha(loader) == epochs[2]
        loader.batch_sampler.set_epoch(1)
        batches = iter(loader)
        loader.sampler.set_epoch(1)  # Lightning also calls it after iter()
        assert sha(batches) == epochs[1]
        with pytest.raises(LoaderError, match="cannot be rebuilt from its sampler"):
            list(loader.sampler)
        assert not isinstance(loader.sampler, SequentialSampler)
    assert isinstance(Loader(augmented(), 8).sampler, SequentialSampler)


def test_wrong_arguments():
    def wrong(match, dataset=None, error=ValueError, **options):
        with pytest.raises(error, match=match):
            Loader(augmented() if dataset is None else dataset, **{"num_workers": 0, **options})

    wrong("give either batch_size .* or global_batch_size .*")
    wrong("global_batch_size is 2, but must be at least 3, one sample for each rank", global_batch_size=2, rank=0, world_size=3)
    wrong("multiple of 3, the number", global_batch_size=10, rank=0, world_size=3, sampler=DistributedSampler(range(42), 3, 0))
    wrong("seed is -1, but must be from 0", batch_size=8, seed=-1)
    wrong("sampler decides the order", batch_size=8, sampler=range(3), shuffle=True)
    wrong("needs a len", batch_size=8, sampler=iter([1]))
    wrong("has .* samples, fewer than one batch of 64", batch_size=64, drop_last=True)
    wrong("give both rank and world_size", batch_size=8, rank=0)
    wrong("rank is 2 of world_size 2, but must be from 0", batch_size=8, rank=2, world_size=2)
    for name in ("seed", "batch_size", "global_batch_size"):
        wrong(f"{name} is 8.0, but must be a whole number", error=TypeError, **{name: 8.0})
    wrong("datasets with len", batch_size=8, dataset=iter([1]), error=TypeError)
    for epoch in (-1, 2**32 - 1, 2**32):
        with pytest.raises(ValueError, match=f"epoch is {epoch}, but must be from 0 to 4294967294"):
            Loader(augmented(), 8, num_workers=0).set_epoch(epoch)


@pytest.mark.parametrize("into", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_is_another_one(into):
    loader = Loader(augmented(), 8, shuffle=True, num_workers=1)
    next(iter(loader))
    with pytest.raises(TypeError, match=r"a running Loader cannot be pickled: .*, or close\(\) it first"):
        into(loader)
    loader.close()
    with loader, into(loader) as other:
        batches = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(loader, other, strict=True)]
        assert all(one == two for one, two in batches) and once([one for one, _ in batches], COUNT)
        other.set_epoch(7)
        next(iter(other))
        assert loader.epoch == 2 and loader.stats().batches == len(loader) + 1


# What must not be touched or left


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_the_users_generators_stay_as_they_are(name, workers, monkeypatch):
    dataset = DATASETS[name]()
    if not workers:  # in a worker, torch's own loop seeds everything
        monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the GPUs' generators belong to the training"))
    states = lambda: (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: E731, NPY002
    before = states()
    with Loader(dataset, 8, shuffle=True, num_workers=workers) as loader:
        assert states() == before
        for _ in loader:
            assert states() == before
    assert states() == before


def no_workers(before):
    until(lambda: not worker_processes() - before, 5)


def test_close_and_the_context_manager_end_the_workers():
    before = worker_processes()
    with Loader(augmented(), 8, num_workers=2) as loader:
        next(iter(loader))
        assert len(worker_processes() - before) == 2
    no_workers(before)
    loader.close()
    assert len(list(loader)) == 6
    loader.close()
    no_workers(before)


class Short:
    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(7))


def raises_its_own(pixels):
    class Local(Exception):
        pass

    raise Local("nobody else knows this class")


def fails(pixels):
    if int(pixels.sum()) % 3 == 0:
        raise CodecError("a colour that nobody likes", "ugly")
    return pixels


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_users_keeps_its_type_and_its_place(workers):
    before = worker_processes()
    loader = Loader(augmented(fails), 8, num_workers=workers)
    with pytest.raises(CodecError, match="a colour that nobody likes") as caught:
        list(loader)
    if workers:
        assert re.search(r"Traceback.*in fails\n", str(caught.value), re.DOTALL)
    with Loader(augmented(raises_its_own), 8, num_workers=workers) as loader, pytest.raises(Exception, match="nobody else knows"):
        list(loader)
    with pytest.raises(LoaderError, match=r"the sampler ended after 7 indices, but its len\(\) is 10") as kept:
        list(Loader(augmented(), 4, sampler=Short(), num_workers=workers))
    no_workers(before)
    assert kept.value


def test_torch_s_defaults_may_be_others():
    path = deep()
    dataset = LMDBDataset(path, crop=Resize((11, 13)))
    want = torch.from_numpy(dataset.read_batch(range(6), seed=0, epoch=0)[0])
    for workers in (0, 1):
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        try:
            with Loader(dataset, 3, num_workers=workers) as loader:
                found = [images for images, _ in loader]
            assert dataset[0][0].device.type == "cpu"
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
        assert torch.equal(torch.cat(found).permute(0, 2, 3, 1), want)


@pytest.mark.parametrize("when", ["while it waits", "between passes"])
def test_a_killed_worker_is_an_error_not_a_hang_and_the_next_pass_works(when):
    before = worker_processes()
    with Loader(augmented(), 2, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        (victim, *_) = sorted(worker_processes() - before)
        if when == "while it waits":
            started = time.monotonic()
            with subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -9 {victim}"]):
                os.kill(victim, signal.SIGSTOP)  # so that its batch does not come
                with pytest.raises((LoaderError, RuntimeError), match=r"a worker died|killed by signal"):
                    list(iterator)
            assert time.monotonic() - started < 10
            no_workers(before)
        elif multiprocessing.get_start_method() == "forkserver":  # the worker is no child of this process, so torch hears nothing
            os.kill(victim, signal.SIGKILL)
            until(lambda: victim not in worker_processes())
        else:
            with pytest.raises(RuntimeError, match="killed by signal"):  # torch's signal handler speaks up wherever the program is
                die(victim)
        assert once([b.ids for b in loader], COUNT)


def test_workers_that_take_long_are_named_and_their_batches_come(monkeypatch):
    monkeypatch.setattr("fastdata.loader.workers.CHECK_S", 0.1)
    before = worker_processes()
    with Loader(augmented(), 2, num_workers=2) as loader:
        batches = iter(loader)
        found = [next(batches).ids]
        (victim, *_) = sorted(worker_processes() - before)
        os.kill(victim, signal.SIGSTOP)
        monkeypatch.setattr("fastdata.loader.workers.PATIENCE_S", 0.2)
        advice = rf"no batch has come for 0 s: the workers .*{victim}.*py-spy dump"
        with subprocess.Popen(["/bin/sh", "-c", f"sleep 1; kill -CONT {victim}"]), pytest.warns(UserWarning, match=advice):
            found += [batch.ids for batch in batches]
        assert once(found, COUNT)


def die(victim):
    os.kill(victim, signal.SIGKILL)
    time.sleep(5)


def test_workers_of_a_loader_in_a_reference_cycle_end_at_once():
    """Every Trainer of Lightning's is one, and so is every traceback. torch waits for each worker in vain, five seconds long."""
    cycle = [Loader(augmented(), 8, num_workers=2)]
    cycle.append(cycle)
    list(cycle[0])
    started = time.monotonic()
    del cycle
    gc.collect()
    assert time.monotonic() - started < 4


# Where it runs


@pytest.mark.parametrize(("local", "workers"), [(None, 8), ("1", 8), ("2", 4), ("3", 2), ("16", 1)])
def test_workers_are_the_cores_shared_with_the_ranks_of_the_machine(monkeypatch, local, workers):
    monkeypatch.setattr(ranks, "available_cores", lambda: 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOCAL_WORLD_SIZE", raising=False) if local is None else patch.setenv("LOCAL_WORLD_SIZE", local)
        assert Loader(augmented(), 2).num_workers == workers
        assert Loader(augmented(), 30).num_workers == min(workers, 2), "no more than batches"
