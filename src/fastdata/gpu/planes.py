"""Conversion of luma and chroma planes to RGB on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["plane_constants", "planes_to_floats"]

# What Cb - 128 and Cr - 128 add to red, green and blue: BT.601, as in JFIF 1.02.
CB = (0.0, -0.344136286, 1.772)
CR = (1.402, -0.714136286, 0.0)


def planes_to_floats(x: Tensor, constants: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return `bias + scale * RGB`, [B, 3, H, W] in channels_last, of NV12 planes, uint8 [B, 1, H * 3/2, W].

    The colours are interpolated to full resolution with weights of 3/4 and 1/4 per axis, like libjpeg's "fancy upsampling". RGB is
    clamped to 0 to 255 but not rounded. All arithmetic is float32, rounded once at the end.

    A GPU runs five kernels, and one more if `dtype` is not float32; torch.compile fuses them.

    Args:
        x: the planes; their shape is not checked.
        constants: the result of `plane_constants` for bias and scale, on the device of `x`.
        dtype: dtype of the result.
    """
    batch, _, rows, width = x.shape
    height = rows // 3 * 2
    luma, chroma = x[:, :, :height], x[:, 0, height:].reshape(batch, height // 2, width // 2, 2)
    # The colour conversion is linear, so it may come first, at a quarter of the pixels. addcmul accepts integers.
    tint = torch.addcmul(constants["gray"], chroma[..., :1], constants["cb"])
    tint = torch.addcmul(tint, chroma[..., 1:], constants["cr"])
    rgb = functional.interpolate(tint.permute(0, 3, 1, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
    rgb = torch.addcmul(rgb, luma, constants["luma"])
    return rgb.clamp(constants["low"], constants["high"]).to(dtype, memory_format=torch.channels_last)


def plane_constants(bias: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Return the float32 constants of `planes_to_floats` for a bias and a scale of one or three elements."""
    bias, scale = bias.view(-1).expand(3), scale.view(-1).expand(3)
    cb, cr = (scale * torch.tensor(share, dtype=torch.float32, device=scale.device) for share in (CB, CR))
    limits = {"luma": scale, "low": bias, "high": bias + 255 * scale}
    return {"cb": cb, "cr": cr, "gray": bias - 128 * (cb + cr), **{name: value.reshape(3, 1, 1) for name, value in limits.items()}}
