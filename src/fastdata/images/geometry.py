"""Boxes and keypoints follow their image through preparing, cropping, resizing and flipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import FormatError
from fastdata.store.columns import INSTANCES, SOURCE_SIZE, Column, Lists, mirror_order
from fastdata.store.manifest import Variant
from fastdata.store.store import Store
from fastdata.types import Array

AREA = "area"  # the column with the areas of instances
TINY = 1e-9  # square pixels


@dataclass(frozen=True)
class Placement:
    """Maps points (x, y) of n images to (x, y) * scale + shift; both are float64 [n, 2]."""

    scale: Array
    shift: Array

    def then(self, plan: Sequence[Any]) -> tuple[Placement, Array]:
        """Return the placement after a plan's crops and flips, and the outputs' sizes, (width, height), float64 [n, 2]."""
        boxes = np.array([sample.box for sample in plan], np.float64).reshape(-1, 4)
        sizes = np.array([sample.shape for sample in plan], np.float64).reshape(-1, 2)[:, ::-1]
        flips = np.array([sample.flip for sample in plan], bool).reshape(-1, 2)
        factor = sizes / boxes[:, [3, 2]]
        scale, shift = self.scale * factor, (self.shift - boxes[:, [1, 0]]) * factor
        return Placement(np.where(flips, -scale, scale), np.where(flips, sizes - shift, shift)), sizes


def layout(sides: Array, size: int | None, mode: str, *, upscale: bool) -> tuple[Array, Array, Array]:
    """Return the (height, width) to resize images of these sides to, and the corner and the sides of the stored part; int64 [n, 2].

    size: the length of the side that `mode` (option `--resize`) names; the other is rounded down, as in torchvision's Resize.
    None: every image keeps its sides. upscale: whether smaller images are enlarged; "stretch" decides for each side by itself.
    """
    resized = sides = sides.astype(np.int64)
    if size is not None and mode == "stretch":
        resized = np.full_like(sides, size) if upscale else np.minimum(sides, size)
    elif size is not None:
        side = (sides.max(axis=1) if mode == "long" else sides.min(axis=1))[:, None]
        resized = np.maximum(1, size * sides // side)
        resized = resized if upscale else np.where(side <= size, sides, resized)
    stored = resized
    if size is not None and mode == "crop":
        stored = np.broadcast_to(np.minimum(resized.min(axis=1), size)[:, None], sides.shape)
    return resized, (resized - stored) // 2, stored


def placement(store: Store, variant: Variant, rows: Array, files: Array) -> tuple[Placement, Array]:
    """Return where points of files with the sides `files` lie in the images, and the images' (width, height), float64 [n, 2]."""
    options = store.manifest.options
    resized, corner, stored = layout(files, variant.size, options["resize"], upscale=options["upscale"])
    if any((store.field(variant, side)[rows] != stored[:, k]).any() for k, side in enumerate(("height", "width"))):
        raise FormatError(f"{store.location}: column {SOURCE_SIZE.name} does not fit the images; prepare the store again")
    return Placement((resized / files)[:, ::-1], -corner[:, ::-1].astype(np.float64)), stored[:, ::-1].astype(np.float64)


def move_columns(
    columns: Sequence[Column], values: dict[str, Any], placed: Placement, sizes: Array, min_visible: float = 0.0
) -> int:
    """Move the boxes and keypoints among values of columns, by name. Drop from each group the instances whose boxes are gone.

    Areas of instances change as those of their boxes do. Return the number of boxes that were dropped.
    """
    remaining, share = dict[str, Array](), dict[str, Array]()
    for column in columns:
        if column.geometry is None:
            continue
        batch = values[column.name]
        items, of = (batch.values, batch.of) if isinstance(batch, Lists) else (batch, np.arange(len(batch)))
        if column.geometry == "xyxy":
            moved, inside = move_boxes(items, of, placed, sizes, min_visible)
            if column.group is not None:
                remaining[column.group], share[column.group] = inside, _areas(moved) / np.maximum(_areas(items), TINY)
            items = moved
        else:
            items = move_keypoints(items, of, placed, sizes, column.names)
        values[column.name] = batch._replace(values=items) if isinstance(batch, Lists) else items
    for column in columns:
        if column.group in remaining:
            if (column.name, column.group) == (AREA, INSTANCES):
                batch = values[AREA]
                values[AREA] = batch._replace(values=(batch.values * share[INSTANCES]).astype(column.dtype))
            values[column.name] = values[column.name].select(remaining[column.group])
    return sum(int((~inside).sum()) for inside in remaining.values())


def _areas(boxes: Array) -> Array:
    sides = boxes.astype(np.float64).reshape(-1, 2, 2)
    return np.asarray((sides[:, 1] - sides[:, 0]).prod(axis=1))


def move_boxes(boxes: Array, of: Array, placed: Placement, sizes: Array, min_visible: float) -> tuple[Array, Array]:
    """Move boxes, x1, y1, x2, y2 [total, 4], clip them to the outputs, and say which remain, bool [total].

    of: the image of each box, int64 [total]. sizes: of the outputs, (width, height), [n, 2]. min_visible: the share of a box's area
    that must remain inside. A box without area never remains.
    """
    corners = boxes.reshape(-1, 2, 2) * placed.scale[of, None] + placed.shift[of, None]
    corners.sort(axis=1)  # a flip swaps them
    inside = np.clip(corners, 0, sizes[of, None])
    before, after = (np.prod(found[:, 1] - found[:, 0], axis=1) for found in (corners, inside))
    return inside.reshape(-1, 4).astype(np.float32), (after > 0) & (after >= min_visible * before)


def move_keypoints(points: Array, of: Array, placed: Placement, sizes: Array, names: Sequence[str]) -> Array:
    """Move keypoints, x, y, visibility [total, ..., 3]. Those outside of the output become (0, 0, 0), as unlabelled ones of COCO.

    names: of the keypoints along the last but one axis. Where an image is mirrored, "left_..." and "right_..." change places.
    """
    axes = (slice(None),) + (None,) * (points.ndim - 2)
    moved = points[..., :2] * placed.scale[of][axes] + placed.shift[of][axes]
    inside = ((moved >= 0) & (moved < sizes[of][axes])).all(axis=-1) & (points[..., 2] > 0)
    out = np.where(inside[..., None], np.concatenate([moved, points[..., 2:]], axis=-1), 0)
    mirrored = placed.scale[of].prod(axis=1) < 0  # flips of both axes are a rotation
    swapped = mirror_order(names)
    if points.ndim > 2 and len(names) == points.shape[-2]:
        out[mirrored] = out[mirrored][..., swapped, :]
    return out.astype(np.float32)
