"""Crops against torchvision's own lines, and their pixels against numpy and cv2."""

from __future__ import annotations

import doctest
import io
import math
from functools import cache, partial
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import stores
from fastdata import (
    Augment,
    Batch,
    CenterCrop,
    Crop,
    LMDBDataset,
    Loader,
    MaskDataset,
    MultiCrop,
    RandomCrop,
    RandomResizedCrop,
    RandomScaleCrop,
    Resize,
    View,
)
from fastdata.codecs.pixels import decode_window, encode_record
from fastdata.data.random import uniforms
from fastdata.errors import LoaderError
from fastdata.images import crops
from fastdata.images.geometry import layout
from fastdata.images.prepare import resize
from fastdata.images.resample import resample
from fastdata.images.view import Sample
from fastdata.store.manifest import Form
from stores import deep, square, store, whole
from support import Array, Corner, Shifted, picture

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
sides = st.integers(1, 40) | st.integers(1, 3000)
sizes = st.integers(1, 64) | st.tuples(st.integers(1, 80), st.integers(1, 80))
seeds = st.integers(0, 2**64 - 1)
originals = cache(whole)


def torchvision_random_resized_crop(height, width, scale, ratio, u):
    """RandomResizedCrop.get_params of torchvision 0.20. u: where to put the box (2), then area and ratio of each of ten tries."""
    place, tries = u[:2], iter(u[2:])
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target_area = area * (scale[0] + (scale[1] - scale[0]) * next(tries))
        aspect_ratio = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * next(tries))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = int(place[0] * (height - h + 1))
            j = int(place[1] * (width - w + 1))
            return i, j, h, w
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    h, w = max(h, 1), max(w, 1)  # torchvision itself would go on with an empty box, and fail
    i = (height - h) // 2
    j = (width - w) // 2
    return i, j, h, w


def torchvision_centre(n, m):
    """Where functional.center_crop of torchvision 0.20 cuts m of n pixels. It pads first, with the odd pixel at the end."""
    return round((max(n, m) - m) / 2.0) - max(m - n, 0) // 2


def cut(image, box):
    """A box of an image; zero where it reaches beyond."""
    top, left, h, w = box
    rows, columns = np.arange(top, top + h)[:, None], np.arange(left, left + w)
    inside = (rows >= 0) & (rows < image.shape[0]) & (columns >= 0) & (columns < image.shape[1])
    found = image[rows.clip(0, image.shape[0] - 1), columns.clip(0, image.shape[1] - 1)]
    return np.where(inside.reshape(inside.shape + (1,) * (image.ndim - 2)), found, 0).astype(image.dtype)


def boxes_of(crop, seed, heights, widths):
    u = uniforms(seed, 0, np.arange(len(heights)), crop.draws)
    return u, crop.boxes(u, np.array(heights, np.int64), np.array(widths, np.int64))


pairs = st.tuples(st.floats(0.02, 4), st.floats(0.02, 4)).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=8), pairs, pairs, seeds)
@example([(1, 500), (500, 1), (1, 1), (2, 3)], (0.08, 1.0), (3 / 4, 4 / 3), 0)
@example([(1, 7)], (0.08, 1.0), (0.1, 0.4), 0)  # half a pixel wide
@example([(9, 1)], (1.0, 1.0), (2.5, 4.0), 0)
@settings(max_examples=100, deadline=None)
def test_random_resized_crop_draws_the_boxes_of_torchvision(images, scale, ratio, seed):
    heights, widths = zip(*images, strict=True)
    crop = RandomResizedCrop(8, scale=scale, ratio=ratio)
    u, boxes = boxes_of(crop, seed, heights, widths)
    assert boxes.dtype == np.int64
    for k, (height, width) in enumerate(images):
        assert tuple(boxes[k]) == torchvision_random_resized_crop(height, width, scale, ratio, u[:, k].tolist())
        top, left, h, w = boxes[k]
        assert 0 <= top <= top + h <= height and 0 <= left <= left + w <= width and h > 0 and w > 0


