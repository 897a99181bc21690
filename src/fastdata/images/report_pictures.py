"""The pictures of a store of images in its report: thumbnails with masks and boxes, and a caption."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.codecs.pixels import LEAST_SHRUNK, Window, decode_record, decode_window
from fastdata.errors import CodecError
from fastdata.images.contact_sheet import label_text, rgb8
from fastdata.images.drawn_columns import Described, box_categories, box_colors, category_numbers
from fastdata.images.export_columns import ExportColumns
from fastdata.report.html import Html, tag
from fastdata.report.pictures import SIDE, Picture, sample, shrink
from fastdata.store.canvas import class_colors
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["Pictures", "colored", "hex_color", "rejected_picture", "spread"]

Array = np.ndarray[Any, np.dtype[Any]]

TEXT = 2000  # characters of a caption
END = b"\xff\xd9"  # of a JPEG
LARGEST = 1 << 26  # pixels of a rejected file that may be decoded


class Pictures:
    """Draws samples of a store of images.

    Args:
        store: the store.

    Attributes:
        names: where each sample came from.
        shapes: whether there are boxes or keypoints.
        masks: whether there are masks.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        size = _fitting(store)
        self.variant = store.variant(size)
        images = store.manifest.images
        self._images = [store.variant(size, image=image) for image in images] or [self.variant]
        self._readers = {variant.name: store.reader(variant) for variant in self._images}
        self.masks = store.manifest.section("masks") is not None
        self._mask = store.variant(size, mask=True) if self.masks else None
        self._mask_reader = store.reader(self._mask) if self._mask is not None else None
        self.names = store.names()
        geometric = [column for column in store.manifest.columns if column.geometry]
        self.shapes = bool(geometric)
        self._rows = ExportColumns(store, self.variant) if geometric else None
        self._categories = box_categories(store)
        self._described = Described(store) if store.manifest.columns else None

    def pixels(self, index: int, variant: Variant | None = None) -> Array:
        """Return an image, uint8 RGB, no smaller than a thumbnail if it is stored so.

        Raises:
            CodecError: its record is damaged.
        """
        variant = variant or self.variant
        height, width = (int(self._store.field(variant, side)[index]) for side in ("height", "width"))
        data = self._readers[variant.name].get(index)
        shrink = max((n for n in (1, 2, 4, 8) if max(height, width) >= n * SIDE), default=1)
        if not variant.form.jpegs or shrink == 1 or min(height, width) < LEAST_SHRUNK * shrink:
            return rgb8(decode_record(data, variant.form, height, width))
        window = Window(0, 0, height, width, shrink)
        region = decode_window(data, variant.form, height, width, window, decode_buffer)
        return rgb8(region.pixels[:, :, : variant.form.channels])

    def html(self, index: int) -> Html:
        """Return a sample for a gallery."""
        label, text = label_text(self._store, index), "" if self._described is None else self._described.line(index)
        name = self.names[index]
        drawn: list[Picture | str] = []
        for k, variant in enumerate(self._images):
            try:
                drawn.append(self._picture(index, variant, f"{label or 'image'} {index}: {text or name}", first=not k))
            except CodecError as error:
                drawn.append(f"sample {index} cannot be decoded: {error}")
        height, width = (int(self._store.field(self.variant, side)[index]) for side in ("height", "width"))
        more = [tag("div", text[:TEXT])] if text else []
        more.append(tag("div", f"{index}: {name}", class_="soft"))
        more.append(tag("div", f"{width} × {height} pixels, size {self.variant.name}", class_="soft"))
        return sample(drawn, label or text, f"{index}: {name.rpartition('/')[2]}", more)

    def _picture(self, index: int, variant: Variant, alt: str, *, first: bool) -> Picture:
        pixels = self.pixels(index, variant)
        if not first:
            return Picture(pixels, alt)
        height, width = (int(self._store.field(variant, side)[index]) for side in ("height", "width"))
        mask = None
        if self._mask is not None and self._mask_reader is not None:
            classes = decode_record(self._mask_reader.get(index), self._mask.form, height, width)[:, :, 0]
            mask = colored(classes)
        return Picture(pixels, alt, mask, self._shapes(index, max(height, width)), (height, width))

    def _shapes(self, index: int, side: int) -> list[Html]:
        """Return the boxes and keypoints of a sample as SVG."""
        if self._rows is None:
            return []
        values = {name: found[0] for name, found in self._rows.take(np.array([index])).items()}
        drawn = []
        for column in self._rows.columns:
            if column.geometry == "xyxy":
                colors = box_colors(category_numbers(self._categories, column, values))
                for (x1, y1, x2, y2), color in zip(values[column.name].reshape(-1, 4).tolist(), colors, strict=True):
                    place = {"x": f"{x1:.1f}", "y": f"{y1:.1f}", "width": f"{x2 - x1:.1f}", "height": f"{y2 - y1:.1f}"}
                    drawn.append(tag("rect", stroke=hex_color(color), **place))
        for column in self._rows.columns:
            if column.geometry == "xy":
                for x, y, visible in values[column.name].reshape(-1, 3).tolist():
                    if visible:
                        drawn.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{side / 80:.1f}"))
        return drawn


def colored(classes: Array) -> Array:
    """Return the colours of the classes [H, W] of a mask, RGBA."""
    colors = class_colors(1 << 8 * classes.itemsize)[classes]
    return np.dstack([colors, np.full(classes.shape, 255, np.uint8)])


def hex_color(color: Any) -> str:
    """Return (red, green, blue) as a colour of CSS."""
    return "#{:02x}{:02x}{:02x}".format(*(int(part) for part in color))


def spread(values: Array, most: int) -> Array:
    """Return at most so many of the values, evenly spaced."""
    return values if len(values) <= most else values[np.arange(most) * len(values) // most]


def rejected_picture(data: bytes) -> Array | None:
    """Return an image file as a small picture, uint8 RGB; of a JPEG that is cut short, what is there. None: it cannot be read."""
    try:
        return shrink(rgb8(np.atleast_3d(SourceImage(data, max_pixels=LARGEST).decode())))
    except CodecError as error:
        return _beginning(data) if error.reason == "truncated" and data.startswith(b"\xff\xd8") else None


def _beginning(data: bytes) -> Array | None:
    """Return what Pillow decodes of a JPEG before it ends early; the rest is grey."""
    from PIL import JpegImagePlugin

    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(data + END))
        return shrink(np.asarray(image.convert("RGB"))) if math.prod(image.size) <= LARGEST else None
    except (OSError, SyntaxError, ValueError):
        return None


def _fitting(store: Store) -> int | None:
    """Return the smallest stored size that fills a thumbnail, else the largest."""
    sizes = [variant.size for variant in store.manifest.variants if not variant.is_mask and not variant.image]
    return min(
        (size for size in sizes if size is not None and size >= SIDE), default=None if None in sizes else max(sizes, key=_side)
    )


def _side(size: int | None) -> float:
    return float("inf") if size is None else size
