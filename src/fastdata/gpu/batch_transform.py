"""The transforms of each batch of a Loader on its device, and NextToken, which makes inputs and targets from rows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastdata.gpu.augment import Augment
from fastdata.gpu.batch import Batch
from fastdata.gpu.normalize import GPUNormalize
from fastdata.system.torch_private import pytree

Transform = Callable[[Any], Any]
NONE = {torch.uint16: 0xFFFF, torch.uint32: 0xFFFFFFFF}  # stands where a TokenDataset has no token


class NextToken(nn.Module):
    """Makes inputs and targets from a TokenDataset's batch, on the batch's device.

    tokens [B, T + 1], uint16 or uint32 -> (inputs, targets), both int64 [B, T]: the target of each token is the next one.

    Where there is no token (the largest number of the dtype), the input is 0 and the target is `ignore_index`, which torch's
    cross_entropy ignores. With document numbers, from `documents="mask"`, the first token of a document is never the target of
    another document's last token.

    Args:
        ignore_index: the target for a missing token.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens.dtype not in NONE or tokens.ndim != 2:
            raise TypeError(f"NextToken takes uint16 or uint32 tokens [B, T + 1]; got {tokens.dtype} {list(tokens.shape)}")
        ids = tokens.to(torch.int64)
        none = ids == NONE[tokens.dtype]
        inputs = ids[:, :-1].masked_fill(none[:, :-1], 0)  # contiguous, as a slice of the filled would not be
        targets = ids[:, 1:].masked_fill(none[:, 1:], self.ignore_index)
        if documents is not None:
            numbers = documents.to(torch.int32)
            targets = targets.masked_fill(numbers[:, 1:] != numbers[:, :-1], self.ignore_index)
        return inputs, targets


def as_transforms(batch_transform: Transform | Sequence[Transform] | None) -> list[Transform]:
    """Return the argument of a Loader as a list."""
    found = batch_transform if isinstance(batch_transform, list | tuple) else [batch_transform]
    if batch_transform is None:
        return []
    if not all(map(callable, found)):
        raise TypeError(f"batch_transform is {batch_transform!r:.80}, but must be a callable that takes a batch, or a list of them")
    return [*found]


def transform_batch(batch: Any, transforms: list[Transform]) -> Any:
    """Apply the transforms to a batch, one after another. The result keeps the batch's attributes if it keeps the rows."""
    for transform in transforms:
        if isinstance(transform, GPUNormalize) and isinstance(batch, Batch):  # the images, of every view; not the targets
            batch = batch.like((pytree.tree_map_only(Tensor, transform, batch[0]), *batch[1:]))
        elif isinstance(transform, Augment) and isinstance(batch, Batch):
            batch = batch.like((transform(batch), *batch[1:]))
        elif isinstance(transform, NextToken) and isinstance(batch, Batch):
            batch = transform(*(part for part in batch if part.dim() == 2))  # and not the lengths of documents
        else:
            batch = transform(batch)
    return batch
