"""Other packages' augmentations: one seed, one look, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastdata import Augment, CenterCrop, LMDBDataset, Loader, MaskDataset, Ragged
from fastdata.gpu import augment
from stores import once, square
from test_masks import masked
from test_normalize import on_each_device

IDS = torch.arange(100, 113)


def images(dtype=torch.uint8, count=13, side=32):
    largest = augment.LARGEST[dtype]
    codes = torch.randint(0, largest + 1, (count, side, side, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    return codes.to(dtype).permute(0, 3, 1, 2)


@pytest.fixture
def kornia():
    found = pytest.importorskip("kornia")
    if tuple(map(int, found.__version__.split(".")[:2])) < (0, 9):
        pytest.skip("needs kornia 0.9")
    return found.augmentation


def test_a_loaders_batch_knows_ids_and_epoch(kornia):
    dataset, subject = LMDBDataset(square(), crop=CenterCrop(16)), Augment(kornia.RandomGaussianNoise(std=0.1, p=1.0), seed=9)
    found = {}
    for rank in range(2):
        with Loader(dataset, 5, shuffle=True, seed=1, rank=rank, world_size=2, num_workers=0) as loader:
            loader.set_epoch(4)
            for batch in loader:
                found |= dict(zip(batch.ids.tolist(), subject(batch), strict=True))
    assert once([list(found)], 42)
    with Loader(dataset, 42, num_workers=0) as loader:
        loader.set_epoch(4)
        (batch,) = list(loader)
    assert torch.equal(torch.stack([found[k] for k in range(42)]), subject(batch[0], batch.ids, 4))


@on_each_device
def test_numbers_are_uniform_normal_and_independent(device):
    keys = augment._mixed(torch.arange(400))
    with augment._Drawing(keys, keys[:1]):
        flat, normal = torch.rand(400, 500, device=device), torch.randn(400, 500, device=device)
        again, one, orders = torch.rand(400, 500, device=device), torch.rand(1, device=device), torch.randperm(50, device=device)
    for values in (flat, again):
        assert values.min() >= 0 and values.max() < 1 and values.dtype == torch.float32
        counts = torch.histc(values.cpu(), 50, 0, 1)
        assert ((counts - 4000) ** 2 / 4000).sum() < 49 + 5 * 98**0.5
    for a, b in ((flat[:-1], flat[1:]), (flat[:, :-1], flat[:, 1:]), (flat, again)):
        assert abs(np.corrcoef(a.cpu().numpy().ravel(), b.cpu().numpy().ravel())[0, 1]) < 0.012
    assert abs(normal.mean()) < 0.012 and abs(normal.std() - 1) < 0.012 and normal.isfinite().all()
    assert one.shape == (1,) and sorted(orders.tolist()) == list(range(50)) and orders.tolist() != list(range(50))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda flip: Augment(flip, seed=-1), ValueError, "seed is -1, but must be from 0"),
        (lambda flip: Augment(torch.fliplr), TypeError, "of kornia, found .*: give it to LMDBDataset\\(transform=\\)"),
        (lambda flip: Augment(flip)(images()), TypeError, "a batch of a Loader, or images with ids= and epoch="),
        (lambda flip: Augment(flip)(images(), IDS[1:], 0), ValueError, "12 ids for 13 images"),
        (lambda flip: Augment(flip)(images().float(), IDS, 0), TypeError, "found torch.float32 .*: augment before GPUNormalize"),
    ],
)
def test_wrong_calls(call, error, says, kornia):
    with pytest.raises(error, match=says):
        call(kornia.RandomHorizontalFlip())


PIPELINES = {
    "affine": lambda K: K.RandomAffine(15.0, translate=(0.1, 0.1), p=0.7),
    "crop": lambda K: nn.Sequential(K.RandomCrop((28, 28), padding=4), K.RandomVerticalFlip()),
    "resized": lambda K: K.RandomResizedCrop((20, 24)),
    "image": lambda K: K.ImageSequential(K.RandomErasing(), K.ColorJiggle(0.2, 0.2, 0.2, 0.1)),
    "sequential": lambda K: K.AugmentationSequential(
        K.RandomHorizontalFlip(), K.ColorJitter(0.2, 0.2, 0.2, 0.1), data_keys=["input"]
    ),
    "noise": lambda K: K.RandomGaussianNoise(std=0.1, p=1.0),
}


@pytest.mark.slow
@on_each_device
@pytest.mark.parametrize("dtype", augment.LARGEST)
@pytest.mark.parametrize("name", PIPELINES)
def test_samples_look_the_same_in_any_batch_and_otherwise_in_any_other_epoch_or_with_another_seed(name, dtype, device, kornia):
    def made(seed=3):
        return Augment(PIPELINES[name](kornia), seed=seed).to(device)

    x, states = images(dtype), [torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None]
    whole = made()(x.to(device), IDS, 2)
    assert whole.dtype == dtype and whole.device.type == device and len(whole) == 13
    assert whole.is_contiguous(memory_format=torch.channels_last)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(5))
    other = made()
    parts = [other(x[order[a:b]].to(device), IDS[order[a:b]].numpy(), 2).cpu() for a, b in ((0, 1), (1, 3), (3, 13))]
    distance = (torch.cat(parts).int() - whole.cpu()[order].int()).abs()
    assert distance.max() <= (1 if dtype is torch.uint8 else 64)  # kernels may add in another order where a batch has another size
    for seed, epoch in ((3, 3), (4, 2), (3 + 2**63, 2)):
        assert not torch.equal(made(seed)(x.to(device), IDS, epoch).int(), whole.int())
    assert torch.equal(states[0], torch.get_rng_state())
    assert device == "cpu" or torch.equal(states[1], torch.cuda.get_rng_state())
    same = made()(x[:1].to(device).expand(13, -1, -1, -1), IDS, 2)
    assert len({row.contiguous().cpu().numpy().tobytes() for row in same.int()}) > 3, "samples differ from each other"


@pytest.mark.parametrize("dtype", augment.LARGEST)
def test_kornia_gets_the_codes_as_floats_and_every_code_comes_back(dtype, kornia):
    codes = torch.arange(augment.LARGEST[dtype] + 1, dtype=torch.int32).to(dtype).view(1, 1, 16, -1)
    same = Augment(kornia.RandomInvert(p=0.0))(codes, [0], 0)
    assert torch.equal(same.int(), codes.int())
    inverted = Augment(kornia.RandomInvert(p=1.0))(codes, [0], 0)
    assert torch.equal(inverted.int(), augment.LARGEST[dtype] - codes.int())


def test_what_kornia_draws_for_a_batch_is_drawn_once_an_epoch(kornia):
    subject = Augment(kornia.RandomAffine(90.0, same_on_batch=True, p=1.0), seed=2)
    x = images(count=1)
    looks = {subject(x, [k], 0).contiguous().numpy().tobytes() for k in range(5)}
    assert len(looks) == 1 and subject(x, [0], 1).contiguous().numpy().tobytes() not in looks


def test_what_does_not_tell_samples_apart_is_refused(kornia):
    with pytest.raises(ValueError, match="RandomMosaic changes samples together"):
        Augment(nn.Sequential(kornia.RandomHorizontalFlip(), kornia.RandomMosaic()))
    with pytest.raises(TypeError, match=r"random numbers of shape \[39, 1, 2, 2\], but Augment needs a first dimension of 1 or 13"):
        Augment(kornia.RandomPlasmaContrast(p=1.0))(images(), IDS, 0)
    several = kornia.ImageSequential(kornia.RandomHorizontalFlip(), kornia.RandomInvert(), random_apply=1)
    with pytest.raises(TypeError, match=r"uses torch's .*, but Augment knows only rand, randn, randperm: omit modules with "):
        Augment(several)(images(), IDS, 0)


@pytest.mark.parametrize("targets", [None, {"boxes": Ragged(torch.ones(12, 4), torch.arange(13))}], ids=["masks", "boxes"])
def test_transforms_that_would_leave_masks_or_boxes_behind_are_refused(targets, kornia):
    with Loader(MaskDataset(masked(), crop=CenterCrop(50)), 12, num_workers=0) as loader:
        batch = next(iter(loader))
    batch = batch.like((batch[0], targets)) if targets else batch
    brighter = Augment(kornia.RandomBrightness((1.5, 2.0), p=1.0))(batch)
    assert brighter.shape == batch[0].shape and (brighter >= batch[0]).all()
    for moving in (kornia.RandomHorizontalFlip(), kornia.RandomElasticTransform(), kornia.RandomCrop((40, 30))):
        with pytest.raises(TypeError, match=rf"{type(moving).__name__} moves pixels, but masks, boxes and keypoints would stay"):
            Augment(nn.Sequential(moving, kornia.RandomInvert()))(batch)
