"""Image files that are cut, flipped and zeroed everywhere: the right size or a CodecError, in bounded memory."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import image_files
from image_files import saved
from support import PEAK_MEMORY, picture, run

H, W = 24, 30


def _photo(mode: str) -> Image.Image:
    return Image.fromarray(picture(3, H, W)).convert(mode)


# Memory

OPEN = f"""{PEAK_MEMORY}
import sys
from fastdata.errors import CodecError
from fastdata.codecs.decode import SourceImage
SourceImage(open(sys.argv[1], "rb").read())
before = peak_memory()
try:
    SourceImage(sys.stdin.buffer.read())
except CodecError as error:
    print(error.reason, peak_memory() - before)
"""


@pytest.mark.parametrize("disposal", range(4))
def test_a_gif_with_a_huge_frame_is_refused_before_memory_is_taken(disposal: int, tmp_path: Path) -> None:
    data = bytearray(saved(_photo("P"), "GIF", transparency=3, disposal=disposal))
    (tmp_path / "small").write_bytes(data)
    frame = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, W, H))
    struct.pack_into("<HH", data, frame + 5, 40_000, 40_000)
    done = run(sys.executable, "-c", OPEN, tmp_path / "small", input=bytes(data), text=False, errors=None)
    reason, taken = done.stdout.split()
    assert reason == b"too-large" and int(taken) < 1 << 26


PEAK = f"""{PEAK_MEMORY}
import sys
from fastdata.codecs.decode import SourceImage
data = sys.stdin.buffer.read()
small = SourceImage(open(sys.argv[1], "rb").read())
small.decode(bits=int(sys.argv[2]))
before = peak_memory()
image = SourceImage(data)
image.decode(bits=int(sys.argv[2]))
print(image.memory(), peak_memory() - before)
"""


def _flat(side: int, mode: str) -> Image.Image:
    return Image.linear_gradient("L").resize((side, side)).convert(mode)


def _png16(side: int) -> bytes:
    values = np.broadcast_to(np.arange(side, dtype=np.uint16)[:, None, None] * 7, (side, side, 4))
    return bytes(cv2.imencode(".png", np.ascontiguousarray(values))[1])


KINDS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "png-rgb": (lambda side: saved(_flat(side, "RGB"), "PNG", compress_level=1), 8),
    "png-rgba": (lambda side: saved(_flat(side, "RGBA"), "PNG", compress_level=1), 8),
    "png-la": (lambda side: saved(_flat(side, "LA"), "PNG", compress_level=1), 8),
    "png-key": (lambda side: saved(_flat(side, "RGB"), "PNG", compress_level=1, transparency=(1, 2, 3)), 8),
    "png-palette": (lambda side: saved(_flat(side, "P"), "PNG", compress_level=1, transparency=3), 8),
    "png-rgba-16": (_png16, 8),
    "png-8-to-16": (lambda side: saved(_flat(side, "RGBA"), "PNG", compress_level=1), 16),
    "jpeg": (lambda side: saved(_flat(side, "RGB"), "JPEG"), 8),
    "jpeg-progressive": (lambda side: saved(_flat(side, "RGB"), "JPEG", progressive=True, subsampling=0), 8),
    "jpeg-cmyk": (lambda side: saved(_flat(side, "CMYK"), "JPEG"), 8),
    "webp": (lambda side: saved(_flat(side, "RGBA"), "WEBP", lossless=True, method=0), 8),
    "gif": (lambda side: saved(_flat(side, "P"), "GIF", transparency=3), 8),
    "bmp": (lambda side: saved(_flat(side, "RGB"), "BMP"), 8),
    "tiff": (lambda side: saved(_flat(side, "RGBA"), "TIFF", compression="tiff_lzw"), 8),
    "tiff-cmyk": (lambda side: saved(_flat(side, "CMYK"), "TIFF"), 8),
    "tiff-16": (lambda side: image_files.tiff(np.zeros((side, side, 4), np.uint16), 2, alpha=2), 8),
    "avif": (lambda side: saved(_flat(side, "RGBA"), "AVIF", speed=10), 8),
    "heic": (lambda side: image_files.heif(np.asarray(_flat(side, "RGBA"))), 8),
    "jp2": (lambda side: saved(_flat(side, "RGB"), "JPEG2000"), 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_takes_no_more_memory_than_the_header_says(kind: str, tmp_path: Path) -> None:
    """A small multiple of the pixels, in every format."""
    side = 2000
    make, bits = KINDS[kind]
    (tmp_path / "small").write_bytes(make(16))
    done = run(sys.executable, "-c", PEAK, tmp_path / "small", bits, input=make(side), text=False, errors=None)
    assert done.returncode == 0, done.stderr
    said, taken = map(int, done.stdout.split())
    assert taken <= said <= 40 * side * side
