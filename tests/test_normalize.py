"""GPUNormalize against the exact value: numpy float64, rounded once."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastdata.gpu import normalize
from fastdata.gpu.normalize import GPUNormalize

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
on_each_device = pytest.mark.parametrize("device", ["cpu", CUDA])

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
PRESETS = {"imagenet": IMAGENET, "cifar": CIFAR, "half": ((0.5,), (0.5,)), "unit": ((0.0,), (1.0,))}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = {torch.uint8: 255, torch.uint16: 65535}

Pair = tuple[tuple[float, ...], tuple[float, ...]]


def unit(y: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance between neighbouring values of `dtype` around y: 8 or 11 significant bits, then subnormals."""
    bits, smallest = (8, -133) if dtype is torch.bfloat16 else (11, -24)
    return np.ldexp(1.0, np.maximum(np.frexp(y)[1] - bits, smallest))


def rounded(y: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """float64 to the nearest value of `dtype`, ties to even, in one step; the result is float64 again."""
    if dtype is torch.float16:
        return y.astype(np.float16).astype(np.float64)
    return np.rint(y / unit(y, dtype)) * unit(y, dtype)  # a power of two: both steps are exact but for rint


def exact(pair: Pair, codes: np.ndarray, max_value: float) -> tuple[np.ndarray, np.ndarray]:
    """y as [channel, code] in float64, and the bound E of the docstring (a hair wider: float64 rounds as well)."""
    mean, std = (np.array(v, dtype=np.float64)[:, None] for v in pair)
    x = codes[None].astype(np.float64) / max_value
    y = (x - mean) / std
    bound = 2.0**-24 * (2 * x / std + np.abs(mean) / std + np.abs(y)) * (1 + 2.0**-16)
    return y, bound


def run_codes(pair: Pair, kind: torch.dtype, module: nn.Module, device: str = "cpu", *, last: bool = False) -> np.ndarray:
    """What a module makes of every code of `kind`, as [channel, code] in float64."""
    channels = len(pair[0])
    codes = torch.arange(LARGEST[kind] + 1, dtype=torch.int32).to(kind).view(1, 1, 16, -1).expand(1, channels, -1, -1)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(codes.shape, dtype=kind, device=device, memory_format=layout).copy_(codes)
    out = module.to(device)(x)
    assert (out.shape, out.stride(), out.dtype) == (x.shape, x.stride(), module.dtype)
    return out.cpu().double().numpy().reshape(channels, -1)


def assert_close(out: np.ndarray, y: np.ndarray, bound: np.ndarray, dtype: torch.dtype) -> None:
    """float32 within the bound; else y rounded once, or one of the two sides where a midpoint lies within the bound."""
    if dtype is torch.float32:
        assert (np.abs(out - y) <= bound).all()
        return
    low, high = rounded(y - bound, dtype), rounded(y + bound, dtype)
    np.testing.assert_array_equal(out[low == high], rounded(y, dtype)[low == high])
    assert ((low <= out) & (out <= high)).all()


def image(channels: int, kind: torch.dtype = torch.uint8, *, last: bool = False, size: tuple[int, ...] = (4, 5)) -> torch.Tensor:
    """A batch of two with random codes, contiguous or channels_last (permuted: uint16 has few kernels)."""
    same = torch.Generator().manual_seed(channels)
    codes = torch.randint(0, LARGEST[kind] + 1, (2, *size, channels), dtype=torch.int32, generator=same).to(kind)
    x = codes.movedim(-1, 1)
    return x if last else torch.empty(x.shape, dtype=kind).copy_(x)


@on_each_device
@pytest.mark.parametrize("name", PRESETS)
def test_every_code(name: str, device: str) -> None:
    """float32 is within the bound, and for uint8 at most 3e-7 off; half precision is y rounded once, or a neighbour."""
    pair = PRESETS[name]
    (y8, bound8), (y16, bound16) = exact(pair, np.arange(256), 255), exact(pair, np.arange(65536), 65535)
    far = np.abs(y16) >= 2.0**-11  # nearer to 0, x / max_value and mean cancel; the bound still holds
    assert (~far).sum() < 100 * len(y16)
    for dtype in DTYPES:
        module = GPUNormalize(*pair, dtype=dtype)
        small, large = (run_codes(pair, kind, module, device) for kind in LARGEST)
        assert_close(small, y8, bound8, dtype)
        assert_close(large, y16, bound16, dtype)
        if dtype is torch.float32:
            assert (np.abs(small - y8) <= 3e-7 * np.maximum(1, np.abs(y8))).all()
        else:
            assert (np.abs(large - rounded(y16, dtype)) <= unit(y16, dtype))[far].all()


@on_each_device
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_channels_and_layout(device: str, data: st.DataObject) -> None:
    channels = data.draw(st.integers(1, 8))
    mean = st.just(0.0) | st.floats(1e-30, 1)  # below, float32 underflows and the relative bound cannot hold
    means = st.lists(mean, min_size=channels, max_size=channels)
    stds = st.lists(st.floats(0.05, 1), min_size=channels, max_size=channels)
    pair = (tuple(data.draw(means)), tuple(data.draw(stds)))
    kind = data.draw(st.sampled_from([torch.uint8, torch.uint16]))
    max_value = data.draw(st.sampled_from([None, 1, 4095, LARGEST[kind]]))
    x = image(channels, kind, last=data.draw(st.booleans()), size=data.draw(st.sampled_from([(16, 16), (1, 1), (3, 4, 5)])))
    codes = x.movedim(1, 0).reshape(channels, -1).numpy()
    for dtype in DTYPES:
        out = GPUNormalize(*pair, dtype=dtype, max_value=max_value).to(device)(x.to(device))
        assert out.shape == x.shape and out.stride() == x.stride() and out.dtype == dtype
        values = out.cpu().double().movedim(1, 0).reshape(channels, -1).numpy()
        for c in range(channels):
            y, bound = exact(((pair[0][c],), (pair[1][c],)), codes[c], max_value or LARGEST[kind])
            if dtype is torch.float32 or np.abs(y).max() < 65504:
                assert_close(values[c][None], y, bound, dtype)


CASTS: list[Callable[[nn.Module], nn.Module]] = [
    lambda m: m.half(),
    lambda m: m.to("cpu", torch.float16, non_blocking=True),
    lambda m: m.to("meta").to_empty(device="cpu"),
]


@pytest.mark.parametrize("cast", CASTS)
def test_buffers_stay_float32_and_out_of_checkpoints(cast: Callable[[nn.Module], nn.Module]) -> None:
    module, x = GPUNormalize(*CIFAR), image(3)
    before, buffers = module(x), {name: b.clone() for name, b in module.named_buffers()}
    model = cast(nn.Sequential(nn.Sequential(module), nn.Conv2d(3, 4, 1)))
    for name, b in module.named_buffers():
        assert b.dtype == torch.float32 and torch.equal(b, buffers[name])
    assert torch.equal(cast(module)(x), before) and [*model.state_dict()] == ["1.weight", "1.bias"]


MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_modes_change_nothing(dtype: torch.dtype) -> None:
    module, x = GPUNormalize(*IMAGENET, dtype=dtype), image(3)
    expected = module(x)
    for mode in MODES:
        with mode():
            out = module(x)
        assert out.dtype == dtype and not out.requires_grad and torch.equal(out, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"mean": [0.5, 0.5]}, ValueError, "mean has 2 and std has 3"),
        ({"mean": []}, ValueError, "mean must be finite numbers"),
        ({"std": [0.5, 0.0, 0.5]}, ValueError, "std must be above 0"),
        ({"dtype": torch.float64}, ValueError, "found torch.float64"),
        ({"mean": (123.0, 117.0, 104.0), "std": (58.0, 57.0, 57.0)}, ValueError, r"mean is \(123.*pass max_value=1 to use"),
        ({"max_value": 0}, ValueError, "max_value must be a number above 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GPUNormalize(**{"mean": IMAGENET[0], "std": IMAGENET[1], **arguments})


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        (torch.zeros(2, 3, 4, 4), TypeError, "found torch.float32: leave this module out"),
        (np.zeros((3, 4, 4), np.uint8), TypeError, "found ndarray"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), ValueError, "3 channels, found 4"),
        (torch.zeros(3, 4, dtype=torch.uint8), ValueError, r"found \[3, 4\]"),
    ],
)
def test_wrong_input(x: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GPUNormalize(*IMAGENET)(x)


def test_the_example() -> None:
    results = doctest.testmod(normalize)
    assert results.attempted >= 2 and results.failed == 0
