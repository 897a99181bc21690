"""Images that stay on a device: the same batches, in the same order, as those of workers."""

from __future__ import annotations

import contextlib
import gc
import os
from functools import cache, partial

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import fastdata
from fastdata import (
    CenterCrop,
    CodecError,
    GPUNormalize,
    LMDBDataset,
    Loader,
    LoaderError,
    MaskDataset,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from fastdata.gpu.crops import Stack
from fastdata.loader import resident
from stores import COUNT, folder, sha, sources, square, store
from support import encode, picture

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
on_each_device = pytest.mark.parametrize("device", ["cpu", CUDA])


@cache
def deep():
    """A store of 16-bit images of one size."""
    root, out = folder() / "deep", folder() / "deep.fds"
    root.mkdir()
    for k in range(9):
        assert cv2.imwrite(str(root / f"{k}.png"), np.random.default_rng(k).integers(0, 1 << 16, (20, 24, 3), np.uint16))
    fastdata.prep(root, out, bits=16, codec="rgb", workers=1)
    return out


@cache
def masked(bits):
    """A store of images of one size with masks."""
    root, out = folder(), folder() / "masked.fds"
    for k in range(7):
        for name, pixels in (
            ("images", encode(picture(k, 22, 30), ".png")),
            ("masks", encode(np.random.default_rng(k).integers(0, 200, (22, 30)).astype(f"uint{bits}"), ".png")),
        ):
            (root / name).mkdir(exist_ok=True)
            (root / name / f"{k}.png").write_bytes(pixels)
    fastdata.prep(root / "images", out, masks=root / "masks", mask_bits=bits, codec="rgb", workers=1)
    return out


DATASETS = {
    "rgb": lambda **view: LMDBDataset(square(), **view),
    "jpeg": lambda **view: RAMDataset(square("jpeg"), **view),
    "gray": lambda **view: LMDBDataset(store("png", size=32, resize="crop", gray=True), **view),
    "uint16": lambda **view: LMDBDataset(deep(), **view),
    "masks": lambda **view: MaskDataset(masked(8), **view),
    "wide masks": lambda **view: RAMDataset(masked(16), ignore_index=777, **view),
    "subset": lambda **view: LMDBDataset(square(), **view).subset([5, 3, 5, 20, 41, 3, 0]),
    "joined": lambda **view: LMDBDataset(square(), **view).split(0.3, seed=1)[0] + LMDBDataset(square("jpeg"), **view),
}


def equal(ordinary, staying, device="cpu"):
    """Whether two passes agree in everything but where the tensors are."""
    for want, found in zip(ordinary, staying, strict=True):
        assert found.ids.tolist() == want.ids.tolist()
        assert (found.valid, found.position) == (want.valid, want.position)
        for a, b in zip(want, found, strict=True):
            assert b.device.type == device and b.dtype == a.dtype and b.shape == a.shape and b.stride() == a.stride()
            np.testing.assert_array_equal(b.cpu().numpy(), a.numpy())


def passes(dataset, device, *, epochs=2, skip=0, **options):
    options = {"shuffle": True, "seed": 7, **options}
    with Loader(dataset, num_workers=0, **options) as ordinary, Loader(dataset, num_workers=0, resident=device, **options) as mine:
        assert len(ordinary) == len(mine)
        for loader in (ordinary, mine):
            loader.set_epoch(skip)
        for _ in range(epochs):
            equal(ordinary, mine, device)
        assert ordinary.state_dict() == mine.state_dict()


crops = st.one_of(
    st.none(),
    st.builds(CenterCrop, st.sampled_from([1, 9, 16, 32, (40, 12), 51]), fast=st.booleans()),
    st.builds(RandomCrop, st.sampled_from([2, 16, 20, (3, 20)]), padding=st.sampled_from([0, 1, 4, 19])),
    st.just(RandomCrop(32, padding=14)),
    st.builds(Resize, st.sampled_from([20, (17, 40)])),
)


@pytest.mark.slow
@on_each_device
@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(DATASETS)),
    crop=crops,
    hflip=st.sampled_from([0.0, 0.5, 1.0]),
    vflip=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.sampled_from([0, 3, 2**31]),
    batch=st.integers(1, 11),
    rank=st.sampled_from([(0, 1), (0, 3), (2, 3)]),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_batches_are_those_of_the_ordinary_loader(device, name, crop, hflip, vflip, seed, epoch, batch, rank, shuffle, drop_last):
    plain = DATASETS[name](hflip=hflip, vflip=vflip)
    cut = plain.with_crop(crop, hflip=hflip, vflip=vflip)
    if len(plain) < batch * rank[1]:
        cut, drop_last = plain, False
    with contextlib.suppress(LoaderError):  # a box that is larger than the padded image: either says so
        options = {"seed": seed, "rank": rank[0], "world_size": rank[1], "shuffle": shuffle, "drop_last": drop_last}
        passes(cut, device, batch_size=batch, skip=epoch, **options)


