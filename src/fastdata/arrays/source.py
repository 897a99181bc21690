"""One input of arrays, and its ending."""

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
STACKS = frozenset({".tif", ".tiff", ".png"})  # images, unless one says that they are arrays
PACKAGES = {".nii": "nibabel", ".nii.gz": "nibabel", ".dcm": "pydicom"}


@dataclass(frozen=True)
class ArraySource(Source):
    """An input: a file, one array of an .npz file, or a series of DICOM slices.

    Attributes:
        key: of an array in an .npz file.
        files: relative to the root; empty: the name is the file's.
        ending: of these, in small letters.
    """

    key: str = ""
    files: tuple[str, ...] = ()
    ending: str = ""


def ending_of(name: str) -> str:
    """The ending of a file's name in small letters; of names without a dot, as DICOM slices often have, ".dcm"."""
    lower = name.rpartition("/")[2].lower()
    return ".nii.gz" if lower.endswith(".nii.gz") else os.path.splitext(lower)[1] or ".dcm"


def stem_of(name: str) -> str:
    """A name without its ending, if that is one of arrays: names of series have dots of their own."""
    normal = os.path.normpath(name)
    ending = ending_of(normal)
    known = ending in ENDINGS | STACKS and normal.lower().endswith(ending)
    return normal[: -len(ending)] if known else normal


def needed_packages(names: Iterable[str]) -> tuple[str, ...]:
    """The packages that read these files, which numpy does not.

    Raises:
        MissingExtraError: one is not installed.
    """
    endings = set(map(ending_of, names))
    needed = sorted({PACKAGES[ending] for ending in endings if ending in PACKAGES})
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package)
    return (*needed, *(("opencv-python-headless", "pillow", *extras()) if endings & STACKS else ()))
