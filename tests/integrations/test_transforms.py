"""transform= and Augment with the real transforms of torchvision, timm and albumentations."""

from __future__ import annotations

import numpy as np
import pytest
import timm.data
import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastdata
from fastdata import Augment, CenterCrop, LMDBDataset, Loader, MaskDataset
from stores import sha, square
from support import encode

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
MEAN, STD = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD


def plain(transform=None):
    return LMDBDataset(square(), crop=CenterCrop(32), transform=transform)


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


def test_masks_move_with_torchvision(tmp_path):
    for k in range(12):  # images that are their own masks
        ramp = (np.arange(60)[:, None] + np.arange(70) + 1 + k).astype(np.uint8)
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{k:02d}.png").write_bytes(encode(ramp, ".png"))
    out = tmp_path / "ramps.fds"
    fastdata.prep(tmp_path / "images", out, masks=tmp_path / "masks", size=None, codec="rgb", gray=True, workers=1)
    with Loader(MaskDataset(out, crop=CenterCrop(50)), 12, num_workers=0) as loader:
        batch = next(iter(loader))
    turn = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomRotation(30, fill={tv_tensors.Mask: 255, "others": 0})])
    moved, masks = Augment(turn, seed=1)(batch)
    inside = masks != 255
    assert type(masks) is torch.Tensor and masks.dtype == torch.uint8 and 0.01 < (~inside).float().mean() < 0.4
    assert torch.equal(moved[:, 0][inside], masks[inside])
    again = Augment(turn, seed=1)(type(batch).of([t[3:5] for t in batch], 2, batch.ids[3:5], batch.position))
    assert torch.equal(again[1], masks[3:5])
