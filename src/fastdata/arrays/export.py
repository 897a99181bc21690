"""export of arrays: .npy files, in class folders."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np

from fastdata.arrays.chunks import boxes
from fastdata.errors import FormatError, StoreError
from fastdata.store.class_folders import make_folders, place_of, unused, write_labels
from fastdata.store.format import Variant
from fastdata.store.shards import ShardReader
from fastdata.store.store import Store

__all__ = ["export_arrays"]

ENDING = re.compile(r"\.(npy|npz|nii|nii\.gz|dcm|tiff?|png)$", re.IGNORECASE)  # other dots belong to names, as in those of series


def export_arrays(store: Store, root: Path, tick: Callable[[int], None]) -> int:
    """Write every array, as it is stored (channels first), as an .npy file; of a store with masks, to `arrays` and `masks`."""
    variants = store.manifest.variants
    folders = ["arrays", "masks"] if len(variants) > 1 else [""]
    readers, taken, written = [store.reader(v) for v in variants], set[str](), []
    try:
        for folder in folders:
            make_folders(store, root / folder)
        for k, name in enumerate(store.names()):
            place = PurePosixPath(f"{place_of(store, k, ENDING.sub('', name))}.npy")
            relative = unused(place, ".npy", taken)
            for folder, variant, reader in zip(folders, variants, readers, strict=True):
                target = root / folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(store, variant, reader, k, target)
            written.append(relative)
            tick(1)
        if store.manifest.labels.kind == "vector":
            write_labels(store, root / "labels.csv", written)
    except OSError as error:
        raise StoreError(f"export to {root}: {error}") from error
    return len(written)


def _write(store: Store, variant: Variant, reader: ShardReader, index: int, path: Path) -> None:
    """Chunk by chunk into the map of the file, so that arrays may be larger than memory."""
    arrays, row = store.manifest.section("arrays"), store.samples[index]
    dtype, full = np.dtype(variant.form.dtype).newbyteorder("<"), tuple(row["shape"][: arrays.dims].tolist())
    channels, sides = full[: arrays.channels], full[arrays.channels :]
    channels = () if variant.is_mask else channels
    out = np.lib.format.open_memmap(path, "w+", dtype, channels + sides)
    for number, box in enumerate(boxes(sides, arrays.chunk), int(row["first"])):
        every = (slice(None),) * len(channels) + box
        try:
            out[every] = np.frombuffer(reader.get(number), dtype).reshape(out[every].shape)
        except ValueError as error:
            raise FormatError(f"sample {index} of {store.path}: {error}; run fastdata verify {store.path}") from None
    out.flush()
