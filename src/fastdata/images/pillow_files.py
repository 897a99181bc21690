"""Read every format but JPEG, PNG and WebP with Pillow and its plugins.

Pillow is imported when the first such file is seen. A program's own settings of Pillow (`Image.MAX_IMAGE_PIXELS`,
`ImageFile.LOAD_TRUNCATED_IMAGES`) and its warnings have no effect here, and are restored afterwards.
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
)
DEEP = re.compile(rb"av1C\x81.[\x40-\x7f\xc0-\xff]|hvcC.{17}[^\xf8]", re.S)  # AV1 and HEVC of more than 8 bits
CUT = re.compile(
    "truncat|not enough|only got|reached EOF|not large enough|ends? early|end of file|EOF|no more images", re.IGNORECASE
)
UNREAD = re.compile("unsupported|not supported|unknown (?:pixel|data)|unable to read", re.IGNORECASE)

_lock = threading.Lock()
_users: list[Any] = []  # one entry for each thread inside `strict`; the first has what must be restored


@dataclass(frozen=True, kw_only=True)
class PillowHeader(Header):
    plugin: str

    def pixels(self, data: bytes) -> Pixels:
        with strict(self.format):
            return pixels_of(open_image(data, self.plugin))


def read_pillow(data: bytes) -> PillowHeader | None:
    """Read the header with Pillow's plugin; None if no plugin reads this content."""
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
    """Open a Pillow image, which reads its header; call inside `strict`. The plugin is known, so `Image.open` need not search."""
    if plugin == HEIF:
        return extra(HEIF, "pillow-heif", "HEIC").HeifImageFile(io.BytesIO(data), "")
    module = importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return getattr(module, f"{plugin}ImageFile")(io.BytesIO(data), "")


def extra(module: str, package: str, what: str) -> ModuleType:
    """Import an optional package that reads a format.

    Raises:
        CodecError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise CodecError(
            f"{what} is read with {package}, which is not installed: pip install 'fastdata-torch[formats]', or convert the image",
            "unsupported",
        ) from None


def extras() -> tuple[str, ...]:
    """Return the optional packages for images that are installed."""
    return tuple(name for name in EXTRAS if any(metadata.distributions(name=name)))


@contextmanager
def strict(what: str) -> Iterator[None]:
    """Make Pillow strict: silent, without a size limit of its own, and without filling in what a file lacks.

    The settings are global to all threads, so the first user makes them, and the last one restores them.

    Raises:
        CodecError: for any exception inside, since damaged bytes may raise anything.
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
            filters: Any = warnings.filters  # in place: otherwise Python would forget which warnings each module has already shown
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
    """Forget other threads that were inside `strict`: the child does not have them."""
    global _lock
    _lock = threading.Lock()
    while _users:
        _leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def pixels_of(image: Any) -> Pixels:
    """Decode to [H, W] or [H, W, 3], uint8 or uint16, with alpha apart; call inside `strict`.

    The part of a GIF's screen that its first frame leaves empty is transparent. All-zero alpha in a BMP is ignored.
    """
    kind = image.format
    box = image.tile[0][1] if kind == "GIF" else None
    image.load()
    if image.mode == "CMYK":
        return Pixels(cmyk_to_rgb(255 - np.asarray(image)))
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        return Pixels(np.asarray(image).astype(np.uint16))
    transparent = image.has_transparency_data
    if image.mode not in ("1", "L", "P", "RGB", "LA", "PA", "RGBA"):
        raise unsupported(f"{kind} with pixels of Pillow's mode {image.mode}")
    gray = image.mode in ("1", "L", "LA")
    mode = ("L" if gray else "RGB") + ("A" if transparent else "")
    values = np.asarray(image if image.mode == mode else image.convert(mode))
    alpha = np.ascontiguousarray(values[..., -1]) if transparent else None
    color = np.ascontiguousarray(values[..., 0] if gray else values[..., :3]) if transparent else values
    if box is not None and box != (0, 0, *image.size):
        left, top, right, bottom = box
        frame = np.zeros(color.shape[:2], np.uint8)
        frame[top:bottom, left:right] = 255 if alpha is None else alpha[top:bottom, left:right]
        alpha = frame
    if kind == "BMP" and alpha is not None and not alpha.any():
        alpha = None
    return Pixels(color, alpha)
