"""How often GPUNormalize is not the exact value rounded once, over random channels and all codes of uint8.

python benchmarks/normalize_accuracy.py
"""

from __future__ import annotations

import numpy as np
import torch

from fastdata import GPUNormalize

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


print(f"{CHANNELS} channels, mean in [0, 1], std in [0.05, 1]")
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    out = GPUNormalize(mean.tolist(), std.tolist(), dtype=dtype)(codes).double().numpy()[:, 0]
    if dtype == torch.float32:
        print(f"float32: largest error {np.max(np.abs(out - exact) / np.maximum(1, np.abs(exact))):.1e} x max(1, |y|)")
    else:
        off = out != rounded(exact, dtype)
        print(f"{dtype}: {off.sum()} of {off.size} codes are the other neighbour, in {off.any(1).sum()} channels")
