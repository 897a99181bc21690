"""yuv420 from pixels to floats, against the formulas of JFIF in float64, Pillow, and a JPEG that holds the same planes."""

from __future__ import annotations

import copy
import io
import math
import pickle
import shutil
from pathlib import Path

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
    FormatError,
    GPUNormalize,
    LMDBDataset,
    Loader,
    LoaderError,
    Prefetcher,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from fastdata.data.random import uniforms
from fastdata.images.form import PixelFormat
from fastdata.images.pixels import decode_record, encode_record
from fastdata.images.planes import split_planes
from fastdata.store.export import export
from fastdata.store.store import Store
from stores import sources, square, store
from support import Array, encode, memory_of, picture

YUV = PixelFormat("yuv420", 3, "uint8")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def in_floats(rgb: Array) -> tuple[Array, Array]:
    """Luma [H, W] and colours [H/2, W/2, 2] by JFIF's formulas, from RGB [H, W, 3] of even sides."""
    r, g, b = np.moveaxis(rgb.astype(np.float64), 2, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    full = np.dstack([-0.168735892 * r - 0.331264108 * g + 0.5 * b, 0.5 * r - 0.418687589 * g - 0.081312411 * b]) + 128
    return y, full.reshape(len(y) // 2, 2, -1, 2, 2).mean((1, 3))


def upsampled(chroma: Array) -> Array:
    """libjpeg's "fancy upsampling", without its rounding: 3/4 of the nearer sample and 1/4 of the farther one, a side."""
    for _ in range(2):
        near = np.repeat(chroma, 2, axis=0)
        padded = np.concatenate([chroma[:1], chroma, chroma[-1:]])
        far = np.empty_like(near)
        far[::2], far[1::2] = padded[:-2], padded[2:]
        chroma = (0.75 * near + 0.25 * far).swapaxes(0, 1)
    return chroma


def to_rgb(luma: Array, chroma: Array) -> Array:
    """RGB [H, W, 3] in float64, 0 to 255, of luma [H, W] and colours [H/2, W/2, 2]."""
    y, (cb, cr) = luma.astype(np.float64), np.moveaxis(upsampled(chroma.astype(np.float64)) - 128, 2, 0)
    return np.dstack([y + 1.402 * cr, y - 0.344136286 * cb - 0.714136286 * cr, y + 1.772 * cb]).clip(0, 255)


def planes_of(record: Array) -> tuple[Array, Array]:
    """Luma [H, W] and colours [H/2, W/2, 2] of a sample [H * 3/2, W]."""
    height = len(record) * 2 // 3
    return record[:height], record[height:].reshape(height // 2, -1, 2)


@pytest.mark.parametrize(
    ("color", "record"),
    [
        ((0, 0, 0), (0, 128, 128)),
        ((255, 255, 255), (255, 128, 128)),
        ((100, 100, 100), (100, 128, 128)),
        ((255, 0, 0), (76, 85, 255)),
        ((0, 255, 0), (150, 44, 21)),
        ((0, 0, 255), (29, 255, 107)),
    ],
)
def test_golden_records(color, record):
    y, cb, cr = record
    assert encode_record(np.full((2, 4, 3), color, np.uint8), "yuv420") == bytes([y] * 8 + [cb, cr] * 2)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 99), noise=st.booleans())
def test_records_are_the_formulas(height, width, seed, noise):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), np.uint8) if noise else picture(seed, height, width)
    padded = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    record = encode_record(image, "yuv420")
    assert len(record) == padded.shape[0] * padded.shape[1] * 3 // 2
    luma, chroma = split_planes(record, *padded.shape[:2])
    for found, want in zip((luma[:, :, 0], chroma), in_floats(padded), strict=True):
        assert np.abs(found - want).max() <= 0.51  # rounded once
    back = decode_record(record, YUV, *padded.shape[:2])
    assert back.shape == padded.shape and np.abs(back - to_rgb(luma[:, :, 0], chroma)).max() <= 2


@pytest.mark.parametrize("size", [(2, 3), (3, 2), (2, 6)])
def test_a_record_of_another_size_is_refused(size):
    with pytest.raises(fastdata.CodecError, match=f"of 6 bytes does not hold {size[0]} x {size[1]} pixels"):
        split_planes(bytes(6), *size)


# GPUNormalize