def test_a_box_that_does_not_fit_is_refused_as_ever():
    with pytest.raises(LoaderError, match="does not fit into an image of 32 x 32"):
        next(iter(Loader(LMDBDataset(square(), crop=RandomCrop(40, padding=3)), 4, num_workers=0, resident="cpu")))


@on_each_device
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_load_it(workers, device, monkeypatch):
    monkeypatch.setattr(resident, "CHUNK", 5 * 32 * 32 * 3)  # several chunks, the last one shorter
    dataset = LMDBDataset(square("jpeg"), crop=RandomCrop(32, padding=4), hflip=0.5)
    with Loader(dataset, 8, shuffle=True, num_workers=workers, resident=device) as mine:
        with Loader(dataset, 8, shuffle=True, num_workers=0) as ordinary:
            equal(ordinary, mine, device)
        stats = mine.stats()
    assert (stats.batches, stats.samples, stats.slots, stats.copies) == (6, COUNT, 0, 0)


@on_each_device
def test_a_state_goes_from_one_to_the_other_in_mid_epoch_and_back(device):
    dataset = LMDBDataset(square(), crop=RandomCrop(24), hflip=0.5, vflip=0.5)
    make = partial(Loader, dataset, 4, shuffle=True, seed=3, num_workers=0)
    with make() as ordinary, make() as whole, make(resident=device) as mine:
        want = sha(whole)
        batches = iter(ordinary)
        done = sha(next(batches) for _ in range(2))
        mine.load_state_dict(ordinary.state_dict())
        batches = iter(mine)
        for _ in range(3):
            next(batches)
        state = mine.state_dict()
        ordinary.load_state_dict(state)
        assert done + want[2:5] + sha(ordinary) == want
        mine.load_state_dict(state)
        with make() as other:
            other.load_state_dict(state)
            equal(other, mine, device)  # the rest of the epoch
            equal(other, mine, device)


def test_sizes_are_loaded_anew():
    dataset = LMDBDataset(store("jpeg", size=(48, 32), resize="crop"), crop=CenterCrop(40))
    make = partial(Loader, dataset, 8, num_workers=0, schedule={0: (32, 24), 1: (48, 36)})
    with make() as ordinary, make(resident="cpu") as mine:
        for size in (None, None, 32):
            if size:
                ordinary.set_size(size), mine.set_size(size)
            equal(ordinary, mine)


