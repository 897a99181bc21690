"""What Pillow and its plugins read: rarer formats, and that Pillow's own settings and warnings play no part."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from fastdata import LMDBDataset, prep
from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from fastdata.store.store import Store
from image_files import heif, jxl, saved

Array = np.ndarray[Any, np.dtype[Any]]
H, W = 37, 64


def _rgb() -> Array:
    y, x = np.mgrid[:H, :W]
    rgb = np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256], axis=2).astype(np.uint8)
    rgb[5:20, 5:20] = np.random.default_rng(0).integers(0, 256, (15, 15, 3))
    return rgb


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_turned_avif_heic_and_jpegs_in_jpeg_xl(orientation: int, tmp_path: Path) -> None:
    upright = {3: np.rot90(_rgb(), 2), 6: np.rot90(_rgb(), -1), 8: np.rot90(_rgb())}[orientation]

    def exif() -> Image.Exif:
        tags = Image.Exif()
        tags[0x112] = orientation
        return tags

    made = [saved(_rgb(), "AVIF", quality=100, subsampling="4:4:4", exif=exif()), heif(_rgb(), exif=exif().tobytes())]
    pytest.importorskip("pillow_jxl")
    import pillow_jxl  # noqa: F401

    (tmp_path / "a.jpg").write_bytes(saved(_rgb(), "JPEG", quality=100, subsampling=0, exif=exif()))
    with Image.open(tmp_path / "a.jpg") as image:
        made.append(saved(image, "JXL", lossless_jpeg=True))
    for data in made:
        source = SourceImage(data)
        assert (source.height, source.width) == upright.shape[:2]
        assert np.abs(source.decode().astype(int) - upright).mean() < 2
    assert np.array_equal(SourceImage(made[2]).decode(), SourceImage((tmp_path / "a.jpg").read_bytes()).decode())


def test_sizes_in_jpeg_xl() -> None:
    for height, width in (
        (64, 64),
        (40, 48),
        (30, 40),
        (40, 60),
        (36, 64),
        (40, 50),
        (40, 80),
        (30, 41),
        (1, 1),
        (16, 8),
        (900, 300),
    ):
        source = SourceImage(jxl(np.resize(_rgb(), (height, width, 3))))
        assert (source.height, source.width) == (height, width)


def test_jpeg_xl_of_16_bits() -> None:
    gray = _rgb()[..., 0].astype(np.uint16) * 257 + _rgb()[..., 1]
    np.testing.assert_array_equal(SourceImage(jxl(gray)).decode(gray=True, bits=16), gray)


def test_more_bits_than_are_read_are_refused_for_16_bits() -> None:
    pytest.importorskip("pillow_heif")
    from pillow_heif import from_bytes

    out = io.BytesIO()
    from_bytes("RGB;16", (W, H), (_rgb().astype("<u2") * 257).tobytes()).save(out, quality=100, chroma=444)
    source = SourceImage(out.getvalue())
    assert np.abs(source.decode().astype(int) - _rgb()).max() <= 5
    with pytest.raises(
        CodecError, match="heif has more than 8 bits, and is read with 8: convert it to PNG, or do without --bits 16"
    ):
        source.decode(bits=16)


def test_tifffile_reads_what_pillow_cannot() -> None:
    tifffile: Any = pytest.importorskip("tifffile")
    deep = _rgb().astype(np.uint16) * 255 + 3
    for options in (
        {},
        {"compression": "zlib"},
        {"compression": "zlib", "predictor": True},
        {"tile": (16, 16)},
        {"planarconfig": "separate"},
    ):
        for order in "<>":
            out = io.BytesIO()
            stored = np.moveaxis(deep, 2, 0) if "planarconfig" in options else deep
            tifffile.imwrite(out, stored, photometric="rgb", byteorder=order, **options)
            data = out.getvalue()
            np.testing.assert_array_equal(SourceImage(data).decode(bits=16), deep)
            for size in range(0, len(data), 97):
                with contextlib.suppress(CodecError):
                    np.testing.assert_array_equal(SourceImage(data[:size]).decode(bits=16), deep)


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ftyp, jxl = b"\0\0\0\x18ftypheic" + bytes(12), b"\xff\x0a" + bytes(40)
    deep = _sixteen_bit_tiff()
    for module, data, package in (
        ("pillow_heif", ftyp, "pillow-heif"),
        ("pillow_jxl", jxl, "pillow-jxl-plugin"),
        ("tifffile", deep, "tifffile"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            CodecError, match=rf"is read with {package}, which is not installed: pip install 'fastdata-torch\[formats\]'"
        ) as caught:
            SourceImage(data).decode()
        assert caught.value.reason == "unsupported"


def _sixteen_bit_tiff() -> bytes:
    tags = {256: W, 257: H, 258: 16, 259: 1, 262: 2, 273: 8, 277: 3, 278: H, 279: 6 * H * W}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + 6 * H * W) + bytes(6 * H * W) + struct.pack("<H", len(tags)) + entries + bytes(4)


# Pillow's settings


@pytest.fixture
def settings() -> Iterator[None]:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    yield
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PPM", "JPEG2000"])
@pytest.mark.parametrize("limit", [None, 10, W * H - 1])
def test_pillow_s_settings_play_no_part(kind: str, limit: int | None) -> None:
    options = {"compression": "tiff_lzw"} if kind == "TIFF" else {}
    data = saved(_rgb(), kind, **options)
    expected = SourceImage(data).decode()
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limit, True
    filters = list(warnings.filters)
    np.testing.assert_array_equal(SourceImage(data).decode(), expected)
    with pytest.raises(CodecError):
        SourceImage(data[: len(data) * 3 // 4]).decode()
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (limit, True)
    assert warnings.filters == filters


def test_pillow_warns_of_nothing_here_and_still_does_elsewhere() -> None:
    tags = {256: W, 257: H, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: H, 279: H * W}
    odd = struct.pack("<HHII", 700, 1, 99999, 1)  # a tag that lies outside of the file
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()) + odd
    gray = _rgb()[..., 0].tobytes()
    data = b"II*\0" + struct.pack("<I", 8 + len(gray)) + gray + struct.pack("<H", len(tags) + 1) + entries + bytes(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(SourceImage(data).decode(gray=True), _rgb()[..., 0])
        assert not caught
        with Image.open(io.BytesIO(data)):
            assert caught


@pytest.mark.usefixtures("settings")
def test_threads_put_the_settings_back() -> None:
    data, limit = saved(_rgb(), "BMP"), Image.MAX_IMAGE_PIXELS

    def decode() -> None:
        for _ in range(50):
            SourceImage(data).decode()

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Image.MAX_IMAGE_PIXELS == limit


def test_pillow_is_loaded_for_its_formats_only() -> None:
    code = """
