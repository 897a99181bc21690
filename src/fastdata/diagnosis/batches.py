"""Batches of any form, counted, and without end, so that no epoch interrupts a measurement."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.errors import FastDataError
from fastdata.torch_private import end_kept_workers, pytree

__all__ = ["any_number_of_workers", "count", "endless", "kept"]


def count(batch: Any) -> int:
    """Return the number of samples of a batch: a nest of tuples, lists and mappings, or an object with tensors as attributes."""
    if (valid := getattr(batch, "valid", None)) is not None:
        return int(valid)
    return next((len(tensor) for tensor in _tensors(batch) if tensor.ndim), 1)


def _tensors(batch: Any) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"):
            yield leaf
        elif isinstance(leaf, Mapping):  # of a class that pytree does not know
            yield from _tensors([*leaf.values()])
        elif hasattr(leaf, "__dict__"):
            yield from (value for value in vars(leaf).values() if isinstance(value, torch.Tensor))


@contextmanager
def any_number_of_workers() -> Iterator[None]:
    """Silence torch's warning of more workers than cores, which are tried on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


@contextmanager
def kept(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """Yield batches without end, and end the workers."""
    try:
        yield endless(loader)
    finally:
        if loader.num_workers:
            end_kept_workers(loader)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        batches = 0
        for batch in loader:
            batches += 1
            yield batch
            del batch  # or its memory could not be used for the next
        if not batches:
            raise FastDataError(f"a pass over {type(loader).__name__} yields no batches, so there is nothing to measure")
