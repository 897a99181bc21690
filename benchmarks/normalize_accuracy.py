"""How often GPUNormalize is not the exact value rounded once, over random channels and all codes of uint8.

python benchmarks/normalize_accuracy.py
"""

from __future__ import annotations

import numpy as np
import torch

from fastdata import GPUNormalize
from fastdata.gpu import normalize

CHANNELS = 2000
rng = np.random.default_rng(0)
mean, std = rng.uniform(0, 1, CHANNELS), rng.uniform(0.05, 1, CHANNELS)
codes = torch.arange(256, dtype=torch.uint8).expand(CHANNELS, 1, 256).contiguous()
exact = (np.arange(256) / 255 - mean[:, None]) / std[:, None]


def rounded(y: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    if dtype == torch.float16:
        return y.astype(np.float16).astype(np.float64)
    unit = np.ldexp(1.0, np.frexp(y)[1] - 8)
    return np.rint(y / unit) * unit


def off(dtype: torch.dtype) -> str:
    """How many codes are the other neighbour."""
    out = GPUNormalize(mean.tolist(), std.tolist(), dtype=dtype)(codes).double().numpy()[:, 0]
    wrong = out != rounded(exact, dtype)
    return f"{wrong.sum()} of {wrong.size} codes are the other neighbour, in {wrong.any(1).sum()} channels"


print(f"{CHANNELS} channels, mean in [0, 1], std in [0.05, 1]")
for dtype in (torch.bfloat16, torch.float16):
    print(f"{dtype}: {off(dtype)}")
    steps, normalize._STEPS = normalize._STEPS, []
    print(f"{dtype}, constants rounded to nearest: {off(dtype)}")
    normalize._STEPS = steps
out = GPUNormalize(mean.tolist(), std.tolist())(codes).double().numpy()[:, 0]
print(f"float32: largest error {np.max(np.abs(out - exact) / np.maximum(1, np.abs(exact))):.1e} x max(1, |y|)")
