"""Ragged: a batch of lists of different lengths, as two tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fastdata.system.torch_private import pytree


class Ragged:
    """A batch of lists whose lengths differ, such as the boxes of each image.

    Attributes:
        values: the items of all lists, in order, [total, ...].
        offsets: where each list begins in `values`, and where the last ends, int64 [n + 1].
    """

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self.values, self.offsets = values, offsets

    @classmethod
    def of(cls, lists: Sequence[Tensor]) -> Ragged:
        """Make a batch of one or more lists, [length, ...] each."""
        lengths = torch.tensor([0, *map(len, lists)], device=lists[0].device)
        return cls(torch.cat(list(lists)), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        """Return one list, [length, ...], a view of the values."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"the index is {index}, but the batch has {len(self)} lists")
        k = index % len(self)
        return self.values[int(self.offsets[k]) : int(self.offsets[k + 1])]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind())

    @property
    def lengths(self) -> Tensor:
        """The length of each list, int64 [n]."""
        return self.offsets.diff()

    @property
    def rows(self) -> Tensor:
        """The row of the batch that each item belongs to, int64 [total]: `logits[boxes.rows]` has a row for each box."""
        positions = torch.arange(len(self), device=self.offsets.device)
        return torch.repeat_interleave(positions, self.lengths, output_size=len(self.values))

    def unbind(self) -> list[Tensor]:
        """Return the lists, [length, ...] each, as views. Waits for the device once."""
        return list(torch.split(self.values, self.lengths.tolist()))

    def padded(self, length: int | None = None, fill: float = 0) -> Tensor:
        """Return one tensor [n, length, ...], with `fill` after the end of each list.

        Args:
            length: longer lists are cut to their first items. Default: the longest, for which the host waits for the device.
            fill: the value of the padding.
        """
        lengths = self.lengths
        width = length if length is not None else int(lengths.max()) if len(self) else 0
        positions = torch.arange(width, device=self.offsets.device)
        padding = self.values.new_full((1, *self.values.shape[1:]), fill)
        index = torch.where(positions < lengths[:, None], self.offsets[:-1, None] + positions, len(self.values))
        return torch.cat([self.values, padding])[index]

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Move or convert the values as `Tensor.to` does with these arguments; offsets stay int64, and move with them."""
        values = self.values.to(*args, **kwargs)
        return Ragged(values, self.offsets.to(values.device, non_blocking=bool(kwargs.get("non_blocking"))))

    def pin_memory(self) -> Ragged:
        """Copy both tensors into page-locked memory."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    def __repr__(self) -> str:
        if not isinstance(self.values, Tensor):  # a function that returns anything else was mapped over its tensors
            return f"Ragged({self.values}, {self.offsets})"
        return f"Ragged({len(self)} lists, {str(self.values.dtype).removeprefix('torch.')} {list(self.values.shape)})"


pytree.register_pytree_node(
    Ragged,
    lambda ragged: ([ragged.values, ragged.offsets], None),
    lambda parts, _: Ragged(*parts),
    serialized_type_name="fastdata.Ragged",
)
