"""Masks from files to batches, on disk and in memory, against Pillow and numpy's nearest neighbour."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastdata
from archives import write_tar
from fastdata import CenterCrop, LMDBDataset, Loader, MaskDataset, RAMDataset, RandomCrop, RandomResizedCrop, Resize
from fastdata.data.random import uniforms
from fastdata.errors import CodecError, PrepError, StoreError
from fastdata.images.prepare import MaskRecipe, decode_mask, read_palette
from fastdata.report.drawing import draw_sheet
from fastdata.store.export import export
from fastdata.store.store import Store, verify
from stores import folder, store, write_files
from support import Array, encode, picture
from test_crops import CROPS
from test_image_files import saved

SHAPES = ((60, 84), (83, 61), (70, 70))


def indexed(values: Array, bits: int) -> bytes:
    """A PNG with a palette whose colours are not its indices."""
    image = Image.fromarray(values)
    image = image.convert("P") if image.mode != "P" else image
    image.putdata(values.reshape(-1).tolist())
    image.putpalette([(7 * k + shift) % 256 for k in range(1 << bits) for shift in (90, 0, 200)])
    return saved(image, bits=bits, transparency=1)


# Files


def decoded(data: bytes, **recipe: Any) -> Array:
    return decode_mask(data, MaskRecipe(**recipe))


COLORS = tuple(dict.fromkeys(tuple(c) for c in np.random.default_rng(0).integers(0, 256, (330, 3)).tolist()))[:300]


def colored(values: Array) -> bytes:
    return saved(np.array(COLORS, np.uint8)[values])


WRITERS: dict[str, Callable[[Array, int], bytes]] = {
    "indices": indexed,
    "gray": lambda values, bits: saved(values if bits > 1 else values > 0),
    "gray as RGB": lambda values, bits: saved(np.dstack([values] * 3)),
    "16 bits": lambda values, bits: saved(values.astype(np.uint16)),
    "colors": lambda values, bits: colored(values),
    "colors of 16 bits": lambda values, bits: encode(np.array(COLORS)[values].astype(np.uint16), ".png"),
    "colors with alpha": lambda values, bits: saved(np.dstack([np.array(COLORS, np.uint8)[values], values])),
}


@settings(max_examples=80, deadline=None)
@given(
    writer=st.sampled_from(sorted(WRITERS)),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    bits=st.sampled_from([1, 2, 4, 8]),
    more=st.integers(0, 44),
    deep=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_a_mask_holds_are_its_classes(writer, height, width, bits, more, deep, seed):
    """Indices of a palette, not its colours, and not alpha; numbers as they are; colours by their place in the table."""
    count = (1 << bits) + (more if deep and writer == "colors" else 0)
    values = np.random.default_rng(seed).integers(0, count, (height, width)).astype(np.uint16 if count > 256 else np.uint8)
    options = {"colors": COLORS[:count]} if writer.startswith("colors") else {}
    found = decoded(WRITERS[writer](values, bits), bits=16 if deep else 8, **options)
    assert found.dtype == (np.uint16 if deep else np.uint8) and found.flags.c_contiguous
    np.testing.assert_array_equal(found, values)


BLUE = encode(np.full((4, 5, 3), (0, 0, 256), np.uint16), ".png")  # which is no green of 1
SMOOTH = cv2.resize(cv2.circle(np.zeros((80, 120), np.uint8), (60, 40), 30, 255, -1), (30, 20), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize(
    ("data", "recipe", "reason", "says"),
    [
        (saved(np.zeros((8, 8), np.uint8), "tiff"), {}, "not-png", "must be PNG, not tiff"),
        (saved(picture(0, 8, 8)), {}, "colors", "--palette FILE"),
        (saved(np.full((8, 8), 256, np.uint16)), {}, "range", "--mask-bits 16"),
        (saved(SMOOTH), {}, "mask-values", "smooth edges, whose values between 0 and 255 are no classes"),
        (colored(np.arange(9)[:, None] // 4), {"colors": COLORS[:2]}, "unknown-color", f"such as {re.escape(str(COLORS[2]))}"),
        (BLUE, {"colors": ((0, 1, 0),)}, "unknown-color", r".pixels: 20., such as \(0, 0, 256\)$"),
        (saved(np.zeros((8, 8), np.uint8))[:-20], {}, "truncated", None),
    ],
)  # fmt: skip
def test_other_files_are_no_masks(data, recipe, reason, says):
    with pytest.raises(CodecError, match=says) as error:
        decoded(data, **recipe)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0 0 sky\n64 128 64\tbuilding\n1 2 3 road mark\n", None),
        ("name,r,g,b\nsky,0,0,0\nbuilding,64,128,64\nroad mark,1,2,3\n", None),
        ("\ufeff0,0,0,sky\n\n64,128,64,building\n  1,2,3 , road mark\n", None),
        ("", "has no line of red, green, blue"),
        ("0 0 0 a\n1 2 b\n", "line 2: '1 2 b' must be red, green, blue"),
        ("r,g,b,a,name\n1,2,3,255,bg\n", "line 2: .* must be red"),
        ("0 0 256 a\n", "line 1: .* must be red, green, blue .0 to 255"),
        ("0 0 0 a\n1 1 1 b\n0 0 0 c\n", "line 3: .* no colour twice"),
    ],
)
def test_palettes(text, says, tmp_path):
    (tmp_path / "palette").write_text(text)
    if says is None:
        assert read_palette(tmp_path / "palette") == (((0, 0, 0), (64, 128, 64), (1, 2, 3)), ("sky", "building", "road mark"))
        return
    with pytest.raises(PrepError, match=says):
        read_palette(tmp_path / "palette")


# Stores

COUNT = 12


@cache
def pairs() -> Path:
    """Images that are ramps, one code a pixel and more, and are their own masks."""
    root = folder()
    for k in range(COUNT):
        height, width = SHAPES[k % len(SHAPES)]
        ramp = (np.arange(height)[:, None] + np.arange(width)[None] + k).astype(np.uint8)
        write_files(root, {f"images/{k:02d}.png": ramp, f"masks/{k:02d}_mask.png": ramp})
    return root


@cache
def masked(**options: Any) -> Path:
    out = folder() / "masked.fds"
    chosen = {"size": None, "codec": "rgb", "gray": True, "workers": 1, **options}
    fastdata.prep(pairs() / "images", out, masks=pairs() / "masks", **chosen)
    return out


def nearest(mask: Array, box: tuple[float, ...], shape: tuple[int, int], outside: int) -> list[Array]:
    """A box of a mask: at each new pixel's middle, the class there; where that lies on a border, on either side of it."""
    padded = np.pad(mask, 200, constant_values=outside)
    middles = [200 + start + (2 * np.arange(n) + 1) * m / (2 * n) for start, n, m in zip(box, shape, box[2:], strict=False)]
    rows, columns = ((np.floor(m + 1e-9).astype(int), np.ceil(m - 1e-9).astype(int) - 1) for m in middles)
    return [padded[r][:, c] for r in rows for c in columns]


