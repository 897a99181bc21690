"""Resizing offline, against averages over exact pixel areas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.images.geometry import layout
from fastdata.images.prepare import resize
from support import Array, picture


def _weights(before: int, after: int) -> Array:
    """[after, before]: how much of each pixel lies in each of `after` equal parts of a side."""
    edges = np.arange(after + 1) * before / after
    low = np.maximum(edges[:-1, None], np.arange(before))
    high = np.minimum(edges[1:, None], np.arange(before) + 1)
    return np.maximum(high - low, 0) * after / before


def areas(image: Array, shape: tuple[int, int]) -> Array:
    down, across = _weights(image.shape[0], shape[0]), _weights(image.shape[1], shape[1])
    return np.einsum("yh,hw...,xw->yx...", down, image, across, optimize=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("factor", [1.02, 1.1, 1.2, 1.3, 1.5, 1.8, 1.97, 2.0, 2.7, 4.0])
def test_shrinking_averages_areas(factor: float, channels: int, dtype: type) -> None:
    image = picture(3, 301, 400).astype(dtype)
    image = image[..., 0] if channels == 1 else image
    scale = 257 if dtype == np.uint16 else 1
    shape = round(301 / factor), round(400 / factor)
    found, exact = resize(image * dtype(scale), shape) / scale, areas(image, shape)
    assert np.abs(found - exact).mean() < (2 if 1 < factor < 2 else 0.3)
    for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):  # and is not shifted by a fraction of a pixel
        assert np.abs(found - exact).mean() < np.abs(found - np.roll(exact, (dy, dx), (0, 1))).mean() / 2


@given(st.integers(20, 90), st.integers(20, 90), st.floats(0.2, 1), st.floats(0.2, 1), st.integers(0, 255))
def test_a_ramp_stays_a_ramp_and_flat_stays_flat(height: int, width: int, down: float, across: float, value: int) -> None:
    """Filters that are symmetric and sum to one keep straight lines, up to the borders and rounding."""
    shape = max(4, round(height * down)), max(4, round(width * across))
    flat = np.full((height, width, 3), value, np.uint8)
    np.testing.assert_array_equal(resize(flat, shape), np.full((*shape, 3), value, np.uint8))
    ramp = np.add.outer(np.arange(height), 1.5 * np.arange(width)).round().astype(np.uint8)
    found, exact = resize(ramp, shape), areas(ramp, shape)
    inner = np.s_[1:-1, 1:-1]
    assert np.abs(found[inner] - exact[inner]).max() <= 1.5


SIDES = st.integers(1, 300) | st.integers(1, 65_500)


@given(SIDES, SIDES, SIDES)
def test_sides_are_those_of_torchvisions_resize(height: int, width: int, size: int) -> None:
    def resized(mode: str, upscale: bool) -> list[int]:
        shape, corner, stored = (found[0].tolist() for found in layout(np.array([(height, width)]), size, mode, upscale=upscale))
        square = [min(*shape, size)] * 2 if mode == "crop" else shape
        assert stored == square and corner == [(whole - side) // 2 for whole, side in zip(shape, square, strict=True)]
        return shape

    short, long = min(height, width), max(height, width)
    expected = [int(size * long / short), size] if width <= height else [size, int(size * long / short)]
    assert resized("short", True) == resized("crop", True) == expected
    assert resized("long", True) == [max(1, int(size * n / long)) for n in (height, width)]
    assert resized("stretch", True) == [size, size]
    for mode, side in (("short", short), ("crop", short), ("long", long)):
        assert resized(mode, False) == ([height, width] if size >= side else resized(mode, True))
