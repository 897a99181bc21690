"""Read images and EXIF with Pillow and its plugins, as strictly as possible. tifffile reads TIFF that Pillow would misread.

Pillow is imported when the first such file is seen. A program's own settings of Pillow (`Image.MAX_IMAGE_PIXELS`,
`ImageFile.LOAD_TRUNCATED_IMAGES`) and warning filters have no effect here, and are restored afterwards.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from fastdata.codecs.channels import Header, cmyk_to_rgb, unsupported
from fastdata.errors import CodecError
from fastdata.types import Array

EXTRAS = ("imagecodecs", "pillow-heif", "pillow-jxl-plugin", "tifffile")
HEIF, JXL = "pillow_heif", "pillow_jxl"
PLUGINS = (
    (re.compile(rb"RIFF.{4}WEBP", re.S), "WebP"),
    (re.compile(rb"GIF8[79]a"), "Gif"),
    (re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.S), "Bmp"),
    (re.compile(rb"P[4-6]\s"), "Ppm"),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"), "Jpeg2K"),
    (re.compile(rb".{4}ftyp(?:.{4}){0,60}?avi[fs]", re.S), "Avif"),
    (re.compile(rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1)", re.S), HEIF),
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), JXL),
)
DEEP = re.compile(rb"av1C\x81.[\x40-\x7f\xc0-\xff]|hvcC.{17}[^\xf8]", re.S)  # AV1 and HEVC of more than 8 bits
CUT = re.compile(
    "truncat|not enough|only got|reached EOF|not large enough|ends? early|end of file|EOF|no more images|could not create decoder",
    re.IGNORECASE,
)
SIZ = b"\xff\x4f\xff\x51"  # start of a JPEG 2000 codestream
END_OF_CODESTREAM = b"\xff\xd9"
TILE = re.compile(rb"\xff\x90\0\x0a(..)", re.S)  # the start of a tile-part, which no compressed data contains, with its number
JP2_COLORS = re.compile(rb"colr(?:\x01..\0\0\0[\x10\x11\x12]|\x02.{18}(?:RGB |GRAY))", re.S)  # sRGB, grey, sYCC; a profile
MAX_OPENED_PIXELS = 1 << 28  # some plugins allocate the first frame before they tell its size
ORIENTATION = 274

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@dataclass(frozen=True, kw_only=True)
class PillowHeader(Header):
    plugin: str
    decoded: Any = None  # the image, of a plugin that decodes it to learn its size

    def pixels(self, data: bytes) -> Array:
        with strict(self.format):
            return _pixels_of(self.decoded or _open_image(data, self.plugin))


def read_pillow(data: bytes) -> PillowHeader | None:
    """Read the header with Pillow's plugin. Return None if no plugin reads this content."""
    plugin = next((plugin for pattern, plugin in PLUGINS if pattern.match(data)), None)
    if plugin is None:
        return None
    name = plugin.lower().removeprefix("pillow_")
    if plugin == "Jpeg2K":
        _check_jp2(data)
    with strict(name):
        image = _open_image(data, plugin)
        if plugin == "Ppm" and image.mode == "RGB" and image.tile[0][0] != "raw" and image.tile[0][3][1] > 255:
            raise unsupported("PNM with colours of more than 8 bits, of which Pillow keeps 8,")
        return PillowHeader(
            format=name,
            height=image.height,
            width=image.width,
            orientation=1 if plugin == JXL and not image.jpeg else exif_orientation(image.info.get("exif")),  # libjxl turns it
            plugin=plugin,
            decoded=image if plugin == JXL else None,
            deep=plugin == JXL or (plugin in ("Avif", HEIF) and DEEP.search(data, 0, 1 << 16) is not None),
        )


