"""Sequences of images in Python as SOURCE: arrays, Pillow's images, pairs with labels, datasets."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import fastdata
from archives import equal
from fastdata.errors import PrepError
from fastdata.store.store import Store, verify
from stores import whole
from support import PREP, Array, encode, kill_group, picture, run, small_shards, start, tables, tree, until
from test_image_files import saved

IMAGES = [picture(k, 20 + k, 30) for k in range(5)]


def made(source: Any, path: Path, **options: Any) -> Store:
    store = Store(fastdata.prep(source, path / "o.fds", **{"codec": "rgb", "workers": 1, **options}).out)
    assert list(verify(store.path)) == []
    return store


class Fruit:
    """A dataset as torchvision has them: pairs, and names of the classes."""

    classes = ("apple", "pear", "plum")

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(IMAGES[index]), index % 2


class Kiwis(Fruit):
    classes = ("kiwi",)


class Image_(SimpleNamespace):
    """As `datasets.Image` is."""


Image_.__name__ = "Image"


class HuggingFace:
    """As `datasets.Dataset` behaves: a decoded image may not have the pixels of its file."""

    format = {"type": None}
    column_names = ["picture", "animal", "id"]

    def __init__(self, decode: bool = True) -> None:
        self.features = {"picture": Image_(decode=decode), "animal": SimpleNamespace(names=["cat", "dog"]), "id": None}

    def cast_column(self, name: str, feature: Image_) -> HuggingFace:
        return HuggingFace(feature.decode)

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return [k % 2 for k in range(len(self))]
        assert not self.features["picture"].decode
        return {"id": key, "animal": key % 2, "picture": {"bytes": encode(IMAGES[key], ".png"), "path": None}}


def test_every_form_of_a_sequence(tmp_path: Path) -> None:
    """DataFrames are read by place. What has labels is in tests/meaning too."""
    gray, files = [image[:, :, 0] for image in IMAGES], [encode(image, ".png") for image in IMAGES]
    for k, data in enumerate(files):
        (tmp_path / f"{k}.png").write_bytes(data)
    paths, names = [str(tmp_path / f"{k}.png") for k in range(5)], ["a", "b", "b", "a", "c"]
    deep = [image.astype(np.uint16) * 200 for image in IMAGES]
    cases: list[tuple[Any, list[Array], list[str] | None, dict[str, Any]]] = [
        (np.stack([image[:20] for image in IMAGES]), [image[:20] for image in IMAGES], None, {}),
        ([torch.from_numpy(image).permute(2, 0, 1) for image in IMAGES], IMAGES, None, {}),
        ([image[:, ::-1] for image in IMAGES], [image[:, ::-1] for image in IMAGES], None, {}),
        ([image[:, :, None] for image in gray], gray, None, {}),
        (files, IMAGES, None, {}),
        (deep, deep, None, {"bits": 16}),
        (Fruit(), IMAGES, ["apple", "pear", "apple", "pear", "apple"], {}),
        (HuggingFace(), IMAGES, ["cat", "dog", "cat", "dog", "cat"], {}),
        (Subset(HuggingFace(), [4, 1]), [IMAGES[4], IMAGES[1]], ["cat", "dog"], {}),
        (pd.DataFrame({"x": 0, "path": paths, "label": names}, [4, 3, 2, 1, 0]), IMAGES, names, {}),
    ]
    for k, (source, images, classes, options) in enumerate(cases):
        store = made(source, tmp_path / str(k), **options)
        equal(whole(store.path), images)
        found = store.manifest.labels
        assert ([found.names[label] for label in store.samples["label"]] if found.names else None) == classes, k
        assert store.names() == [f"{j:06d}" for j in range(len(images))]
    kept = made([saved(Image.fromarray(IMAGES[1]), "JPEG")], tmp_path / "jpeg", codec="original")
    assert kept.manifest.variants[0].originals == 1


def test_other_pixels_or_labels_are_another_store(tmp_path: Path) -> None:
    """Sizes and names are the same, so the pixels themselves have to count."""
    first = fastdata.prep(IMAGES, tmp_path / "o.fds", workers=1)
    assert fastdata.prep(IMAGES, tmp_path / "o.fds", workers=1).resumed == 5 == first.kept
    for other, labels in ((IMAGES[:4] + [255 - IMAGES[4]], None), (IMAGES, [0, 0, 0, 0, 1])):
        with pytest.raises(PrepError, match="overwrite"):
            fastdata.prep(other, tmp_path / "o.fds", labels=labels, workers=1)
    changed = fastdata.prep([255 - image for image in IMAGES], tmp_path / "o.fds", codec="rgb", overwrite=True, workers=1)
    equal(whole(changed.out), [255 - image for image in IMAGES])


DICT = {"train": [], "test": []}
LARGE = [IMAGES[0], IMAGES[0] / np.float32(9)]
WRONG: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    (PrepError, r"item 1 of source is float32 \[20, 30, 3\]: an image is an array of uint8", LARGE, {}),
    (PrepError, "item 0 of source is object: an image is", [object()], {}),
    (PrepError, "item 0 of source has no image or img key, only pixels, y", [{"pixels": IMAGES[0], "y": 1}], {}),
    (PrepError, "item 0 of source is a tuple of 3 values: give images, pairs of an image", [(IMAGES[0], 1, 2)], {}),
    (PrepError, "source holds a complex, but labels are numbers, lists of numbers, or text", [(IMAGES[0], 1j)], {}),
    (PrepError, r"item 0 of source is int32 \[4, 4\]: an image is", [Image.new("I", (4, 4), -1)], {}),
    (ValueError, "labels has 3 entries for 5 images; give one for each", IMAGES, {"labels": [1, 2, 3]}),
    (ValueError, r"labels is \{0: 1\}, .* must be a sequence", IMAGES, {"labels": {0: 1}}),
    (ValueError, r"labels is \{1\}, .* must be a sequence", IMAGES, {"labels": {1}}),
    (PrepError, "datasets have different classes: apple, pear, plum; and kiwi", ConcatDataset([Fruit(), Kiwis()]), {}),
    (PrepError, "source has two columns of the same name: image, a, a", pd.DataFrame([[1, 2, 3]], columns=["image", "a", "a"]), {}),
    (TypeError, r"source is a dict of 'train', 'test': give one of them, such as source\['train'\]", DICT, {}),
    (PrepError, "source has no column of images or paths .*, only x; TableDataset", pd.DataFrame({"x": [1]}), {}),
    (PrepError, "SOURCE no.such:thing is no path, and no module:function .* No module named 'no'", "no.such:thing", {}),
    (PrepError, "SOURCE json:loads is .* no module:function that returns a sequence: TypeError", "json:loads", {}),
    (ValueError, "source is a list, which the nodes of Ray cannot read", IMAGES, {"engine": "ray"}),
]


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    for kind, message, source, options in WRONG:
        with pytest.raises(kind, match=message):
            fastdata.prep(source, tmp_path / "o.fds", **options)
    with pytest.raises(ValueError, match="out is None, but a sequence of images has no name: name the store"):
        fastdata.prep(IMAGES, None)
    assert not (tmp_path / "o.fds").exists()


def test_items_that_cannot_be_read_are_rejects(tmp_path: Path) -> None:
    sound = encode(IMAGES[0], ".png")
    items = [sound, sound[:-30], None, tmp_path / "gone.png", {"bytes": None, "path": None}, {"bytes": sound, "path": "x"}]
    summary = fastdata.prep(items, tmp_path / "o.fds", workers=1)
    assert (summary.kept, summary.rejected) == (2, {"truncated": 1, "no-image": 2, "missing": 1})


# One sequence, by all ways to workers

MODULE = """
import sys
import numpy as np

