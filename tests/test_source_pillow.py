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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from fastdata import LMDBDataset, prep
from fastdata.errors import CodecError
from fastdata.images import pillow_files
from fastdata.images.image_file import SourceImage
from fastdata.store.store import Store

Array = np.ndarray[Any, np.dtype[Any]]
H, W = 37, 64


def _rgb() -> Array:
    y, x = np.mgrid[:H, :W]
    rgb = np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256], axis=2).astype(np.uint8)
    rgb[5:20, 5:20] = np.random.default_rng(0).integers(0, 256, (15, 15, 3))
    return rgb


def _saved(pixels: Array | Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(out, kind, **options)
    return out.getvalue()


def _rgba() -> Array:
    return np.dstack([_rgb(), _rgb()[..., 0]])


def _on_white(rgba: Array) -> Array:
    alpha = rgba[..., 3:] / 255
    return np.floor(rgba[..., :3] * alpha + 255 * (1 - alpha) + 0.5 + 1e-9)


def _psd() -> bytes:
    head = b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, H, W, 8, 3)
    return head + struct.pack(">IIIH", 0, 0, 0, 0) + _rgb().transpose(2, 0, 1).tobytes()


def _sgi() -> bytes:
    head = struct.pack(">HBBHHHHII", 474, 0, 1, 3, W, H, 3, 0, 255)
    return head.ljust(512, b"\0") + _rgb()[::-1].transpose(2, 0, 1).tobytes()


def _qoi() -> bytes:
    return (
        b"qoif"
        + struct.pack(">IIBB", W, H, 3, 0)
        + b"".join(b"\xfe" + p.tobytes() for p in _rgb().reshape(-1, 3))
        + bytes(7)
        + b"\1"
    )


def _msp() -> bytes:
    head = struct.pack("<4s12H", b"DanM", W, H, 1, 1, 1, 1, W, H, 0, 0, 0, 0)
    total = 0
    for (word,) in struct.iter_unpack("<H", head):
        total ^= word
    return head[:24] + struct.pack("<H", total) + bytes(6) + np.packbits(_rgb()[..., 0] > 100, axis=1).tobytes()


def _plugin(module: str) -> None:
    pytest.importorskip(module)


def _heif(pixels: Array, **options: Any) -> bytes:
    _plugin("pillow_heif")
    from pillow_heif import from_pillow

    out = io.BytesIO()
    from_pillow(Image.fromarray(pixels)).save(out, quality=100, chroma=444, **options)
    return out.getvalue()


def _jxl(pixels: Array, **options: Any) -> bytes:
    _plugin("pillow_jxl")
    import pillow_jxl  # noqa: F401

    return _saved(pixels, "JXL", lossless=True, **options)


