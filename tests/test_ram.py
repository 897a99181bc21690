"""RAMDataset: what LMDBDataset gives, from memory that is held once and vanishes with its last user."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import CenterCrop, LMDBDataset, RAMDataset, RandomResizedCrop
from fastdata.codecs.pixels import Window
from fastdata.errors import FormatError, StoreError
from fastdata.system.shared_memory import SharedArray
from stores import COUNT, folder, sources, store
from support import images_of, memory_of, picture, records_of


def stored_bytes(path):
    return int(np.load(path / "96/index.npy")["length"].sum())


@pytest.mark.parametrize("share", [0, 0.5, 1, None])
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("codec", ["rgb", "jpeg"])
def test_it_equals_the_store_bit_for_bit_whatever_is_held(codec, decoded, share):
    path, options = store(codec), {"crop": RandomResizedCrop(40), "hflip": 0.5}
    total = stored_bytes(store("rgb") if decoded else path)
    ram = RAMDataset(path, decoded=decoded, max_bytes=None if share is None else int(share * total), **options)
    (records,) = records_of(ram)
    held = len(records)
    assert held == {0: 0, 1: COUNT, None: COUNT}.get(share, held) and (share != 0.5 or 10 < held < 32)
    disk = LMDBDataset(path, **options)
    assert np.array_equal(ram.read_batch(range(COUNT), seed=1, epoch=1)[0], disk.read_batch(range(COUNT), seed=1, epoch=1)[0])
    assert ram.targets.tolist() == disk.targets.tolist() and ram.name(7) == disk.name(7) and ram.classes == disk.classes
    whole_ram, whole_disk = RAMDataset(path, decoded=decoded), LMDBDataset(path)
    assert all(torch.equal(whole_ram[k][0], whole_disk[k][0]) for k in range(COUNT))


@pytest.fixture(scope="module")
def files():
    """PNG, JPEG with an orientation, gray, palette and transparent images, with Pillow's pixels of each."""
    root = folder()
    paths = sorted(sources().rglob("*.png"))[:4]
    for k, mode in enumerate(["L", "P", "RGB", "CMYK"]):
        image = Image.fromarray(picture(k, 50 + k, 70)).convert(mode)
        paths.append(root / (f"{mode}.png" if mode != "CMYK" else "CMYK.tif"))
        image.save(paths[-1])
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    paths.append(root / "turned.jpg")
    Image.fromarray(picture(9, 40, 60)).save(paths[-1], quality=95, subsampling=2, exif=exif)
    expected = []
    for path in paths:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        expected.append(np.rot90(pixels, -1) if path.name == "turned.jpg" else pixels)
    return paths, expected


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("max_bytes", [None, 0, 100_000])
def test_a_list_of_files_comes_as_pillow_reads_it(files, decoded, max_bytes):
    paths, expected = files
    dataset = RAMDataset(paths, np.arange(len(paths)) + 10, decoded=decoded, max_bytes=max_bytes)
    assert dataset[-1][0].shape == (3, 60, 40) and dataset.name(2) == str(paths[2])
    for k, pixels in enumerate(expected):
        image, target = dataset[k]
        assert target == 10 + k and image.dtype == torch.uint8
        np.testing.assert_array_equal(image.permute(1, 2, 0), pixels, err_msg=str(paths[k]))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[3][0], dataset[3][0]) and copy.targets.tolist() == dataset.targets.tolist()


def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda: 50_000)
    total = stored_bytes(store())
    with pytest.raises(StoreError, match=rf"takes {total / 1e9:.3f} GB of memory, but 0.000 GB are free: give max_bytes"):
        RAMDataset(store(), shared=False)
    assert len(RAMDataset(store(), max_bytes=40_000)) == COUNT


def test_a_damaged_record_is_named_when_it_is_decoded():
    dataset = RAMDataset(store("jpeg"), shared=False)
    (records,) = records_of(dataset)
    records.bytes[records.ends[5] : records.ends[5] + 200] = 0
    with pytest.raises(FormatError, match=r"sample 5 of .*: .*; run fastdata verify"):
        dataset[5]


@pytest.mark.parametrize("shape", [0, (0, 3), 7, (2, 3)])
def test_shared_arrays_of_any_shape(shape):
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    copy = pickle.loads(pickle.dumps(shared := SharedArray.of(values)))
    np.testing.assert_array_equal(copy.array, values)
    if values.size:
        shared.array.flat[0] = 9
        assert copy.array.flat[0] == 9


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


MAKER = """
import pickle, sys
from fastdata import RAMDataset
dataset = RAMDataset(sys.argv[1], shared=bool(int(sys.argv[2])))
print(pickle.dumps(dataset).hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared", "error"),
    [
        (0, "process {pid} does not hold this data .* make it again"),
        (1, "no process of this machine holds this data in memory any more; .*make the dataset again"),
    ],
)
def test_another_process_reads_the_same_memory_until_its_maker_is_gone(shared, error):
    path = store(size=77)  # which no other test holds
    with subprocess.Popen([sys.executable, "-c", MAKER, path, str(shared)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        data = bytes.fromhex(maker.stdout.readline().decode())
        assert torch.equal(pickle.loads(data)[3][0], LMDBDataset(path)[3][0])
        maker.stdin.close()
    gc.collect()  # of the copy here, which would hold the memory
    with pytest.raises(StoreError, match=error.format(pid=maker.pid)):
        pickle.loads(data)


def test_the_crop_of_a_held_image_leaves_it_as_it_is():
    dataset = RAMDataset(store(), decoded=True, crop=CenterCrop(20), hflip=1, transform=lambda p: p.__imul__(0))
    before = memory_of(dataset).copy()
    assert dataset[0][0].sum() == 0
    np.testing.assert_array_equal(memory_of(dataset), before)
    images = images_of(LMDBDataset(store()))
    raw = images.decode(0, images.get(0), Window(0, 0, 1, 1), lambda n: np.empty(n, np.uint8)).pixels
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 0
