"""An input of arrays, and the extensions of their files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass

from fastdata.errors import MissingExtraError
from fastdata.images.pillow_files import extras
from fastdata.sources.inputs import Source

__all__ = ["ENDINGS", "STACKS", "ArraySource", "ending_of", "needed_packages", "stem_of"]

ENDINGS = frozenset({".npy", ".npz", ".nii", ".nii.gz", ".dcm"})
STACKS = frozenset({".tif", ".tiff", ".png"})  # images, unless the user says that they are arrays
PACKAGES = {".nii": "nibabel", ".nii.gz": "nibabel", ".dcm": "pydicom"}


@dataclass(frozen=True)
class ArraySource(Source):
    """An input: a file, one array of an .npz file, or a series of DICOM slices.

    Attributes:
        key: name of the array in an .npz file.
        files: paths relative to the root; empty: `name` is the path.
        ending: extension of the files, in lower case.
    """

    key: str = ""
    files: tuple[str, ...] = ()
    ending: str = ""


def ending_of(name: str) -> str:
    """Return a name's extension in lower case; ".dcm" if it has none, as is common for DICOM slices."""
    lower = name.rpartition("/")[2].lower()
    return ".nii.gz" if lower.endswith(".nii.gz") else os.path.splitext(lower)[1] or ".dcm"


def stem_of(name: str) -> str:
    """Return a name without its extension, if that is one of arrays: names of series have other dots."""
    normal = os.path.normpath(name)
    ending = ending_of(normal)
    known = ending in ENDINGS | STACKS and normal.lower().endswith(ending)
    return normal[: -len(ending)] if known else normal


def needed_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that read these files, besides numpy.

    Raises:
        MissingExtraError: if one is not installed.
    """
    endings = set(map(ending_of, names))
    needed = sorted({PACKAGES[ending] for ending in endings if ending in PACKAGES})
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package)
    return (*needed, *(("opencv-python-headless", "pillow", *extras()) if endings & STACKS else ()))
