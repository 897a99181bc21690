"""Sequences of images in Python as SOURCE: arrays, Pillow's images, pairs with labels, datasets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastdata
from archives import equal
from fastdata import LMDBDataset, PrepError
from fastdata.prepare.estimate import estimate
from fastdata.store.store import Store
from fastdata.store.verify import verify
from stores import whole
from support import Array, encode, picture

IMAGES = [picture(k, 20 + k, 30) for k in range(5)]


def made(source: Any, path: Path, **options: Any) -> Store:
    store = Store(fastdata.prep(source, path / "o.fds", **{"codec": "rgb", "workers": 1, **options}).out)
    assert list(verify(store.path)) == []
    return store


@pytest.mark.slow
def test_arrays_of_every_layout(tmp_path: Path) -> None:
    gray = [image[:, :, 0] for image in IMAGES]
    for name, source, expected in (
        ("list", IMAGES, IMAGES),
        ("one array", np.stack([image[:20] for image in IMAGES]), [image[:20] for image in IMAGES]),
        ("tensors", [torch.from_numpy(image).permute(2, 0, 1) for image in IMAGES], IMAGES),
        ("not contiguous", [image[:, ::-1] for image in IMAGES], [image[:, ::-1] for image in IMAGES]),
        ("gray", gray, [np.repeat(image[:, :, None], 3, 2) for image in gray]),
        ("gray with an axis", [image[:, :, None] for image in gray], [np.repeat(image[:, :, None], 3, 2) for image in gray]),
    ):
        store = made(source, tmp_path / name)
        equal(whole(store.path), list(expected))
        assert store.manifest.labels.kind == "none" and store.names() == [f"{k:06d}" for k in range(5)]
    deep = [image.astype(np.uint16) * 200 for image in IMAGES]
    equal(whole(made(deep, tmp_path / "deep", bits=16).path), deep)


def test_images_of_pillow_and_bytes_of_files(tmp_path: Path) -> None:
    equal(whole(made([Image.fromarray(image) for image in IMAGES], tmp_path / "rgb").path), IMAGES)
    equal(whole(made([encode(image, ".png") for image in IMAGES], tmp_path / "bytes").path), IMAGES)
    strange = [Image.fromarray(IMAGES[0]).convert(mode) for mode in ("P", "L", "1", "RGBA", "CMYK", "LA")]
    equal(whole(made(strange, tmp_path / "modes").path), [np.asarray(image.convert("RGB")) for image in strange])
    file = io.BytesIO()
    Image.fromarray(IMAGES[1]).save(file, "jpeg")
    kept = made([file.getvalue()], tmp_path / "jpeg", codec="original")
    reader = kept.reader(kept.variant())
    assert kept.manifest.variants[0].originals == 1 and bytes(reader.get(0)) == file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pairs", "argument", "dicts"])
@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([2, 0, 2, 1, 0], ("0", "1", "2"), [2, 0, 2, 1, 0]),
        ([np.int64(1), torch.tensor(0), True, np.array(1), 0], ("0", "1"), [1, 0, 1, 1, 0]),
        (["dog", "cat", "dog", "7", "cat"], ("7", "cat", "dog"), [2, 1, 2, 0, 1]),
        ([0.5, 1.0, -2.0, 0.0, 1e9], ("label1",), [[0.5], [1.0], [-2.0], [0.0], [1e9]]),
        ([(k, k / 2) for k in range(5)], ("label1", "label2"), [[k, k / 2] for k in range(5)]),
    ],
)
def test_labels(tmp_path: Path, form: str, labels: list[Any], names: tuple[str, ...], expected: list[Any]) -> None:
    options = {"labels": labels} if form == "argument" else {}
    pairs = list(zip(IMAGES, labels, strict=True))
    source: Any = {"pairs": pairs, "argument": IMAGES, "dicts": [{"image": i, "label": x, "id": 0} for i, x in pairs]}[form]
    store = made(source, tmp_path, **options)
    assert store.manifest.labels.names == names and store.samples["label"].tolist() == expected


class Fruit:
    """A dataset as torchvision has them: pairs, and names of the classes."""

    classes = ("apple", "pear", "plum")

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(IMAGES[index]), index % 2


def test_a_dataset_of_pairs_keeps_its_classes(tmp_path: Path) -> None:
    dataset = LMDBDataset(made(Fruit(), tmp_path).path)
    assert dataset.classes == ["apple", "pear", "plum"] and [dataset[k][1] for k in range(5)] == [0, 1, 0, 1, 0]
    again = LMDBDataset(made(dataset, tmp_path / "again").path)  # ours is one too
    assert again.classes == dataset.classes and all(torch.equal(again[k][0], dataset[k][0]) for k in range(5))


def test_options_and_a_dry_run(tmp_path: Path) -> None:
    store = made([(image, 1) for image in IMAGES], tmp_path, size=16, resize="crop", limit=3)
    assert len(store) == 3 and all(image.shape == (16, 16, 3) for image in whole(store.path))
    found = estimate(IMAGES, tmp_path / "e.fds", labels=[0] * 5)
    assert found.inputs == 5 and not (tmp_path / "e.fds").exists()


def test_other_pixels_or_labels_are_another_store(tmp_path: Path) -> None:
    """Sizes and names are the same, so the pixels themselves have to count."""
    first = fastdata.prep(IMAGES, tmp_path / "o.fds", workers=1)
    assert fastdata.prep(IMAGES, tmp_path / "o.fds", workers=1).resumed == 5 == first.kept
    for other, labels in ((IMAGES[:4] + [255 - IMAGES[4]], None), (IMAGES, [0, 0, 0, 0, 1])):
        with pytest.raises(PrepError, match="overwrite"):
            fastdata.prep(other, tmp_path / "o.fds", labels=labels, workers=1)
    changed = fastdata.prep([255 - image for image in IMAGES], tmp_path / "o.fds", codec="rgb", overwrite=True, workers=1)
    equal(whole(changed.out), [255 - image for image in IMAGES])


def refused(kind: type[Exception], message: str, source: Any, path: Path | None, **options: Any) -> None:
    with pytest.raises(kind, match=message):
        fastdata.prep(source, path, **options)


def test_what_can_t_be_prepared(tmp_path: Path) -> None:
    out = tmp_path / "o.fds"
    refused(
        PrepError,
        r"item 1 of source is float32 \[20, 30, 3\]: an image is an array of uint8",
        [IMAGES[0], IMAGES[0] / np.float32(9)],
        out,
    )
    refused(PrepError, r"item 0 of source is uint8 \[20, 30, 4\]", [np.zeros((20, 30, 4), np.uint8)], out)
    refused(PrepError, "item 0 of source is 'object': an image is", [object()], out)
    refused(PrepError, "item 0 of source has no image or img, only pixels, y", [{"pixels": IMAGES[0], "y": 1}], out)
    refused(PrepError, "the label of item 0 is a complex", [(IMAGES[0], 1j)], out)
    refused(PrepError, "no images|nothing", [], out)
    refused(ValueError, "labels has 3 entries for 5 images; give one for each", IMAGES, out, labels=[1, 2, 3])
    refused(ValueError, "for images in Python must be a sequence of one label each", IMAGES, out, labels="labels.csv")
    refused(ValueError, "out is None, but a sequence of images has no name: name the store", IMAGES, None)
    refused(TypeError, "source is a int, but must be a path, a DataFrame, or a sequence of images", 3, out)
    refused(TypeError, "source is a generator, but must be a path", (image for image in IMAGES), out)
    assert not out.exists()


def test_an_image_without_a_label_among_others_is_a_reject(tmp_path: Path) -> None:
    pairs: list[tuple[Array, int | None]] = [(image, k or None) for k, image in enumerate(IMAGES)]
    summary = fastdata.prep(pairs, tmp_path / "o.fds", workers=1)
    assert (summary.kept, summary.rejected) == (4, {"no-label": 1})
