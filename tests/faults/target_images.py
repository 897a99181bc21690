"""Targets: image files of all formats, and what crops cut out of the JPEGs of a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image

from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_crop import find_cells, join_cells
from fastdata.codecs.jpeg_grid import encode_jpeg
from fastdata.codecs.pixels import decode_record
from fastdata.store.manifest import Form
from support import picture
from target import TARGETS, Case, Target, target
from test_image_files import FORMS, Picture, saved

MOST = 1 << 20  # pixels: a header may claim more than memory holds
PNGS = ("png-2-8", "png-0-8", "png-2-16", "png-3-4-clear", "png-2-8-interlaced", "png-0-1")


def files(ending: str, *names: str) -> Callable[[], dict[str, bytes]]:
    """Small pictures of these forms, under names whose ending chooses the damage."""
    return lambda: {f"{name}.{ending}": FORMS[name](Picture(21, 34, 3)).data for name in names}


def jpegs() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[274] = 6
    made = files("jpg", "jpeg", "jpeg-progressive", "jpeg-gray", "jpeg-cmyk", "jpeg-restarts")()
    return {**made, "turned.jpg": saved(picture(3, 21, 34), "JPEG", exif=exif)}


def read_image(case: Case, *, bits: int = 8) -> Any:
    image = SourceImage(case.data, max_pixels=MOST)
    return image.height, image.width, image.decode(bits=bits)


# A PNG has a checksum in each chunk: damage that does not correct it is always noticed. Else, only what is missing can be.
FORMATS: dict[str, tuple[Callable[[], dict[str, bytes]], str, int]] = {
    "png": (files("png", *PNGS), "truncated", 2000),
    "png_damaged": (files("damaged", *PNGS), "always", 3000),
    "jpeg": (jpegs, "truncated", 3000),
    "tiff": (
        files("tif", "tiff-rgb-255-<-", "tiff-rgb-255->-tile", "tiff-rgb-65535-<-planar", "tiff-RGB-tiff_lzw"),
        "truncated",
        3000,
    ),
    "webp": (files("webp", "webp", "webp-lossless", "webp-alpha"), "truncated", 2000),
    "pillow": (files("image", "gif-200", "bmp-RGB", "pnm-6-255"), "truncated", 3000),
    "modern": (files("image", "heic", "avif", "jxl", "jp2-RGB"), "truncated", 400),
}
for _name, (_files, _exact, _cases) in FORMATS.items():
    _options: dict[str, Any] = {"exact": _exact, "cases": _cases}
    TARGETS[f"image_{_name}"] = Target(read_image, _files, **_options)
TARGETS["image_bits16"] = Target(partial(read_image, bits=16), files("damaged", *PNGS), exact="always", cases=1500)


def records() -> dict[str, bytes]:
    return {"rgb.jpg": encode_jpeg(picture(1, 70, 90)), "gray.jpg": encode_jpeg(picture(2, 40, 64)[..., 0])}


@target(records, cases=3000)
def jpeg_cells(case: Case) -> Any:
    """Cut boxes out of a JPEG, and decode them: a cut that is made must decode, or be an error."""
    form = Form("jpeg", 3 if case.name == "rgb.jpg" else 1, "uint8")
    sides = (70, 90) if case.name == "rgb.jpg" else (40, 64)
    for box in ((0, 0, 8, 8), (20, 30, 17, 25), (0, 0, 40, 64)):
        for exact in (True, False):
            if (cells := find_cells(case.data, *box, of=sides, exact=exact)) is not None:
                decode_record(join_cells([cells]), form, cells.height, cells.width)
    return decode_record(case.data, form, *sides)
