"""Classes of labels and masks: their order, their weights in a loss, and the one that a loss ignores."""

from __future__ import annotations

import pickle
import warnings
from functools import cache, reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

import fastdata
from fastdata import CenterCrop, LMDBDataset, Loader, MaskDataset, RAMDataset, RandomCrop
from stores import folder, sha, store, write_files
from support import picture


@cache
def masked(*counts: tuple[int, int], bits: int = 8, palette: str = "", images: int = 3) -> Path:
    """A store of images with masks; counts: pairs of a class and how many pixels of each mask have it; the rest is 0."""
    mask = np.zeros(600, f"uint{bits}")
    mask[: sum(n for _, n in counts)] = np.repeat([k for k, _ in counts], [n for _, n in counts])
    root = write_files(folder(), {f"masks/{k}.png": mask.reshape(20, 30) for k in range(images)})
    write_files(root, {"palette": palette, **{f"images/{k}.png": picture(k, 20, 30) for k in range(images)}})
    options = {"palette": root / "palette"} if palette else {}
    fastdata.prep(root / "images", root / "out.fds", masks=root / "masks", mask_bits=bits, codec="rgb", workers=1, **options)
    return root / "out.fds"


# The class that a loss ignores

SIXTEEN = ((65535, 100), (1, 9), (2, 9))
NAMED = "".join(f"{k} {k} {k} class{k}\n" for k in range(256))


@pytest.mark.parametrize(
    ("arguments", "options", "free"),
    [
        (SIXTEEN, {"bits": 16}, 65534),
        (((255, 100), (7, 500)), {}, 254),
        (((255, 100), (254, 9), (1, 9)), {"palette": NAMED}, 253),
    ],
)
@pytest.mark.parametrize("make", [MaskDataset, RAMDataset])
def test_pixels_of_the_default_ignore_index_may_be_meant_to_be_learnt(make, arguments, options, free):
    path = masked(*arguments, **options)
    largest = arguments[0][0]
    with pytest.raises(ValueError, match=rf"300 mask pixels are of class {largest}.*ignore_index={largest}; if.* no class"):
        make(path)
    for chosen in (largest, free):
        dataset = make(path, ignore_index=chosen, crop=CenterCrop(40))
        assert dataset.ignore_index == chosen and int(dataset[0][1][0, 0]) == chosen


def test_a_concatenation_whose_classes_differ_is_told(tmp_path):
    write_files(tmp_path / "in", {f"{name}/a.png": picture(1, 70, 70) for name in ("pear", "plum")})
    for classes in (store(), None):
        options = {"classes": classes, "overwrite": True}
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds", size=64, codec="rgb", workers=1, **options)
        parts = [LMDBDataset(path, size=64, crop=CenterCrop(32)) for path in (store(), tmp_path / "o.fds")]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Loader(ConcatDataset(parts), 4, num_workers=0)
        found = [str(warning.message).partition(":")[0] for warning in caught]
        told = "target 0 is apple in one dataset of this ConcatDataset, and pear in another"
        assert found == ([] if classes else [told])


# Masks of several stores


@pytest.mark.parametrize("held", [MaskDataset, RAMDataset])
def test_masks_of_several_stores_keep_the_fast_path(held):
    parts = [held(masked((1, 30)), crop=RandomCrop(16), hflip=0.5), MaskDataset(masked((2, 50)), crop=RandomCrop(16), hflip=0.5)]
    first, second = parts
    for joined in (first + second.subset([2, 0]), Loader(ConcatDataset([first, second.subset([2, 0])]), 2).dataset):
        images, masks = joined.read_batch(np.arange(5), seed=1, epoch=0)
        assert images.shape == (5, 16, 16, 3) and masks.shape == (5, 16, 16) and masks.dtype == np.uint8
    plain = reduce(add, [part.with_crop(None) for part in (first, second.subset([2, 0]))])
    whole = [*(first.with_crop(None)[k] for k in range(3)), *(second.with_crop(None)[k] for k in (2, 0))]
    for k, (image, mask) in enumerate(whole):
        assert torch.equal(plain[k][0], image) and torch.equal(plain[k][1], mask)
    assert plain.class_pixels == {0: 3 * 570 + 3 * 550, 1: 90, 2: 150}, "each store once, whole"
    assert (plain + first.with_crop(None)).class_pixels == plain.class_pixels
    both = first + second

    def epoch(dataset, workers):
        with Loader(dataset, 4, shuffle=True, seed=2, num_workers=workers) as loader:
            return sha(loader)

    assert epoch(both, 0) == epoch(both, 1) == epoch(pickle.loads(pickle.dumps(both)), 0)


def test_what_does_not_go_together():
    first = MaskDataset(masked((1, 30)))
    named = "".join(f"{k} {k} {k} class{k}\n" for k in range(7))
    for other, message in (
        (MaskDataset(masked((2, 50)), ignore_index=7), "differ in ignore_index, 255 and 7: prepare and open both"),
        (MaskDataset(masked((2, 300), palette=named)), r"differ in classes, \[\] and \['class0'"),
        (MaskDataset(masked((1, 30), bits=16), ignore_index=255), "--mask-bits"),
        (LMDBDataset(store()), "differ in ignore_index, 255 and None"),
    ):
        with pytest.raises(ValueError, match=message):
            first + other
