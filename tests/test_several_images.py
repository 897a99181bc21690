"""Several images a sample, from folders or tars to batches: against Pillow and numpy, and against each image prepared alone."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastdata
from archives import write_tar
from fastdata import CenterCrop, LMDBDataset, Loader, MaskDataset, RAMDataset, RandomCrop, RandomResizedCrop
from fastdata.errors import PrepError, StoreError
from fastdata.report.drawing import draw_sheet
from fastdata.store.export import export
from fastdata.store.store import Store, verify
from stores import folder, write_files
from support import Array, encode, picture

COUNT = 10
SHAPES = ((60, 84), (83, 61), (70, 70))
NAMES = ("left", "right", "depth")
SAMPLES = [f"{'ab'[k % 2]}/{k:02d}.png" for k in range(COUNT)]
IMAGES = ("left=left:rgb", "right=right:jpeg", "depth=depth:png:16:gray")


def pixels(name: str, k: int) -> Array:
    """An image, RGB uint8; `depth` is uint16 of one channel."""
    found = picture(10 * k + NAMES.index(name), *SHAPES[k % 3])
    return found[..., 0].astype(np.uint16) * 200 + found[..., 1] if name == "depth" else found


def write(root: Path) -> Path:
    """Ten samples in two classes. The folders hold files of the same names, but for the extension of some."""
    for name in NAMES:
        write_files(root / name, {SAMPLES[k] if (name, k) != ("right", 3) else "b/03.tiff": pixels(name, k) for k in range(COUNT)})
    return root


def order() -> list[int]:
    """The number of the image of each sample: classes follow one another."""
    return sorted(range(COUNT), key=lambda k: (k % 2, k))


@cache
def files() -> Path:
    return write(folder() / "pairs")


@cache
def store(*images: str, **options: Any) -> Path:
    out = folder() / "several.fds"
    return fastdata.prep(files(), out, images=images or IMAGES, workers=1, **options).out


def records(path: Path, image: str = "") -> dict[str, list[bytes]]:
    """The records of an image in each size."""
    opened = Store(path)
    found = [v for v in opened.manifest.variants if v.image == image and not v.is_mask]
    readers = {v.name.rpartition("-")[2]: opened.reader(v) for v in found}
    return {name: [bytes(reader.get(k)) for k in range(len(opened))] for name, reader in readers.items()}


# Stores


def test_each_image_is_stored_as_it_is_alone() -> None:
    images = ("left=left:original", "right=right:jpeg:gray", "depth=depth:png:16:gray")
    common = {"size": (48, 32), "resize": "crop", "quality": 77}
    made = store(*images, **common)
    for text, image in zip(images, ("", "right", "depth"), strict=True):
        name, _, details = text.partition("=")
        codec = details.split(":")[1]
        alone = folder() / "alone.fds"
        options = {"codec": codec, "bits": 16 if "16" in text else 8, "gray": "gray" in text, **common}
        fastdata.prep(files() / name, alone, workers=1, **options)
        assert records(made, image) == records(alone)
        assert Store(made).names() == [f"{'ab'[k % 2]}/{k:02d}.png" for k in order()]
    assert list(verify(made)) == []
    assert Store(made).manifest.labels.names == ("a", "b")


# Inputs that do not fit


def rejected(path: Path) -> dict[str, tuple[str, str]]:
    return {reject["name"]: (reject["reason"], reject["detail"]) for reject in Store(path).rejects()}


def test_what_does_not_fit_is_rejected_by_name(tmp_path: Path) -> None:
    root = write(tmp_path / "pairs")
    right, masks = root / "right", {name: np.zeros(SHAPES[k % 3], np.uint8) for k, name in enumerate(SAMPLES)}
    for name in ("a/00.png", "a/04.png", "b/07.png"):
        (right / name).unlink()
    write_files(right, {"b/01.bmp": pixels("right", 1), "a/alone.png": pixels("right", 1)})
    (right / "a/04.png").symlink_to("nowhere.png")
    os.mkfifo(right / "b/07.png")
    write_files(
        root / "depth", {"a/02.png": pixels("depth", 1), "b/05.png": b"no image", "b/.hidden.png": "", "notes.txt": "a note"}
    )
    masks |= {"b/09.png": masks["a/04.png"], "b/03.jpg": masks.pop("b/03.png")}
    masks.pop("a/08.png")
    write_files(tmp_path / "masks", masks)
    made = fastdata.prep(root, tmp_path / "out.fds", images=IMAGES, masks=tmp_path / "masks", workers=1)
    found = rejected(made.out)
    assert found == {
        "a/00.png": ("missing-field", "it has no right"),
        "b/01.png": ("ambiguous-field", "it has more than one right"),
        "a/02.png": ("image-size", "its depth (a/02.png): 61 x 83 pixels, but the first image has 70 x 70"),
        "b/05.png": ("not-an-image", found["b/05.png"][1]),
        "a/04.png": ("broken-link", "its right (a/04.png): it is a link to a file that is not there"),
        "b/07.png": ("not-a-file", "its right (b/07.png): it is no ordinary file"),
        "a/08.png": ("missing-field", "it has no mask"),
        "b/09.png": ("mask-size", "its mask: 61 x 83 pixels, but the first image has 84 x 60"),
        "b/03.png": ("not-png", found["b/03.png"][1]),
    }
    assert found["b/05.png"][1].startswith("its depth (b/05.png): ")
    assert (made.kept, made.inputs) == (1, 10)
    assert "right: 1 file without an input: a/alone.png" in made.notes


def test_an_upright_image_counts_by_its_upright_size(tmp_path: Path) -> None:
    for name, shape, orientation in (("one", (40, 60), 1), ("two", (60, 40), 6)):
        (tmp_path / "in" / name).mkdir(parents=True)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(picture(0, *shape)).save(tmp_path / "in" / name / "0.jpg", exif=exif, quality=95)
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", images=("one=one:png", "two=two:png"), workers=1).out
    two = np.asarray(Image.open(tmp_path / "in/two/0.jpg").transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_allclose(LMDBDataset(out)[0][0]["two"].permute(1, 2, 0).to(torch.int64), two.astype(int), atol=2)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (["left=left"], "--images left=left is given once"),
        *((["left=left", wrong], f"--images {wrong}: give NAME=WHERE") for wrong in ("right", "ri-ght=right", "mask=m", "left=r")),
        (["left=left", "depth=depth:16"], "16 bits do not fit into codec jpeg: give rgb or png"),
        (["left=left", "right=rihgt"], "--images right=rihgt: there is no such folder, neither in SOURCE"),
        (["left=left", "right=left"], "two of them are in .*left; give each a folder of its own"),
        (["left=left", "right=right/a"], "no right in .* belongs to an image: the first image is a/00.png"),
    ],
)
def test_wrong_options(images: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, PrepError), match=says.replace("--images", "images")):
        fastdata.prep(files(), tmp_path / "o.fds", images=images)
    assert not (tmp_path / "o.fds").exists()


# Tars


def test_an_export_to_tars_comes_back(tmp_path: Path) -> None:
    export(store(), tmp_path / "tars", to="webdataset")
    images = ["left=left.png:rgb", "right=.right.jpg:original", "depth=DEPTH.png:png:16:gray"]
    again = fastdata.prep(tmp_path / "tars", tmp_path / "o.fds", images=images, workers=1).out
    for image in ("", "right", "depth"):
        assert records(again, image) == records(store(), image)
    assert Store(again).manifest.labels.names == ("a", "b")


def test_samples_of_a_tar_that_lack_an_image_are_rejected(tmp_path: Path) -> None:
    left, right = (encode(pixels(name, 0), ".png") for name in ("left", "right"))
    members = [
        ("0.left.png", left), ("0.right.png", right),
        ("1.left.png", left),
        ("2.right.png", right), ("2.mask.png", right),
        ("4.left.png", left), ("4.right.png", right[:-30]),
        ("5.left.png", left), ("5.right.png", encode(pixels("right", 1), ".png")),
    ]  # fmt: skip
    write_tar(tmp_path / "s.tar", members)
    made = fastdata.prep(tmp_path / "s.tar", tmp_path / "o.fds", images=("left=left.png", "right=right.png"), workers=1)
    found = rejected(made.out)
    assert {name: reason for name, (reason, _) in found.items()} == {
        "s.tar/1.left.png": "missing-field",
        "s.tar/2": "no-image",
        "s.tar/4.left.png": "truncated",
        "s.tar/5.left.png": "image-size",
    }
    assert found["s.tar/5.left.png"][1].startswith("its right (s.tar/5.right.png): 61 x 83 pixels")
    assert (made.kept, made.skipped) == (1, {".mask.png": 1})


# Samples


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether images have equal names, in order, and pixels; of uint16, torch compares none."""
    pairs = zip(one.values(), other.values(), strict=True)
    return list(one) == list(other) and all(torch.equal(a.to(torch.int32), b.to(torch.int32)) for a, b in pairs)


