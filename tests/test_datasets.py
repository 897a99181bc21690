"""Datasets: samples, subsets, splits, pickling, torch's own DataLoader, and what they say about wrong arguments."""

from __future__ import annotations

import operator
import pickle
import random
from collections import Counter

import albumentations
import kornia.augmentation
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

import stores
from fastdata import (
    ArrayDataset,
    CenterCrop,
    LMDBDataset,
    Loader,
    MaskDataset,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    TableDataset,
    TokenDataset,
)
from fastdata.errors import LoaderError, StoreError
from stores import CLASSES, COUNT, deep, floats, sources, square, store, unlabelled, whole
from test_masks import masked

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.mark.parametrize("codec", ["rgb", "jpeg", "png"])
def test_samples_are_the_stored_images_with_their_targets(codec):
    dataset = LMDBDataset(store(codec), size=64)
    assert len(dataset) == COUNT and dataset.classes == list(CLASSES) and [*map(dataset.class_to_idx.get, CLASSES)] == [0, 1, 2]
    assert dataset.targets.dtype == np.int64 and dataset.targets.tolist() == [k // 14 for k in range(COUNT)]
    names = [dataset.name(k) for k in range(COUNT)]
    assert names == [str(p.relative_to(sources())) for p in sorted(sources().rglob("*.png"))]
    for k, pixels in enumerate(whole(store(), 64)):
        image, target = dataset[k]
        assert image.dtype == torch.uint8 and image.shape == (3, *pixels.shape[:2]) and image.permute(1, 2, 0).is_contiguous()
        assert type(target) is int and target == k // 14
        error = np.abs(image.permute(1, 2, 0).numpy().astype(int) - pixels)
        assert error.mean() < 4 if codec == "jpeg" else error.max() == 0


def test_labels_of_other_kinds():
    unlabeled = LMDBDataset(unlabelled())
    assert unlabeled.classes == [] and unlabeled[2][1] == -1 and unlabeled.targets.tolist() == [-1] * 5
    dataset = LMDBDataset(floats())
    assert dataset.classes == ["quarter", "minus"] and dataset.targets.dtype == np.float32
    _, target = dataset[3]
    assert target.dtype == torch.float32 and target.tolist() == [0.75, -3]
    target += 1  # it is the caller's own
    assert dataset[3][1].tolist() == [0.75, -3]
    _, targets = dataset.read_batch([1, 5], seed=0, epoch=0)
    assert targets.dtype == np.float32 and targets.tolist() == [[0.25, -1], [1.25, -5]]


def same(a, b):
    assert a[1] == b[1]
    assert torch.equal(a[0], b[0])


@pytest.mark.parametrize(
    "indices",
    [[5, 0, 41, 5], [-1, -42], np.arange(0, 42, 5), torch.tensor([3, 1]), np.arange(42) % 7 == 0, [k == 3 for k in range(42)], [],
     range(3), np.array([40, 2], np.uint8)],
    ids=["list", "negative", "array", "tensor", "mask", "list mask", "empty", "range", "uint8"],
)  # fmt: skip
def test_a_subset_is_the_chosen_samples_in_that_order(indices):
    dataset = LMDBDataset(store(), size=64)
    subset, chosen = dataset.subset(indices), np.arange(42)[np.asarray(indices, None if len(indices) else int)].tolist()
    assert type(subset) is LMDBDataset and len(subset) == len(chosen) and subset.classes == dataset.classes
    assert subset.targets.tolist() == [k // 14 for k in chosen]
    for place, k in enumerate(chosen):
        same(subset[place], dataset[k])
        assert subset.name(place) == dataset.name(k)
    if chosen:
        same(subset[-1], dataset[chosen[-1]])
    with pytest.raises(IndexError):
        subset[len(chosen)]


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        *(([index], IndexError) for index in (COUNT, -COUNT - 1)),
        *((wrong, TypeError) for wrong in ([0.5], [[1, 2]], 3, np.ones(COUNT - 1, bool), ["a"])),
    ],
)
def test_a_wrong_subset_is_refused(indices, error):
    with pytest.raises(error, match=r"subset.*42"):
        LMDBDataset(store()).subset(indices)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.73])
@pytest.mark.parametrize("stratify", [False, True])
def test_a_split_is_disjoint_complete_and_the_same_for_the_same_seed(fraction, stratify):
    dataset = LMDBDataset(store())
    first, second = dataset.split(fraction, seed=4, stratify=stratify)
    a, b = ([part.name(k) for k in range(len(part))] for part in (first, second))
    names = [dataset.name(k) for k in range(COUNT)]
    assert sorted(a + b) == sorted(names) and not set(a) & set(b)
    assert a == [n for n in names if n in a] and b == [n for n in names if n in b]  # order kept
    if stratify:
        assert Counter(first.targets.tolist()) == dict.fromkeys(range(3), round(fraction * 14))
    else:
        assert len(a) == round(fraction * COUNT)
    again = dataset.split(fraction, seed=4, stratify=stratify)[0]
    assert [again.name(k) for k in range(len(again))] == a
    other = dataset.split(fraction, seed=5, stratify=stratify)[0]
    assert [other.name(k) for k in range(len(other))] != a


