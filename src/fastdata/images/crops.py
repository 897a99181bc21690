"""Crops: the box of an image that becomes a sample. The boxes of a batch are drawn at once, by torchvision's rules.

A box is (top, left, height, width) in pixels of the stored image.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from fastdata.errors import LoaderError
from fastdata.types import Array

Size = int | tuple[int, ...]

TRIES = 10  # as torchvision, before the fallback to the centre


@dataclass(frozen=True, repr=False)
class Crop:
    """The box of an image that becomes a sample. Derive your own from it.

    Your own crop defines `boxes`, which returns the box of each image of a batch, and `draws`, the count of random numbers that a
    sample needs. The other attributes have defaults that fit every crop; override them for faster paths.

    Args:
        size: (height, width) of the output, or one number for both.

    Attributes:
        draws: how many random numbers a sample needs.
        resizes: whether a box may differ in size from the output and is then resized. If False, the crop only cuts.
        reaches_outside: whether a box may reach beyond the image, where samples are `fill` and masks are `ignore_index`. If such a
            crop resizes, the image is resized first, and then cut at whole pixels, so boxes may begin and end between pixels.
        shape: (height, width) of the output, or None if it depends on the box; then `shapes` returns it.
        antialias, interpolation, fast: as for RandomResizedCrop.
        fill: the value of pixels beyond the image.

    Examples:
        >>> class Corner(Crop):
        ...     '''One of the four corners of an image, half as high and wide as it, resized.'''
        ...     draws = 2
        ...
        ...     def boxes(self, u, heights, widths):
        ...         h, w = heights // 2, widths // 2
        ...         return np.stack([(u[0] < 0.5) * (heights - h), (u[1] < 0.5) * (widths - w), h, w], axis=1)
        >>> Corner(64).boxes(np.array([[0.2], [0.7]]), np.array([100]), np.array([120])).tolist()
        [[50, 0, 50, 60]]
    """

    size: Size

    draws: ClassVar[int] = 0
    any_axes: ClassVar[bool] = False  # whether it also crops arrays with any number of axes, through `starts`
    resizes = True
    reaches_outside = False
    antialias = True
    interpolation = "bilinear"
    fast = False
    fill = 0

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if (len(sides) != 2 and not (self.any_axes and sides)) or not all(isinstance(n, int) and n > 0 for n in sides):
            raise ValueError(f"{type(self).__name__}: size is {self.size!r}, but must be a positive int, or one per axis")

    @property
    def shape(self) -> tuple[int, int] | None:
        height, width = self.sides(2)
        return height, width

    @property
    def resizes_first(self) -> bool:
        """Whether the image is resized before it is cut, so that pixels around a box count."""
        return self.resizes and self.reaches_outside

    def sides(self, axes: int) -> tuple[int, ...]:
        """Return the side of the output along each of `axes` axes."""
        sides = (self.size,) * axes if isinstance(self.size, int) else self.size
        if len(sides) != axes:
            raise ValueError(f"{type(self).__name__}: size is {self.size}, but must be an int or tuple of {axes} ints")
        return sides

    def starts(self, u: Array, shapes: Array) -> Array:
        """Return where boxes that are not resized begin, int64 [n, axes], from uniform numbers [axes, n] and shapes [n, axes]."""
        raise NotImplementedError

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        """Return the boxes of a batch, int64 [n, 4]; floats if the crop resizes and reaches outside.

        Args:
            u: independent uniform numbers in [0, 1), float64 [draws, n].
            heights, widths: the sides of the images, int64 [n].
        """
        raise NotImplementedError

    def shapes(self, boxes: Array) -> list[tuple[int, int]]:
        """Return the (height, width) of each box's output."""
        if self.shape is None:
            raise NotImplementedError(f"{type(self).__name__}.shape is None, so the class needs a method shapes(boxes)")
        return [self.shape] * len(boxes)

    def __repr__(self) -> str:
        size, *others = ((field, getattr(self, field.name)) for field in fields(self))
        return f"{type(self).__name__}({', '.join([str(size[1]), *(f'{f.name}={v}' for f, v in others if v != f.default)])})"


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Crop):
    """A box of random area and aspect ratio, resized to `size`, as torchvision.transforms.RandomResizedCrop.

    Args:
        size: (height, width) of the output, or one number for both.
        scale: lower and upper bound of the box's share of the image's area.
        ratio: lower and upper bound of width / height; its logarithm is uniform.
        antialias: average the pixels that a smaller output would skip, as torchvision does by default; False is faster where a crop
            shrinks, but aliases.
        interpolation: "bilinear", or "bicubic", which is sharper and slower.
        fast: use libjpeg-turbo's faster transform and chroma upsampling: errors average about 1, and reach 80 at chroma edges.
    """

    _: KW_ONLY
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = True
    interpolation: str = "bilinear"
    fast: bool = False

    draws: ClassVar[int] = 2 + 2 * TRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "scale", self.scale)
        _check_range(self, "ratio", self.ratio)
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"RandomResizedCrop: interpolation is {self.interpolation!r}, but must be 'bilinear' or 'bicubic'")

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        area = heights * widths * (self.scale[0] + (self.scale[1] - self.scale[0]) * u[2::2])
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = np.exp(low + (high - low) * u[3::2])
        w, h = np.rint(np.sqrt(area * ratio)).astype(np.int64), np.rint(np.sqrt(area / ratio)).astype(np.int64)
        fits = (w > 0) & (h > 0) & (w <= widths) & (h <= heights)
        first, column = fits.argmax(0), np.arange(len(heights))
        w, h, found = w[first, column], h[first, column], fits[first, column]
        top, left = (u[0] * (heights - h + 1)).astype(np.int64), (u[1] * (widths - w + 1)).astype(np.int64)
        boxes = np.stack([top, left, h, w], axis=1)
        if not found.all():
            boxes[~found] = self._fallback(heights[~found], widths[~found])
        return boxes

    def _fallback(self, heights: Array, widths: Array) -> Array:
        """Return the largest centred boxes whose ratio is within bounds."""
        shape = widths / heights
        w = np.where(shape > self.ratio[1], np.rint(heights * self.ratio[1]).astype(np.int64), widths)
        h = np.where(shape < self.ratio[0], np.rint(widths / self.ratio[0]).astype(np.int64), heights)
        h, w = np.maximum(h, 1), np.maximum(w, 1)  # torchvision fails here on an image one pixel wide
        return np.stack([(heights - h) // 2, (widths - w) // 2, h, w], axis=1)


def _check_range(crop: Crop, name: str, given: tuple[float, float]) -> None:
    low, high = given
    if not 0 < low <= high:
        raise ValueError(f"{type(crop).__name__}: {name} is {given}, but must be two positive numbers, the lower first")


def MultiCrop(
    size: Size = 224,
    local_size: Size = 96,
    *,
    num_global: int = 2,
    num_local: int = 8,
    scale: tuple[float, float] = (0.4, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.4),
    **options: Any,
) -> tuple[RandomResizedCrop, ...]:
    """Return the crops of DINO: `num_global` large views of an image, then `num_local` small ones, for a dataset's `crop`.

    The defaults are those of the authors' main_dino.py (https://github.com/facebookresearch/dino), except that `interpolation`
    is "bicubic" there. `scale` is for global, `local_scale` for local views; all take RandomResizedCrop's other `options`.

    Examples:
        >>> [crop.size for crop in MultiCrop(224, 96, num_local=3)]
        [224, 224, 96, 96, 96]
    """
    large, small = RandomResizedCrop(size, scale=scale, **options), RandomResizedCrop(local_size, scale=local_scale, **options)
    return (large,) * num_global + (small,) * num_local


@dataclass(frozen=True, repr=False)
class _Cut(Crop):
    """A crop of `size` that is not resized."""

    any_axes: ClassVar[bool] = True
    resizes = False

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        starts = self.starts(u, np.stack([heights, widths], axis=1))
        return np.concatenate([starts, np.broadcast_to(self.sides(2), starts.shape)], axis=1)


@dataclass(frozen=True, repr=False)
class CenterCrop(_Cut):
    """The centre of the image, as torchvision.transforms.CenterCrop. Smaller images are padded with zeros.

    Args:
        size: (height, width) of the output, or one number for both; for arrays, one number for each axis, or one for all.
        resize: first resize the short side to this, as torchvision.transforms.Resize does, or None. Not for arrays.
        fast: as for RandomResizedCrop.
    """

    _: KW_ONLY
    resize: int | None = None
    fast: bool = False

    reaches_outside = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize is not None and (not isinstance(self.resize, int) or self.resize < 1):
            raise ValueError(f"CenterCrop: resize is {self.resize!r}, but must be a positive number of pixels, or None")

    @property
    def resizes(self) -> bool:  # type: ignore[override]
        return self.resize is not None

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        if self.resize is None:
            return super().boxes(u, heights, widths)
        sides = np.stack([heights, widths], axis=1)
        resized = np.maximum(self.resize * sides // sides.min(axis=1, keepdims=True), 1)
        return _boxes_before(self.starts(u, resized), self.sides(2), sides, resized)

    def starts(self, u: Array, shapes: Array) -> Array:
        sides = np.array(self.sides(shapes.shape[1]))
        # as torchvision, which pads a smaller image first, the odd pixel at the bottom and right
        return np.where(shapes < sides, -((sides - shapes) // 2), np.rint((shapes - sides) / 2).astype(np.int64))


@dataclass(frozen=True, repr=False)
class RandomCrop(_Cut):
    """A box of `size` at a random position, not resized, as torchvision.transforms.RandomCrop. Smaller images raise LoaderError.

    Args:
        size: (height, width) of the output, or one number for both; for arrays, one number for each axis, or one for all.
        padding: how many zeros are added to each side of the image; the box may include them.
        fast: as for RandomResizedCrop.
    """

    _: KW_ONLY
    padding: int = 0
    fast: bool = False

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ValueError(f"RandomCrop: padding is {self.padding!r}, but must be a number of pixels, 0 or more")

    @property
    def reaches_outside(self) -> bool:  # type: ignore[override]
        return self.padding > 0

    def starts(self, u: Array, shapes: Array) -> Array:
        places = shapes + 2 * self.padding - self.sides(shapes.shape[1]) + 1
        if places.size and places.min() < 1:
            shape = " x ".join(map(str, shapes[int(places.min(axis=1).argmin())].tolist()))
            raise LoaderError(
                f"RandomCrop({self.size}, padding={self.padding}) does not fit into a sample of {shape}: use more padding, a "
                "smaller crop, or CenterCrop, which pads by itself"
            )
        return np.asarray((u[: shapes.shape[1]].T * places).astype(np.int64) - self.padding)


@dataclass(frozen=True, repr=False)
class RandomScaleCrop(Crop):
    """A box of `size` at a random position of the image, which is first resized by a random factor, as for segmentation.

    Args:
        size: (height, width) of the output, or one number for both.
        scale: the least and the greatest factor.
        fill: the value of pixels beyond an image that is smaller than the box; masks have `ignore_index` there.
    """

    scale: tuple[float, float]
    fill: int = 0

    draws: ClassVar[int] = 3
    reaches_outside = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "scale", self.scale)

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        sides, size = np.stack([heights, widths], axis=1), self.sides(2)
        factors = self.scale[0] + (self.scale[1] - self.scale[0]) * u[0]
        resized = np.maximum(np.rint(sides * factors[:, None]), 1)
        room = resized - size
        starts = np.sign(room) * np.floor(u[1:].T * (abs(room) + 1))
        return _boxes_before(starts, size, sides, resized)


def _boxes_before(starts: Array, size: tuple[int, ...], sides: Array, resized: Array) -> Array:
    """Return boxes, float64 [n, 4], that lie at `starts` with `size` once images of `sides` are resized to `resized`."""
    rates = sides / resized
    return np.concatenate([starts * rates, size * rates], axis=1)


@dataclass(frozen=True, repr=False)
class Resize(Crop):
    """The whole image, resized, as torchvision.transforms.Resize.

    Args:
        size: (height, width), or one number for the short side; the long side then keeps the aspect ratio.
        antialias, fast: as for RandomResizedCrop.
    """

    _: KW_ONLY
    antialias: bool = True
    fast: bool = False

    @property
    def shape(self) -> tuple[int, int] | None:
        return None if isinstance(self.size, int) else super().shape

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        zero = np.zeros_like(heights)
        return np.stack([zero, zero, heights, widths], axis=1)

    def shapes(self, boxes: Array) -> list[tuple[int, int]]:
        if not isinstance(self.size, int):
            return super().shapes(boxes)
        return [(self.size * h // min(h, w), self.size * w // min(h, w)) for h, w in boxes[:, 2:].tolist()]