def stacks():
    """Those in memory. Another test's error may hold one."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Stack]


@pytest.mark.slow
def test_a_batch_stays_what_it_is_and_close_gives_the_memory_back():
    before = len(stacks())
    with Loader(LMDBDataset(square(), crop=CenterCrop(32)), 8, num_workers=0, resident="cpu") as mine:
        batch = next(iter(mine))
        kept = batch[0].clone()
        batch[0].fill_(0)
        batch[1].fill_(0)
        again = next(iter(mine))
        assert torch.equal(again[0], kept) and again[1].tolist() == mine.dataset.targets[:8].tolist()
        assert len(stacks()) == before + 1
    assert len(stacks()) == before


def test_each_image_is_held_once():
    subset = LMDBDataset(square()).subset([4, 4, 9])
    before = stacks()
    with Loader(subset, 3, num_workers=0, resident="cpu") as mine:
        ((_, targets),) = list(mine)
        assert targets.tolist() == subset.targets.tolist()
        (stack,) = (found for found in stacks() if not any(found is old for old in before))
        assert stack.pixels == 2 * 32 * 32


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.sampled_from([torch.uint8, torch.uint16]), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_a_stack_cuts_what_numpy_cuts(seed, dtype, reach, height, width):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (5, 6, 7, 3)).astype(np.uint8 if dtype is torch.uint8 else np.uint16) * (
        1 if dtype is torch.uint8 else 257
    )
    stack = Stack(5, (6, 7, 3), dtype, 65 if reach else None, torch.device("cpu"))
    stack.put(0, torch.from_numpy(images[:3]))
    stack.put(3, torch.from_numpy(images[3:]))
    padded = np.pad(images, ((0, 0), (15, 15), (15, 15), (0, 0)), constant_values=65)
    if not reach:
        height, width = min(height, 6), min(width, 7)
    numbers = rng.integers(0, 5, 8)
    tops, lefts = (rng.integers(min(-reach, r), max(-reach, r) + 1, 8) for r in (6 - height + reach, 7 - width + reach))
    flips = rng.integers(0, 2, (8, 2))
    boxes = torch.from_numpy(np.stack([tops, lefts], 1))
    found = stack.cut(*stack.lines(torch.from_numpy(numbers), boxes, (height, width), torch.from_numpy(flips)))
    for made, n, top, left, (across, down) in zip(found.numpy(), numbers, tops + 15, lefts + 15, flips, strict=True):
        box = padded[n, top : top + height, left : left + width]
        np.testing.assert_array_equal(made, box[:: -1 if down else 1, :: -1 if across else 1])


def loader(dataset, **options):
    return Loader(dataset, 4, **{"num_workers": 0, "resident": "cpu", **options})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: loader(LMDBDataset(square(), crop=RandomResizedCrop(32))),
            "random crops that only cut, but RandomResizedCrop.* resizes: use RandomCrop",
        ),
        (lambda: loader(LMDBDataset(square(), transform=np.negative)), "transform batches on the device, or leave resident out"),
        (
            lambda: loader(LMDBDataset(store())),
            r"images of one size, .* x .*, \.\.\.: prepare with --resize crop --upscale,",
        ),
        (lambda: loader(TensorDataset(torch.arange(9))), "this is a TensorDataset: leave resident out"),
        (lambda: loader(LMDBDataset(square()), device="meta"), "resident is 'cpu' and device 'meta'"),
        (lambda: loader(LMDBDataset(square()), resident="cuda:1", device="cuda:0"), "resident is 'cuda:1' and device 'cuda:0'"),
        (
            lambda: loader(LMDBDataset(store("jpeg", size=(96, 32), resize="crop"), size=32), schedule={3: 96}),
            "needs images of one size, these have 64 x 64",
        ),
    ],
)
def test_what_can_not_stay_is_refused_at_once(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(ValueError, match=r"resident is 'cuda', .*: leave resident out"):
        loader(LMDBDataset(square()), resident="cuda")


def test_the_device_may_be_named_twice():
    with loader(LMDBDataset(square()), device="cpu", resident=torch.device("cpu")) as mine:
        assert mine.device == torch.device("cpu")


def test_what_does_not_fit_is_told_with_both_figures(monkeypatch):
    monkeypatch.setattr(resident, "free_memory", lambda: 100_000)
    with pytest.raises(LoaderError, match=r"42 decoded images take 0.000137 GB, but 0.0001 GB are free there: use a subset"):
        list(loader(LMDBDataset(square(), crop=RandomCrop(32, padding=1))))
    monkeypatch.setattr(resident, "free_memory", lambda: COUNT * 32 * 32 * 3)
    assert len(list(loader(LMDBDataset(square())))) == 11
    with pytest.raises(LoaderError, match="decoded images take"):  # the border counts
        list(loader(LMDBDataset(square(), crop=RandomCrop(32, padding=1))))


def test_the_error_of_a_worker_surfaces(tmp_path):
    paths = sorted(sources().rglob("*.png"))[::6]
    copies = [tmp_path / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.write_bytes(encode(cv2.resize(cv2.imread(str(path)), (24, 20)), ".png"))
    dataset = RAMDataset(copies, max_bytes=0)
    copies[5].unlink()
    for workers in (0, 2):
        with loader(dataset, num_workers=workers) as mine, pytest.raises((CodecError, fastdata.StoreError), match="cannot be read"):
            next(iter(mine))


class Deadly(LMDBDataset):
    def read_batch(self, indices, **options):
        if torch.utils.data.get_worker_info():
            os._exit(9)
        return super().read_batch(indices, **options)


def test_the_death_of_a_worker_is_told():
    with loader(Deadly(square()), num_workers=1) as mine, pytest.raises(LoaderError, match="a worker died while it loaded images"):
        next(iter(mine))


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("crop", "most"), [(None, 2), (RandomCrop(32, padding=4), 4)])
def test_the_host_never_waits_and_a_batch_is_a_few_kernels(crop, most):
    from torch.profiler import ProfilerActivity, profile

    dataset = LMDBDataset(square(), crop=crop, hflip=0.5 if crop else 0.0)
    normalize = GPUNormalize(0.5, 0.25, dtype=torch.bfloat16).cuda()
    with Loader(dataset, 2, shuffle=True, num_workers=0, resident="cuda") as mine:
        batches = iter(mine)
        next(batches)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for images, _ in batches:  # into the next block of batches, too
                normalize(images)
            rest = iter(mine)
            next(rest)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            next(rest)
            torch.cuda.synchronize()
    kernels = [
        e.name
        for e in seen.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    assert len(kernels) <= most, kernels


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_memory_is_counted_and_given_back():
    dataset = LMDBDataset(square())
    before = torch.cuda.memory_allocated()
    with Loader(dataset, 8, num_workers=2, resident="cuda") as mine:
        next(iter(mine))
        assert torch.cuda.memory_allocated() - before >= COUNT * 32 * 32 * 3
    gc.collect()
    assert torch.cuda.memory_allocated() == before