def equal(ones: Any, others: Any) -> None:
    """Two passes have the same batches."""
    for one, other in zip(ones, others, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and same(one[0], other[0]) and torch.equal(one[1], other[1])


def dataset(kind: Any = LMDBDataset, **options: Any) -> Any:
    return kind(store(), **{"crop": RandomResizedCrop(32), "hflip": 0.5, **options})


def test_workers_write_all_images_into_one_slot() -> None:
    with Loader(dataset(), 4, shuffle=True, seed=3, num_workers=2) as loader:
        found = []
        for batch in loader:
            storages = {image.untyped_storage().data_ptr() for image in batch[0].values()}
            assert len(storages) == 1, "they were copied"
            found.append(batch.to("cpu", copy=True))
        equal(found, [batch.to("cpu", copy=True) for batch in Loader(dataset(), 4, shuffle=True, seed=3, num_workers=0)])
        assert all(image.is_contiguous(memory_format=torch.channels_last) for batch in found for image in batch[0].values())


def test_sizes() -> None:
    made = store(size=(48, 32), resize="crop")
    for opened in (LMDBDataset(made, crop=CenterCrop(24)), RAMDataset(made, size=(48, 32), crop=CenterCrop(24))):
        want = {name: LMDBDataset(made, size=32, crop=CenterCrop(24), images=name)[0][0] for name in NAMES}
        assert same(opened.with_size(32)[0][0], want)
        loader = Loader(opened, 5, schedule={0: (32, 16), 1: (48, 24)}, num_workers=0)
        assert [batch[0]["depth"].shape[-1] for _ in range(2) for batch in loader] == [16, 16, 24, 24]


def test_images_are_chosen() -> None:
    everything = next(iter(Loader(dataset(), COUNT, seed=1, num_workers=0)))
    for kind in (LMDBDataset, RAMDataset):
        for name in NAMES:
            found = next(iter(Loader(one := dataset(kind, images=name), COUNT, seed=1, num_workers=0)))
            assert one.images is None and same({name: found[0]}, {name: everything[0][name]})
        found = next(iter(Loader(dataset(kind, images=("depth", "left")), COUNT, seed=1, num_workers=0)))
        assert same(found[0], {name: everything[0][name] for name in ("depth", "left")})
        assert list(dataset(kind, images=("right",))[0][0]) == ["right"]
        with pytest.raises(StoreError, match=r"has no image 'middle': it has the images left, right, depth"):
            dataset(kind, images="middle")
    for wrong in ((), ("left", "left")):
        with pytest.raises(ValueError, match="images is "):
            dataset(images=wrong)
    with pytest.raises(StoreError, match="has one image for each sample"):
        LMDBDataset(fastdata.prep(files() / "left", folder() / "o.fds", workers=1).out, images="left")
    with pytest.raises(ValueError, match="images= is for stores"):
        RAMDataset([files() / "left/a/00.png"], images="left")


def test_parts_and_sums() -> None:
    whole = dataset()
    first, second = whole.split(0.5, seed=1, stratify=True)
    joined = first + second
    names = [part.name(k) for part in (first, second) for k in range(len(part))]
    assert joined.images == NAMES and [joined.name(k) for k in range(COUNT)] == names and len({*names}) == COUNT
    with pytest.raises(ValueError, match=r"open both with the same images="):
        whole + dataset(images="left")
    assert "images=('left', 'right', 'depth')" in repr(whole)


def test_with_masks(tmp_path: Path) -> None:
    write_files(tmp_path / "masks", {name: pixels("left", k)[..., 0] // 60 for k, name in enumerate(SAMPLES)})
    out = fastdata.prep(files(), tmp_path / "o.fds", images=IMAGES, masks=tmp_path / "masks", size=48, workers=1).out
    alone = fastdata.prep(files() / "left", tmp_path / "l.fds", masks=tmp_path / "masks", size=48, codec="rgb", workers=1).out
    for kind in (MaskDataset, RAMDataset):
        several, one = (kind(path, crop=RandomCrop(40), hflip=0.5) for path in (out, alone))
        assert several.class_pixels == one.class_pixels
        for batch, want in zip(*(Loader(each, 4, seed=1, num_workers=0) for each in (several, one)), strict=True):
            assert torch.equal(batch[0]["left"], want[0])
            assert torch.equal(batch[1], want[1])
            assert list(batch[0]) == [*NAMES]
    assert fastdata.open(out).images == NAMES
    assert list(verify(out)) == []
    assert draw_sheet(out, tmp_path / "sheet.png") == COUNT
    export(out, tmp_path / "exported")
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == ["depth", "left", "masks", "right"]


def test_what_several_images_do_not_go_with() -> None:
    with pytest.raises(ValueError, match=r"transform takes an image, and the others of its sample \(left, right, depth\)"):
        dataset().transform = lambda image: image
    with pytest.raises(ValueError, match=r"crop makes 2 views of an image, and the others of its sample"):
        dataset(crop=[RandomResizedCrop(32), RandomResizedCrop(32)])
    assert dataset(images="right").no_jpegs() is None
    assert "several images" in dataset().no_jpegs()
    one = LMDBDataset(store(), images="left", crop=[CenterCrop(8), CenterCrop(9)], transform=lambda image: image)
    assert [view.shape[-1] for view in one[0][0]] == [8, 9]