class Pictures:
    classes = ("apple", "pear")

    def __init__(self, count=40, **attributes):
        self.count, self.attributes = count, attributes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.random.default_rng(index).integers(0, 256, (60, 50, 3), np.uint8), index % 2

def pictures():
    return Pictures()
"""
SCRIPT = """
import fastdata, sys
{}
import fastdata.prepare.plan
fastdata.prepare.plan.SHARD_SAMPLES = 5
fastdata.prep(source, sys.argv[1], codec="rgb", workers=2)
"""
WAYS = {
    "its pickle": "from pictures import Pictures; source = Pictures()",
    "an open file": "from pictures import Pictures; source = Pictures(file=sys.stdin)",
    "a lambda": "from pictures import Pictures; source = Pictures(function=lambda: 0)",
    "the main script": MODULE + "source = Pictures()",
    "its name": "source = 'pictures:pictures'",
}


def test_a_sequence_gives_the_same_store_by_every_way_and_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "pictures.py").write_text(MODULE)
    whole_one = dict[str, bytes | None]()
    for k, (way, code) in enumerate(WAYS.items()):
        (tmp_path / f"{k}.py").write_text(SCRIPT.format(code))
        command = sys.executable, tmp_path / f"{k}.py", tmp_path / f"{k}.fds"
        killed = start(*command, cwd=tmp_path)
        until(lambda k=k: len(tables(tmp_path / f"{k}.fds")) > 1, 60)
        kill_group(killed)
        assert run(*command, cwd=tmp_path).returncode == 0
        found = tree(tmp_path / f"{k}.fds")
        if way == "its name":  # which is in the plan's fingerprint, and so in the manifest
            found, whole_one = ({name: data for name, data in one.items() if name != "manifest.json"} for one in (found, whole_one))
        whole_one = whole_one or found
        assert found == whole_one, way
    store = Store(tmp_path / "0.fds")
    equal(whole(store.path), [np.random.default_rng(k).integers(0, 256, (60, 50, 3), np.uint8) for k in range(40)])
    assert store.manifest.labels.names == ("apple", "pear") and store.samples["label"].tolist() == [0, 1] * 20


class Slow(Fruit):
    """Read in this process, an item at a time, for which workers wait in turn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        time.sleep(0.6)
        return super().__getitem__(index)