@pytest.mark.parametrize("crop", [None, *CROPS], ids=repr)
@pytest.mark.parametrize("ignore", [None, 7])
def test_masks_are_cut_and_flipped_with_their_images(crop, ignore):
    dataset = MaskDataset(masked(), crop=crop, hflip=0.5, vflip=0.4, ignore_index=ignore)
    opened, seed, epoch = Store(masked()), 5, 2
    reader = opened.reader(opened.variant(None, mask=True))
    for k in range(len(dataset)):
        height, width = SHAPES[k % len(SHAPES)]
        whole = np.frombuffer(reader.get(k), np.uint8).reshape(height, width)
        u = uniforms(seed, epoch, np.array([k]), 24)
        box, shape = (0, 0, height, width), (height, width)
        if crop is not None:
            boxes = crop.boxes(u[2 : 2 + crop.draws], np.array([height]), np.array([width]))
            (box,), (shape,) = boxes.tolist(), crop.shapes(boxes)
        wanted = nearest(whole, box, shape, 255 if ignore is None else ignore)
        images, masks = dataset.read_batch([k], seed=seed, epoch=epoch)
        turned = masks[0][:: -1 if u[1, 0] < 0.4 else 1, :: -1 if u[0, 0] < 0.5 else 1]
        assert turned.shape == shape and np.logical_or.reduce([turned == want for want in wanted]).all()
        inside = masks[0] != (255 if ignore is None else ignore)
        steepest = max(box[2] / shape[0], 1) + max(box[3] / shape[1], 1)
        assert np.abs(images[0, :, :, 0].astype(int) - masks[0])[inside].max(initial=0) <= steepest


