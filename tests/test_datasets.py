"""Datasets: samples, subsets, splits, pickling, torch's own DataLoader, and what they say about wrong arguments."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, Resize
from fastdata.errors import LoaderError, StoreError
from stores import CLASSES, COUNT, floats, script, sources, store, unlabelled, whole

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


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


AUGMENTED = {"size": 64, "crop": RandomResizedCrop(24), "hflip": 0.5, "vflip": 0.5}


def test_transform_comes_after_crop_and_flips():
    def transform(pixels):
        assert pixels.shape == (24, 30, 3) and pixels.flags.c_contiguous and pixels.flags.writeable
        return np.rot90(255 - pixels)[:, :20]

    plain = LMDBDataset(store(), size=64, crop=CenterCrop((24, 30)), hflip=1)
    image = plain.with_crop(CenterCrop((24, 30)), hflip=1, transform=transform)[5][0]
    np.testing.assert_array_equal(image.permute(1, 2, 0), np.rot90(255 - plain[5][0].permute(1, 2, 0).numpy())[:, :20])


def test_a_dataset_pickles_small_and_comes_back_the_same():
    dataset = LMDBDataset(store(), **AUGMENTED)
    many = dataset.subset(np.arange(100_000) % COUNT)
    for d in (dataset, many):
        data = pickle.dumps(d)
        assert len(data) < 10_000
        copy = pickle.loads(data)
        assert len(copy) == len(d) and repr(copy) == repr(d) and copy.classes == d.classes
        assert np.array_equal(copy.read_batch([0, 41, 7], seed=0, epoch=0)[0], d.read_batch([0, 41, 7], seed=0, epoch=0)[0])
        np.testing.assert_array_equal(copy.targets, d.targets)


TORCH = """
import json, sys
import torch
from torch.utils.data import DataLoader
from fastdata import LMDBDataset, RAMDataset, RandomResizedCrop, CenterCrop

def main(path, method):
    found = {}
    for name, make in (("disk", LMDBDataset), ("ram", RAMDataset)):
        dataset = make(path, size=64, crop=CenterCrop(24)).subset(range(2, 40))
        direct = torch.stack([dataset[k][0] for k in range(38)])  # the parent has read: LMDB is open here
        for _ in range(2 if method == "fork" else 1):
            workers = 2 if method == "fork" else 1
            batches = list(DataLoader(dataset, batch_size=8, num_workers=workers, multiprocessing_context=method))
            images, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
            assert torch.equal(images, direct) and images.dtype == torch.uint8
            assert targets.tolist() == dataset.targets.tolist()
        assert torch.equal(dataset[0][0], direct[0])
        found[name] = len(batches)
    print(json.dumps(found))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_torchs_dataloader_with_every_start_method_after_the_parent_has_read(method):
    assert script(TORCH, store("jpeg"), method) == {"disk": 5, "ram": 5}


def wrong(error, match, call):
    with pytest.raises(error, match=match):
        call()


def test_wrong_arguments_name_what_was_asked_found_and_what_to_do(tmp_path):
    path, files = store(), sorted(sources().rglob("*.png"))
    wrong(StoreError, r"has no size 224; it has 64, 96|has no size 224; it has 96, 64", lambda: LMDBDataset(path, size=224))
    wrong(StoreError, "no store at .*: there is no such folder", lambda: LMDBDataset(tmp_path / "no"))
    (tmp_path / "work").mkdir()
    wrong(StoreError, "is not finished", lambda: RAMDataset(tmp_path))
    wrong(ValueError, r"targets are int64 \(3,\), expected 42 int classes", lambda: RAMDataset(files, [1, 2, 3]))
    (tmp_path / "notes.txt").write_text("hello")
    wrong(StoreError, "notes.txt cannot be decoded: .*; leave it out", lambda: RAMDataset([*files[:2], tmp_path / "notes.txt"]))
    wrong(StoreError, "gone.png cannot be read: No such file or directory", lambda: RAMDataset([tmp_path / "gone.png"]))


@pytest.mark.parametrize(
    ("crop", "match"),
    [
        (None, r"images of one size, but .* \d+ x \d+, .*: give the dataset a crop, .*, or prepare with --resize crop$"),
        (Resize(32), r"keeps the aspect ratio; use Resize\(\(height, width\)\) or CenterCrop"),
        (RandomCrop(97), r"RandomCrop\(97, padding=0\) does not fit into a sample of \d+ x \d+: use more padding"),
    ],
)
def test_batches_that_cannot_be_made_are_errors_that_name_the_fix(crop, match):
    with Loader(LMDBDataset(store(), crop=crop), 8, num_workers=0) as loader, pytest.raises(LoaderError, match=match):
        list(loader)