@settings(max_examples=60, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    batch=st.none() | st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    last=st.booleans(),
    std=st.floats(0.02, 3),
    seed=st.integers(0, 99),
)
def test_the_device_makes_the_formulas_rgb(sides, batch, dtype, last, std, seed):
    deviations = (std, 0.2, 1.0)
    height, width = 2 * sides[0], 2 * sides[1]
    x = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (batch or 1, 1, height * 3 // 2, width), np.uint8))
    if last:
        x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # as the Loader hands it out
    units = 255 if std > 1 else None  # the same, said aloud
    out = GPUNormalize(MEAN, deviations, dtype=dtype, max_value=units, yuv420=True)(x if batch else x[0])
    want = np.stack([(to_rgb(*planes_of(image[0])) / 255 - MEAN) / deviations for image in x.numpy()]).transpose(0, 3, 1, 2)
    want = want if batch else want[0]
    assert out.shape == want.shape and out.dtype == dtype
    assert not batch or out.is_contiguous(memory_format=torch.channels_last)
    unit = {torch.float32: 0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    apart = np.abs(out.double().numpy() - want)
    bound = 1e-6 * np.maximum(1, 1 / np.array(deviations))[:, None, None]
    assert (apart <= bound + unit * np.abs(want)).all()


def test_the_device_makes_what_a_jpeg_of_the_same_planes_decodes_to():
    """The same matrix, the same place of the colours: libjpeg's own result but for its rounding and that of the JPEG."""
    record = encode_record(picture(3, 96, 128), "yuv420")
    luma, chroma = (np.ascontiguousarray(plane) for plane in split_planes(record, 96, 128))
    jpeg = simplejpeg.encode_jpeg_yuv_planes(luma[:, :, 0], chroma[:, :, 0].copy(), chroma[:, :, 1].copy(), quality=100)
    with Image.open(io.BytesIO(jpeg)) as file:
        want = np.asarray(file.convert("RGB"))
    x = torch.frombuffer(bytearray(record), dtype=torch.uint8).view(1, 1, 144, 128)
    found = GPUNormalize(0, 1, max_value=1, yuv420=True)(x)[0].permute(1, 2, 0).numpy()
    assert np.abs(found - want).mean() < 0.7 and np.abs(found - want).max() < 5


def test_gray_stays_gray_and_black_black():
    x = torch.full((1, 1, 6, 4), 128, dtype=torch.uint8)
    x[:, :, :4] = torch.tensor([0, 1, 128, 255], dtype=torch.uint8)
    out = GPUNormalize(0.0, 1.0, max_value=1, yuv420=True)(x)
    torch.testing.assert_close(out, torch.tensor([0.0, 1, 128, 255]).expand(1, 3, 4, 4), atol=0, rtol=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch._dynamo.reset()
    x, module = torch.randint(0, 256, (2, 1, 12, 8), dtype=torch.uint8), GPUNormalize(MEAN, STD, yuv420=True)
    torch.testing.assert_close(torch.compile(module, backend=backend, fullgraph=True)(x), module(x), atol=1e-6, rtol=1e-6)


def test_autocast_and_casts_do_not_change_it():
    x, module = torch.randint(0, 256, (2, 1, 12, 8), dtype=torch.uint8), GPUNormalize(MEAN, STD, yuv420=True)
    want = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(x), want, atol=0, rtol=0)
    torch.testing.assert_close(module.half().to(torch.bfloat16)(x), want, atol=0, rtol=0)
    assert not module.state_dict() and repr(module).endswith("yuv420=True)")


def test_the_default_dtype_plays_no_part():
    x, want = torch.randint(0, 256, (2, 1, 12, 8), dtype=torch.uint8), GPUNormalize(MEAN, STD, yuv420=True)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        torch.testing.assert_close(GPUNormalize(MEAN, STD, yuv420=True)(x), want(x), atol=0, rtol=0)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_as_on_a_cpu(dtype):
    x, module = torch.randint(0, 256, (3, 1, 96, 64), dtype=torch.uint8), GPUNormalize(MEAN, STD, yuv420=True, dtype=dtype)
    want = module(x)
    out = module.cuda()(x.cuda())
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out.cpu(), want, atol=2e-5, rtol=1e-6 if dtype == torch.float32 else 2.0**-8)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(2, 3, 6, 4, dtype=torch.uint8), "leave yuv420 out"),
        (torch.zeros(2, 1, 7, 4, dtype=torch.uint8), "of even H and W"),
        (torch.zeros(2, 1, 6, 3, dtype=torch.uint8), "of even H and W"),
        (torch.zeros(2, 1, 6, 4, dtype=torch.uint16), "found torch.uint16"),
        (torch.zeros(1, 2, 1, 6, 4, dtype=torch.uint8), r"found torch.uint8 \[1, 2, 1, 6, 4\]"),
    ],
)
def test_other_input_is_refused(x, says):
    with pytest.raises(ValueError, match=says):
        GPUNormalize(MEAN, STD, yuv420=True)(x)