def test_stratify_needs_classes():
    with pytest.raises(ValueError, match=r"stratify needs classes.*'vector'"):
        LMDBDataset(floats()).split(0.5, seed=0, stratify=True)
    with pytest.raises(ValueError, match="'none'"):
        LMDBDataset(unlabelled()).split(0.5, seed=0, stratify=True)


def test_transform_comes_after_crop_and_flips():
    def transform(pixels):
        assert pixels.shape == (24, 30, 3) and pixels.flags.c_contiguous and pixels.flags.writeable
        return np.rot90(255 - pixels)[:, :20]

    plain = LMDBDataset(store(), size=64, crop=CenterCrop((24, 30)), hflip=1)
    image = plain.with_crop(CenterCrop((24, 30)), hflip=1, transform=transform)[5][0]
    np.testing.assert_array_equal(image.permute(1, 2, 0), np.rot90(255 - plain[5][0].permute(1, 2, 0).numpy())[:, :20])


def test_a_dataset_pickles_small_and_comes_back_the_same():
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(24), hflip=0.5, vflip=0.5)
    many = dataset.subset(np.arange(100_000) % COUNT)
    for d in (dataset, many):
        data = pickle.dumps(d)
        assert len(data) < 10_000
        copy = pickle.loads(data)
        assert len(copy) == len(d) and repr(copy) == repr(d) and copy.classes == d.classes
        assert np.array_equal(copy.read_batch([0, 41, 7], seed=0, epoch=0)[0], d.read_batch([0, 41, 7], seed=0, epoch=0)[0])
        np.testing.assert_array_equal(copy.targets, d.targets)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_torchs_dataloader_with_every_start_method_after_the_parent_has_read(method):
    for make in (LMDBDataset, RAMDataset):
        dataset = make(store("jpeg"), size=64, crop=CenterCrop(24)).subset(range(2, 40))
        direct = torch.stack([dataset[k][0] for k in range(38)])
        loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=method)
        images, targets = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert torch.equal(images, direct) and targets.tolist() == dataset.targets.tolist()


def test_wrong_arguments_name_what_was_asked_found_and_what_to_do(tmp_path):
    path, files, notes = store(), sorted(sources().rglob("*.png")), tmp_path / "notes.txt"
    notes.write_text("hello")
    (tmp_path / "work").mkdir()
    for says, make in (
        (r"has no size 224; it has 64, 96|has no size 224; it has 96, 64", lambda: LMDBDataset(path, size=224)),
        ("no store at .*: there is no such folder", lambda: LMDBDataset(tmp_path / "no")),
        ("is not finished", lambda: RAMDataset(tmp_path)),
        (r"targets are int64 \(3,\), expected int \[42\] or float", lambda: RAMDataset(files, [1, 2, 3])),
        ("notes.txt cannot be decoded: .*; leave it out", lambda: RAMDataset([*files[:2], notes])),
        ("gone.png cannot be read: No such file or directory", lambda: RAMDataset([tmp_path / "gone.png"])),
    ):
        with pytest.raises((StoreError, ValueError), match=says):
            make()


@pytest.mark.parametrize(
    ("crop", "match"),
    [
        (None, r"images of one size, but .* \d+ x \d+, .*: give the dataset crop=.*, or prepare with --size 224 --resize crop$"),
        (Resize(32), r"does not fix the size; use Resize\(\(height, width\)\) or CenterCrop"),
        (RandomCrop(97), r"RandomCrop\(97, padding=0\) does not fit into a sample of \d+ x \d+: use more padding"),
    ],
)
def test_batches_that_cannot_be_made_are_errors_that_name_the_fix(crop, match):
    with Loader(LMDBDataset(store(), crop=crop), 8, num_workers=0) as loader, pytest.raises(LoaderError, match=match):
        list(loader)


# A user's transform: what it takes and gives back, when it may be set, and that its random numbers belong to the sample

CROP = CenterCrop((12, 16))


def plain(transform=None, **options):
    return LMDBDataset(square(), crop=CROP, transform=transform, **options)


def pixels(dataset, seed=0, epoch=0):
    """All samples, [n, H, W, C]."""
    return dataset.read_batch(np.arange(len(dataset)), seed=seed, epoch=epoch)[0]