@pytest.mark.parametrize(
    "options",
    [{"size": 33}, {"size": 50, "resize": "long"}, {"size": 33, "resize": "crop"}, {"size": 40, "resize": "stretch"}, {"size": 90}],
    ids=str,
)
def test_masks_are_resized_with_their_images(options):
    dataset = MaskDataset(masked(**options))
    for k in range(len(dataset)):
        image, mask = dataset[k]
        height, width = SHAPES[k % len(SHAPES)]
        assert image.shape[1:] == mask.shape
        steepest = 2 * max(height / mask.shape[0], width / mask.shape[1], 1)
        assert np.abs(image[0].numpy().astype(int) - mask.numpy()).max() <= steepest + 1, "ramps, each its own mask"


def test_datasets_of_masks_are_datasets():
    dataset = MaskDataset(masked(size=(50, 30)), crop=Resize((20, 20)))
    assert dataset.with_size(30).with_crop(None)[0][1].shape == (30, 42)
    assert len(dataset + dataset) == 2 * COUNT and torch.equal((dataset + dataset)[COUNT][1], dataset[0][1])
    with Loader(dataset, 4, num_workers=0, schedule={0: 30}) as loader:
        assert torch.equal(next(iter(loader))[1][0], dataset.with_size(30)[0][1])
    with pytest.raises(ValueError, match="ignore_index is 256, but a uint8 mask holds 0 to 255"):
        MaskDataset(masked(), ignore_index=256)
    with pytest.raises(StoreError, match="prepare it with --masks FOLDER"):
        MaskDataset(store())
    with pytest.raises(ValueError, match="the mask would not follow"):
        MaskDataset(masked()).with_crop(None, transform=np.flipud)
    with pytest.raises(StoreError, match=r"masks and no labels.*-1: use MaskDataset.*RAMDataset\(masks=False\)"):
        LMDBDataset(masked())


def test_sixteen_bits_and_colors(tmp_path):
    values = np.random.default_rng(0).integers(0, 300, (20, 30)).astype(np.uint16)
    colors = np.array([[9, 9, 9], [1, 2, 3]], np.uint8)[values % 2]
    write_files(tmp_path, {"images/a.jpg": picture(0, 20, 30), "deep/a.png": saved(values), "colors/a.png": saved(colors)})
    write_files(tmp_path, {"palette.txt": "9 9 9 even\n1 2 3 odd\n"})
    fastdata.prep(tmp_path / "images", tmp_path / "d.fds", masks=tmp_path / "deep", mask_bits=16, workers=1)
    deep = MaskDataset(tmp_path / "d.fds", crop=CenterCrop(40))
    assert deep.ignore_index == 65535 and deep[0][1].dtype == torch.uint16
    np.testing.assert_array_equal(deep.with_crop(None)[0][1].numpy(), values)
    assert deep[0][1].numpy()[0, 0] == 65535
    fastdata.prep(tmp_path / "images", tmp_path / "c.fds", masks=tmp_path / "colors", palette=tmp_path / "palette.txt", workers=1)
    named = MaskDataset(tmp_path / "c.fds")
    np.testing.assert_array_equal(named[0][1].numpy(), values % 2)
    assert named.classes == ["even", "odd"] and sum(named.class_pixels.values()) == 600


