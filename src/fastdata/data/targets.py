"""Converts targets from the arrays that a worker sends, small when pickled, to the tensors that the consumer gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from fastdata.gpu.batch import Ragged
from fastdata.store.columns import Lists
from fastdata.system.torch_private import default_collate_fn_map


class Item(tuple[Any, Any]):
    """One sample of a dataset with fields: an image and its target.

    torch's DataLoader makes batches of Items that are like a Loader's, with `Ragged` for lists, and Python lists of text
    and JSON. Without this class, it would stack lists that happen to have the same length, and fail for others.

    Attributes:
        batching: how the target is batched: "ragged", "list", or a dtype; for a dict, one per name.
    """

    batching: str | Mapping[str, str]

    @classmethod
    def of(cls, image: Any, target: Any, batching: str | Mapping[str, str]) -> Item:
        item = cls((image, target))
        item.batching = batching
        return item


def _collate(items: Sequence[Item], *, collate_fn_map: Any = None) -> list[Any]:
    """Return images and targets, as a list, as torch's own function does with tuples."""
    images, targets = zip(*items, strict=True)
    how = items[0].batching
    if isinstance(how, str):
        return [default_collate([*images]), _batched(targets, how)]
    return [default_collate([*images]), {name: _batched([target[name] for target in targets], how[name]) for name in how}]


def _batched(values: Sequence[Any], how: str) -> Any:
    if how == "ragged":
        return Ragged.of(values)
    if how == "list":
        return list(values)
    return torch.stack(list(values)) if isinstance(values[0], torch.Tensor) else torch.from_numpy(np.array(values, how))


default_collate_fn_map[Item] = _collate


def to_tensors(targets: Any) -> Any:
    """Return targets as a Loader delivers them: tensors, `Ragged` for lists, and Python's lists of text as they are."""
    if isinstance(targets, dict):
        return {name: to_tensors(value) for name, value in targets.items()}
    if isinstance(targets, Lists):
        return Ragged(torch.from_numpy(targets.values), torch.from_numpy(targets.offsets))
    return torch.from_numpy(targets) if isinstance(targets, np.ndarray) else targets
