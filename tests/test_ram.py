"""RAMDataset: what the dataset that reads from disk gives, from memory that is held once and vanishes with its last user."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastdata
import stores
from fastdata import ArrayDataset, CenterCrop, LMDBDataset, Loader, MaskDataset, RAMDataset, RandomCrop, RandomResizedCrop
from fastdata.codecs.pixels import Window
from fastdata.errors import FormatError, StoreError
from fastdata.store.store import Store
from fastdata.system.shared_memory import SharedArray
from stores import folder, sha, sources, store
from support import images_of, memory_of, picture, plain, records_of
from test_masks import masked


@cache
def tokens() -> Path:
    """Two and a half million tokens in two shards of several records, 0 between documents."""
    rng, root = np.random.default_rng(0), folder()
    everything = rng.integers(1, 60_000, 2_500_000).astype("<u2")
    everything[rng.integers(0, len(everything), 2000)] = 0
    everything[:1_500_000].tofile(root / "a.bin")
    everything[1_500_000:].tofile(root / "b.bin")
    return fastdata.prep(root, folder() / "o.fds", end_token="0", workers=1).out


VIEW: dict[str, Any] = {"crop": RandomResizedCrop((40, 31)), "hflip": 0.5}
CASES: dict[str, tuple[Callable[[], Path], dict[str, Any]]] = {
    "rgb": (lambda: store("rgb"), {**VIEW, "size": 96}),
    "jpeg": (lambda: store("jpeg"), {**VIEW, "size": 64}),
    "jpeg, decoded": (lambda: store("jpeg"), {**VIEW, "size": 96, "decoded": True}),
    "whole": (lambda: stores.square("png"), {}),
    "16 bits": (stores.deep, VIEW),
    "masks": (lambda: masked(codec="png"), {**VIEW, "vflip": 0.3}),
    "masks, decoded": (lambda: masked(codec="jpeg"), {**VIEW, "decoded": True, "ignore_index": 7}),
    "several": (stores.several, VIEW),
    "several, decoded": (stores.several, {**VIEW, "decoded": True}),
    "tokens, random": (tokens, {"block_size": 700}),
    "tokens, sequential": (tokens, {"block_size": 700, "mode": "sequential", "documents": "mask"}),
    "tokens, align": (tokens, {"block_size": 700, "documents": "align"}),
    "tokens, document": (tokens, {"block_size": 700, "mode": "document"}),
    "arrays": (stores.masked_arrays, {"crop": RandomCrop((17, 9, 20), padding=2), "flips": (0.5, 0, 1), "ignore_index": 9}),
}
NAMES = {"images": "RAMImages", "tokens": "RAMTokens", "arrays": "RAMArrays"}


def stored_bytes(path: Path, decoded: bool = False, sizes: Any = None) -> int:
    """What all records of these sizes take, or the pixels that they hold."""
    opened, found = Store(path, kind=None), 0
    for variant in opened.manifest.variants:
        if sizes is None or variant.size in sizes:
            lengths = np.load(path / f"{variant.name}/index.npy")["length"]
            if decoded:
                sides = [opened.field(variant, side).astype(int) for side in ("height", "width")]
                lengths = variant.form.nbytes(np.prod(sides, axis=0))
            found += int(lengths.sum())
    return found


def held_bytes(dataset: Any) -> int:
    if isinstance(dataset, fastdata.TokenDataset):
        return memory_of(dataset).nbytes
    return sum(records.bytes.nbytes for records in records_of(dataset))


def delivered(dataset: Any) -> Any:
    """Some samples by themselves, and two epochs of batches."""
    torch.manual_seed(5)
    samples = [dataset[k] for k in (0, 3, -1)]
    with Loader(dataset, 16, shuffle=True, seed=3, num_workers=0) as loader:
        return plain([samples, [[batch.ids.tolist(), *batch] for _ in range(2) for batch in loader]])


@pytest.mark.parametrize("share", [0.5, None])
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_store_bit_for_bit_whatever_is_held(case: str, share: float | None) -> None:
    path, options = CASES[case][0](), CASES[case][1]
    total = stored_bytes(path, "decoded" in options, (options["size"],) if "size" in options else None)
    most = None if share is None else int(share * total)
    held, disk = (
        RAMDataset(path, max_bytes=most, **options),
        fastdata.open(path, **{k: v for k, v in options.items() if k != "decoded"}),
    )
    assert held_bytes(held) == total if share is None else 0.2 * total < held_bytes(held) <= share * total
    assert isinstance(held, RAMDataset) and type(held).__name__ == NAMES[Store(path, kind=None).manifest.kind]
    want = delivered(disk)
    copy = pickle.loads(data := pickle.dumps(held))
    assert delivered(held) == delivered(copy) == want
    assert len(data) < 5000 and repr(copy) == repr(held) and len(copy) == len(disk)
    parts = [dataset.split(0.6, seed=1)[0] for dataset in (held, disk)]
    assert isinstance(parts[0], RAMDataset) and delivered(parts[0]) == delivered(parts[1])
    if hasattr(disk, "targets"):
        assert held.targets.tolist() == disk.targets.tolist() and held.classes == disk.classes and held.name(2) == disk.name(2)
    for name in ("class_pixels", "class_voxels"):
        assert getattr(held, name, None) == getattr(disk, name, None)


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("max_bytes", [None, 0, 30_000])
def test_a_list_of_files_comes_as_pillow_reads_it(decoded, max_bytes, tmp_path):
    """Upright, in colours."""
    paths = [*sorted(sources().rglob("*.png"))[:4], tmp_path / "gray.png", tmp_path / "turned.jpg"]
    Image.fromarray(picture(3, 50, 70)[..., 0]).save(paths[4])
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    Image.fromarray(picture(9, 40, 60)).save(paths[5], exif=exif)
    dataset = RAMDataset(paths, np.arange(6) + 10, decoded=decoded, max_bytes=max_bytes)
    for k, path in enumerate(paths):
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert("RGB"))
        image, target = dataset[k]
        assert target == 10 + k and image.dtype == torch.uint8 and dataset.name(k) == str(path)
        np.testing.assert_array_equal(image.permute(1, 2, 0), np.rot90(pixels, -1) if k == 5 else pixels, err_msg=str(path))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[3][0], dataset[3][0]) and copy.targets.tolist() == dataset.targets.tolist()


def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch):
    for path, sizes in ((store(), (96,)), (masked(), None)):
        total = stored_bytes(path, sizes=sizes)
        monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda: 5000)
        with pytest.raises(StoreError, match=r"takes 0.00\d GB of memory, but 0.000 GB are free: lower max_bytes"):
            RAMDataset(path, shared=False)
        monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda total=total: total + 1000)
        assert held_bytes(RAMDataset(path, shared=False)) == total


def test_all_copies_and_parts_read_the_memory_that_is_held():
    """What is written there is what they give; damage is named by the sample."""
    dataset = RAMDataset(store("jpeg"), shared=False)
    (records,) = records_of(dataset)
    records.bytes[records.ends[5] : records.ends[5] + 200] = 0
    with pytest.raises(FormatError, match=r"sample 5 of .*: .*; run fastdata verify"):
        dataset[5]
    images = RAMDataset(masked(), ignore_index=7, shared=False)
    copy = pickle.loads(pickle.dumps(part := images.subset([3, 1])))
    records_of(copy)[1].bytes[:] = 9
    assert (images[2][1] == 9).all() and (part[0][1] == 9).all() and copy.ignore_index == 7, "one memory, not a copy of it"
    path = stores.masked_arrays()
    held, part = RAMDataset(path, shared=False), RAMDataset(path, max_bytes=100_000, shared=False)
    for one in (held, part):
        memory_of(one)[:] = 255
    assert (held[0][0] == -1).all() and not (ArrayDataset(path)[0][0] == -1).all()
    np.testing.assert_array_equal(part[5][0], ArrayDataset(path)[5][0])


def test_the_crop_of_a_held_image_leaves_it_as_it_is():
    dataset = RAMDataset(store(), decoded=True, crop=CenterCrop(20), hflip=1, transform=lambda p: p.__imul__(0))
    before = memory_of(dataset).copy()
    assert dataset[0][0].sum() == 0
    np.testing.assert_array_equal(memory_of(dataset), before)
    images = images_of(LMDBDataset(store()))
    raw = images.decode(0, images.get(0), Window(0, 0, 1, 1), lambda n: np.empty(n, np.uint8)).pixels
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 0


@pytest.mark.parametrize("decoded", [False, True])
def test_several_sizes_are_held_and_a_schedule_chooses(decoded):
    def epochs(dataset):
        with Loader(dataset, 8, shuffle=True, seed=1, num_workers=0, schedule={0: (64, 20), 1: (96, 40), 2: 64}) as loader:
            return [sha(loader) for _ in range(3)]

    path, crop = store("jpeg"), RandomResizedCrop(26)  # from 96 pixels by less than four: a JPEG is decoded whole
    held = RAMDataset(path, size=(64, 96), crop=crop, decoded=decoded)
    assert epochs(held) == epochs(LMDBDataset(path, crop=crop))
    for size, found in ((64, held), (64, held.with_size(64)), (96, held.with_size(96)), (96, held.with_size(None))):
        assert torch.equal(found.with_crop(None)[3][0], LMDBDataset(path, size=size)[3][0]), "the first is its own"
    part = RAMDataset(path, size=(96, 64), max_bytes=stored_bytes(path, decoded, (64, 96)) // 2, decoded=decoded)
    counts = {len(records_of(part.with_size(size))[0]) for size in (64, 96)}
    assert len(counts) == 1 and 10 < counts.pop() < 30
    one = RAMDataset(path, size=96, decoded=decoded).with_size(64)
    assert records_of(one) == [None] and torch.equal(one[41][0], part.with_size(64)[41][0]), "a size that is not held is read"


def test_images_alone_from_a_store_with_masks():
    ram, disk = RAMDataset(masked(), masks=False), MaskDataset(masked())
    assert torch.equal(ram[1][0], disk[1][0]) and ram[1][1] == -1
    assert ram.class_pixels == {} and ram.ignore_index is None


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (tokens, {"crop": None, "block_size": 8}, "unexpected keyword argument 'crop'"),
        (tokens, {"block_size": 8, "max_bytes": -1}, r"max_bytes is -1, but must not be negative"),
        (stores.arrays, {"hflip": 0.5}, "unexpected keyword argument 'hflip'"),
        (store, {"targets": [1]}, "targets go with"),
        (store, {"size": (64, 70)}, "has no size 70; it has 96, 64"),
        (store, {"size": (64, 64)}, r"size is \(64, 64\), but must be"),
        (store, {"ignore_index": 3}, "ignore_index is 3, but the dataset has no masks"),
        (masked, {"transform": np.flipud}, r"the mask would not follow.*RAMDataset\(masks=False\)"),
        (list, {"size": 64}, "size is 64, but a file is one image of one size"),
    ],
)
def test_a_wrong_argument_is_named(path: Callable[[], Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, StoreError), match=message):
        RAMDataset(path(), **options)


def test_a_reference_to_memory_that_is_gone_says_so():
    shared = SharedArray(10)
    data = pickle.dumps(shared)
    del shared
    with pytest.raises(StoreError, match="keep the dataset alive"):
        pickle.loads(data)
    other = SharedArray(10)  # takes the number of the descriptor, as a rule
    with pytest.raises(StoreError, match="keep the dataset alive"):
        pickle.loads(data)
    del other