def prepared_masks(tmp_path, masks):
    """Prepare images with these masks. Return the summary and the stored masks, or the reasons of rejects."""
    for k, mask in enumerate(masks):
        write_files(tmp_path, {f"images/{k:03d}.png": picture(k, 20, 30), f"masks/{k:03d}.png": mask})
    made = fastdata.prep(tmp_path / "images", tmp_path / "o.fds", masks=tmp_path / "masks", workers=1, overwrite=True)
    return made, [mask.numpy() for _, mask in MaskDataset(made.out, ignore_index=255)]


def test_0_and_255_are_two_classes_unless_255_lies_beside_others(tmp_path):
    half = (np.arange(600).reshape(20, 30) % 7 < 3).astype(np.uint8)
    made, masks = prepared_masks(
        tmp_path, [half * 255, half, saved(half.astype(bool)), saved(np.repeat(half[..., None] * 255, 3, -1)), half * 0]
    )
    for mask in masks[:4]:
        np.testing.assert_array_equal(mask, half)
    share = half.mean() * 4 / 5
    assert f"classes of the masks, by their pixels: 0 {1 - share:.1%}, 1 {share:.1%}" in made.notes
    assert MaskDataset(made.out).class_pixels == {0: 3000 - 4 * int(half.sum()), 1: 4 * int(half.sum())}
    void = half.copy()
    void[:, :5] = 255
    _, masks = prepared_masks(tmp_path, [half * 255, void, half, half, half])
    np.testing.assert_array_equal(masks[0], half * 255)
    np.testing.assert_array_equal(masks[1], void)
    made, masks = prepared_masks(tmp_path, [half * 255] * 32 + [void])  # more than are looked at first
    assert made.rejected == {"mask-values": 1} and "so 255 is class 1; this mask holds other values too" in made.first_reject


def test_smooth_edges_are_no_classes(tmp_path):
    with pytest.raises(PrepError, match=r"000\.png: the mask has smooth edges"):
        prepared_masks(tmp_path, [SMOOTH])
    regions = np.kron(np.array([[0, 3, 17], [255, 0, 9]], np.uint8), np.ones((10, 10), np.uint8))
    np.testing.assert_array_equal(prepared_masks(tmp_path, [regions])[1][0], regions)


def test_wrong_arguments(tmp_path):
    images, masks = pairs() / "images", pairs() / "masks"
    with pytest.raises(PrepError, match="cannot list"):
        fastdata.prep(images, tmp_path / "o.fds", masks=images / "00.png")
    write_files(tmp_path, {f"both/{k:02d}_{kind}.png": "x" for k in range(COUNT) for kind in ("seg", "class")})
    with pytest.raises(PrepError, match="more than one mask for an image, with suffixes _class, _seg"):
        fastdata.prep(images, tmp_path / "o.fds", masks=tmp_path / "both")
    with pytest.raises(ValueError, match="masks: give masks too"):
        fastdata.prep(images, tmp_path / "o.fds", mask_bits=16)
    with pytest.raises(ValueError, match="mask_bits is 4, but must be one of 8, 16"):
        fastdata.prep(images, tmp_path / "o.fds", masks=masks, mask_bits=4)


# Several images a sample, from folders or tars to batches: against each image prepared alone

NUMBER = 10
NAMES = ("left", "right", "depth")
SAMPLES = [f"{'ab'[k % 2]}/{k:02d}.png" for k in range(NUMBER)]
IMAGES = ("left=left:rgb", "right=right:jpeg", "depth=depth:png:16:gray")


def pixels(name: str, k: int) -> Array:
    """An image, RGB uint8; `depth` is uint16 of one channel."""
    found = picture(10 * k + NAMES.index(name), *SHAPES[k % 3])
    return found[..., 0].astype(np.uint16) * 200 + found[..., 1] if name == "depth" else found