def _check_jp2(data: bytes) -> None:
    """Accept only grey and RGB, of depths that Pillow keeps, and reject images with lost tiles, which OpenJPEG leaves black."""
    start = max(data.find(SIZ), 0)
    head = data[:start]
    values = struct.unpack_from(">2H8IH", data, start + 4)
    kind, width, height, left, top, tile_width, tile_height, tile_left, tile_top, components = values[1:]
    depths = {data[at : at + 3] for at in range(start + 42, start + 42 + 3 * components, 3)}
    plain = (depths == {b"\7\1\1"} and components in (1, 3)) or (components == 1 and depths == {b"\x0f\1\1"})
    framed = kind >> 14 or any((left, top, tile_left, tile_top)) or not tile_width or not tile_height
    if framed or not plain or b"pclr" in head or b"cdef" in head or (b"colr" in head and not JP2_COLORS.search(head)):
        raise unsupported("JPEG 2000 with alpha, a palette, subsampling, offsets, or pixels other than 8-bit RGB and 8/16-bit grey")
    tiles, seen = -(-width // tile_width) * -(-height // tile_height), len(set(TILE.findall(data, start)))
    if seen < tiles or END_OF_CODESTREAM not in data[start:]:
        raise CodecError(f"the JPEG 2000 codestream lacks tiles or its end: it has {seen} of {tiles} tiles", "truncated")


def _open_image(data: bytes, plugin: str) -> Any:
    """Open a Pillow image, which reads its header; call inside `strict`. The plugin is known, so `Image.open` need not search."""
    if plugin == HEIF:
        opened = extra(HEIF, "pillow-heif", "HEIC").HeifImageFile
    elif plugin == JXL:
        opened = extra(JXL, "pillow-jxl-plugin", "JPEG XL").JpegXLImagePlugin.JXLImageFile
    else:
        opened = getattr(importlib.import_module(f"PIL.{plugin}ImagePlugin"), f"{plugin}ImageFile")
    return opened(io.BytesIO(data), "")


def exif_orientation(block: bytes | None) -> int:
    """Return the orientation, 1 to 8, that Pillow reads in EXIF's TIFF block; 1 if it is absent or cannot be read."""
    turn: Any = 1
    if block:
        with suppress(CodecError), strict("EXIF"):
            from PIL import Image

            exif = Image.Exif()
            exif.load(block)
            turn = exif.get(ORIENTATION, 1)
    return int(turn) if turn in range(1, 9) else 1


def extra(module: str, package: str, what: str) -> ModuleType:
    """Import an optional package that reads a format; raise CodecError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        advice = "pip install 'fastdata-torch[formats]', or convert the image"
        raise CodecError(f"{what} is read with {package}, which is not installed: {advice}", "unsupported") from None


@contextmanager
def strict(what: str, *, reader: str = "Pillow") -> Iterator[None]:
    """Make Pillow strict: it gives no warnings, limits only the size of first frames, and does not fill in missing data.

    The settings are global, so one thread has them at a time. Any exception inside except MemoryError becomes a CodecError.
    """
    from PIL import Image, ImageFile

    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = MAX_OPENED_PIXELS // 2, False  # Pillow refuses twice as many
        try:
            yield
        except (CodecError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  plugins raise nearly every kind
            text = str(error) or type(error).__name__
            if isinstance(error, Image.DecompressionBombError):
                raise CodecError(f"a frame of the {what} has more than {MAX_OPENED_PIXELS} pixels", "too-large") from None
            cut = isinstance(error, (EOFError, IndexError, struct.error)) or CUT.search(text)
            raise CodecError(f"{reader} cannot read the {what}: {text[:200]}", "truncated" if cut else "undecodable") from None
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def _pixels_of(image: Any) -> Array:
    """Decode to pixels as stored; call inside `strict`.

    The part of a GIF's screen that its first frame leaves empty is transparent. All-zero alpha in a BMP is ignored.
    """
    from PIL import Image

    kind = image.format
    box = image.tile[0][1] if kind == "GIF" else None
    image.info.pop("xmp", None)  # Pillow turns TIFFs itself, also as XMP says
    image.load()
    if image.mode == "CMYK":
        return cmyk_to_rgb(255 - np.asarray(image))
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        return np.asarray(image).astype(np.uint16)
    if image.mode not in ("1", "L", "P", "RGB", "LA", "PA", "RGBA"):
        raise unsupported(f"{kind} with pixels of Pillow's mode {image.mode}")
    if box is not None and box != (0, 0, *image.size):
        frame, image = image.convert("RGBA").crop(box), Image.new("RGBA", image.size)
        image.paste(frame, box)
    transparent = image.has_transparency_data
    mode = ("L" if image.mode in ("1", "L", "LA") else "RGB") + ("A" if transparent else "")
    values = np.asarray(image if image.mode == mode else image.convert(mode))
    return values[..., :-1] if kind == "BMP" and transparent and not values[..., -1].any() else values


# TIFF: numbers of tags, and their values

SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 254, 256, 257, 258, 259, 262
STRIPS, SAMPLES, ROWS, STRIP_BYTES, PLANAR = 273, 277, 278, 279, 284
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 322, 323, 324, 325
INKS, EXTRA, SAMPLE_FORMAT = 332, 338, 339
WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK = 0, 1, 2, 3, 5
COLORS = {WHITE_IS_0: 1, BLACK_IS_0: 1, RGB: 3, INDEXED: 1, CMYK: 4}  # samples of colour
PLAIN, JPEG = 1, (6, 7)  # compressions
PREMULTIPLIED, STRAIGHT = 1, 2  # alpha, among the kinds of extra samples


@dataclass(frozen=True, kw_only=True)
class TiffHeader(Header):
    """The header of a grey or RGB TIFF that tifffile reads."""

    format: str = "tiff"
    tags: Mapping[int, Any]

    def pixels(self, data: bytes) -> Array:
        tifffile = extra("tifffile", "tifffile", "TIFF of this kind")
        with strict("TIFF", reader="tifffile"), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages[0]
            values: Array = page.asarray(maxworkers=1)
            values = np.moveaxis(values, 0, 2) if page.axes[:1] == "S" else values
            values = values.astype(values.dtype.newbyteorder("="), copy=False).reshape(self.height, self.width, -1)
            colors, kinds = COLORS[self.tags[PHOTOMETRIC]], _extra_samples(self.tags)
            values = values[..., [*range(colors), *([colors + kinds.index(STRAIGHT)] if STRAIGHT in kinds else [])]]
        if self.tags[PHOTOMETRIC] == WHITE_IS_0:
            values[..., 0] = np.iinfo(values.dtype).max - values[..., 0]
        return values[..., 0] if values.shape[2] == 1 else values


def _extra_samples(tags: Mapping[int, Any]) -> tuple[int, ...]:
    """Return the kinds of samples besides colour. An unexplained fourth sample of RGB is alpha, as in Pillow."""
    unexplained = (STRAIGHT,) if (tags[PHOTOMETRIC], tags.get(SAMPLES)) == (RGB, 4) else ()
    return tags.get(EXTRA) or unexplained


def read_tiff(data: bytes) -> Header:
    """Read the header of the first picture, and check the tags before anything is decoded.

    Pillow keeps 8 bits of 16-bit colours, does not invert 16 bits, and misreads planes. In libtiff, strips that a file omits
    stay black.
    """
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    head, word, size = (16, 8, 20) if data[2] == ord("+") else (8, 2, 12)  # BigTIFF has longer ones
    with strict("TIFF"):
        directory = ImageFileDirectory_v2(data[:head])
        start = directory.next + word
        count = int.from_bytes(data[directory.next : start], "little" if data[0] == ord("I") else "big")
        if start + size * count > len(data):  # Pillow would leave out tags, such as that of alpha
            raise CodecError("the TIFF ends inside its tags", "truncated")
        file = io.BytesIO(data)
        file.seek(directory.next)
        directory.load(file)
        return _checked(data, directory)


def _checked(data: bytes, tags: Mapping[int, Any]) -> Header:
    samples, photometric = tags.get(SAMPLES, 1), tags.get(PHOTOMETRIC, -1)
    bits, compression = tags.get(BITS, (1,))[0], tags.get(COMPRESSION, PLAIN)
    colors, planar = COLORS.get(photometric, 0), tags.get(PLANAR, 1) == 2
    if set(tags.get(SAMPLE_FORMAT, (1,))) != {1}:
        raise CodecError("TIFF with signed or floating-point samples is no image: save them as .npy", "unsupported")
    misread = (
        tags.get(SUBFILE, 0) & 1  # a thumbnail, as in raw files of cameras
        or not colors <= samples <= colors + 4
        or tags.get(INKS, 1) != 1
        or (bits > 8 and photometric == INDEXED)
        or compression in JPEG
        or (planar and bits < 8)
        or tags.get(PLANAR, 1) > 2
        or bits not in (1, 2, 4, 8, 16)
    )
    if not colors or misread:
        kind = f"{bits} bits per sample, {samples} per pixel, photometric interpretation {photometric}, compression {compression}"
        raise unsupported(f"TIFF with {kind} (or with planes of less than 8 bits, or a leading thumbnail)")
    _check_pieces(tags, len(data), samples, bits, planar)
    misread_planes = planar and (samples > colors or (samples == 1 and photometric != INDEXED))
    by_tifffile = misread_planes or (bits == 16 and (samples > 1 or photometric != BLACK_IS_0))
    if by_tifffile and (photometric == CMYK or PREMULTIPLIED in _extra_samples(tags)):
        raise unsupported("TIFF of 16 bits or in planes, with CMYK or premultiplied alpha,")
    height, width, turn = tags[HEIGHT], tags[WIDTH], tags.get(ORIENTATION, 1)
    if by_tifffile:
        return TiffHeader(height=height, width=width, orientation=turn if 1 <= turn <= 8 else 1, tags=tags)
    if 5 <= turn <= 8:  # Pillow turns TIFFs itself
        height, width = width, height
    return PillowHeader(format="tiff", height=height, width=width, plugin="Tiff")


def _check_pieces(tags: Mapping[int, Any], end: int, samples: int, bits: int, planar: bool) -> None:
    """Raise CodecError unless strips or tiles cover the page and lie before `end`: libtiff leaves missing pixels black."""
    height, width, plain, tiled = tags[HEIGHT], tags[WIDTH], tags.get(COMPRESSION, PLAIN) == PLAIN, TILE_WIDTH in tags
    rows, columns = (tags[TILE_HEIGHT], tags[TILE_WIDTH]) if tiled else (min(tags.get(ROWS, height), height), width)
    if min(height, width, rows, columns) <= 0 or rows * columns > max(4 * height * width, 1 << 20):
        raise CodecError(f"the {height} x {width} TIFF claims tiles or strips of {rows} x {columns}", "undecodable")
    offsets, row = tags.get(TILES if tiled else STRIPS, ()), -(-width * samples * bits // 8)
    unsaid = (-(-height * row // max(len(offsets), 1)),) * len(offsets) if plain else ()
    counts = tags.get(TILE_BYTES if tiled else STRIP_BYTES, unsaid)
    if min(len(offsets), len(counts)) < -(-height // rows) * -(-width // columns) * (samples if planar else 1) or 0 in counts:
        raise CodecError("the TIFF does not say where all its pixels are", "undecodable")
    if max(map(sum, zip(offsets, counts, strict=False))) > end or (plain and sum(counts) < height * row):
        raise CodecError("the TIFF ends inside its pixels", "truncated")
