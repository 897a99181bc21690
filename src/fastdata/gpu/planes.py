"""Planes of luma and colour become RGB on the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["CB", "CR", "planes_to_floats"]

# What Cb - 128 and Cr - 128 add to red, green and blue: BT.601 as in JFIF 1.02.
CB = (0.0, -0.344136286, 1.772)
CR = (1.402, -0.714136286, 0.0)


def planes_to_floats(x: Tensor, bias: Tensor, scale: Tensor, cb: Tensor, cr: Tensor, dtype: torch.dtype) -> Tensor:
    """`bias + scale * RGB`, [B, 3, H, W] in channels_last, of NV12 planes: uint8 [B, 1, H * 3/2, W].

    The colours are interpolated at full resolution with weights of 3/4 and 1/4 a side, as libjpeg's "fancy upsampling" does it;
    RGB is limited to 0 to 255, as bytes would be, but not rounded. Float32 throughout, then rounded once.

    Args:
        x: the planes; their shape is right.
        bias, scale: float32, of one or three elements.
        cb, cr: scale * CB and scale * CR, float32 [3].
        dtype: of the result.
    """
    batch, _, rows, width = x.shape
    height = rows // 3 * 2
    luma, chroma = x[:, :, :height], x[:, 0, height:].reshape(batch, height // 2, width // 2, 2).float() - 128
    low, high = bias.view(-1, 1, 1), (bias + 255 * scale).view(-1, 1, 1)
    tint = bias.view(-1) + chroma[..., :1] * cb + chroma[..., 1:] * cr  # at a quarter of the pixels; linear, so it may come first
    rgb = functional.interpolate(tint.permute(0, 3, 1, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
    rgb = torch.addcmul(rgb, luma.float(), scale.view(-1, 1, 1))
    return rgb.clamp(low, high).to(dtype, memory_format=torch.channels_last)