@given(sides, sides, sizes, st.integers(0, 100), seeds)
@example(1, 40, 7, 0, 0)
@example(5, 5, (4, 6), 0, 0)
@settings(max_examples=200, deadline=None)
def test_other_crops_have_the_boxes_of_torchvision_padding_included(height, width, size, padding, seed):
    crop = CenterCrop(size)
    (th, tw), (box,) = crop.shape, boxes_of(crop, seed, [height], [width])[1]
    assert box.tolist() == [torchvision_centre(height, th), torchvision_centre(width, tw), th, tw]
    (box,) = boxes_of(Resize(size), seed, [height], [width])[1]
    assert box.tolist() == [0, 0, height, width]
    short = min(height, width)  # _compute_resized_output_size
    resized = (int(size * height / short), int(size * width / short)) if isinstance(size, int) else size
    assert Resize(size).shapes(box[None]) == [resized]
    crop, rooms = RandomCrop(size, padding=padding), (height + 2 * padding - th + 1, width + 2 * padding - tw + 1)
    if min(rooms) < 1:
        with pytest.raises(LoaderError, match=f"does not fit into a sample of {height} x {width}: use more padding"):
            boxes_of(crop, seed, [height], [width])
        return
    u, (box,) = boxes_of(crop, seed, [height], [width])
    top, left = (int(lot * room) for lot, room in zip(u[:, 0], rooms, strict=True))  # torch.randint(0, room) of the same number
    assert box.tolist() == [top - padding, left - padding, th, tw]


@pytest.mark.parametrize(
    "make",
    [
        *(partial(kind, size) for kind in (RandomResizedCrop, CenterCrop, RandomCrop, Resize) for size in (0, 8.0, (8, 0))),
        lambda: CenterCrop((8, 8, 8)),
        lambda: Resize(None),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, ratio=(-1, 1)),
        lambda: RandomCrop(8, padding=(1, 2)),
        lambda: RandomResizedCrop(8, interpolation="nearest"),
        lambda: RandomScaleCrop(8, (2, 1)),
        lambda: CenterCrop(8, resize=0),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="but must be"):
        View(make())


def resized(image, box, shape, antialias, interpolation="bilinear"):
    """A box of a whole image, by Pillow (every channel by itself; 16 bits as floats) or cv2."""
    top, left, h, w = (int(side) for side in box)
    method = interpolation.upper()
    if not antialias:
        way = {"BILINEAR": cv2.INTER_LINEAR, "BICUBIC": cv2.INTER_CUBIC}[method]
        return cv2.resize(image[top : top + h, left : left + w], shape[::-1], interpolation=way).reshape(*shape, -1)
    part = image[top : top + h, left : left + w]
    part = part if part.dtype == np.uint8 else part.astype(np.float32)
    planes = [Image.fromarray(part[..., c]) for c in range(part.shape[2])]
    averaged = np.stack([np.asarray(plane.resize(shape[::-1], Image.Resampling[method])) for plane in planes], axis=2)
    return np.round(averaged).clip(0, np.iinfo(image.dtype).max).astype(image.dtype)


def resized_first(crop, height, width, u):
    """What crops that resize first are said to do: (height, width) of the resized image, and the box in it."""
    h, w = crop.sides(2)
    if isinstance(crop, CenterCrop):  # Resize, then CenterCrop, of torchvision
        short = min(height, width)
        sides = int(crop.resize * height / short), int(crop.resize * width / short)
        top, left = map(torchvision_centre, sides, (h, w))
    else:
        factor = crop.scale[0] + (crop.scale[1] - crop.scale[0]) * u[0]
        sides = max(round(height * factor), 1), max(round(width * factor), 1)
        top, left = (
            int(lot * (m - n + 1)) if m >= n else -int(lot * (n - m + 1)) for m, n, lot in zip(sides, (h, w), u[1:], strict=True)
        )
    return sides, (top, left, h, w)


def expected(dataset, images, indices, seed=5, epoch=2):
    """Samples from whole images; and whether each was shrunk so far that a JPEG is decoded at a smaller scale."""
    crop, out = dataset.crop, []
    for k in indices:
        image, u = images[k], uniforms(seed, epoch, np.array([k]), 24)
        (box,) = crop.boxes(u[2 : 2 + crop.draws], np.array([image.shape[0]]), np.array([image.shape[1]]))
        h, w = crop.shapes(box[None])[0]
        if crop.resizes_first:
            sides, place = resized_first(crop, *image.shape[:2], u[2 : 2 + crop.draws, 0])
            inside = cut(np.ones(sides), place) == 1
            whole_image = resized(image, (0, 0, *image.shape[:2]), sides, True)
            sample = np.where(inside[..., None], cut(whole_image, place), crop.fill)
        elif tuple(box[2:]) == (h, w):
            sample = cut(image, box)
        else:
            sample = resized(image, box, (h, w), crop.antialias, crop.interpolation)
        sample = sample[:, ::-1] if u[0, 0] < dataset.hflip else sample
        scaled = min(box[2] / h, box[3] / w) >= (4 if crop.antialias else 2)
        out.append((sample[::-1] if u[1, 0] < dataset.vflip else sample, scaled))
    return out