def write(root: Path) -> Path:
    """Ten samples in two classes. The folders hold files of the same names, but for the extension of some."""
    for name in NAMES:
        write_files(root / name, {SAMPLES[k] if (name, k) != ("right", 3) else "b/03.tiff": pixels(name, k) for k in range(NUMBER)})
    return root


@cache
def files() -> Path:
    return write(folder() / "pairs")


@cache
def prepared(*images: str, **options: Any) -> Path:
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
    made = prepared(*images, **common)
    for text, image in zip(images, ("", "right", "depth"), strict=True):
        name, _, details = text.partition("=")
        codec = details.split(":")[1]
        alone = folder() / "alone.fds"
        options = {"codec": codec, "bits": 16 if "16" in text else 8, "gray": "gray" in text, **common}
        fastdata.prep(files() / name, alone, workers=1, **options)
        assert records(made, image) == records(alone)
        assert Store(made).names() == sorted(SAMPLES), "classes follow one another"
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
        "a/02.png": ("image-size", "its depth (a/02.png): 61 x 83 pixels; the sample's first image has 70 x 70"),
        "b/05.png": ("not-an-image", found["b/05.png"][1]),
        "a/04.png": ("broken-link", "its right (a/04.png): it is a link to a file that is not there"),
        "b/07.png": ("not-a-file", "its right (b/07.png): it is no ordinary file"),
        "a/08.png": ("missing-field", "it has no mask"),
        "b/09.png": ("mask-size", "its mask: 61 x 83 pixels; the sample's first image has 84 x 60"),
        "b/03.png": ("not-png", found["b/03.png"][1]),
    }
    assert found["b/05.png"][1].startswith("its depth (b/05.png): ")
    assert (made.kept, made.inputs) == (1, 10)
    assert "right: 1 file without an input: a/alone.png" in made.notes


def test_an_upright_image_counts_by_its_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(picture(0, 60, 40), "JPEG", exif=exif, quality=95)
    write_files(tmp_path / "in", {"one/0.jpg": picture(0, 40, 60), "two/0.jpg": turned})
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", images=("one=one:png", "two=two:png"), workers=1).out
    two = np.asarray(Image.open(tmp_path / "in/two/0.jpg").transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_allclose(LMDBDataset(out)[0][0]["two"].permute(1, 2, 0).to(torch.int64), two.astype(int), atol=2)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (["left=left"], "--images left=left is the only --images"),
        *((["left=left", wrong], f"--images {wrong}: give NAME=WHERE") for wrong in ("right", "ri-ght=right", "mask=m", "left=r")),
        (["left=left", "depth=depth:16"], "16 bits do not fit into codec jpeg: give rgb or png"),
        (["left=left", "right=rihgt"], "--images right=rihgt: there is no such folder in SOURCE"),
        (["left=left", "right=left"], "left is given more than once; give each NAME a folder of its own"),
        (["left=left", "right=right/a"], "no right in .* belongs to an input: the first input is a/00.png"),
    ],
)
def test_wrong_options(images: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, PrepError), match=says.replace("--images", "images")):
        fastdata.prep(files(), tmp_path / "o.fds", images=images)
    assert not (tmp_path / "o.fds").exists()


# Tars


def test_an_export_to_tars_comes_back(tmp_path: Path) -> None:
    export(prepared(), tmp_path / "tars", to="webdataset")
    images = ["left=left.png:rgb", "right=.right.jpg:original", "depth=DEPTH.png:png:16:gray"]
    again = fastdata.prep(tmp_path / "tars", tmp_path / "o.fds", images=images, workers=1).out
    for image in ("", "right", "depth"):
        assert records(again, image) == records(prepared(), image)
    assert Store(again).manifest.labels.names == ("a", "b")