def test_waiting_for_items_of_others_is_no_decoder_that_hangs(tmp_path: Path) -> None:
    with small_shards(1):
        assert fastdata.prep(Slow(), tmp_path / "o.fds", workers=5, timeout=2.0).kept == 5


def test_a_function_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "pictures.py").write_text(MODULE)
    for *task, folder in (("plan", "pictures:Pictures", "o.fds", tmp_path), ("run", tmp_path / "o.fds", "/")):
        done = run(*PREP, *task, cwd=folder)
        assert done.returncode == 0, done.stderr


# Pillow's images


def pillow_files() -> list[bytes]:
    """Files whose pixels depend on more than their values."""
    exif = Image.Exif()
    exif[274] = 6
    photo = Image.fromarray(IMAGES[0])
    deep = Image.fromarray(IMAGES[0][:, :, 0].astype(np.uint16) * 257)
    return [
        saved(photo, "JPEG", exif=exif),
        saved(photo, "PNG", exif=exif),
        saved(photo.convert("CMYK"), "JPEG", exif=exif),
        saved(deep, "PNG"),
        saved(photo.convert("LA"), "PNG"),
        saved(photo, "PNG", transparency=tuple(IMAGES[0][3, 3].tolist())),
        saved(photo.convert("L"), "PNG", transparency=99),
        saved(photo.convert("P"), "PNG", transparency=bytes(range(256))),
        saved(photo.convert("P"), "GIF", transparency=7),
    ]


@pytest.mark.parametrize("bits", [8, 16])
def test_an_image_of_pillow_is_what_its_file_is(tmp_path: Path, bits: int) -> None:
    files = pillow_files()
    opened, loaded = ([Image.open(io.BytesIO(data)) for data in files] for _ in range(2))
    for image in loaded:
        image.load()
    of_files, of_opened, of_loaded = (
        whole(made(source, tmp_path / str(k), bits=bits).path) for k, source in enumerate((files, opened, loaded))
    )
    equal(of_opened, of_files)
    equal(of_loaded, of_files)


# Packages that read files of their own: the recipes of docs/inputs.md


def run_recipe(package: str, folder: Path) -> None:
    """Run the code of the page that imports a package."""
    page = Path(__file__).parent.parent / "docs" / "inputs.md"
    (code,) = (text for text in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S) if f"import {package}" in text)
    done = run(sys.executable, "-W", "error", "-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr


CIFAR10 = """
import numpy as np

class datasets:
    class CIFAR10(list):
        classes = ["airplane", "automobile"]

        def __init__(self, root, train=True, download=False):
            super().__init__((np.full((32, 32, 3), 7 + train, np.uint8), k % 2) for k in range(9 + train))
"""


def test_a_dataset_of_torchvision(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text(CIFAR10)
    run_recipe("torchvision", tmp_path)
    for train, split in ((1, "train"), (0, "val")):
        store = Store(tmp_path / f"cifar10-{split}.fds")
        equal(whole(store.path), list(np.full((9 + train, 32, 32, 3), 7 + train, np.uint8)))
        assert store.samples["label"].tolist() == [k % 2 for k in range(9 + train)]
        assert store.manifest.labels.names == ("airplane", "automobile")


def test_an_hdf5_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), np.uint8)
    with h5py.File(tmp_path / "pictures.h5", "w") as file:
        file.create_dataset("images", data=pixels, chunks=(2, 20, 30, 3), compression="gzip")
        file["labels"], file["names"] = np.arange(7) // 3, [b"rose", b"oak", b"oak", b"fir", b"oak", b"fir", b"rose"]
    run_recipe("h5py", tmp_path)
    store = Store(tmp_path / "pictures.fds")
    equal(whole(store.path), list(pixels))
    assert store.samples["label"].tolist() == [0, 0, 0, 1, 1, 1, 2]
    with h5py.File(tmp_path / "pictures.h5") as file:
        named = made(file["images"], tmp_path / "named", labels=file["names"].asstr())
    assert named.samples["label"].tolist() == [2, 1, 1, 0, 1, 0, 2]
