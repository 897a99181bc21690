"""The kind of data "arrays", for the packages that serve every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdata.arrays.options import ArrayOptions
from fastdata.kinds import Modality, StrPath

__all__ = ["KIND", "ArrayModality"]


class ArrayModality(Modality):
    """Signals, volumes and other arrays of numbers, cut into chunks."""

    name = "arrays"
    item = "array"
    options = ArrayOptions
    exports = ("npy",)

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether there are files of arrays and no images."""
        from fastdata.arrays.files import ENDINGS
        from fastdata.sources.folder import some_names
        from fastdata.sources.inputs import is_image
        from fastdata.sources.urls import to_path

        found = False
        for name in some_names(to_path(source)):
            if is_image(name):
                return False
            found = found or name.lower().endswith(ENDINGS)
        return found

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        from fastdata.arrays.dataset import ArrayDataset, RAMArrays

        return RAMArrays if in_memory else ArrayDataset


KIND = ArrayModality()
