"""Crops against torchvision's own lines, and their pixels against numpy and cv2."""

from __future__ import annotations

import doctest
import io
import math
from dataclasses import dataclass
from functools import cache, partial

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata import CenterCrop, Crop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, RandomScaleCrop, Resize
from fastdata.codecs.pixels import decode_window, encode_record
from fastdata.data.random import uniforms
from fastdata.errors import LoaderError
from fastdata.images import crops
from fastdata.images.geometry import layout
from fastdata.images.prepare import resize
from fastdata.images.resample import resample
from fastdata.images.view import Sample, View
from fastdata.store.manifest import Form
from stores import deep, square, store, whole
from support import Array, Corner, Shifted, picture

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
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


def torchvision_center_crop(image, size):
    """functional.center_crop of torchvision 0.20, on an array: what is smaller is padded first."""
    image = np.pad(image, [(max(n - m, 0) // 2, (max(n - m, 0) + 1) // 2) for m, n in zip(image.shape, size, strict=True)])
    top, left = (round((m - n) / 2.0) for m, n in zip(image.shape, size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


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


@given(st.integers(1, 400), st.integers(1, 400), sizes)
@example(1, 40, 7)
@example(5, 5, (4, 6))
@settings(max_examples=100, deadline=None)
def test_center_crop_is_torchvisions_padding_included(height, width, size):
    crop = CenterCrop(size)
    (box,) = boxes_of(crop, 0, [height], [width])[1]
    image = np.arange(1, height * width + 1).reshape(height, width)
    expected = torchvision_center_crop(image, crop.shape)
    np.testing.assert_array_equal(cut(image, box), expected)
    assert expected.shape == crop.shapes(box[None])[0] == crop.shape


@given(sides, sides, sizes, st.integers(0, 100), seeds)
@settings(max_examples=100, deadline=None)
def test_random_crop_is_torchvisions_padding_included(height, width, size, padding, seed):
    crop = RandomCrop(size, padding=padding)
    th, tw = crop.shape
    h, w = height + 2 * padding, width + 2 * padding  # of the padded image
    if h < th or w < tw:
        with pytest.raises(LoaderError, match=f"does not fit into a sample of {height} x {width}: use more padding"):
            boxes_of(crop, seed, [height], [width])
        return
    u, (box,) = boxes_of(crop, seed, [height], [width])
    i, j = int(u[0, 0] * (h - th + 1)), int(u[1, 0] * (w - tw + 1))  # torch.randint(0, h - th + 1) of the same number
    assert tuple(box) == (i - padding, j - padding, th, tw)
    assert 0 <= i <= h - th and 0 <= j <= w - tw


@given(sides, sides, sizes)
@settings(max_examples=100, deadline=None)
def test_resize_keeps_the_aspect_as_torchvision_does(height, width, size):
    crop = Resize(size)
    (box,) = boxes_of(crop, 0, [height], [width])[1]
    assert tuple(box) == (0, 0, height, width)
    if isinstance(size, int):  # _compute_resized_output_size
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = size, int(size * long / short)
        new_w, new_h = (new_short, new_long) if width <= height else (new_long, new_short)
        assert crop.shapes(box[None]) == [(new_h, new_w)]
    else:
        assert crop.shapes(box[None]) == [size]


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
    with pytest.raises(ValueError, match=r"but must be|but the samples have 2 axes"):
        View(make())


def emitted(dataset, indices, seed=5, epoch=2):
    """Each sample by itself, [H, W, C], as the Loader would get it."""
    return [dataset.read_batch([k], seed=seed, epoch=epoch)[0][0] for k in indices]


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
        top, left = (-((n - m) // 2) if m < n else round((m - n) / 2) for m, n in zip(sides, (h, w), strict=True))
    else:
        factor = crop.scale[0] + (crop.scale[1] - crop.scale[0]) * u[0]
        sides = max(round(height * factor), 1), max(round(width * factor), 1)
        top, left = (
            int(lot * (m - n + 1)) if m >= n else -int(lot * (n - m + 1)) for m, n, lot in zip(sides, (h, w), u[1:], strict=True)
        )
    return sides, (top, left, h, w)


def expected(dataset, images, indices, seed=5, epoch=2):
    """The same from whole images; and whether each was shrunk so far that a JPEG is decoded at a smaller scale."""
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
    for found, (want, scaled) in zip(emitted(dataset, indices), expected(dataset, images, indices), strict=True):
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


# What crops of a user's own say of themselves holds wherever batches are made


@dataclass(frozen=True)
class Even(Crop):
    """The largest box in the centre whose sides are multiples of a number."""

    step: int = 8
    resizes = False
    shape = None

    def boxes(self, u, heights, widths):
        h, w = heights - heights % self.step, widths - widths % self.step
        return np.stack([(heights - h) // 2, (widths - w) // 2, h, w], axis=1)

    def shapes(self, boxes):
        return list(map(tuple, boxes[:, 2:].tolist()))


def test_shapes_may_depend_on_the_image():
    dataset = LMDBDataset(store(), size=96, crop=Even(1, step=16))
    sides = [(h - h % 16, w - w % 16) for h, w, _ in (image.shape for image in whole(store(), 96))]
    assert [tuple(image.shape[1:]) for image, _ in dataset] == sides
    assert dataset.sample_bytes() == 3 * max(h * w for h, w in sides)
    with Loader(dataset.subset(np.flatnonzero([side == sides[0] for side in sides])), 3, num_workers=1) as loader:
        assert {tuple(batch[0].shape[1:]) for batch in loader} == {(3, *sides[0])}


class Wrong(Crop):
    box = 0, 0, 10, 10

    def boxes(self, u, heights, widths):
        return np.tile(self.box, (len(heights), 1))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            {"box": (0, -1, 10, 10)},
            r"Wrong\(8\).boxes gave \[0, -1, 10, 10\] .* which reaches beyond .*reaches_outside is",
        ),
        ({"box": (0, 0, 0, 8)}, "which has no pixels"),
        ({"resizes": False}, "does not have the size of the output, but resizes is False"),
        ({"box": (0, 0, 10)}, r"gave int64 \[1, 3\], but must give integers \[1, 4\]"),
        ({"shape": None}, "Wrong has no shape of its own, so it needs a method shapes"),
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


@given(st.integers(20, 90), st.integers(20, 90), st.floats(0.2, 1), st.floats(0.2, 1), st.integers(0, 255))
def test_a_ramp_stays_a_ramp_and_flat_stays_flat(height: int, width: int, down: float, across: float, value: int) -> None:
    """Filters that are symmetric and sum to one keep straight lines, up to the borders and rounding."""
    shape = max(4, round(height * down)), max(4, round(width * across))
    flat = np.full((height, width, 3), value, np.uint8)
    np.testing.assert_array_equal(resize(flat, shape), np.full((*shape, 3), value, np.uint8))
    ramp = np.add.outer(np.arange(height), 1.5 * np.arange(width)).round().astype(np.uint8)
    found, exact = resize(ramp, shape), areas(ramp, shape)
    inner = np.s_[1:-1, 1:-1]
    assert np.abs(found[inner] - exact[inner]).max() <= 1.5


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