import sys
from fastdata.images.image_file import SourceImage
SourceImage(sys.stdin.buffer.read()).decode()
print("PIL" in sys.modules)
"""
    for kind, loaded in (("JPEG", "False"), ("PNG", "False"), ("BMP", "True")):
        done = subprocess.run([sys.executable, "-c", code], input=saved(_rgb(), kind), capture_output=True, check=True)
        assert done.stdout.decode().strip() == loaded


def test_a_folder_of_many_formats_becomes_a_store(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {
        "fax.tif": saved(Image.fromarray(_rgb()[..., 0] > 100), "TIFF", compression="group4"),
        "a.gif": saved(_rgb()[..., 0], "GIF"),
        "b.ppm": saved(_rgb(), "PPM"),
        "c.avif": saved(_rgb(), "AVIF"),
        "d.bmp": saved(_rgb(), "BMP"),
        "e.png": saved(_rgb(), "PNG"),
        "cut.avif": saved(_rgb(), "AVIF")[:-99],
        "cut.tif": saved(_rgb(), "TIFF")[:-99],
        "large.bmp": saved(np.resize(_rgb(), (500, 500, 3)), "BMP"),
    }
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    done = prep(tmp_path / "in", tmp_path / "o.fds", codec="png", max_pixels=10_000, workers=2)
    reasons = {row["name"]: row["reason"] for row in map(json.loads, (done.out / "rejects.jsonl").read_text().splitlines())}
    assert done.kept == 6 and reasons["large.bmp"] == "too-large" and reasons["cut.tif"] == "truncated" and "cut.avif" in reasons
    assert "Warning" not in capfd.readouterr().err
    dataset = LMDBDataset(done.out)
    for k in range(len(dataset)):
        np.testing.assert_array_equal(dataset[k][0].permute(1, 2, 0).numpy(), SourceImage(files[dataset.name(k)]).decode())
    assert "pillow" in Store(done.out).manifest.libraries
