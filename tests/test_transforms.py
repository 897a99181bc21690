"""A user's transform: what it takes and gives back, when it may be set, and that its random numbers belong to the sample."""

from __future__ import annotations

import operator
import random

import albumentations
import kornia.augmentation
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

import stores
from fastdata import ArrayDataset, CenterCrop, LMDBDataset, Loader, MaskDataset, RAMDataset, RandomCrop, TableDataset, TokenDataset
from fastdata.errors import LoaderError
from stores import deep, square, store
from test_masks import masked

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
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
    with pytest.raises(LoaderError, match="PIL images, which have no uint16 pixels"):
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
        (lambda image: image.transpose(2, 0, 1), r"returned uint8 \[3, 12, 16\]: it must return a numpy array \[H, W, 3\]"),
        (lambda image: None, "returned NoneType"),
    ],
)
def test_what_can_be_no_sample_is_refused(transform, says):
    with pytest.raises(LoaderError, match=says):
        plain(transform)[0]


# When it may be set


def negative(image):
    return 255 - image


@pytest.mark.parametrize("make", [plain, lambda: RAMDataset(square(), crop=CROP), lambda: plain() + plain()])
def test_a_transform_that_is_set_is_used(make):
    dataset = make()
    assert dataset.transform is None
    wanted = pixels(dataset)
    part = dataset.subset([3, 1])
    dataset.transform = negative
    assert dataset.transform is negative
    np.testing.assert_array_equal(pixels(dataset), 255 - wanted)
    np.testing.assert_array_equal(pixels(part), wanted[[3, 1]], "a subset was made before")
    np.testing.assert_array_equal(pixels(dataset.subset([3, 1])), 255 - wanted[[3, 1]])
    dataset.transform = None
    np.testing.assert_array_equal(pixels(dataset), wanted)


@pytest.mark.parametrize(("workers", "device"), [(0, None), (2, None), (2, "cpu")])
def test_a_running_loaders_next_batch_has_the_transform_that_was_set(workers, device):
    dataset = plain()
    with Loader(plain(), 4, shuffle=True, seed=3, num_workers=0) as loader:
        wanted = [(batch.position, batch[0].clone()) for _ in range(2) for batch in loader]
    found = []
    with Loader(dataset, 4, shuffle=True, seed=3, num_workers=workers, device=device) as loader:
        for epoch in range(2):
            for k, batch in enumerate(loader):
                found.append((batch.position, batch[0].clone()))
                if (epoch, k) == (0, 3):
                    dataset.transform = negative
                if (epoch, k) == (1, 5):
                    dataset.transform = None
    new = range(4, len(wanted) // 2 + 6)
    assert [position for position, _ in found] == [position for position, _ in wanted]
    for k, ((_, image), (_, original)) in enumerate(zip(found, wanted, strict=True)):
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
            with pytest.raises(LoaderError, match=r"set loader\.dataset\.transform, or make the Loader afterwards"):
                next(iter(loader))


def test_a_transform_that_can_not_be_is_refused_when_it_is_set():
    with pytest.raises(ValueError, match="its mask would not follow"):
        MaskDataset(masked()).transform = negative
    with pytest.raises(TypeError, match="transform is 3"):
        plain().transform = 3
    for other in (ArrayDataset(stores.arrays()), TableDataset(stores.table(), target="y"), TokenDataset(stores.tokens(), 8)):
        with pytest.raises(TypeError, match=f"a {type(other).__name__} has no transform"):
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
