"""Which backend a Loader takes, and what it says about it; with DALI installed and without."""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import pytest
import torch

from fastdata import CenterCrop, LMDBDataset, Loader, MissingExtraError, RAMDataset, RandomResizedCrop
from stores import COUNT, folder, sha, store
from support import encode, picture, run_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture
def no_dali(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["nvidia", "dali"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)


def photos(**options):
    return LMDBDataset(store("jpeg"), **{"crop": RandomResizedCrop(32), "hflip": 0.5, **options})


def test_torch_unless_asked_otherwise():
    loader = Loader(photos(), 8)
    assert (loader.backend, loader.backend_reason) == ("torch", "it was requested")
    with pytest.raises(ValueError, match=r'backend is .tensorflow., but must be "torch", "dali", "auto", or such as'):
        Loader(photos(), 8, backend="tensorflow")


def test_datasets_that_dali_does_not_take():
    cases = (
        (LMDBDataset(store()), "not held as JPEGs"),
        (RAMDataset(store("jpeg"), decoded=True), "not held as JPEGs"),
        (photos(transform=np.flipud), "has a transform"),
        ([1, 2, 3], "a list has no images"),
    )
    for dataset, reason in cases:
        with pytest.raises(ValueError, match=f'backend is "dali".*{reason}.*use backend="torch"'):
            Loader(dataset, 2, backend="dali")
        with Loader(dataset if isinstance(dataset, list) else dataset.subset([0]), 1, num_workers=0, backend="auto") as loader:
            assert loader.backend == "auto" and "first pass" in loader.backend_reason
            assert len(list(loader)) == len(loader)
            assert loader.backend == "torch" and reason in loader.backend_reason


def test_without_dali(no_dali):
    with pytest.raises(MissingExtraError, match="pip install nvidia-dali-cuda1"):
        Loader(photos(), 8, backend="dali")
    with Loader(photos(), 8, num_workers=0, backend="auto") as loader, Loader(photos(), 8, num_workers=0) as other:
        assert sha(loader) == sha(other)
        assert loader.backend == "torch" and "not installed" in loader.backend_reason


def generators():
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002


@pytest.mark.slow
def test_auto_measures_and_changes_nothing():
    pytest.importorskip("nvidia.dali")
    options = {"batch_size": 8, "shuffle": True, "seed": 5, "num_workers": 1}
    with Loader(photos(), **options) as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
    with Loader(photos(), **options, backend="auto") as loader:
        loader.load_state_dict(state)
        before, started = generators(), time.monotonic()
        batches = iter(loader)
        found = [next(batches)]
        spent = time.monotonic() - started
        assert generators() == before
        assert loader.stats().batches == 1 and loader.stats().wait_s < spent / 2, "measuring is not waiting for a batch"
        found += [*batches, *loader]
        assert loader.backend in ("torch", "dali")
        assert "images/s" in loader.backend_reason and "torch" in loader.backend_reason and "dali" in loader.backend_reason
        assert loader.stats().samples == 2 * COUNT - 8
    with Loader(photos(), **options, backend=loader.backend) as chosen:
        chosen.load_state_dict(state)
        assert sha(found) == sha([*chosen, *chosen])


def test_auto_of_images_that_can_not_be_decoded(tmp_path):
    pytest.importorskip("nvidia.dali")
    (tmp_path / "a.jpg").write_bytes(encode(picture(0, 60, 80))[:3000])
    dataset = RAMDataset([tmp_path / "a.jpg"], crop=CenterCrop(40))
    with Loader(dataset, 1, num_workers=0, backend="auto") as loader, pytest.raises(Exception, match="cannot be decoded"):
        list(loader)
    assert loader.backend == "torch" and "could not be measured: StoreError" in loader.backend_reason


RANKS = """
import sys
from pathlib import Path
import torch
import fastdata.loader.backend as backend
from fastdata import LMDBDataset, Loader, RandomResizedCrop

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
if rank:
    backend._choose = lambda *_: sys.exit("only rank 0 measures")
with Loader(LMDBDataset(sys.argv[1], crop=RandomResizedCrop(32)), 4, num_workers=1, backend="auto") as loader:
    count = sum(batch.valid for batch in loader)
    Path(sys.argv[2], str(rank)).write_text(f"{loader.backend} {count} {loader.backend_reason}")
torch.distributed.barrier()  # or the threads of one may take the end of the other for a failure
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_rank_0_decides_for_all():
    out = folder()
    (out / "script.py").write_text(RANKS)
    assert run_ranks(2, sys.executable, out / "script.py", store("jpeg"), out) == 0
    first, second = ((out / str(rank)).read_text() for rank in range(2))
    assert first == second and first.split()[1] == str(COUNT // 2) and first.split()[0] in ("torch", "dali")
