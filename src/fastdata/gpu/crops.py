"""Crops of images that stay on a device, cut and flipped by one gather per batch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Stack"]

Shape = tuple[int, int, int]

_INDEXABLE = {torch.uint8: torch.uint8, torch.uint16: torch.int16}  # torch.uint16 has no gather: its bits travel as int16


class Stack:
    """Images of one size on a device, stored pixel after pixel.

    With a border, each image has one more row below and one more column to the right, filled with `outside`. Pixels of a box beyond
    the image are read there. At 32 x 32 this takes 1/16 more memory; padding for boxes that reach 4 pixels out would take half as
    much again.

    Args:
        count: number of images.
        shape: (height, width, channels).
        dtype: torch.uint8 or torch.uint16.
        outside: value of the border. None: no border, because boxes never reach beyond the image.
        device: device of the images.

    Attributes:
        memory: the tensor that holds the pixels.
    """

    def __init__(self, count: int, shape: Shape, dtype: torch.dtype, outside: int | None, device: torch.device) -> None:
        self.shape, self.dtype = shape, dtype
        self._sides = (shape[0], shape[1]) if outside is None else (shape[0] + 1, shape[1] + 1)
        size = (count, *self._sides, shape[2])
        self.memory = torch.empty(size, dtype=_INDEXABLE[dtype], device=device)
        if outside is not None:
            beyond = torch.tensor(outside, dtype=torch.int32, device=device).to(dtype).view(self.memory.dtype)
            self.memory[:, -1] = beyond
            self.memory[:, :, -1] = beyond

    @property
    def pixels(self) -> int:
        """Number of pixels of all images, including borders. Positions in the stack are below it."""
        return self.memory.numel() // self.shape[2]

    @staticmethod
    def nbytes(count: int, shape: Shape, dtype: torch.dtype, outside: int | None) -> int:
        """Return the bytes that a stack with these arguments takes."""
        border = outside is not None
        return count * (shape[0] + border) * (shape[1] + border) * shape[2] * dtype.itemsize

    def put(self, start: int, images: Tensor) -> None:
        """Write images [n, H, W, C] of any device from number `start` on, without waiting if they are page-locked."""
        height, width, _ = self.shape
        target = self.memory[start : start + len(images), :height, :width]
        target.copy_(images.view(self.memory.dtype), non_blocking=True)

    def whole(self, numbers: Tensor) -> Tensor:
        """Return images by number, [n, H, W, C]. The stack must have no border."""
        return self.memory.index_select(0, numbers).view(self.dtype)

    def lines(self, numbers: Tensor, boxes: Tensor, size: tuple[int, int], flips: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the rows of boxes start in the stack, [n, height], and the offsets of their columns, [n, width]; int64.

        Args:
            numbers: numbers of the images, int64 [n].
            boxes: top and left of each box, int64 [n, 2].
            size: (height, width) of all boxes.
            flips: whether to flip each box left to right, and upside down: bool or integer [n, 2].
        """
        rows = self._along(0, boxes[:, 0], size[0], flips[:, 1])
        columns = self._along(1, boxes[:, 1], size[1], flips[:, 0])
        return (rows + numbers[:, None] * self._sides[0]) * self._sides[1], columns

    def _along(self, axis: int, starts: Tensor, length: int, flips: Tensor) -> Tensor:
        steps = torch.arange(length, device=starts.device)
        places = starts[:, None] + torch.where(flips[:, None] != 0, length - 1 - steps, steps)
        side = self.shape[axis]
        return torch.where((places >= 0) & (places < side), places, side) if self._sides[axis] > side else places

    def cut(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the boxes with these lines, int32 or int64, as [n, height, width, C], by one addition and one gather."""
        places = rows[:, :, None] + columns[:, None, :]
        pixels = self.memory.view(-1, self.shape[2]).index_select(0, places.view(-1))
        return pixels.view(*places.shape, self.shape[2]).view(self.dtype)
