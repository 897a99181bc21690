"""fastdata prepares data once, then feeds PyTorch models with compact batches as fast as the machine can."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import fastdata.system.forks  # makes forks safe from here on
from fastdata._version import __version__ as __version__

# Name -> module, imported at first use, so that the command line never waits for torch.
_HOMES = {
    "ArrayDataset": "arrays.dataset",
    "Augment": "gpu.augment",
    "Batch": "gpu.batch",
    "CenterCrop": "images.crops",
    "Crop": "images.crops",
    "GPUNormalize": "gpu.normalize",
    "LMDBDataset": "images.stored",
    "Loader": "loader.loader",
    "MaskDataset": "images.stored",
    "MultiCrop": "images.crops",
    "RAMDataset": "data.opening",
    "RandomCrop": "images.crops",
    "RandomResizedCrop": "images.crops",
    "Resize": "images.crops",
    "NextToken": "gpu.next_token",
    "Prefetcher": "gpu.prefetcher",
    "Ragged": "gpu.ragged",
    "Summary": "prepare.functions",
    "TableDataset": "tables",
    "TokenDataset": "text.dataset",
    "Trainer": "train.trainer",
    "doctor": "bench.doctor",
    "drop_dead_bias": "gpu.bias",
    "merge": "prepare.merge",
    "open": "data.opening",
    "prep": "prepare.functions",
    "prep_finish": "prepare.functions",
    "prep_plan": "prepare.functions",
    "prep_run": "prepare.functions",
    "publish": "remote.publish",
    "CodecError": "errors",
    "FastDataError": "errors",
    "FormatError": "errors",
    "LoaderError": "errors",
    "MissingExtraError": "errors",
    "PrepError": "errors",
    "RemoteError": "errors",
    "StoreError": "errors",
}

__all__ = [  # without `open`, which would replace Python's in a star import
    "ArrayDataset",
    "Augment",
    "Batch",
    "CenterCrop",
    "CodecError",
    "Crop",
    "FastDataError",
    "FormatError",
    "GPUNormalize",
    "LMDBDataset",
    "Loader",
    "LoaderError",
    "MaskDataset",
    "MissingExtraError",
    "MultiCrop",
    "NextToken",
    "Prefetcher",
    "PrepError",
    "RAMDataset",
    "Ragged",
    "RandomCrop",
    "RandomResizedCrop",
    "RemoteError",
    "Resize",
    "StoreError",
    "Summary",
    "TableDataset",
    "TokenDataset",
    "Trainer",
    "doctor",
    "drop_dead_bias",
    "merge",
    "prep",
    "prep_finish",
    "prep_plan",
    "prep_run",
    "publish",
]

if TYPE_CHECKING:
    from fastdata.arrays.dataset import ArrayDataset
    from fastdata.bench.doctor import doctor
    from fastdata.data.opening import RAMDataset, open
    from fastdata.errors import (
        CodecError,
        FastDataError,
        FormatError,
        LoaderError,
        MissingExtraError,
        PrepError,
        RemoteError,
        StoreError,
    )
    from fastdata.gpu.augment import Augment
    from fastdata.gpu.batch import Batch
    from fastdata.gpu.bias import drop_dead_bias
    from fastdata.gpu.next_token import NextToken
    from fastdata.gpu.normalize import GPUNormalize
    from fastdata.gpu.prefetcher import Prefetcher
    from fastdata.gpu.ragged import Ragged
    from fastdata.images.crops import CenterCrop, Crop, MultiCrop, RandomCrop, RandomResizedCrop, Resize
    from fastdata.images.stored import LMDBDataset, MaskDataset
    from fastdata.loader.loader import Loader
    from fastdata.prepare.functions import (
        Summary,
        prep,
        prep_finish,
        prep_plan,
        prep_run,
    )
    from fastdata.prepare.merge import merge
    from fastdata.remote.publish import publish
    from fastdata.tables import TableDataset
    from fastdata.text.dataset import TokenDataset
    from fastdata.train.trainer import Trainer


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    value = getattr(importlib.import_module(f"fastdata.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