# What it takes, and what it gives back


def of_tensors(image: torch.Tensor):
    assert image.dtype == torch.uint8 and image.shape == (3, 12, 16)
    return image.flip(-1)


def of_pil(image: Image.Image):
    assert image.size == (16, 12)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


class Module(nn.Module):
    def forward(self, image):
        return of_tensors(image)


WAYS = {
    "array": lambda image: image[:, ::-1],
    "array to tensor": lambda image: torch.from_numpy(image[:, ::-1].transpose(2, 0, 1).copy()),
    "tensor": of_tensors,
    "pil": of_pil,
    "module": Module(),
    "albumentations": albumentations.HorizontalFlip(p=1),
    "albumentations to tensor": albumentations.Compose([albumentations.HorizontalFlip(p=1), albumentations.ToTensorV2()]),
    "kornia": kornia.augmentation.RandomHorizontalFlip(p=1.0),
}


@pytest.mark.parametrize("name", WAYS)
def test_each_kind_of_transform_gets_what_it_is_made_for(name):
    wanted = pixels(plain())[:, :, ::-1]
    dataset = plain(WAYS[name])
    np.testing.assert_array_equal(pixels(dataset), wanted)
    image, _ = dataset[5]
    assert image.dtype == torch.uint8
    np.testing.assert_array_equal(image.permute(1, 2, 0), wanted[5])
    with Loader(dataset, 42, num_workers=0) as loader:
        np.testing.assert_array_equal(next(iter(loader))[0].permute(0, 2, 3, 1), wanted)


def test_images_of_16_bits_and_of_one_channel():
    wide = LMDBDataset(deep(), crop=CROP)
    kornias = wide.with_crop(CROP, transform=kornia.augmentation.RandomHorizontalFlip(p=1.0))
    np.testing.assert_array_equal(pixels(kornias), pixels(wide)[:, :, ::-1])
    with pytest.raises(LoaderError, match="takes uint8 PIL images; the samples are uint16"):
        pixels(wide.with_crop(CROP, transform=of_pil))
    gray = LMDBDataset(store("png", size=32, resize="crop", gray=True), crop=CROP)
    np.testing.assert_array_equal(pixels(gray.with_crop(CROP, transform=of_pil)), pixels(gray)[:, :, ::-1])


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda image: torch.zeros(12, 16, 3), r"returned torch.float32 \[12, 16, 3\]: it must return .* or a tensor \[3, H, W\]"),
        (
            lambda image: torch.zeros(3, 12, 16, dtype=torch.bfloat16),
            r"returned torch.bfloat16 \[3, 12, 16\]: .* of a dtype that numpy has",
        ),
        (lambda image: image.transpose(2, 0, 1), r"returned uint8 \[3, 12, 16\]: it must return .* or PIL image \[H, W, 3\]"),
        (lambda image: None, "returned NoneType"),
    ],
)
def test_what_can_be_no_sample_is_refused(transform, says):
    with pytest.raises(LoaderError, match=says):
        plain(transform)[0]


# When it may be set


def negative(image):
    return 255 - image


@pytest.mark.parametrize(("workers", "device"), [(0, None), (2, None), (2, "cpu")])
def test_a_running_loaders_next_batch_has_the_transform_that_was_set(workers, device):
    dataset = plain()
    with Loader(plain(), 4, shuffle=True, seed=3, num_workers=0) as loader:
        wanted = [batch[0].clone() for _ in range(2) for batch in loader]
    found = []
    with Loader(dataset, 4, shuffle=True, seed=3, num_workers=workers, device=device) as loader:
        for epoch in range(2):
            for k, batch in enumerate(loader):
                found.append(batch[0].clone())
                if (epoch, k) == (0, 3):
                    dataset.transform = negative
                if (epoch, k) == (1, 5):
                    dataset.transform = None
    new = range(4, len(wanted) // 2 + 6)
    for k, (image, original) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(image, 255 - original if k in new else original), k


class Foreign(torch.utils.data.Dataset):
    transform = staticmethod(int)

    def __len__(self):
        return 8

    def __getitem__(self, k):
        return self.transform(k)


def test_a_foreign_datasets_transform_is_noticed_too():
    dataset = Foreign()
    with Loader(dataset, 4, num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        dataset.transform = operator.neg
        assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3], [-4, -5, -6, -7]]


@pytest.mark.parametrize("wrap", [lambda d: Subset(d, [1, 2]), lambda d: ConcatDataset([d, plain()])])
def test_a_transform_that_is_set_inside_of_a_subset_is_an_error_once_the_loader_has_taken_the_samples_out(wrap):
    dataset = plain()
    with Loader(wrap(dataset), 2, num_workers=0) as loader:
        before = next(iter(loader))[0].clone()
        loader.dataset.transform = negative
        loader.set_epoch(0)
        assert torch.equal(next(iter(loader))[0], 255 - before)
        dataset.transform = negative
        for _ in range(2):
            with pytest.raises(LoaderError, match=r"set it on loader.dataset, or before making the Loader"):
                next(iter(loader))


