"""Batch: the tuple that a Loader yields, which keeps the ids of its rows wherever it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fastdata.gpu.ragged import Ragged
from fastdata.system.torch_private import pytree

__all__ = ["Batch"]


class _Rows(NamedTuple):
    """A batch's attributes about its rows."""

    valid: int | None = None
    ids: Any = None
    position: tuple[int, int] | None = None


class Batch(tuple[Any, ...]):
    """The tuple that a Loader yields. It unpacks as `images, targets = batch`.

    The attributes survive `.to`, copying, pickling, and mapping a function that keeps the number of rows over the batch as a
    pytree, as torchvision's transforms do. A new Batch has them too if at least one of its items is the same tensor.

    Attributes:
        valid: number of real rows. It is less than the number of rows only at the end of an epoch over several ranks.
        ids: the dataset's indices of the rows, int64 numpy.
        position: (epoch, samples of it consumed by all ranks, including this batch), where a run would resume. With a
            `batch_sampler`: (epoch, batches consumed).
    """

    valid: int | None
    ids: Any
    position: tuple[int, int] | None

    def __new__(cls, items: Iterable[Any] = ()) -> Batch:
        batch = super().__new__(cls, items)
        rows = (_ROWS.get(item) for item in _tensors(batch))
        batch.valid, batch.ids, batch.position = next(filter(None, rows), _Rows())
        return batch

    @classmethod
    def of(cls, items: Iterable[Any], valid: int | None, ids: Any, position: tuple[int, int] | None) -> Batch:
        """Make a batch with these attributes."""
        batch = super().__new__(cls, items)
        batch.valid, batch.ids, batch.position = rows = _Rows(valid, ids, position)
        for item in _tensors(batch):
            _ROWS[item] = rows
        return batch

    def like(self, items: Iterable[Any]) -> Batch:
        """Return a batch of other items with the attributes of this one."""
        return Batch.of(items, self.valid, self.ids, self.position)

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Move or convert every tensor, including nested ones, as `Tensor.to` does with these arguments."""
        moved = pytree.tree_map_only(  # the offsets of a Ragged stay int64
            (Tensor, Ragged), lambda part: part.to(*args, **kwargs), self, is_leaf=lambda part: isinstance(part, Ragged)
        )
        return moved  # type: ignore[no-any-return]

    def pin_memory(self) -> Batch:
        """Copy every tensor into page-locked memory."""
        return pytree.tree_map_only(Tensor, Tensor.pin_memory, self)  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return Batch.of, (tuple(self), self.valid, self.ids, self.position)  # so that tensors of a copy have them too

    def __repr__(self) -> str:
        rows = "" if self.ids is None else f"; ids={_shortened(self.ids)}, valid={self.valid}, position={self.position}"
        return f"Batch({', '.join(map(_described, self))}{rows})"


_ROWS: Any = WeakTensorKeyDictionary()  # the attributes of the batch that a tensor came in


class _Context:
    """The attributes of a batch in a pytree. All contexts are equal, because they are not part of the tree's structure."""

    def __init__(self, rows: _Rows, lengths: list[int]) -> None:
        self.rows, self.lengths = rows, lengths

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context)

    def __hash__(self) -> int:
        return hash(_Context)


def _flatten(batch: Batch) -> tuple[list[Any], _Context]:
    return list(batch), _Context(_Rows(batch.valid, batch.ids, batch.position), _lengths(batch))


def _flatten_with_keys(batch: Batch) -> tuple[list[tuple[Any, Any]], _Context]:
    items, context = _flatten(batch)
    return [(pytree.SequenceKey(k), item) for k, item in enumerate(items)], context


def _unflatten(items: Iterable[Any], context: _Context) -> Batch:
    items = list(items)
    same = _lengths(items) in (context.lengths, [])  # concatenated batches, or means of tensors, have other rows
    return Batch.of(items, *(context.rows if same else _Rows()))


def _lengths(items: Iterable[Any]) -> list[int]:
    """Return the length of each tensor and Ragged among the items."""
    return [len(leaf) if isinstance(leaf, Ragged) or leaf.dim() else -1 for leaf in _leaves(items)]


def _tensors(items: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among the items, also those in tuples and dicts."""
    return [leaf.values if isinstance(leaf, Ragged) else leaf for leaf in _leaves(items)]


def _leaves(items: Iterable[Any]) -> list[Tensor | Ragged]:
    """Return each tensor and Ragged. A pytree may hold a Ragged of anything else, while a function is mapped over it."""
    leaves = pytree.tree_leaves(list(items), is_leaf=lambda item: isinstance(item, Ragged))
    return [leaf for leaf in leaves if isinstance(leaf.values if isinstance(leaf, Ragged) else leaf, Tensor)]


pytree.register_pytree_node(
    Batch, _flatten, _unflatten, serialized_type_name="fastdata.Batch", flatten_with_keys_fn=_flatten_with_keys
)


def _described(item: Any) -> str:
    if isinstance(item, Tensor):
        return f"{str(item.dtype).removeprefix('torch.')} {list(item.shape)}"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{key}: {_described(value)}" for key, value in item.items()) + "}"
    if isinstance(item, tuple):
        return f"({', '.join(map(_described, item))})"
    text = repr(item)
    return text if len(text) <= 40 else text[:37] + "..."


def _shortened(ids: Any) -> str:
    first = ", ".join(map(str, ids[:3].tolist()))
    return f"[{first}]" if len(ids) <= 3 else f"[{first}, ... {len(ids)} in all]"
