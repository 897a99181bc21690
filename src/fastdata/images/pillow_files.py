"""Every format but JPEG, PNG and WebP, by Pillow and its plugins.

Pillow is imported when the first such file is seen. What a program has set of it (`Image.MAX_IMAGE_PIXELS`,
`ImageFile.LOAD_TRUNCATED_IMAGES`) and of its warnings plays no part here, and is as it was afterwards.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, cmyk_to_rgb
from fastdata.images.checks import CHECKS
from fastdata.images.header import Header, exif_orientation, unsupported

__all__ = ["extra", "extras", "open_image", "pixels_of", "read_pillow", "strict"]

Array = np.ndarray[Any, np.dtype[Any]]

EXTRAS = ("imagecodecs", "pillow-heif", "pillow-jxl-plugin", "tifffile")
HEIF = "pillow_heif"
PLUGINS = (
    (re.compile(rb"GIF8[79]a"), "Gif"),
    (re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.S), "Bmp"),
    (re.compile(rb"P[1-6]\s"), "Ppm"),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"), "Jpeg2K"),
    (re.compile(rb".{4}ftyp(?:.{4}){0,60}?avi[fs]", re.S), "Avif"),
    (re.compile(rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1)", re.S), HEIF),
    (re.compile(rb"8BPS\0\x01"), "Psd"),
    (re.compile(rb"qoif"), "Qoi"),
    (re.compile(rb"\x01\xda[\0\x01]"), "Sgi"),
    (re.compile(rb"\x59\xa6\x6a\x95"), "Sun"),
    (re.compile(rb"DanM|LinS"), "Msp"),
)
DEEP = re.compile(rb"av1C\x81.[\x40-\x7f\xc0-\xff]|hvcC.{17}[^\xf8]", re.S)  # AV1 and HEVC of more than 8 bits
CUT = re.compile(
    "truncat|not enough|only got|reached EOF|not large enough|ends? early|end of file|EOF|no more images", re.IGNORECASE
)
UNREAD = re.compile("unsupported|not supported|unknown (?:pixel|data)|unable to read", re.IGNORECASE)

_lock = threading.Lock()
_users: list[Any] = []  # one for each thread that is inside of `strict`; the first holds what has to be put back


@dataclass(frozen=True, kw_only=True)
class PillowHeader(Header):
    plugin: str

    def pixels(self, data: bytes) -> Pixels:
        with strict(self.format):
            return pixels_of(open_image(data, self.plugin))


def read_pillow(data: bytes) -> PillowHeader | None:
    """The header, as Pillow's plugin reads it; None if the content is of no format that is read with Pillow."""
    plugin = next((plugin for pattern, plugin in PLUGINS if pattern.match(data)), None)
    if plugin is None:
        return None
    name = "heif" if plugin == HEIF else plugin.lower()
    if plugin in CHECKS:
        CHECKS[plugin](data)
    with strict(name):
        image = open_image(data, plugin)
        return PillowHeader(
            format=name,
            height=image.height,
            width=image.width,
            orientation=exif_orientation((image.info.get("exif") or b"").removeprefix(b"Exif\0\0")),
            plugin=plugin,
            deep=plugin in ("Avif", HEIF) and DEEP.search(data, 0, 1 << 16) is not None,
        )


def open_image(data: bytes, plugin: str) -> Any:
    """The image of Pillow's, with its header read; inside of `strict`. Its plugin is known, so `Image.open` has nothing to find."""
    if plugin == HEIF:
        return extra(HEIF, "pillow-heif", "HEIC").HeifImageFile(io.BytesIO(data), "")
    module = importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return getattr(module, f"{plugin}ImageFile")(io.BytesIO(data), "")


def extra(module: str, package: str, what: str) -> ModuleType:
    """An optional package that reads a kind of images.

    Raises:
        CodecError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise CodecError(
            f"{what} is read with {package}, which is not installed: pip install 'fastdata-torch[formats]', or convert the image",
            "unsupported",
        ) from None


def extras() -> tuple[str, ...]:
    """The optional packages for images that are installed."""
    return tuple(name for name in EXTRAS if any(metadata.distributions(name=name)))


@contextmanager
def strict(what: str) -> Iterator[None]:
    """Pillow as it has to be here: silent, with no limit of its own, and with nothing made up for what a file lacks.

    Its settings hold for all threads, so the first one that comes sets them, and the last one that goes puts them back.

    Raises:
        CodecError: for whatever is raised inside, since damaged bytes may lead to anything.
    """
    _enter()
    try:
        yield
    except (CodecError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  plugins raise nearly every kind
        text = str(error) or type(error).__name__
        cut = isinstance(error, (EOFError, IndexError, struct.error)) or CUT.search(text)
        reason = "truncated" if cut else "unsupported" if UNREAD.search(text) else "undecodable"
        hint = "; convert the image to PNG or JPEG" if reason == "unsupported" else ""
        raise CodecError(f"Pillow cannot read the {what}: {text[:200]}{hint}", reason) from None
    finally:
        _leave()


def _enter() -> None:
    from PIL import Image, ImageFile

    with _lock:
        before = None
        if not _users:
            filters: Any = warnings.filters  # in place: Python would forget of all modules what it has warned of already
            silence = ("ignore", None, Warning, re.compile(r"PIL\.|pillow_"), 0)
            filters.insert(0, silence)
            before = filters, silence, Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = None, False
        _users.append(before)


def _leave() -> None:
    from PIL import Image, ImageFile

    with _lock:
        if len(_users) > 1:
            _users.pop()
            return
        filters, silence, Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = _users.pop()
        if silence in filters:
            filters.remove(silence)


def _after_fork() -> None:
    """Other threads, which may have been inside, are not in the child."""
    global _lock
    _lock = threading.Lock()
    while _users:
        _leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def pixels_of(image: Any) -> Pixels:
    """Decode: [H, W] or [H, W, 3] of uint8 or uint16, alpha apart; inside of `strict`.

    What a GIF's first frame leaves of its screen is transparent. An alpha of zeros in a BMP is unused.
    """
    box, kind = image.tile[0][1] if image.format == "GIF" else None, image.format
    image.load()
    if image.mode == "CMYK":
        return Pixels(cmyk_to_rgb(255 - np.asarray(image)))
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        return Pixels(np.asarray(image).astype(np.uint16))
    clear = image.has_transparency_data
    if image.mode not in ("1", "L", "P", "RGB", "LA", "PA", "RGBA"):
        raise unsupported(f"{kind} with pixels of Pillow's mode {image.mode}")
    gray = image.mode in ("1", "L", "LA")
    values = np.asarray(image.convert(("LA" if clear else "L") if gray else ("RGBA" if clear else "RGB")))
    alpha = np.ascontiguousarray(values[..., -1]) if clear else None
    color = values if not clear else np.ascontiguousarray(values[..., 0] if gray else values[..., :3])
    if box is not None and box != (0, 0, *image.size):
        left, top, right, bottom = box
        seen = np.zeros(color.shape[:2], np.uint8)
        seen[top:bottom, left:right] = 255 if alpha is None else alpha[top:bottom, left:right]
        alpha = seen
    if kind == "BMP" and alpha is not None and not alpha.any():
        alpha = None
    return Pixels(color, alpha)
