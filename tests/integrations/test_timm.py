"""timm over a Loader: PrefetchLoader, Mixup, CutMix; and FastCollateMixup over a dataset. create_loader is in test_transforms.py.

What is looked at follows timm's own train.py, which drives these in this order.
"""

from __future__ import annotations

import numpy as np
import torch
from timm.data import Mixup
from timm.data.loader import PrefetchLoader

from common import train_loader
from fastdata import GPUNormalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")


def normalized(images):
    """In float64, from the definition."""
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    return (images.double() / 255 - mean) / std


def test_prefetch_loader_delivers_what_the_loader_does_normalized():
    with train_loader(0) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with train_loader() as loader:
        theirs = PrefetchLoader(loader, MEAN, STD, device=CPU)
        assert len(theirs) == len(loader) and theirs.dataset is loader.dataset
        found = list(theirs)
        theirs.sampler.set_epoch(1)  # as train.py tells it
        found += theirs
    assert len(found) == len(expected)
    for (x, y), (images, targets) in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), normalized(images), atol=1e-5, rtol=0)
        assert torch.equal(y, targets)


def test_mixup_of_normalized_batches_and_cutmix_of_uint8_are_those_of_copies():
    normalize = GPUNormalize(MEAN, STD)
    kinds = {
        "mixup": (Mixup(mixup_alpha=0.4, num_classes=3), normalize),
        "cutmix": (Mixup(mixup_alpha=0, cutmix_alpha=1, num_classes=3), lambda images: images),
        "both": (Mixup(mixup_alpha=0.4, cutmix_alpha=1, mode="elem", num_classes=3), normalize),
    }
    for name, (mix, prepare) in kinds.items():
        with train_loader(batch_size=14) as loader, train_loader(0, batch_size=14) as other:
            for k, ((images, targets), (same, labels)) in enumerate(zip(loader, other, strict=True)):
                np.random.seed(k)  # noqa: NPY002  timm draws from it
                x, y = mix(prepare(images), targets)
                np.random.seed(k)  # noqa: NPY002
                wanted, soft = mix(prepare(same.clone()), labels.clone())
                assert torch.equal(x, wanted) and torch.equal(y, soft), name
                torch.testing.assert_close(y.sum(1), torch.ones(14))