def test_planes_without_yuv420_are_refused():
    with pytest.raises(ValueError, match="need yuv420=True"):
        GPUNormalize(MEAN, STD)(torch.zeros(2, 1, 6, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="pass 3, or one for all"):
        GPUNormalize((0.5, 0.5), (1, 1), yuv420=True)


# Datasets

CROPS = [
    CenterCrop(60),
    CenterCrop((110, 90)),  # padded for some
    RandomCrop(48),
    RandomCrop((50, 62), padding=7),
    RandomCrop(6, padding=40),  # may miss the image altogether
    RandomResizedCrop(24),
    RandomResizedCrop((90, 30)),
    RandomResizedCrop(24, antialias=False),
    RandomResizedCrop(300),
    Resize((48, 128)),
    Resize((40, 96), antialias=False),
]


def part(plane: Array, box: tuple[float, ...], shape: tuple[int, int], antialias: bool, black: int) -> Array:
    """A box of a plane in float64: sampled between pixels where it lies between them, black outside, resized by Pillow or cv2."""
    (top, left), (h, w) = box[:2], map(int, box[2:])
    if (h, w) == shape:
        padded = np.pad(plane.astype(np.float64), ((64, 65), (64, 65), (0, 0)), constant_values=black)
        y, x, fy, fx = math.floor(top) + 64, math.floor(left) + 64, top % 1, left % 1
        rows = (1 - fy) * padded[y : y + h, :] + fy * padded[y + 1 : y + 1 + h, :]
        return (1 - fx) * rows[:, x : x + w] + fx * rows[:, x + 1 : x + 1 + w]
    inside = plane[int(top) : int(top) + h, int(left) : int(left) + w]
    if not antialias:
        return cv2.resize(inside, shape[::-1]).reshape(*shape, -1).astype(np.float64)
    channels = (Image.fromarray(inside[:, :, c].astype(np.float32)) for c in range(plane.shape[2]))
    return np.dstack([np.asarray(c.resize(shape[::-1], Image.Resampling.BILINEAR)) for c in channels]).astype(np.float64)


@pytest.mark.parametrize("crop", CROPS, ids=repr)
def test_samples_are_the_planes_of_the_box(crop):
    path, seed, epoch = store("yuv420"), 5, 2
    dataset, opened = LMDBDataset(path, crop=crop, hflip=0.5, vflip=0.4), Store(path)
    reader, sides = opened.reader(opened.variant(None)), dataset.sides()
    for k in range(len(dataset)):
        height, width = int(sides[0][k]), int(sides[1][k])
        stored = split_planes(bytes(reader.get(k)), height, width)
        u = uniforms(seed, epoch, np.array([k]), 24)
        (box,) = crop.boxes(u[2 : 2 + crop.draws], np.array([height]), np.array([width])).tolist()
        if isinstance(crop, RandomResizedCrop):
            box = [box[0] // 2 * 2, box[1] // 2 * 2, max(box[2] // 2 * 2, 2), max(box[3] // 2 * 2, 2)]
        found = planes_of(dataset.read_batch([k], seed=seed, epoch=epoch)[0][0, :, :, 0])
        antialias = isinstance(crop, RandomResizedCrop | Resize) and crop.antialias
        for plane, whole, scale, black in zip(found, stored, (1, 2), (0, 128), strict=True):
            want = part(whole, [n / scale for n in box], plane.shape[:2], antialias, black)
            want = want[:, ::-1] if u[0, 0] < 0.5 else want
            want = want[::-1] if u[1, 0] < 0.4 else want
            assert np.abs(plane.reshape(want.shape) - want).max() <= (2 if antialias else 1)


@pytest.mark.parametrize("decoded", [False, True])
def test_memory_emits_what_the_disk_does(decoded):
    crop = RandomResizedCrop(24)
    disk, memory = LMDBDataset(store("yuv420"), crop=crop), RAMDataset(store("yuv420"), crop=crop, decoded=decoded)
    a, b = (d.read_batch(np.arange(len(d)), seed=0, epoch=0) for d in (disk, memory))
    np.testing.assert_array_equal(a[0], b[0])
    assert memory_of(memory).nbytes == sum(Store(store("yuv420")).samples["96/bytes"])


def test_one_sample():
    image, target = LMDBDataset(store("yuv420"), size=64)[3]
    height, width = (int(Store(store("yuv420")).samples[3][f"64/{side}"]) for side in ("height", "width"))
    assert image.shape == (1, height * 3 // 2, width) and isinstance(target, int)


def test_it_is_the_picture(tmp_path):
    """From a PNG to floats on the device: the picture, but for colours at half the resolution."""
    dataset = LMDBDataset(store("yuv420", size=None))
    rgb = GPUNormalize(0, 1, max_value=1, yuv420=True)
    for k in range(6):
        with Image.open(sources() / dataset.name(k)) as file:
            source = np.asarray(file)
        found = rgb(dataset[k][0]).permute(1, 2, 0).numpy()[: source.shape[0], : source.shape[1]]
        assert np.abs(found - source).mean() < 2.5
    export(store("yuv420", size=None), tmp_path / "out")
    with Image.open(tmp_path / "out" / dataset.name(0)) as file:
        exported = np.asarray(file)
    assert np.abs(exported - rgb(dataset[0][0]).permute(1, 2, 0).numpy()).max() <= 2


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (5, 1), (33, 47)])
def test_odd_sides_become_even(height, width, tmp_path):
    source = tmp_path / "in" / "a.png"
    source.parent.mkdir()
    image = picture(0, height, width)
    source.write_bytes(encode(image, ".png"))
    fastdata.prep(source.parent, tmp_path / "o.fds", codec="yuv420", workers=1)
    planes, _ = LMDBDataset(tmp_path / "o.fds")[0]
    assert planes.shape == (1, (height + 1) // 2 * 3, (width + 1) // 2 * 2)
    luma, _ = planes_of(planes[0].numpy())
    np.testing.assert_array_equal(luma, np.pad(luma[:height, :width], ((0, height % 2), (0, width % 2)), "edge"))


# Refusals


def test_what_planes_cannot_do():
    with pytest.raises(ValueError, match="transform takes pixels"):
        LMDBDataset(store("yuv420"), transform=lambda image: image)
    with pytest.raises(ValueError, match="transform takes pixels"):
        LMDBDataset(store("yuv420")).with_crop(None, transform=lambda image: image)
    with pytest.raises(ValueError, match="both sides must be even"):
        RAMDataset(store("yuv420"), crop=RandomResizedCrop((24, 25)))
    with pytest.raises(LoaderError, match="yuv420 needs even sides"):
        list(Loader(LMDBDataset(store("yuv420"), crop=Resize(50)), 1, num_workers=0))
    with pytest.raises(ValueError, match="yuv420 planes do not go together"):
        LMDBDataset(square("rgb")) + LMDBDataset(square("yuv420"))
    both = LMDBDataset(square("yuv420")) + LMDBDataset(square("yuv420"))
    assert torch.equal(both[50][0], both[50 - len(both) // 2][0])


@pytest.mark.parametrize("options", [{"bits": 16}, {"gray": True}])
def test_no_planes_of_gray_or_sixteen_bits(options, tmp_path):
    with pytest.raises(ValueError, match=r"yuv420 .* 8 bits"):
        fastdata.prep(sources(), tmp_path / "o.fds", codec="yuv420", **options)


def test_a_manifest_of_other_planes_is_refused(tmp_path):
    path = Path(shutil.copytree(store("yuv420"), tmp_path / "copy.fds"))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"channels": 3', '"channels": 1'))
    with pytest.raises(FormatError, match="use a newer one"):
        LMDBDataset(path)


def test_planes_of_a_loader_are_not_taken_for_grey_images() -> None:
    """Wherever the batch is moved or copied; grey images of any shape are."""
    normalize = GPUNormalize(0.5, 0.25)
    with Loader(LMDBDataset(store("yuv420"), crop=CenterCrop((24, 32))), 4, num_workers=0) as loader:
        batch = next(iter(loader))
    assert batch.planes and batch[0].shape[1:] == (1, 36, 32)
    copies = copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))
    for moved in (batch, *copies, batch.to("cpu", copy=True), next(iter(Prefetcher([batch], "cpu")))):
        with pytest.raises(ValueError, match=r"is planes of luma and colour, not grey images: pass yuv420=True"):
            normalize(moved[0])
    assert GPUNormalize(0.5, 0.25, yuv420=True)(batch[0]).shape == (4, 3, 24, 32)
    assert normalize(batch[0].clone()).shape == (4, 1, 36, 32)
    with Loader(LMDBDataset(store("yuv420"), crop=CenterCrop((24, 32)), rgb=True), 4, num_workers=0) as loader:
        assert not next(iter(loader)).planes
