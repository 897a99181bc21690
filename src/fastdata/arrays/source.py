"""An input of arrays, and the extensions of their files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import MissingExtraError
from fastdata.sources.inputs import Source

__all__ = ["ENDINGS", "NIFTI", "ArraySource", "Opened", "ending_of", "needed_packages", "stem_of"]

Array = np.ndarray[Any, np.dtype[Any]]

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


class Opened(NamedTuple):
    """The shape and dtype from a header, and a function that returns the values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array]


def ending_of(name: str) -> str:
    """Return a name's extension in lower case."""
    lower = name.lower()
    return ".nii.gz" if lower.endswith(".nii.gz") else os.path.splitext(lower)[1]


def stem_of(name: str) -> str:
    """Return a path without its extension, if that is one of arrays: names in .npz files may have other dots."""
    normal = os.path.normpath(name)
    ending = ending_of(normal)
    return normal[: -len(ending)] if ending in ENDINGS else normal


def needed_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that read these files, besides numpy.

    Raises:
        MissingExtraError: if one is not installed.
    """
    if not any(ending_of(name) in NIFTI for name in names):
        return ()
    if importlib.util.find_spec("nibabel") is None:
        raise MissingExtraError("nibabel")
    return ("nibabel",)
