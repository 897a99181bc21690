"""transform= with the real transforms of torchvision and timm; timm's loaders over ours. Mixup is in loops/timm_train.py."""

from __future__ import annotations

import numpy as np
import pytest
import timm.data
import torch
from timm.data.loader import PrefetchLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from common import train_loader
from fastdata import LMDBDataset, Loader
from stores import sha, square

MEAN, STD = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD


def plain(transform=None):
    return LMDBDataset(square(), transform=transform)


def images(dataset):
    """All of them, as [n, C, H, W]."""
    return torch.from_numpy(dataset.read_batch(np.arange(len(dataset)), seed=0, epoch=0)[0]).permute(0, 3, 1, 2)


FLIPPED = {
    "v2": lambda: v2.RandomHorizontalFlip(p=1),
    "v2 compose": lambda: v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(p=1)]),
    "v2 function": lambda: v2.functional.horizontal_flip,
    "v2 to arrays": lambda: v2.Compose([v2.RandomHorizontalFlip(p=1), v2.ToPILImage()]),
    "v1": lambda: v1.RandomHorizontalFlip(p=1),
    "v1 compose": lambda: v1.Compose([v1.RandomHorizontalFlip(p=1), v1.PILToTensor()]),
}


@pytest.mark.parametrize("name", FLIPPED)
def test_torchvision_flips(name):
    assert torch.equal(images(plain(FLIPPED[name]())), images(plain()).flip(-1))


@pytest.mark.parametrize(
    "transform",
    [
        v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
        v2.Compose([v1.ToTensor(), v2.Normalize(MEAN, STD)]),
    ],
)
def test_torchvision_normalizes(transform):
    wanted = (images(plain()) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(images(plain(transform)), wanted)


@pytest.mark.parametrize("prefetcher", [False, True])
def test_timms_create_loader_sets_the_transform(prefetcher):
    dataset = plain()
    sizes = {"input_size": (3, 24, 24), "crop_pct": 1.0, "mean": MEAN, "std": STD}
    loader = timm.data.create_loader(
        dataset,
        batch_size=6,
        use_prefetcher=prefetcher,
        num_workers=0,
        device=torch.device("cpu"),
        persistent_workers=False,
        **sizes,
    )
    made, _ = next(iter(loader))
    assert dataset.transform is not None and made.shape == (6, 3, 24, 24) and made.dtype == torch.float32
    transform = v1.Compose([v1.Resize(24, v1.InterpolationMode.BICUBIC), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    wanted = torch.stack([transform(v1.functional.to_pil_image(image)) for image in images(plain())[:6]])
    assert (made - wanted).abs().mean() < 0.05
    training = timm.data.create_transform((3, 24, 24), is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.2)
    found = []
    for workers in (0, 2):
        with Loader(plain(training), 5, shuffle=True, seed=3, num_workers=workers) as ours:
            found.append(sha(ours))
    assert found[0] == found[1]


def test_prefetch_loader_delivers_what_the_loader_does_normalized():
    with train_loader(0) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with train_loader() as loader:
        theirs = PrefetchLoader(loader, MEAN, STD, device=torch.device("cpu"))
        assert len(theirs) == len(loader) and theirs.dataset is loader.dataset
        found = list(theirs)
        theirs.sampler.set_epoch(1)  # as train.py tells it
        found += theirs
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    assert len(found) == len(expected)
    for (x, y), (images, targets) in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), (images.double() / 255 - mean) / std, atol=1e-5, rtol=0)
        assert torch.equal(y, targets)
