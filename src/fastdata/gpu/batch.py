"""Batch: the tuple that a Loader yields, with the ids of its rows. Ragged: lists of different lengths, as two tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

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
            length: cut longer lists to their first items. Default: the longest length, for which the host waits for the device.
            fill: the value of the padding.
        """
        lengths = self.lengths
        width = length if length is not None else int(lengths.max()) if len(self) else 0
        positions = torch.arange(width, device=self.offsets.device)
        padding = self.values.new_full((1, *self.values.shape[1:]), fill)
        index = torch.where(positions < lengths[:, None], self.offsets[:-1, None] + positions, len(self.values))
        return torch.cat([self.values, padding])[index]

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Move or convert the values as `Tensor.to` does with these arguments; offsets move too, but stay int64."""
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


class _Rows(NamedTuple):
    """A batch's attributes about its rows."""

    valid: int | None = None
    ids: Any = None
    position: tuple[int, int] | None = None


class _WithRows:
    """The attributes of a batch, whether it is a tuple or a dict."""

    valid: int | None
    ids: Any
    position: tuple[int, int] | None

    def _set_rows(self, rows: _Rows | None) -> None:
        if rows is None:  # those of the batch that a tensor came in
            rows = next(filter(None, map(_ROWS.get, _tensors(self))), _Rows())
        else:
            _ROWS.update(dict.fromkeys(_tensors(self), rows))
        self.valid, self.ids, self.position = rows

    def like(self, items: Any) -> Any:
        """Return a batch of other items with the attributes of this one."""
        return Batch.of(items, self.valid, self.ids, self.position)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move or convert every tensor, including nested ones, as `Tensor.to` does with these arguments."""
        return pytree.tree_map_only(  # the offsets of a Ragged stay int64
            (Tensor, Ragged), lambda part: part.to(*args, **kwargs), self, is_leaf=lambda part: isinstance(part, Ragged)
        )

    def pin_memory(self) -> Any:
        """Copy every tensor into page-locked memory."""
        return pytree.tree_map_only(Tensor, Tensor.pin_memory, self)

    def __reduce__(self) -> Any:
        return Batch.of, (_plain(self), self.valid, self.ids, self.position)  # so that tensors of a copy have them too

    def __repr__(self) -> str:
        items = pytree.tree_map_only(Tensor, lambda tensor: f"{tensor.dtype} {[*tensor.shape]}", _plain(self))
        return f"Batch({items}, ids={self.ids}, valid={self.valid}, position={self.position})"


class Batch(_WithRows, tuple[Any, ...]):
    """The tuple that a Loader yields. It unpacks as `images, targets = batch`. Samples that are dicts make a MappingBatch.

    The attributes survive `.to`, copying, pickling, and pytree maps that keep the number of rows, as in torchvision's
    transforms. A new Batch gets them too if it holds a tensor of the old one.

    Attributes:
        valid: number of real rows. It is less than the number of rows only where several ranks do not divide a batch.
        ids: the dataset's indices of the rows, int64 numpy.
        position: (epoch, samples of it consumed by all ranks, including this batch), where a run would resume. With a
            `batch_sampler`: (epoch, batches consumed).
    """

    def __new__(cls, items: Iterable[Any] = (), rows: _Rows | None = None) -> Batch:
        batch = super().__new__(cls, items)
        batch._set_rows(rows)
        return batch

    @classmethod
    def of(cls, items: Any, valid: int | None, ids: Any, position: tuple[int, int] | None) -> Any:
        """Make a batch with these attributes; a mapping becomes a MappingBatch."""
        return (MappingBatch if isinstance(items, Mapping) else cls)(items, _Rows(valid, ids, position))


class MappingBatch(_WithRows, dict[str, Any]):
    """The dict that a Loader yields where samples are dicts, with the attributes of a Batch."""

    def __init__(self, items: Any = (), rows: _Rows | None = None) -> None:
        super().__init__(items)
        self._set_rows(rows)


_ROWS: Any = WeakTensorKeyDictionary()  # the attributes of the batch that a tensor came in


class _Context:
    """The names and the attributes of a batch in a pytree. Only the names are part of the tree's structure."""

    def __init__(self, batch: Any) -> None:
        self.names = list(batch) if isinstance(batch, MappingBatch) else None
        self.rows, self.lengths = _Rows(batch.valid, batch.ids, batch.position), _lengths(batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context) and self.names == other.names

    def __hash__(self) -> int:
        return hash(_Context)


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else tuple(batch)


def _items(batch: Any) -> list[Any]:
    return list(batch.values() if isinstance(batch, Mapping) else batch)


def _unflatten(items: Iterable[Any], context: _Context) -> Any:
    items = list(items)
    same = _lengths(items) in (context.lengths, [])  # concatenated batches, or means of tensors, have other rows
    plain = items if context.names is None else dict(zip(context.names, items, strict=True))
    return Batch.of(plain, *(context.rows if same else _Rows()))


def _lengths(batch: Any) -> list[int]:
    """Return the length of each tensor and Ragged of a batch."""
    return [len(leaf) if isinstance(leaf, Ragged) or leaf.dim() else -1 for leaf in _leaves(batch)]


def _tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch, also inside tuples and dicts."""
    return [leaf.values if isinstance(leaf, Ragged) else leaf for leaf in _leaves(batch)]


def _leaves(batch: Any) -> list[Tensor | Ragged]:
    """Return each tensor and Ragged. A Ragged may hold anything while a function is mapped over a pytree."""
    leaves = pytree.tree_leaves(_items(batch), is_leaf=lambda item: isinstance(item, Ragged))
    return [leaf for leaf in leaves if isinstance(leaf.values if isinstance(leaf, Ragged) else leaf, Tensor)]


for _cls in (Batch, MappingBatch):
    pytree.register_pytree_node(
        _cls, lambda batch: (_items(batch), _Context(batch)), _unflatten, serialized_type_name=f"fastdata.{_cls.__name__}"
    )
