"""The order of inputs for `--order shuffled`."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.packed import Packed

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


def shuffled(sources: Packed[Any], *, remote: bool = False) -> Packed[Any]:
    """Return inputs in an order that depends on their number alone: by the checksum of each one's place in the list.

    Raises:
        UnpackedWholeError: they lie in archives of which much has to be unpacked, or copied, to read one input.
    """
    for source in sources:
        kind, file = getattr(source, "place", ())[:2] or ("", "")
        if kind == "parquet":
            raise UnpackedWholeError(f"{file} is unpacked in large pieces, and would be so once for each input")
        if kind == "arrow" and remote:
            raise UnpackedWholeError(f"{file} is in object storage, and would be copied whole for each input")
    keys = (xxhash.xxh3_64_intdigest(k.to_bytes(8, "little"), SEED) for k in range(len(sources)))
    return Packed(sources.taken(np.argsort(np.fromiter(keys, np.uint64, len(sources)), kind="stable")))
