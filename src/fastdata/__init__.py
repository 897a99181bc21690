"""fastdata prepares data once, then feeds PyTorch models with compact batches as fast as the machine can."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import fastdata.errors
import fastdata.system.forks  # makes forks safe from here on
from fastdata._version import __version__ as __version__

# Without `open`, which would replace Python's in a star import
__all__ = ["ArrayDataset", "LMDBDataset", "MaskDataset", "RAMDataset", "TableDataset", "TokenDataset"]
__all__ += ["CenterCrop", "Crop", "MultiCrop", "RandomCrop", "RandomResizedCrop", "RandomScaleCrop", "Resize", "View"]
__all__ += ["Augment", "Batch", "GPUNormalize", "Loader", "NextToken", "Prefetcher", "Ragged", "Trainer"]
__all__ += ["doctor", "drop_dead_bias", "merge", "prep", "prep_finish", "prep_plan", "prep_run", "publish"]

# Module -> names, imported at first use, so that the command line never waits for torch.
_NAMES = {
    "arrays.dataset": ["ArrayDataset"],
    "bench.doctor": ["doctor"],
    "data.opening": ["RAMDataset", "open"],
    "gpu.augment": ["Augment"],
    "gpu.batch": ["Batch", "Ragged"],
    "gpu.batch_transform": ["NextToken"],
    "gpu.bias": ["drop_dead_bias"],
    "gpu.normalize": ["GPUNormalize"],
    "gpu.prefetcher": ["Prefetcher"],
    "images.crops": ["CenterCrop", "Crop", "MultiCrop", "RandomCrop", "RandomResizedCrop", "RandomScaleCrop", "Resize"],
    "images.dataset": ["LMDBDataset", "MaskDataset"],
    "images.view": ["View"],
    "loader.loader": ["Loader"],
    "prepare.functions": ["prep", "prep_finish", "prep_plan", "prep_run"],
    "prepare.merge": ["merge"],
    "remote.publish": ["publish"],
    "tables": ["TableDataset"],
    "text.dataset": ["TokenDataset"],
    "train.trainer": ["Trainer"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from fastdata.arrays.dataset import ArrayDataset
    from fastdata.bench.doctor import doctor
    from fastdata.data.opening import RAMDataset
    from fastdata.data.opening import open as open
    from fastdata.gpu.augment import Augment
    from fastdata.gpu.batch import Batch, Ragged
    from fastdata.gpu.batch_transform import NextToken
    from fastdata.gpu.bias import drop_dead_bias
    from fastdata.gpu.normalize import GPUNormalize
    from fastdata.gpu.prefetcher import Prefetcher
    from fastdata.images.crops import CenterCrop, Crop, MultiCrop, RandomCrop, RandomResizedCrop, RandomScaleCrop, Resize
    from fastdata.images.dataset import LMDBDataset, MaskDataset
    from fastdata.images.view import View
    from fastdata.loader.loader import Loader
    from fastdata.prepare.functions import prep, prep_finish, prep_plan, prep_run
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
