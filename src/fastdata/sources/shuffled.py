"""The order of inputs for `--order shuffled`."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source
from fastdata.sources.packed import PackedInputs

__all__ = ["UnpackedWholeError", "shuffled"]

SEED = 0  # it determines the bytes of a store, so it must never change


class UnpackedWholeError(PrepError):
    """Inputs cannot be read in another order than theirs. `why`: the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"--order is shuffled, but {why}: prepare it with --order listed, export the store (fastdata export), and prepare that "
            "with --order shuffled"
        )
        self.why = why


def shuffled(sources: PackedInputs[Any], *, remote: bool = False) -> PackedInputs[Any]:
    """Return inputs in an order that depends on their number alone: by the checksum of each one's place in the list.

    Raises:
        UnpackedWholeError: they lie in archives of which much has to be unpacked, or fetched, to read one input.
    """
    for source in sources:
        if remote and source.place:
            raise UnpackedWholeError(f"{source.place[1]} is in object storage, and would be fetched whole for each input")
        if isinstance(source, Source) and source.place and source.place[0] == "parquet":
            raise UnpackedWholeError(f"{source.place[1]} is unpacked in large pieces, and would be so once for each input")
    keys = (xxhash.xxh3_64_intdigest(k.to_bytes(8, "little"), SEED) for k in range(len(sources)))
    return PackedInputs(sources.taken(np.argsort(np.fromiter(keys, np.uint64, len(sources)), kind="stable")))