CROPS = [
    Corner((24, 20)),
    Shifted(50),
    CenterCrop(60),
    CenterCrop((110, 90)),  # padded for some
    CenterCrop((33, 300)),
    RandomCrop(48),
    RandomCrop((50, 61), padding=7),
    RandomCrop(5, padding=40),  # may miss the image altogether
    RandomResizedCrop(24),
    RandomResizedCrop((90, 31)),
    RandomResizedCrop(24, antialias=False),
    RandomResizedCrop(300),
    RandomResizedCrop((40, 31), interpolation="bicubic"),
    RandomResizedCrop(120, interpolation="bicubic"),
    RandomResizedCrop(70, antialias=False, interpolation="bicubic"),
    CenterCrop(48, resize=64),
    CenterCrop((40, 110), resize=70),  # padded for some
    CenterCrop(90, resize=120),
    RandomScaleCrop((50, 70), (0.3, 1.7), fill=9),
    RandomScaleCrop(30, (1.0, 3.0)),
    Resize(30),
    Resize((48, 128)),
    Resize((40, 96), antialias=False),
]


@pytest.mark.parametrize("kind", ["rgb", "gray", "uint16", "jpeg"])
@pytest.mark.parametrize("crop", CROPS, ids=repr)
def test_pixels_are_those_of_pillow_and_cv2(crop, kind):
    path = {"rgb": store, "gray": lambda: store(gray=True), "uint16": lambda: deep(), "jpeg": lambda: store("jpeg")}[kind]()
    if kind == "uint16" and isinstance(crop, RandomCrop) and not crop.padding:
        crop = RandomCrop(31)
    dataset, images = LMDBDataset(path, crop=crop, hflip=0.5, vflip=0.4), originals(path)
    indices = range(0, len(images), 3 if len(images) > 9 else 1)  # some of all shapes
    for k, (want, scaled) in zip(indices, expected(dataset, images, indices), strict=True):
        found = dataset.read_batch([k], seed=5, epoch=2)[0][0]
        apart = np.abs(found.astype(float) - want) / (257 if found.dtype == np.uint16 else 1)
        if not (scaled and kind == "jpeg"):  # a scaled decode averages in its own way: see the next test
            assert apart.max() <= (2 if crop.resizes and (crop.antialias or crop.interpolation == "bicubic") else 0)
        assert found.dtype == images[0].dtype and found.shape[2] == images[0].shape[2]


