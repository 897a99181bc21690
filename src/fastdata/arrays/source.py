"""An input of arrays, and the extensions of their files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fastdata.sources.inputs import Source

__all__ = ["ENDINGS", "NIFTI", "ArraySource", "ending_of", "stem_of"]

NIFTI = (".nii", ".nii.gz")
ENDINGS = (".npy", ".npz", *NIFTI)


@dataclass(frozen=True)
class ArraySource(Source):
    """An input: a file, or one array of an .npz file.

    Attributes:
        key: name of the array in an .npz file of several; its path is then `archive`, relative to the root.
    """

    key: str = ""
    archive: str = ""

    @property
    def file(self) -> str:
        """The path of the file, relative to the root."""
        return self.archive or self.name


def ending_of(name: str) -> str:
    """Return a name's extension in lower case."""
    lower = name.lower()
    return ".nii.gz" if lower.endswith(".nii.gz") else os.path.splitext(lower)[1]


def stem_of(name: str) -> str:
    """Return a path without its extension, if that is one of arrays: names in .npz files may have other dots."""
    normal = os.path.normpath(name)
    ending = ending_of(normal)
    return normal[: -len(ending)] if ending in ENDINGS else normal
