"""Normalized floats from integers, in one pass over the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class GPUNormalize(nn.Module):
    """Computes ``y = (x / max_value - mean) / std`` for a uint8 or uint16 batch, on the batch's device.

    On a GPU, one kernel reads the integers and writes the floats. The arithmetic is float32, rounded once to `dtype`; autocast does
    not change it. The output does not require grad.

    Shapes: [C, H, W], [B, C, H, W] or a volume [B, C, D, H, W]. The output has the same shape and layout (contiguous,
    channels_last). Clips [B, T, C, H, W] would be taken for volumes: pass ``clips.flatten(0, 1)``.

    Errors: let p = x / (max_value * std), q = abs(mean) / std and E = 2**-24 * (2 * p + q + abs(y)). For a mean of 0 or above
    1e-30, with or without fused multiply-add, float32 is within E of the exact y; bfloat16 and float16 are y rounded once, or the
    other neighbour if a midpoint between two values of the dtype is within E of y.

    The buffers stay float32 through ``.half()`` or ``.to(torch.bfloat16)`` on this module or a model around it. They are not in the
    state_dict: checkpoints of a model without this module still load, and no checkpoint replaces the buffers.

    Args:
        mean: one number per channel, or one for all channels, in units of x / max_value; at most 1 if `max_value` is None.
        std: the same, above 0.
        dtype: dtype of the output: torch.float32, torch.bfloat16 or torch.float16 (infinite above 65504).
        max_value: the x that means 1.0. Default: 255 for uint8 and 65535 for uint16 input. Use 4095 for 12 bits, and 1 for mean
            and std in units of x.

    Examples:
        >>> normalize = GPUNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], dtype=torch.bfloat16)
        >>> normalize(torch.zeros(8, 3, 32, 32, dtype=torch.uint8))[0, :, 0, 0]
        tensor([-2.1250, -2.0312, -1.8047], dtype=torch.bfloat16)
    """

    bias: Tensor
    scale8: Tensor
    scale16: Tensor

    def __init__(
        self,
        mean: float | Iterable[float],
        std: float | Iterable[float],
        *,
        dtype: torch.dtype = torch.float32,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        channels = {len(self.mean), len(self.std)} - {1}
        if len(channels) > 1:
            raise ValueError(f"mean has {len(self.mean)} and std has {len(self.std)} numbers: pass one per channel in both")
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0, found {self.std}: use 1.0 for a channel that is not to be scaled")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or torch.float16, found {dtype!r}: pass one of them")
        if max_value is not None and not 0 < max_value < math.inf:
            raise ValueError(f"max_value must be a number above 0, found {max_value}: pass 255, 4095, ..., or None")
        if max_value is None and max(*self.mean, *self.std) > 1:
            found = f"mean is {self.mean} and std {self.std}, but pixels are first scaled to [0, 1]"
            raise ValueError(f"{found}: pass max_value=1 to use unscaled pixels")
        self.channels = max(channels, default=None)
        self.dtype = dtype
        self.max_value = max_value
        self._set_buffers(torch.device("cpu"))

    def _set_buffers(self, device: torch.device) -> None:
        # On the CPU explicitly: inside `with torch.device("meta")` the numbers must be real.
        mean = torch.tensor(self.mean, dtype=torch.float64, device="cpu").view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float64, device="cpu").view(-1, 1, 1)
        self.register_buffer("bias", (-mean / std).float().to(device), persistent=False)
        for bits in (8, 16):
            scale = 1 / (std * (self.max_value or 2**bits - 1))
            self.register_buffer(f"scale{bits}", scale.float().to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GPUNormalize:
        """Move as `fn` does, but rebuild the buffers in float32 from the arguments."""
        before = self.bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.bias is not before:
            self._set_buffers(self.bias.device)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        bias, scale = self.bias, self.scale8 if x.dtype == torch.uint8 else self.scale16
        if x.dim() == 5:
            bias, scale = bias.unsqueeze(-1), scale.unsqueeze(-1)
        if torch.compiler.is_compiling():  # the compiler fuses these two, and cannot trace out= with channels_last
            return torch.addcmul(bias, x, scale).to(self.dtype)
        if x.device.type == "cpu":  # in place: addcmul of integers would make a second float32 copy
            floats = x.float()
            return torch.addcmul(bias, floats, scale, out=floats).to(self.dtype)
        return torch.addcmul(bias, x, scale, out=torch.empty_like(x, dtype=self.dtype))

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dtype not in (torch.uint8, torch.uint16):
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"the input must be a uint8 or uint16 tensor, found {kind}: leave this module out for floats")
        if x.dim() not in (3, 4, 5):
            raise ValueError(f"the input must be [C, H, W], [B, C, H, W] or [B, C, D, H, W], found {list(x.shape)}: reshape it")
        found = x.shape[1 if x.dim() == 5 else -3]
        if self.channels is not None and found != self.channels:
            text = f"mean and std are for {self.channels} channels, found {found} in {list(x.shape)}"
            raise ValueError(f"{text}: pass one number per channel, or move the channels with permute")


def _numbers(name: str, value: float | Iterable[float]) -> tuple[float, ...]:
    numbers = tuple(float(v) for v in (value if isinstance(value, Iterable) else [value]))
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} must be finite numbers, found {numbers}: pass one per channel, or one for all channels")
    return numbers