@settings(max_examples=100, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    shape=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    channels=st.integers(1, 4),
    method=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 99),
)
def test_every_number_of_channels_is_averaged_as_pillow_does(sides, shape, channels, method, seed):
    """One and two channels take another way through torch's kernel than three."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*sides, channels), np.uint8)
    out = np.full((*shape, channels), 7, np.uint8)
    resample(pixels, (0, 0, *sides), out, antialias=True, interpolation=method)
    if sides[0] > shape[0] or sides[1] > shape[1] or method == "bicubic":
        # overshoots of a bicubic kernel are cut off after the first of two passes, of which Pillow 13 takes the cheaper one first
        between = (shape[0], sides[1]) if channels == 1 else (sides[0], shape[1])
        half = resized(pixels, (0, 0, *sides), between, True, method)
        assert np.abs(out.astype(float) - resized(half, (0, 0, *between), shape, True, method)).max() <= 2


@pytest.mark.parametrize(
    ("antialias", "factor", "shrink"), [(True, 4.3, 2), (True, 12.5, 4), (False, 2.2, 2), (False, 4.3, 4), (False, 9, 8)]
)
def test_a_box_is_not_shifted_by_a_decode_at_a_smaller_scale(antialias, factor, shrink):
    """Boxes that begin at every pixel of a block: each is nearest to Pillow's average of that very box, not of its neighbours."""
    image = picture(7, 400, 420)
    image = cv2.add(image, cv2.resize(picture(8, 50, 60) // 3, (420, 400)))  # detail of several pixels
    data = encode_record(image, "jpeg", quality=95)
    with Image.open(io.BytesIO(data)) as opened:
        whole = opened.convert("RGB")
    out = np.empty((24, 24, 3), np.uint8)
    side = round(24 * factor)
    view = View(Resize((24, 24), antialias=antialias))
    for start in range(20, 28):
        box = (start, start + 3, side + start % 3, side)
        box_of, output = np.array([box]), np.array([out.shape[:2]])
        window = view._windows(box_of, output, np.array([400]), np.array([420]))[0]
        assert window.shrink == shrink
        region = decode_window(data, Form("jpeg", 3, "uint8"), 400, 420, window, lambda n: np.empty(n, np.uint8))
        view.render(Sample(box, window, (24, 24), (False, False)), region, out)

        def apart(dy, dx, box=box):
            top, left, h, w = box
            moved = whole.resize((24, 24), Image.Resampling.BILINEAR, box=(left + dx, top + dy, left + dx + w, top + dy + h))
            return np.abs(out - np.asarray(moved).astype(float)).mean()

        here = apart(0, 0)
        assert here < (2 if antialias else 4)
        for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            assert here < apart(dy, dx)


class Wrong(Crop):
    box = 0, 0, 10, 10

    def boxes(self, u, heights, widths):
        return np.tile(self.box, (len(heights), 1))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"box": (0, -1, 10, 10)}, r"Wrong\(8\).boxes gave \[0, -1, 10, 10\] .* must .*lie in the image unless reaches_outside"),
        ({"box": (0, 0, 0, 8)}, "must have an area"),
        ({"resizes": False}, "must .*have the output's size unless resizes is True"),
        ({"box": (0, 0, 10)}, r"gave int64 \[1, 3\], not integers of shape \[1, 4\]"),
        ({"shape": None}, "Wrong.shape is None, so the class needs a method shapes"),
    ],
)
def test_boxes_that_are_not_what_a_crop_says(said, says):
    with pytest.raises((LoaderError, NotImplementedError), match=says):
        LMDBDataset(square(), crop=type("Wrong", (Wrong,), said)(8))[0]


def test_reprs_are_short_and_the_example_runs():
    assert repr(RandomResizedCrop(224)) == "RandomResizedCrop(224)"
    assert repr(RandomCrop((32, 24), padding=4)) == "RandomCrop((32, 24), padding=4)"
    assert repr(Resize(64, antialias=False)) == "Resize(64, antialias=False)"
    assert repr(Corner(8)) == "Corner(8)"
    results = doctest.testmod(crops)
    assert results.attempted >= 2 and results.failed == 0


# Resizing offline, against averages over exact pixel areas


def _weights(before: int, after: int) -> Array:
    """[after, before]: how much of each pixel lies in each of `after` equal parts of a side."""
    edges = np.arange(after + 1) * before / after
    low = np.maximum(edges[:-1, None], np.arange(before))
    high = np.minimum(edges[1:, None], np.arange(before) + 1)
    return np.maximum(high - low, 0) * after / before


def areas(image: Array, shape: tuple[int, int]) -> Array:
    down, across = _weights(image.shape[0], shape[0]), _weights(image.shape[1], shape[1])
    return np.einsum("yh,hw...,xw->yx...", down, image, across, optimize=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("factor", [1.02, 1.1, 1.2, 1.3, 1.5, 1.8, 1.97, 2.0, 2.7, 4.0])
def test_shrinking_averages_areas(factor: float, channels: int, dtype: type) -> None:
    image = picture(3, 301, 400).astype(dtype)
    image = image[..., 0] if channels == 1 else image
    scale = 257 if dtype == np.uint16 else 1
    shape = round(301 / factor), round(400 / factor)
    found, exact = resize(image * dtype(scale), shape) / scale, areas(image, shape)
    assert np.abs(found - exact).mean() < (2 if 1 < factor < 2 else 0.3)
    for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):  # and is not shifted by a fraction of a pixel
        assert np.abs(found - exact).mean() < np.abs(found - np.roll(exact, (dy, dx), (0, 1))).mean() / 2


RESIZED = st.integers(1, 300) | st.integers(1, 65_500)