def test_samples_of_a_tar_that_lack_an_image_are_rejected(tmp_path: Path) -> None:
    left, right = (encode(pixels(name, 0), ".png") for name in ("left", "right"))
    members = [
        ("0.left.png", left), ("0.right.png", right),
        ("1.left.png", left),
        ("2.right.png", right), ("2.mask.png", right),
    ]  # fmt: skip
    write_tar(tmp_path / "s.tar", members)
    made = fastdata.prep(tmp_path / "s.tar", tmp_path / "o.fds", images=("left=left.png", "right=right.png"), workers=1)
    found = rejected(made.out)
    assert {name: reason for name, (reason, _) in found.items()} == {"s.tar/1.left.png": "missing-field", "s.tar/2": "no-image"}
    assert (made.kept, made.skipped) == (1, {".mask.png": 1})


# Samples


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether images have equal names, in order, and pixels; of uint16, torch compares none."""
    pairs = zip(one.values(), other.values(), strict=True)
    return list(one) == list(other) and all(torch.equal(a.to(torch.int32), b.to(torch.int32)) for a, b in pairs)


def dataset(kind: Any = LMDBDataset, **options: Any) -> Any:
    return kind(prepared(), **{"crop": RandomResizedCrop(32), "hflip": 0.5, **options})


def test_workers_write_all_images_into_one_slot() -> None:
    with Loader(dataset(), 4, shuffle=True, seed=3, num_workers=2) as loader:
        found = []
        for batch in loader:
            storages = {image.untyped_storage().data_ptr() for image in batch[0].values()}
            assert len(storages) == 1, "they were copied"
            found.append(batch.to("cpu", copy=True))
        wanted = [batch.to("cpu", copy=True) for batch in Loader(dataset(), 4, shuffle=True, seed=3, num_workers=0)]
        assert all(same(one[0], other[0]) and torch.equal(one[1], other[1]) for one, other in zip(found, wanted, strict=True))
        assert all(image.is_contiguous(memory_format=torch.channels_last) for batch in found for image in batch[0].values())


def test_sizes() -> None:
    made = prepared(size=(48, 32), resize="crop")
    for opened in (LMDBDataset(made, crop=CenterCrop(24)), RAMDataset(made, size=(48, 32), crop=CenterCrop(24))):
        want = {name: LMDBDataset(made, size=32, crop=CenterCrop(24), images=name)[0][0] for name in NAMES}
        assert same(opened.with_size(32)[0][0], want)
        loader = Loader(opened, 5, schedule={0: (32, 16), 1: (48, 24)}, num_workers=0)
        assert [batch[0]["depth"].shape[-1] for _ in range(2) for batch in loader] == [16, 16, 24, 24]


def test_images_are_chosen() -> None:
    everything = next(iter(Loader(dataset(), NUMBER, seed=1, num_workers=0)))
    for kind in (LMDBDataset, RAMDataset):
        for name in NAMES:
            found = next(iter(Loader(one := dataset(kind, images=name), NUMBER, seed=1, num_workers=0)))
            assert one.images is None and same({name: found[0]}, {name: everything[0][name]})
        found = next(iter(Loader(dataset(kind, images=("depth", "left")), NUMBER, seed=1, num_workers=0)))
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
    assert joined.images == NAMES and [joined.name(k) for k in range(NUMBER)] == names and len({*names}) == NUMBER
    with pytest.raises(ValueError, match="the datasets differ in images"):
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
    assert draw_sheet(out, tmp_path / "sheet.png") == NUMBER
    export(out, tmp_path / "exported")
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == ["depth", "left", "masks", "right"]


def test_what_several_images_do_not_go_with() -> None:
    with pytest.raises(ValueError, match=r"transform takes an image, and the other images of a sample \(left, right, depth\)"):
        dataset().transform = lambda image: image
    with pytest.raises(ValueError, match=r"crop is a sequence of 2, but the other images of a sample"):
        dataset(crop=[RandomResizedCrop(32), RandomResizedCrop(32)])
    assert dataset(images="right").no_jpegs() is None
    assert "several images" in dataset().no_jpegs()
    one = LMDBDataset(prepared(), images="left", crop=[CenterCrop(8), CenterCrop(9)], transform=lambda image: image)
    assert [view.shape[-1] for view in one[0][0]] == [8, 9]
