"""jpeg-yuv420: the planes are libjpeg's own, for every box, and any viewer opens the records."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import struct

import cv2
import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastdata
from fastdata import (
    CenterCrop,
    CodecError,
    GPUNormalize,
    LMDBDataset,
    Loader,
    MultiCrop,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from fastdata.images.form import PixelFormat
from fastdata.images.pixels import Window, decode_window, encode_record
from fastdata.images.planes import encode_planes, split_planes
from fastdata.store.store import Store
from fastdata.store.verify import verify
from stores import sources, store
from support import Array, encode, memory_of, picture
from test_planes import to_rgb

CODEC = "jpeg-yuv420"
FORM = PixelFormat(CODEC, 3, "uint8")
EOI = b"\xff\xd9"


def scans(record: bytes) -> tuple[bytes, list[bytes]]:
    """The tables of a record, and the data of each scan."""
    parts = record.removesuffix(EOI).split(b"\xff\xda\x00\x08\x01")
    at, tables = 2, b""
    while at < len(parts[0]):
        end = at + 2 + int.from_bytes(parts[0][at + 2 : at + 4], "big")
        tables += parts[0][at:end] if parts[0][at + 1] in (0xDB, 0xC4, 0xDD) else b""
        at = end
    return tables, [part[5:] for part in parts[1:]]


def planes(record: bytes, height: int, width: int) -> tuple[Array, Array]:
    """Luma [H, W, 1] and colours [H/2, W/2, 2] as libjpeg decodes them by itself.

    The scans of one resolution are put into a JPEG of that resolution whose three components are red, green and blue, so that
    nothing is interpolated or converted.
    """
    tables, found = scans(record)

    def decoded(data: list[bytes], table: int, sides: tuple[int, int]) -> Array:
        parts = b"".join(bytes([k, 0x11, table]) for k in (1, 2, 3))
        frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, *sides, 3) + parts
        adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"  # no conversion
        own = (b"\xff\xda\x00\x08\x01" + bytes([k, 0, 0, 63, 0]) + scan for k, scan in enumerate(data, 1))
        with Image.open(io.BytesIO(b"\xff\xd8" + adobe + tables + frame + b"".join(own) + EOI)) as file:
            return np.asarray(file.convert("RGB"))

    luma = decoded([found[0]] * 3, 0, (height, width))
    chroma = decoded([found[1], found[1], found[2]], 1, (height // 2, width // 2))
    return luma[:, :, :1], chroma[:, :, 1:]


def image_of(height: int, width: int, seed: int, noise: bool) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8) if noise else picture(seed, height, width)


def scratch(size: int) -> Array:
    return np.empty(size, np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    quality=st.sampled_from([1, 20, 75, 90, 100]),
    seed=st.integers(0, 9),
    noise=st.booleans(),
    data=st.data(),
)
def test_every_box_has_libjpegs_planes(sides, quality, seed, noise, data):
    record = encode_record(image_of(*sides, seed, noise), CODEC, quality=quality)
    height, width = (side + side % 2 for side in sides)
    whole = planes(record, height, width)
    everything = Window(0, 0, height, width)
    for _ in range(6):
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        tall, wide = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
        for window in (Window(top, left, tall, wide), everything):
            regions = decode_window(memoryview(record), FORM, height, width, window, scratch)
            for plane, region, scale in zip(whole, regions, (1, 2), strict=True):
                assert region.shrink == scale and region.top % scale == region.left % scale == 0
                y, x = region.top // scale, region.left // scale
                h, w = region.pixels.shape[:2]
                np.testing.assert_array_equal(region.pixels, plane[y : y + h, x : x + w])
                assert y <= window.top / scale and y + h >= (window.top + window.height) / scale
                assert x <= window.left / scale and x + w >= (window.left + window.width) / scale


@pytest.mark.parametrize(("height", "width"), [(64, 40), (32, 56), (72, 24)])
def test_every_box_of_blocks(height, width):
    """Rows of 5, 7 or 3 blocks: segments of 4 begin elsewhere in each row, and the last ones end with the plane.

    Only the blocks of the box are returned, unless a plane's last segment is shorter, as that of 9 x 3 blocks.
    """
    record = memoryview(encode_record(image_of(height, width, 0, noise=True), CODEC))
    whole = planes(bytes(record), height, width)
    rows, columns = (itertools.combinations(range(0, side + 1, 8), 2) for side in (height, width))
    for (top, bottom), (left, right) in itertools.product(rows, columns):
        window = Window(top, left, bottom - top, right - left)
        for plane, region, scale in zip(whole, decode_window(record, FORM, height, width, window, scratch), (1, 2), strict=True):
            y, x = (top - region.top) // scale, (left - region.left) // scale
            found = region.pixels[y:, x:][: (bottom - top) // scale, : (right - left) // scale]
            if height != 72:
                ends = [min(-(-end // (8 * scale)) * 8, side // scale) for end, side in ((bottom, height), (right, width))]
                want = [end - start // (8 * scale) * 8 for start, end in zip((top, left), ends, strict=True)]
                assert list(region.pixels.shape[:2]) == want
            np.testing.assert_array_equal(found, plane[top // scale : bottom // scale, left // scale : right // scale])


@settings(max_examples=20, deadline=None)
@given(
    sides=st.tuples(st.integers(17, 150), st.integers(17, 150)),
    shrink=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_a_cut_at_a_smaller_scale_is_part_of_the_whole_at_that_scale(sides, shrink, seed, data):
    record = memoryview(encode_record(picture(seed, *sides), CODEC))
    height, width = (side + side % 2 for side in sides)
    whole = decode_window(record, FORM, height, width, Window(0, 0, height, width, shrink), scratch)
    luma = simplejpeg.decode_jpeg(record, "GRAY", min_height=-(-height // shrink), min_width=-(-width // shrink))
    np.testing.assert_array_equal(whole[0].pixels, luma)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    window = Window(top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)), shrink)
    for region, full in zip(decode_window(record, FORM, height, width, window, scratch), whole, strict=True):
        y, x = region.top // region.shrink, region.left // region.shrink
        h, w = region.pixels.shape[:2]
        np.testing.assert_array_equal(region.pixels, full.pixels[y : y + h, x : x + w])


@settings(max_examples=40, deadline=None)
@given(sides=st.tuples(st.integers(1, 90), st.integers(1, 90)), quality=st.integers(1, 100), noise=st.booleans())
def test_every_viewer_opens_the_records(sides, quality, noise):
    image = image_of(*sides, 1, noise)
    record = encode_record(image, CODEC, quality=quality)
    even = tuple(side + side % 2 for side in sides)
    with Image.open(io.BytesIO(record)) as file:
        assert file.format == "JPEG" and file.size == even[::-1] and "progressive" not in file.info
        found = np.asarray(file.convert("RGB"))
    np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(record))
    np.testing.assert_array_equal(found, cv2.imdecode(np.frombuffer(record, np.uint8), cv2.IMREAD_COLOR_RGB))
    luma, chroma = planes(record, *even)
    assert np.abs(found - to_rgb(luma[:, :, 0], chroma)).max() <= 2 or min(even) < 6  # libjpeg upsamples narrow ones in another way


@settings(max_examples=30, deadline=None)
@given(sides=st.tuples(st.integers(1, 60), st.integers(1, 60)), noise=st.booleans())
def test_the_best_quality_keeps_the_planes(sides, noise):
    image = image_of(*sides, 2, noise)
    height, width = (side + side % 2 for side in sides)
    want = split_planes(encode_planes(image), height, width)
    for found, plane in zip(planes(encode_record(image, CODEC, quality=100), height, width), want, strict=True):
        assert np.abs(found.astype(int) - plane).max() <= 3


def test_quantization_tables_are_those_of_other_encoders():
    image = picture(0, 40, 40)
    for quality in range(1, 101):
        with (
            Image.open(io.BytesIO(encode_record(image, CODEC, quality=quality))) as ours,
            Image.open(io.BytesIO(simplejpeg.encode_jpeg(image, quality, colorsubsampling="420"))) as theirs,
        ):
            assert ours.quantization == theirs.quantization  # type: ignore[attr-defined]


def test_without_an_index_the_whole_is_decoded():
    record = encode_record(picture(5, 70, 90), CODEC)
    end = 4 + int.from_bytes(record[4:6], "big")
    index = 2 + int.from_bytes(record[end + 2 : end + 4], "big")
    bare = record[:end] + record[end + index :]
    window = Window(10, 20, 30, 30)
    for region, plane in zip(decode_window(memoryview(bare), FORM, 70, 90, window, scratch), planes(record, 70, 90), strict=True):
        np.testing.assert_array_equal(region.pixels, plane)


@pytest.mark.parametrize("window", [Window(60, 20, 5, 10), Window(10, 30, 30, 11)])
def test_of_a_box_beyond_the_image_the_whole_is_decoded(window):
    record = encode_record(picture(5, 64, 40), CODEC)
    for region, plane in zip(decode_window(memoryview(record), FORM, 64, 40, window, scratch), planes(record, 64, 40), strict=True):
        np.testing.assert_array_equal(region.pixels, plane)


@pytest.mark.parametrize("window", [Window(0, 0, 70, 90), Window(10, 20, 30, 30)])
def test_a_damaged_record_is_an_error(window):
    record = encode_record(picture(5, 70, 90), CODEC)
    plain = encode_record(picture(5, 70, 90), "jpeg")
    for bad in (record[: len(record) // 2], record[:300], b"", plain):
        with pytest.raises(CodecError):
            decode_window(memoryview(bad), FORM, 70, 90, window, scratch)
    with pytest.raises(CodecError, match="the index says"):
        decode_window(memoryview(record), FORM, 72, 90, window, scratch)


@pytest.mark.parametrize(
    ("marker", "place", "value"),
    [
        *(("ffc0", place, value) for place, value in ((4, 12), (9, 4), (11, 0x21), (14, 0x21), (17, 0x12), (15, 0), (18, 0))),
        *(("ffda", place, value) for place, value in ((4, 3), (5, 2))),
        ("ffdd", 5, 0),
    ],
)
def test_another_jpeg_is_an_error(marker, place, value):
    """Of other samples, components or tables, of more planes in a scan, or without restart markers."""
    record = bytearray(encode_record(picture(5, 70, 90), CODEC))
    record[record.index(bytes.fromhex(marker)) + place] = value
    for window in (Window(0, 0, 70, 90), Window(10, 20, 30, 30)):
        with pytest.raises(CodecError, match="it has no scan for each plane"):
            decode_window(memoryview(bytes(record)), FORM, 70, 90, window, scratch)


def test_an_image_that_is_too_large_is_refused():
    assert encode_record(np.zeros((1, 65_499, 3), np.uint8), CODEC)
    with pytest.raises(CodecError, match="65502 x 2 pixels: a JPEG holds at most 65500 a side; give a --size"):
        encode_record(np.zeros((1, 65_501, 3), np.uint8), CODEC)


# Datasets

CROPS = [CenterCrop(60), CenterCrop((110, 90)), RandomCrop((50, 62), padding=7), RandomCrop(6, padding=40)]
CROPS += [RandomResizedCrop(48), RandomResizedCrop((90, 30), antialias=False), RandomResizedCrop(300), Resize((48, 128))]


@pytest.mark.parametrize("crop", CROPS, ids=repr)
def test_samples_are_those_of_the_decoded_planes(crop):
    options = {"crop": crop, "hflip": 0.5, "vflip": 0.4, "size": 96}
    disk, memory = LMDBDataset(store(CODEC), **options), RAMDataset(store(CODEC), **options, decoded=True)
    held = RAMDataset(store(CODEC), **options)
    for epoch in range(3):
        want = memory.read_batch(np.arange(len(memory)), seed=1, epoch=epoch)[0]
        np.testing.assert_array_equal(disk.read_batch(np.arange(len(disk)), seed=1, epoch=epoch)[0], want)
        np.testing.assert_array_equal(held.read_batch(np.arange(len(disk)), seed=1, epoch=epoch)[0], want)
    np.testing.assert_array_equal(disk.read_batch([7], seed=1, epoch=epoch)[0][0], want[7])


@pytest.mark.parametrize("decoded", [False, True])
def test_whole_samples_are_libjpegs_planes(decoded):
    memory, opened = RAMDataset(store(CODEC), decoded=decoded), Store(store(CODEC))
    reader, (heights, widths) = opened.reader(opened.variant(None)), memory.sides()
    for k in range(0, len(memory), 5):
        luma, chroma = planes(bytes(reader.get(k)), int(heights[k]), int(widths[k]))
        found = memory.read_batch([k], seed=0, epoch=0)[0]
        np.testing.assert_array_equal(found.ravel(), np.concatenate([luma.ravel(), chroma.ravel()]))
    assert memory_of(memory).nbytes == (heights * widths * 3 // 2 if decoded else opened.samples["96/bytes"]).sum()


@pytest.mark.parametrize("codec", ["yuv420", CODEC])
def test_rgb_is_the_rgb_of_the_planes(codec):
    options = {"crop": RandomResizedCrop(48), "hflip": 0.5}
    emitted, rgb = LMDBDataset(store(codec), **options), LMDBDataset(store(codec), **options, rgb=True)
    rows = np.arange(len(rgb))
    (a, _), (b, _) = (dataset.read_batch(rows, seed=3, epoch=0) for dataset in (emitted, rgb))
    assert b.shape == (len(rgb), 48, 48, 3) and rgb.sample_bytes() == 48 * 48 * 3 and not rgb.planes
    device = GPUNormalize(0, 1, max_value=1, yuv420=True)(torch.from_numpy(a).permute(0, 3, 1, 2))
    assert np.abs(b - device.permute(0, 2, 3, 1).numpy()).max() <= 2
    seen = []
    negative = LMDBDataset(store(codec), **options, rgb=True, transform=lambda image: seen.append(image) or 255 - image)
    np.testing.assert_array_equal(negative.read_batch(rows, seed=3, epoch=0)[0], 255 - b)
    assert len(seen) == len(rgb) and seen[0].shape == (48, 48, 3)
    torch.manual_seed(0)
    image, _ = rgb.with_crop(CenterCrop(40))[5]
    assert image.shape == (3, 40, 40) and image.dtype == torch.uint8
    with Loader(rgb, 8, num_workers=1, seed=3) as loader:
        np.testing.assert_array_equal(next(iter(loader))[0].permute(0, 2, 3, 1).numpy(), b[:8])


def test_rgb_of_pixels_changes_nothing():
    plain, rgb = (
        LMDBDataset(store("jpeg"), crop=CenterCrop(40), rgb=rgb).read_batch([0, 1], seed=0, epoch=0)[0] for rgb in (False, True)
    )
    np.testing.assert_array_equal(plain, rgb)


def test_views_are_those_of_each_crop_alone():
    crops = MultiCrop(64, 32)
    both = LMDBDataset(store(CODEC), crop=crops, hflip=0.5).read_batch(np.arange(42), seed=2, epoch=1)[0]
    memory = RAMDataset(store(CODEC), crop=crops, hflip=0.5, decoded=True).read_batch(np.arange(42), seed=2, epoch=1)[0]
    for found, want in zip(both[:2], memory[:2], strict=True):
        np.testing.assert_array_equal(found, want)
    assert [view.shape[1:] for view in both] == [(96, 64, 1)] * 2 + [(48, 32, 1)] * (len(both) - 2)


def test_raw_planes_go_with_it():
    parts = [LMDBDataset(store(codec), crop=CenterCrop(48)) for codec in (CODEC, "yuv420")]
    both = parts[0] + parts[1]
    found = both.read_batch(np.arange(len(both)), seed=0, epoch=0)[0]
    alone = [part.read_batch(np.arange(len(part)), seed=0, epoch=0)[0] for part in parts]
    np.testing.assert_array_equal(found, np.concatenate(alone))


@pytest.mark.parametrize("rgb", [False, True])
def test_resident_images_are_those_of_the_workers(rgb, tmp_path):
    out = fastdata.prep(sources(), tmp_path / "o.fds", size=32, resize="crop", upscale=True, codec=CODEC, workers=1).out
    made, resident = (
        torch.cat([x for x, *_ in Loader(LMDBDataset(out, hflip=0.5, rgb=rgb), 4, seed=3, num_workers=0, resident=resident)])
        for resident in (None, "cpu")
    )
    assert torch.equal(made, resident)


def test_parts_and_unions_of_stores(tmp_path):
    out = fastdata.prep(sources(), tmp_path / "a.fds", size=(48, 32), codec=CODEC, workers=1).out
    images = [image for image, _ in LMDBDataset(out)]
    shutil.copytree(out, tmp_path / "b.fds")
    merged = LMDBDataset(fastdata.merge([out, tmp_path / "b.fds"], tmp_path / "m.fds"))
    assert all(map(torch.equal, [image for image, _ in merged], [*images, *images]))
    small = LMDBDataset(out, size=32)
    assert all(map(torch.equal, [image for image, _ in LMDBDataset(out).with_size(32)], [image for image, _ in small]))
    assert list(verify(out)) == []


def test_boxes_follow(tmp_path):
    paths = sorted(sources().rglob("*.png"))
    rng = np.random.default_rng(0)
    sides = np.array([cv2.imread(str(path)).shape[:2] for path in paths])
    corners = np.sort(rng.integers(0, 60, (len(paths), 2, 2)), axis=1)  # inside of every image, as (x, y)
    body = {
        "images": [
            {"id": k, "file_name": str(path.relative_to(sources())), "height": int(h), "width": int(w)}
            for k, (path, (h, w)) in enumerate(zip(paths, sides, strict=True))
        ],
        "annotations": [
            {"id": k, "image_id": k, "category_id": 1, "bbox": [*first.tolist(), *(last - first + 1).tolist()]}
            for k, (first, last) in enumerate(corners)
        ],
        "categories": [{"id": 1, "name": "box"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(body))
    out = fastdata.prep(sources(), tmp_path / "o.fds", size=51, codec=CODEC, coco=tmp_path / "coco.json", workers=1).out
    dataset = LMDBDataset(out, fields="boxes", crop=RandomResizedCrop((40, 32), scale=(0.9, 1)), hflip=0.5)
    rows = np.arange(len(dataset))
    _, found = dataset.read_batch(rows, seed=4, epoch=0)
    boxes, flips = dataset.draw(rows, seed=4, epoch=0)
    resized = np.rint(sides * 51 / sides.min(axis=1, keepdims=True))
    assert (resized % 2).any(), "the codec repeats a row or column of these, which moves no box"
    points = (np.stack([corners[:, 0], corners[:, 1] + 1], axis=1)[..., ::-1] * (resized / sides)[:, None] - boxes[:, None, :2]) * (
        (40, 32) / boxes[:, 2:]
    )[:, None]
    points[flips[:, 0], :, 1] = 32 - points[flips[:, 0], ::-1, 1]
    want = np.clip(points, 0, (40, 32))
    kept = np.prod(want[:, 1] - want[:, 0], axis=1) > 0
    np.testing.assert_allclose(found.values.reshape(-1, 2, 2)[..., ::-1], want[kept], atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (5, 1), (33, 47)])
def test_odd_sides_become_even(height, width, tmp_path):
    image = picture(0, height, width)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encode(image, ".png"))
    fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec=CODEC, quality=100, workers=1)
    found, _ = LMDBDataset(tmp_path / "o.fds")[0]
    assert found.shape == (1, (height + 1) // 2 * 3, (width + 1) // 2 * 2)


@pytest.mark.parametrize("options", [{"bits": 16}, {"gray": True}])
def test_what_planes_cannot_hold(options, tmp_path):
    with pytest.raises(ValueError, match=f"codec {CODEC} "):
        fastdata.prep(sources(), tmp_path / "o.fds", codec=CODEC, **options)


def test_the_bytes_are_little_more_than_those_of_plain_jpeg():
    pictures = [picture(k, 256, 340) for k in range(4)]
    plain = sum(len(simplejpeg.encode_jpeg(image, 90, colorsubsampling="420")) for image in pictures)
    assert sum(len(encode_record(image, CODEC)) for image in pictures) < 1.25 * plain  # photos: 1.07


def test_the_loader_names_it_where_dali_cannot_decode_it():
    assert "jpeg-yuv420" in (LMDBDataset(store(CODEC)).no_jpegs() or "")
    assert list(itertools.islice(LMDBDataset(store(CODEC)), 1))
