"""Export arrays to .npy files in class folders."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np

from fastdata.arrays.chunked import StoreArrays
from fastdata.errors import StoreError
from fastdata.store.class_folders import make_folders, place_of, unused, write_labels
from fastdata.store.store import Store

__all__ = ["export_arrays"]

ENDING = re.compile(r"\.(npy|npz|nii|nii\.gz)$", re.IGNORECASE)  # names in .npz files may have other dots


def export_arrays(store: Store, root: Path, tick: Callable[[int], None]) -> int:
    """Write each array as stored (channels first) to an .npy file; with masks, to `arrays` and `masks`. Return their number."""
    parts = [StoreArrays(store.path, mask=variant.is_mask) for variant in store.manifest.variants]
    folders = ["arrays", "masks"] if len(parts) > 1 else [""]
    taken: set[str] = set()
    written = []
    try:
        for folder in folders:
            make_folders(store, root / folder)
        for k, name in enumerate(store.names()):
            place = PurePosixPath(f"{place_of(store, k, ENDING.sub('', name))}.npy")
            relative = unused(place, ".npy", taken)
            for folder, part in zip(folders, parts, strict=True):
                target = root / folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(part, k, target)
            written.append(relative)
            tick(1)
        if store.manifest.labels.kind == "vector":
            write_labels(store, root / "labels.csv", written)
    except OSError as error:
        raise StoreError(f"export to {root}: {error}") from error
    return len(written)


def _write(arrays: StoreArrays, index: int, path: Path) -> None:
    """Copy chunk by chunk into the mapped file, so that an array may be larger than memory."""
    shape = arrays.shape(index, arrays.sides[index].tolist())
    out = np.lib.format.open_memmap(path, "w+", arrays.dtype.newbyteorder("<"), shape)
    arrays.read(index, [0] * arrays.axes, [False] * arrays.axes, out, 0)
    out.flush()