FILES: dict[str, tuple[Callable[[], bytes], Callable[[], Array], int]] = {
    "psd": (_psd, _rgb, 0),
    "sgi": (_sgi, _rgb, 0),
    "qoi": (_qoi, _rgb, 0),
    "msp": (_msp, lambda: np.repeat((_rgb()[..., :1] > 100) * 255, 3, axis=2), 0),
    "avif": (lambda: _saved(_rgb(), "AVIF", quality=100, subsampling="4:4:4"), _rgb, 4),
    "avif-alpha": (lambda: _saved(_rgba(), "AVIF", quality=100, subsampling="4:4:4"), lambda: _on_white(_rgba()), 5),
    "heic": (lambda: _heif(_rgb()), _rgb, 5),
    "heic-alpha": (lambda: _heif(_rgba()), lambda: _on_white(_rgba()), 6),
    "jxl": (lambda: _jxl(_rgb()), _rgb, 0),
    "jxl-boxes": (lambda: _jxl(_rgba(), use_container=True), lambda: _on_white(_rgba()), 0),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_and_every_cut(name: str) -> None:
    make, expected, apart = FILES[name]
    data = make()
    source = SourceImage(data)
    whole = source.decode()
    assert whole.shape == (source.height, source.width, 3) == (H, W, 3) and whole.dtype == np.uint8
    assert np.abs(whole.astype(int) - expected()).max() <= apart
    assert np.abs(source.decode(bits=16).astype(int) - whole.astype(int) * 257).max() == 0
    cuts = {*range(0, len(data), max(1, len(data) // 100)), *range(len(data) - 30, len(data))}
    for size in sorted(cuts):
        with contextlib.suppress(CodecError):
            np.testing.assert_array_equal(SourceImage(data[:size]).decode(), whole)
    with pytest.raises(CodecError) as caught:
        SourceImage(data, max_pixels=H * W - 1)
    assert caught.value.reason == "too-large"


@pytest.mark.parametrize("name", FILES)
def test_flipped_bytes_give_pixels_or_a_codec_error(name: str) -> None:
    data, rng = FILES[name][0](), np.random.default_rng(0)
    for spot in [*range(min(len(data), 100)), *rng.integers(0, len(data), 100).tolist()]:
        changed = data[:spot] + bytes([data[spot] ^ 1 << int(rng.integers(8))]) + data[spot + 1 :]
        with contextlib.suppress(CodecError):
            source = SourceImage(changed, max_pixels=1 << 18)
            assert source.decode().shape == (source.height, source.width, 3)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_turned_avif_heic_and_jpegs_in_jpeg_xl(orientation: int, tmp_path: Path) -> None:
    upright = {3: np.rot90(_rgb(), 2), 6: np.rot90(_rgb(), -1), 8: np.rot90(_rgb())}[orientation]

    def exif() -> Image.Exif:
        tags = Image.Exif()
        tags[0x112] = orientation
        return tags

    made = [_saved(_rgb(), "AVIF", quality=100, subsampling="4:4:4", exif=exif()), _heif(_rgb(), exif=exif().tobytes())]
    _plugin("pillow_jxl")
    import pillow_jxl  # noqa: F401

    (tmp_path / "a.jpg").write_bytes(_saved(_rgb(), "JPEG", quality=100, subsampling=0, exif=exif()))
    with Image.open(tmp_path / "a.jpg") as image:
        made.append(_saved(image, "JXL", lossless_jpeg=True))
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
        source = SourceImage(_jxl(np.resize(_rgb(), (height, width, 3))))
        assert (source.height, source.width) == (height, width)


def test_jpeg_xl_of_16_bits() -> None:
    gray = _rgb()[..., 0].astype(np.uint16) * 257 + _rgb()[..., 1]
    np.testing.assert_array_equal(SourceImage(_jxl(gray)).decode(gray=True, bits=16), gray)


def test_more_bits_than_are_read_are_refused_for_16_bits() -> None:
    _plugin("pillow_heif")
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
    data = _saved(_rgb(), kind, **options)
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
    data, limit = _saved(_rgb(), "BMP"), Image.MAX_IMAGE_PIXELS

    def decode() -> None:
        for _ in range(50):
            SourceImage(data).decode()

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Image.MAX_IMAGE_PIXELS == limit and not pillow_files._users


def test_pillow_is_loaded_for_its_formats_only() -> None:
    code = """
import sys
from fastdata.images.image_file import SourceImage
SourceImage(sys.stdin.buffer.read()).decode()
print("PIL" in sys.modules)
"""
    for kind, loaded in (("JPEG", "False"), ("PNG", "False"), ("WEBP", "False"), ("BMP", "True")):
        done = subprocess.run([sys.executable, "-c", code], input=_saved(_rgb(), kind), capture_output=True, check=True)
        assert done.stdout.decode().strip() == loaded


def test_a_folder_of_many_formats_becomes_a_store(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {
        "fax.tif": _saved(Image.fromarray(_rgb()[..., 0] > 100), "TIFF", compression="group4"),
        "a.gif": _saved(_rgb()[..., 0], "GIF"),
        "b.ppm": _saved(_rgb(), "PPM"),
        "c.avif": _saved(_rgb(), "AVIF"),
        "d.psd": _psd(),
        "e.png": _saved(_rgb(), "PNG"),
        "cut.avif": _saved(_rgb(), "AVIF")[:-99],
        "cut.tif": _saved(_rgb(), "TIFF")[:-99],
        "large.bmp": _saved(np.resize(_rgb(), (500, 500, 3)), "BMP"),
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
