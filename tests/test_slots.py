"""Slots: batches in shared memory that nobody overwrites while someone looks. None waits for a later one, and none is lost."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fastdata import CenterCrop, LMDBDataset, Loader, MaskDataset, RandomResizedCrop
from fastdata.loader.slots import Slots, Span
from stores import COUNT, masked, sha, store
from support import engine_of, until, worker_processes


def augmented(**options):
    return LMDBDataset(store("jpeg"), size=64, crop=RandomResizedCrop(16), hflip=0.5, **options)


def shared_maps():
    """How many pieces of our shared memory this process has mapped."""
    return sum("memfd:fastdata" in line for line in Path("/proc/self/maps").read_text().splitlines())


def same(loader):
    """The bytes of an epoch, each batch looked at and let go at once."""
    return [sha([batch])[0] for batch in loader]


KEPT = {
    "the tensor": lambda images: images,
    "a row": lambda images: images[1],
    "a channel": lambda images: images[:, 1],
    "detached": lambda images: images.detach(),
    "numpy": lambda images: images.numpy(),
    "a slice of numpy": lambda images: images.numpy()[2:, :, ::2],
    "dlpack": lambda images: torch.from_dlpack(images),
    "its storage": lambda images: images.untyped_storage(),
    "channels last": lambda images: images.permute(0, 2, 3, 1),
}


def content(kept):
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept)
    return (kept.numpy() if isinstance(kept, torch.Tensor) else kept).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", KEPT)
def test_whatever_is_kept_of_a_batch_never_changes(name, workers):
    with Loader(augmented(), 6, shuffle=True, num_workers=workers) as loader:
        kept, then = [], []
        for k, (images, _) in enumerate(batch for _ in range(3) for batch in loader):
            if k % 3 == 0:
                kept.append(KEPT[name](images))
                then.append(content(kept[-1]))
            del images
            assert [content(k) for k in kept] == then
    gc.collect()
    assert [content(k) for k in kept] == then, "and not when the loader is closed"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_ordinary_loop_needs_no_copies_and_gets_every_slot_back(workers):
    with Loader(augmented(), 6, shuffle=True, num_workers=workers) as loader:
        for _ in range(4):
            for images, targets in loader:
                assert len(images) == len(targets)
        stats = loader.stats()
        in_flight = max(1, 2 * workers)
        assert (stats.copies, stats.slots) == (0, in_flight + 4)
        assert stats.slot_bytes % (4096 * stats.slots) == 0 and stats.slot_bytes >= stats.slots * 6 * 16 * 16 * 3
        del images, targets
        gc.collect()
        assert loader.stats().slots_in_use <= in_flight


def test_who_keeps_more_than_the_slots_gets_copies_and_memory_stays_bounded():
    with Loader(augmented(), 6, shuffle=True, num_workers=2) as loader:
        kept = [batch for _ in range(3) for batch in loader]
        stats = loader.stats()
        assert stats.slots == 8 and stats.slots_in_use <= 8
        lent = {batch[0].untyped_storage().data_ptr() for batch in kept}
        assert len(lent) == len(kept) and stats.copies >= len(kept) - 4
        del kept
        gc.collect()
        assert loader.stats().slots_in_use <= 4
        before = loader.stats().copies
        for _ in loader:
            pass
        assert loader.stats().copies == before


def bad(pixels):
    if int(pixels.sum()) % 5 == 0:
        raise OSError("a bad one")
    return pixels


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_workers_leak_no_slot(workers):
    gc.collect()
    before = shared_maps()
    with Loader(augmented(transform=bad), 6, shuffle=True, num_workers=workers) as loader:
        for _ in range(6):
            with pytest.raises(OSError, match="a bad one"):
                list(loader)
        gc.collect()
        assert shared_maps() == before, "the workers have ended, and their slots with them"


def grow(pixels):
    return np.repeat(np.repeat(pixels, 2, 0), 2, 1).astype(np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_does_not_fit_into_a_slot_comes_in_memory_of_its_own(workers):
    dataset = LMDBDataset(store(), size=64, crop=CenterCrop(20), transform=grow)
    want = dataset.read_batch(range(COUNT), seed=0, epoch=0)[0]
    assert want.shape[1:] == (40, 40, 3) and want.dtype == np.float32
    with Loader(dataset, 5, num_workers=workers) as loader:
        for _ in range(3):
            assert np.array_equal(torch.cat([images for images, _ in loader]).permute(0, 2, 3, 1), want)
        assert loader.stats().slots_in_use <= max(1, 2 * workers)


def test_the_arrays_of_a_batch_lie_in_one_slot_at_multiples_of_64_bytes():
    dataset = MaskDataset(masked(), crop=CenterCrop(15))
    with Loader(dataset, 1, num_workers=0) as loader:
        for images, masks in loader:
            assert images.untyped_storage().data_ptr() == masks.untyped_storage().data_ptr()
            assert (images.data_ptr() % 4096, masks.data_ptr() - images.data_ptr()) == (0, 11 * 64)  # after 675 bytes
        assert loader.stats().slots > 0


SPANS = [Span(0, (10,), np.dtype(np.uint8))]


class Cudart:
    """CUDA's answers to page-locking, where there is no GPU; what was asked of it."""

    def __init__(self, code):
        self.code, self.asked = code, []

    def cudaHostRegister(self, start, size, flags):
        self.asked.append(("lock", start, size, flags))
        return self.code

    def cudaHostUnregister(self, start):
        self.asked.append(("unlock", start))


@pytest.mark.parametrize("code", [0, 2])
def test_slots_are_page_locked_once_and_a_refusal_is_said(monkeypatch, code):
    cudart = Cudart(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: cudart.asked.append(("wait", device.type)))
    slots = Slots(2, 10)
    start, size = slots.memory.array.ctypes.data, slots.nbytes
    with pytest.warns(UserWarning, match="did not page-lock") if code else contextlib.nullcontext() as warnings:
        slots.pin(torch.device("cpu"))
    assert not code or warnings[0].filename == __file__, "the line of the user's"
    (taken,) = slots.hand_out(slots.take(), SPANS)
    assert taken.shape == (10,) and cudart.asked == [("lock", start, size, 0)], "it serves, whatever CUDA said"
    del slots
    gc.collect()
    assert cudart.asked[1:] == ([] if code else [("wait", "cpu"), ("unlock", start)])


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_may_be_copied_by_the_user_and_let_go():
    with Loader(augmented(), 6, shuffle=True, num_workers=2) as loader:
        want = [images.clone() for _ in range(3) for images, _ in loader]
    found = []
    with Loader(augmented(), 6, shuffle=True, num_workers=2, pin_memory=True) as loader:
        for _ in range(3):
            for images, _ in loader:
                assert images.is_pinned()
                torch.cuda._sleep(20_000_000)
                found.append(images.to("cuda", non_blocking=True))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, want, strict=True))
