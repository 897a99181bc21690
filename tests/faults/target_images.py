"""Targets: image files of all formats, and what crops cut out of the JPEGs of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cv2
import numpy as np
from PIL import Image

import image_files
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_crop import find_cells, join_cells
from fastdata.codecs.jpeg_grid import encode_jpeg
from fastdata.codecs.pixels import decode_record
from fastdata.store.manifest import Form
from support import encode, picture
from target import TARGETS, Case, Target, target

MOST = 1 << 20  # pixels: a header may claim more than memory holds
RGB = picture(3, 21, 34)
DEEP = RGB.astype(np.uint16) * 251


def pngs() -> dict[str, bytes]:
    palette = Image.fromarray(RGB).quantize(16)
    return {
        "rgb.png": encode(RGB, ".png"),
        "gray.png": encode(RGB[..., 0], ".png"),
        "deep.png": encode(DEEP, ".png"),
        "palette.png": image_files.saved(palette, "PNG", transparency=3),
        "interlaced.png": image_files.png(RGB[:9, :9], 8, 2, interlaced=True),
        "bits.png": image_files.png(RGB[:9, :9, :1] & 1, 1, 0),
    }


def jpegs() -> dict[str, bytes]:
    whole = Image.fromarray(RGB)
    return {
        "plain.jpg": image_files.saved(whole, "JPEG"),
        "progressive.jpg": image_files.saved(whole, "JPEG", progressive=True, subsampling=0),
        "gray.jpg": image_files.saved(whole.convert("L"), "JPEG"),
        "cmyk.jpg": image_files.saved(whole.convert("CMYK"), "JPEG"),
        "restarts.jpg": encode(RGB, ".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
        "turned.jpg": image_files.saved(whole, "JPEG", exif=_turned()),
    }


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[274] = 6
    return exif


def tiffs() -> dict[str, bytes]:
    return {
        "plain.tif": image_files.tiff(RGB, 2),
        "tiles.tif": image_files.tiff(RGB, 2, tile=16, deflate=True, order=">"),
        "planar.tif": image_files.tiff(DEEP, 2, planar=True, orientation=6),
        "lzw.tif": image_files.saved(RGB, "TIFF", compression="tiff_lzw"),
    }


def webps() -> dict[str, bytes]:
    clear = Image.fromarray(np.dstack([RGB, RGB[..., 0]]))
    return {
        "lossy.webp": image_files.saved(RGB, "WEBP"),
        "lossless.webp": image_files.saved(RGB, "WEBP", lossless=True),
        "alpha.webp": image_files.saved(clear, "WEBP", exif=_turned()),
    }


def others() -> dict[str, bytes]:
    files = {f"a.{kind.lower()}": image_files.saved(RGB, kind) for kind in ("GIF", "BMP", "PPM")}
    return files


def modern() -> dict[str, bytes]:
    return {
        "a.heic": image_files.heif(RGB),
        "a.avif": image_files.saved(RGB, "AVIF"),
        "a.jxl": image_files.jxl(RGB),
        "a.jp2": image_files.saved(RGB, "JPEG2000"),
    }


def read_image(case: Case, *, bits: int = 8) -> Any:
    image = SourceImage(case.data, max_pixels=MOST)
    return image.height, image.width, image.decode(bits=bits)


def bare_pngs() -> dict[str, bytes]:
    """The same under names that make the damage leave the checksums of chunks as they are."""
    return {f"{name}.damaged": data for name, data in pngs().items()}


# A PNG has a checksum in each chunk: damage that does not correct it is always noticed. Else, only what is missing can be.
FORMATS: dict[str, tuple[Callable[[], Mapping[str, bytes]], str, int]] = {
    "png": (pngs, "truncated", 2000),
    "png_damaged": (bare_pngs, "always", 3000),
    "jpeg": (jpegs, "truncated", 3000),
    "tiff": (tiffs, "truncated", 3000),
    "webp": (webps, "truncated", 2000),
    "pillow": (others, "truncated", 3000),
    "modern": (modern, "truncated", 400),
}
for _name, (_files, _exact, _cases) in FORMATS.items():
    _options: dict[str, Any] = {"exact": _exact, "cases": _cases}
    TARGETS[f"image_{_name}"] = Target(read_image, _files, **_options)


def records() -> dict[str, bytes]:
    return {"rgb.jpg": encode_jpeg(picture(1, 70, 90)), "gray.jpg": encode_jpeg(picture(2, 40, 64)[..., 0])}


@target(records, cases=3000)
def jpeg_cells(case: Case) -> Any:
    """Cut boxes out of a JPEG, and decode them: a cut that is made must decode, or be an error."""
    form = Form("jpeg", 3 if case.name == "rgb.jpg" else 1, "uint8")
    sides = (70, 90) if case.name == "rgb.jpg" else (40, 64)
    for box in ((0, 0, 8, 8), (20, 30, 17, 25), (0, 0, 40, 64)):
        for exact in (True, False):
            if (cut := find_cells(case.data, *box, of=sides, exact=exact)) is not None:
                decode_record(join_cells([cut]), form, cut.height, cut.width)
    return decode_record(case.data, form, *sides)


TARGETS["image_bits16"] = Target(partial(read_image, bits=16), bare_pngs, exact="always", cases=1500)