def test_a_transform_that_can_not_be_is_refused_when_it_is_set():
    with pytest.raises(ValueError, match="the mask would not follow"):
        MaskDataset(masked()).transform = negative
    with pytest.raises(TypeError, match="transform is 3"):
        plain().transform = 3
    for other in (ArrayDataset(stores.arrays()), TableDataset(stores.table(), target="y"), TokenDataset(stores.tokens(), 8)):
        with pytest.raises(TypeError, match=f"{type(other).__name__} has no transform"):
            other.transform = negative


# Generators of its own

GLOBAL = albumentations.Compose([albumentations.RandomBrightnessContrast(p=1.0), albumentations.HorizontalFlip()])
OLD_NUMPY = np.random.RandomState(0)
NUMPY, PYTHON, TORCH = np.random.default_rng(0), random.Random(0), torch.Generator()


def closed_over():
    compose = albumentations.Compose([albumentations.GaussNoise(p=1.0)])
    return lambda image: compose(image=image)["image"]


class Owner:
    def __init__(self):
        self.parts = [albumentations.ColorJitter(p=1.0)]

    def __call__(self, image):
        return self.parts[0](image=image)["image"]

    def method(self, image):
        return self(image)


class OwnModule(nn.Module):
    def forward(self, image):
        return torch.from_numpy(GLOBAL(image=image.permute(1, 2, 0).numpy())["image"]).permute(2, 0, 1)


OWNERS = {
    "albumentations": lambda: albumentations.Compose([albumentations.RandomBrightnessContrast(p=1.0)]),
    "in a closure": closed_over,
    "of a module": OwnModule,
    "of a bound method": lambda: Owner().method,
    "numpy": lambda: lambda image: image ^ NUMPY.integers(0, 256, image.shape, np.uint8),
    "old numpy": lambda: lambda image: image ^ OLD_NUMPY.randint(0, 256, image.shape, np.uint8),
    "python": lambda: lambda image: image ^ PYTHON.randrange(256),
    "torch": lambda: lambda image: image ^ torch.randint(256, image.shape, generator=TORCH, dtype=torch.uint8).numpy(),
}


@pytest.mark.parametrize("name", OWNERS)
def test_generators_of_a_transforms_own_are_seeded_for_each_sample(name):
    dataset = plain(OWNERS[name]())
    whole = pixels(dataset, seed=3)
    assert not np.array_equal(whole, pixels(plain()))
    np.testing.assert_array_equal(dataset.read_batch([9, 4], seed=3, epoch=0)[0], whole[[9, 4]])
    assert not np.array_equal(pixels(dataset, seed=3, epoch=1), whole)
    assert not np.array_equal(pixels(dataset, seed=4), whole)


def test_without_the_loader_they_follow_torchs_generator_in_every_worker():
    dataset = plain(albumentations.GaussNoise(std_range=(0.4, 0.5), p=1.0)).subset([7] * 8)
    torch.manual_seed(5)
    first = dataset[0][0]
    torch.manual_seed(5)
    assert torch.equal(dataset[0][0], first)
    loader = DataLoader(dataset, 1, num_workers=2, generator=torch.Generator().manual_seed(0))
    looks = {image.numpy().tobytes() for image, _ in loader}
    assert len(looks) == 8, "two workers draw the same numbers"


def test_crops_and_flips_may_be_set_too():
    dataset, other = LMDBDataset(square(), crop=RandomCrop(16), hflip=0.5), LMDBDataset(square(), crop=CenterCrop(24), vflip=1.0)
    with Loader(dataset, 42, num_workers=1) as loader:
        next(iter(loader))
        dataset.crop, dataset.hflip, dataset.vflip = CenterCrop(24), 0.0, 1.0
        np.testing.assert_array_equal(next(iter(loader))[0].permute(0, 2, 3, 1), pixels(other))
    with pytest.raises(ValueError, match="hflip is 2"):
        dataset.hflip = 2
    with pytest.raises(TypeError, match="crop is 24"):
        dataset.crop = 24


def test_a_crop_beside_a_transform_that_crops_is_warned_of():
    twice = albumentations.RandomCrop(8, 8)
    with pytest.warns(UserWarning, match=r"crop= and the RandomCrop in transform= both crop"):
        plain(twice)
    LMDBDataset(square(), transform=twice)
    plain(albumentations.HorizontalFlip())
