"""Loader(backend="dali"): the batches of backend="torch", whose order it must share exactly and whose pixels nearly."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, Resize
from fastdata.errors import FormatError, LoaderError
from fastdata.store.store import Store
from stores import COUNT, once, sha, store
from support import Corner, Shifted, until

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
        batches = iter(loader)
        ids = [next(batches).ids]
        assert threads() - before
        loader.close()
        until(lambda: not threads() - before)
        assert once(ids + [b.ids for b in batches], COUNT), "a closed loader goes on where it was"
    until(lambda: not threads() - before)


def test_a_batch_before_the_resumed_one_may_be_larger():
    found = []
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(augmented(), batch_sampler=[[0, 1, 2, 3], [4], [5]], seed=5, **backend) as loader:
            loader.load_state_dict(loader.state_dict() | {"consumed": 1})
            first = next(iter(loader))
            loader.load_state_dict(loader.state_dict() | {"consumed": 0})
            found.append([first, *loader])
    assert same(*found) and [len(batch[0]) for batch in found[0]] == [1, 4, 1, 1]


def test_a_batch_that_dali_alone_fails_at_is_an_error(monkeypatch):
    def spoilt(self, indices, **options):
        batch = encode(self, indices, **options)
        return batch._replace(jpegs=[bytes(999) if k == 20 else jpeg for k, jpeg in zip(indices, batch.jpegs, strict=True)])

    encode = LMDBDataset.encode_batch
    monkeypatch.setattr(LMDBDataset, "encode_batch", spoilt)
    before = threads()
    with Loader(augmented(), 8, **WITH_DALI) as loader:
        batches = iter(loader)
        assert [next(batches).ids[0] for _ in range(2)] == [0, 8]
        with pytest.raises(LoaderError, match=r'DALI could not decode a batch: .*backend="torch"'):
            next(batches)
        until(lambda: not threads() - before)
        monkeypatch.undo()
        assert [batch.ids[0] for batch in loader] == [0, 8, 16, 24, 32, 40], "another pass begins anew"


def test_a_damaged_record_of_a_store_is_the_same_error(tmp_path):
    path = tmp_path / "damaged.fds"
    shutil.copytree(store("jpeg"), path)
    opened = Store(path)
    record = bytes(opened.reader(opened.variant(None)).get(3))
    for shard in path.glob("*/shard-*.mdb"):
        shard.write_bytes(shard.read_bytes().replace(record, record[:700] + bytes(len(record) - 700)))
    told = []
    for backend in (WITH_DALI, WITH_TORCH):
        with Loader(LMDBDataset(path, crop=CenterCrop(80)), 2, **backend) as loader:
            batches = iter(loader)
            assert next(batches).ids.tolist() == [0, 1]
            with pytest.raises(FormatError, match=r"record 3 .*run fastdata verify") as caught:
                next(batches)
            told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CROPS)
def test_on_a_gpu(name):
    crop, *_ = CROPS[name]
    with Loader(augmented(crop=crop), 8, shuffle=True, seed=5, device="cuda", **WITH_DALI) as loader:
        batches = [*loader, *loader]
        assert all(each.is_cuda for batch in batches for each in batch)
        on_cpu = [batch.to("cpu") for batch in batches]
        list(loader)
        assert sha(batch.to("cpu") for batch in batches) == sha(on_cpu), "held batches stay as they are"
    with Loader(augmented(crop=crop), 8, shuffle=True, seed=5, **WITH_TORCH) as loader:
        assert same(on_cpu, [*loader, *loader], mean=2, most=255)