@given(RESIZED, RESIZED, RESIZED)
def test_sides_are_those_of_torchvisions_resize(height: int, width: int, size: int) -> None:
    def resized(mode: str, upscale: bool) -> list[int]:
        shape, corner, stored = (found[0].tolist() for found in layout(np.array([(height, width)]), size, mode, upscale=upscale))
        square = [min(*shape, size)] * 2 if mode == "crop" else shape
        assert stored == square and corner == [(whole - side) // 2 for whole, side in zip(shape, square, strict=True)]
        return shape

    short, long = min(height, width), max(height, width)
    expected = [int(size * long / short), size] if width <= height else [size, int(size * long / short)]
    assert resized("short", True) == resized("crop", True) == expected
    assert resized("long", True) == [max(1, int(size * n / long)) for n in (height, width)]
    assert resized("stretch", True) == [size, size]
    for mode, side in (("short", short), ("crop", short), ("long", long)):
        assert resized(mode, False) == ([height, width] if size >= side else resized(mode, True))


# Several views of an image: each equals what its crop alone gives, whatever is decoded together

TWO = [RandomResizedCrop(24), RandomResizedCrop((16, 20), scale=(0.05, 0.4), antialias=False)]


def fixed(crop: Crop, boxes: Any) -> Crop:
    """A crop like another one, of boxes that are given, one for each image."""
    parts = {name: getattr(crop, name) for name in ("resizes", "antialias", "fast")}
    parts |= {"reaches_outside": not crop.resizes, "boxes": lambda self, u, heights, widths: boxes}
    return type("Given", (Crop,), parts)(crop.shape)


def alone(dataset: Any, index: int, *, seed: int, epoch: int) -> list[Array]:
    """The views of a sample, each rendered by itself from its box and flips."""
    crops = list(dataset.crop)
    u = uniforms(seed, epoch, np.array([index]), sum(2 + crop.draws for crop in crops))
    heights, widths = (sides[[index]] for sides in dataset.sides())
    found = []
    for crop in crops:
        flips, own, u = u[:2, 0], u[2 : 2 + crop.draws], u[2 + crop.draws :]
        box = crop.boxes(own, heights, widths)
        flipped = {"hflip": float(flips[0] < dataset.hflip), "vflip": float(flips[1] < dataset.vflip)}
        found.append(dataset.with_crop(fixed(crop, box), **flipped).subset([index]).read_batch([0], seed=0, epoch=0)[0][0])
    return found


SOME_CROPS = st.lists(
    st.builds(RandomResizedCrop, st.integers(4, 48), scale=st.just((0.3, 1.0)), antialias=st.booleans(), fast=st.booleans())
    | st.builds(RandomCrop, st.integers(1, 60), fast=st.booleans())
    | st.builds(CenterCrop, st.tuples(st.integers(1, 150), st.integers(1, 150)))
    | st.builds(Resize, st.tuples(st.integers(4, 60), st.integers(4, 60))),
    min_size=1,
    max_size=6,
)


@given(SOME_CROPS, st.integers(0, 1000), st.sampled_from(["jpeg", "jpeg", "original", "png", "rgb"]))
@settings(max_examples=15, deadline=None)
def test_any_crops_give_views_that_do_not_depend_on_each_other(crops: list[Crop], seed: int, codec: str) -> None:
    dataset = LMDBDataset(stores.store(codec), crop=crops, hflip=0.5)
    rows = np.arange(seed % 30, seed % 30 + 6)
    images, _ = dataset.read_batch(rows, seed=seed, epoch=0)
    for place, k in enumerate(rows):
        for view, want in zip(images, alone(dataset, int(k), seed=seed, epoch=0), strict=True):
            np.testing.assert_array_equal(view[place], want)


def noisy(pixels: Array) -> Array:
    return np.full_like(pixels, np.random.randint(256))  # noqa: NPY002  users do


def test_a_view_has_flips_and_a_transform_of_its_own() -> None:
    """What it lacks is the dataset's, which may be set at any time."""
    crop, path = CenterCrop(24), stores.store("jpeg")
    whole = [LMDBDataset(path, crop=crop, **options) for options in ({}, {"hflip": 1.0}, {"vflip": 1.0})]
    plain, across, down = (dataset.read_batch(np.arange(9), seed=0, epoch=0)[0] for dataset in whole)
    views = [
        View(crop, hflip=1.0),
        crop,
        View(crop, vflip=1.0, hflip=0.0, transform=np.invert),
        View(Resize((8, 9)), transform=noisy),
    ]
    dataset = LMDBDataset(path, crop=views, transform=lambda pixels: pixels // 2)
    first, second, third, fourth = dataset.read_batch(np.arange(9), seed=0, epoch=0)[0]
    np.testing.assert_array_equal(first, across // 2)
    np.testing.assert_array_equal(second, plain // 2)
    np.testing.assert_array_equal(third, 255 - down)
    assert fourth.shape == (9, 8, 9, 3) and len(np.unique(fourth[:, 0, 0, 0])) > 6
    dataset.hflip, dataset.transform = 1.0, None
    first, second, third, _ = dataset.read_batch(np.arange(9), seed=0, epoch=0)[0]
    for found, want in ((first, across), (second, across), (third, 255 - down)):
        np.testing.assert_array_equal(found, want)
    alone = LMDBDataset(path, crop=View(crop, hflip=1.0, transform=np.invert))
    np.testing.assert_array_equal(alone.with_crop_size(24).read_batch(np.arange(9), seed=0, epoch=0)[0], 255 - across)
    assert "View(CenterCrop(24), hflip=1.0, transform=<ufunc 'invert'>)" in repr(alone)
    with pytest.raises(ValueError, match="the mask would not follow"):
        MaskDataset(stores.masked(), crop=View(crop, transform=np.invert))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_delivers_tuples_of_batches(workers: int) -> None:
    """Views that share a function draw different numbers, the same for any workers and batches."""
    crops = [*MultiCrop(32, 16, num_local=3), *[View(CenterCrop(8), transform=noisy)] * 2]
    dataset = LMDBDataset(stores.store("jpeg"), crop=crops, hflip=0.5)
    with Loader(dataset, 8, shuffle=True, seed=5, num_workers=workers) as loader:
        for batch in loader:
            views, targets = batch
            want, labels = dataset.read_batch(batch.ids, seed=5, epoch=0)
            assert type(batch) is Batch and batch.valid == len(batch.ids) == len(targets) and len(views) == 7
            assert torch.equal(targets, torch.from_numpy(labels))
            for view, expected in zip(views, want, strict=True):
                assert view.dtype == torch.uint8 and view.is_contiguous(memory_format=torch.channels_last)
                np.testing.assert_array_equal(view.permute(0, 2, 3, 1), expected)
            assert len(batch.ids) < 8 or (views[-1][:, 0, 0, 0] != views[-2][:, 0, 0, 0]).sum() > 4
        assert loader.stats().copies == 0


def test_multi_crop_is_that_of_dino() -> None:
    crops = list(MultiCrop())
    assert crops == [RandomResizedCrop(224, scale=(0.4, 1))] * 2 + [RandomResizedCrop(96, scale=(0.05, 0.4))] * 8
    assert MultiCrop(64, 32, num_local=1)[-1] == RandomResizedCrop(32, scale=(0.05, 0.4)) and len(MultiCrop(num_global=0)) == 8
    with pytest.raises(ValueError, match="RandomResizedCrop: scale is"):
        MultiCrop(local_scale=(0.4, 0.05))


def test_what_views_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="crop is empty: give one crop or several"):
        LMDBDataset(square("jpeg"), crop=[])
    with pytest.raises(ValueError, match="DALI cannot decode this dataset: it has several crops"):
        Loader(LMDBDataset(square("jpeg"), crop=TWO), 8, backend="dali")
    with pytest.raises(ValueError, match="crop is a sequence of 2, but the mask can follow only one"):
        MaskDataset(stores.masked(), crop=TWO)


def test_augment_gives_each_view_its_own_numbers() -> None:
    augment = Augment(pytest.importorskip("kornia").augmentation.RandomBrightness((0.0, 2.0), p=1.0))
    with Loader(LMDBDataset(stores.store("rgb"), crop=[CenterCrop(16)] * 3), 8, num_workers=0) as loader:
        batch = next(iter(loader))
    batch = batch.like((tuple(view * 0 + 100 for view in batch[0]), batch[1]))
    views = augment(batch)
    assert isinstance(views, tuple) and [list(view.shape) for view in views] == [[8, 3, 16, 16]] * 3
    drawn = torch.stack([view[:, 0, 0, 0] for view in views]).int()
    assert all((drawn[a] != drawn[b]).sum() > 5 for a, b in [(0, 1), (1, 2), (0, 2)])
    assert torch.equal(augment(batch[0][0], batch.ids, 0), views[0])  # the first view has those of an only one
    assert all(map(torch.equal, augment(batch[0], batch.ids, 0), views))
