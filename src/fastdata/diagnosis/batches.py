"""What is in a batch, whatever its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from fastdata.torch_private import pytree

LARGEST = 100 << 20  # bytes of an image file: larger ones are archives

__all__ = ["batch_bytes", "count", "first_image", "image_files", "tensors_of"]


def count(batch: Any) -> int:
    """Return the number of samples of a batch."""
    if (valid := getattr(batch, "valid", None)) is not None:
        return int(valid)
    return next((len(tensor) for tensor in tensors_of(batch) if tensor.dim()), 1)


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors and arrays of a batch: a nest of tuples, lists and mappings, or an object with tensors as attributes."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf":
            yield torch.as_tensor(leaf)
        elif isinstance(leaf, Mapping):  # of a class that pytree does not know
            yield from tensors_of([*leaf.values()])
        elif hasattr(leaf, "__dict__"):
            yield from (value for value in vars(leaf).values() if isinstance(value, torch.Tensor))


def batch_bytes(batch: Any) -> int:
    """Return the bytes of the tensors of a batch."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def first_image(batch: Any) -> torch.Tensor | None:
    """Return the first images of a batch, [B, C, H, W]; None: it has none."""
    return next((tensor for tensor in tensors_of(batch) if tensor.dim() == 4 and tensor.shape[1] in (1, 3)), None)


def image_files(paths: Sequence[str]) -> list[bytes]:
    """Return the bytes of those files that are images."""
    found = []
    for path in paths:
        try:
            if Path(path).stat().st_size > LARGEST:
                continue
            data = Path(path).read_bytes()
            SourceImage(data)
        except (OSError, CodecError):
            continue
        found.append(data)
    return found
