"""Export arrays to .npy files in class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastdata.arrays.chunked import StoreArrays
from fastdata.arrays.files import ENDING
from fastdata.store.export import write_folders
from fastdata.store.store import Store


def export(store: Store, root: Path, to: str, size: int | None, tick: Callable[[int], None]) -> int:
    """Write each array, channels first, to an .npy file; with masks, in folders `arrays` and `masks`. Return how many."""
    sources = [StoreArrays(store.location, mask=variant.is_mask) for variant in store.manifest.variants]
    folders = dict(zip(["arrays", "masks"] if len(sources) > 1 else [""], sources, strict=True))

    def write(row: int, folder: str, path: Path) -> None:
        """Copy chunk by chunk into the mapped file, so that an array may be larger than memory."""
        arrays = folders[folder]
        shape = arrays.shape(row, arrays.sides[row].tolist())
        out = np.lib.format.open_memmap(path, "w+", arrays.dtype.newbyteorder("<"), shape)
        arrays.read(row, [0] * arrays.axes, [False] * arrays.axes, out, 0)
        out.flush()

    return len(write_folders(store, root, dict.fromkeys(folders, ".npy"), write, ENDING, tick))
