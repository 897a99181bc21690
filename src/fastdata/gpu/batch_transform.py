"""What a Loader does to each batch on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fastdata.gpu.augment import Augment
from fastdata.gpu.batch import Batch
from fastdata.gpu.next_token import NextToken
from fastdata.gpu.normalize import GPUNormalize
from fastdata.system.torch_private import pytree

Transform = Callable[[Any], Any]


def as_transforms(batch_transform: Transform | Sequence[Transform] | None) -> list[Transform]:
    """Return the argument of a Loader as a list."""
    found = batch_transform if isinstance(batch_transform, list | tuple) else [batch_transform]
    if batch_transform is None:
        return []
    if not all(map(callable, found)):
        raise TypeError(f"batch_transform is {batch_transform!r:.80}, but must be a callable that takes a batch, or a list of them")
    return [*found]


def transform_batch(batch: Any, transforms: list[Transform]) -> Any:
    """Apply the transforms to a batch, one after another. The result keeps the attributes where it keeps the rows."""
    for transform in transforms:
        if isinstance(transform, GPUNormalize) and isinstance(batch, Batch):  # the images, of every view; not the targets
            batch = batch.like((pytree.tree_map_only(Tensor, transform, batch[0]), *batch[1:]))
        elif isinstance(transform, Augment) and isinstance(batch, Batch):
            found = transform(batch)  # images, or a batch of images and masks
            batch = found if isinstance(found, Batch) else batch.like((found, *batch[1:]))
        elif isinstance(transform, NextToken) and isinstance(batch, Batch):
            batch = transform(*(part for part in batch if part.dim() == 2))  # and not the lengths of documents
        else:
            batch = transform(batch)
    return batch
