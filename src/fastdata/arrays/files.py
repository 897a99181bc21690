"""Files of arrays (.npy, .npz and NIfTI): their names and values, and whether a dtype holds these values exactly."""

from __future__ import annotations

import gzip
import importlib
import math
import os
import re
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import CodecError, FastDataError
from fastdata.sources.inputs import Source
from fastdata.sources.urls import AnyPath
from fastdata.types import Array

NIFTI = (".nii", ".nii.gz")
ENDINGS = (".npy", ".npz", *NIFTI)
ENDING = re.compile(r"\.(npy|npz|nii|nii\.gz)$", re.IGNORECASE)
BLOCK = 1 << 20
CHECKED_VALUES = 1 << 22  # at once
HEADER_BYTES = 1 << 16  # a header of .npy is smaller
AFFINE_SHARE = 0.01  # of a voxel, by which affines may differ


@dataclass(frozen=True)
class ArraySource(Source):
    """An input: a file, or the array `key` of an .npz file that holds several."""

    key: str = ""

    @property
    def file(self) -> str:
        """The path of the file, relative to the root."""
        return self.name.removesuffix(f"/{self.key}") if self.key else self.name


def ending_of(name: str) -> str:
    """Return a name's extension in lower case."""
    lower = name.lower()
    return ".nii.gz" if lower.endswith(".nii.gz") else os.path.splitext(lower)[1]


def stem_of(name: str) -> str:
    """Return a path without its extension if ENDINGS has it; other dots may belong to names in .npz files."""
    return ENDING.sub("", os.path.normpath(name))


def read_array(path: AnyPath, key: str | None, max_bytes: int) -> Array:
    """Return the array of a file, memory-mapped for .npy. key: its name in an .npz file, or None for the only one.

    A CodecError says that the file is damaged, larger than `max_bytes`, or holds no numbers.
    """
    ending = ending_of(path.name)
    if ending not in ENDINGS:
        raise CodecError(f"files with the extension {ending or '(none)'} are not read as arrays", "unsupported")
    try:
        if ending == ".npz":
            values = _read_npz(path, key, max_bytes)
        else:
            values = _map_npy(path) if ending == ".npy" else _read_nifti(path, max_bytes)
    except (FastDataError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise CodecError(f"it is damaged, or ends early: {error}"[:200]) from None
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise CodecError(f"it holds {values.dtype}, but must hold booleans, integers or floats of 8 to 64 bits", "dtype")
    _check_size(values.nbytes, max_bytes)
    if max(values.shape, default=0) >= 1 << 32:
        raise CodecError(f"its shape is {values.shape}, but sides must be below 2^32", "too-large")
    return values


def npz_names(path: AnyPath) -> list[str]:
    """Return the names of the arrays in an .npz file. Raise one of zipfile's errors or a CodecError if it is damaged."""
    with zipfile.ZipFile(path) as archive:
        names = [one.filename.removesuffix(".npy") for one in archive.infolist() if not one.comment]
        if not names or len(set(names)) < len(archive.infolist()):  # a damaged directory holds a member as another's comment
            raise CodecError("it holds no arrays, or two of the same name")
    return names


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise CodecError(f"its values are {size} bytes, more than {max_bytes}: see --max-bytes", "too-large")


def _map_npy(path: AnyPath) -> Array:
    values = np.lib.format.open_memmap(path, mode="r")
    if path.stat().st_size > values.offset + values.nbytes:
        raise CodecError("the file has bytes after its array", "trailing")
    return values


def _read_npz(path: AnyPath, key: str | None, max_bytes: int) -> Array:
    names = npz_names(path)
    if key is None and len(names) != 1:
        raise CodecError(f"it holds {len(names)} arrays, such as {', '.join(names[:3])}, but must hold only one", "several-arrays")
    name = names[0] if key is None else key
    if name not in names:
        raise CodecError(f"it has no array {name!r}; it has {', '.join(names[:5])}", "no-such-key")
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        _check_size(archive.getinfo(f"{name}.npy").file_size - HEADER_BYTES, max_bytes)
        values: Array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # zip compares its checksum at the end
            raise CodecError("it has bytes after its array", "trailing")
    return values


def _read_nifti(path: AnyPath, max_bytes: int) -> Array:
    """Read a NIfTI-1 or -2 file, with nibabel's order of axes (x, y, z, ...), and scale its values in double precision.

    Values become integers if slope and intercept are whole numbers, else float32.
    """
    nibabel: Any = importlib.import_module("nibabel")  # optional; the listing has checked that it is installed
    kind = type(nibabel.load(path))  # NIfTI-1 or -2
    with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as file:
        proxy = kind.from_stream(file).dataobj
        _check_size(math.prod(proxy.shape) * proxy.dtype.itemsize, max_bytes)
        values: Array = np.asanyarray(proxy)
        while file.read(BLOCK):  # gzip compares its checksum at the end
            pass
    slope, inter = float(proxy.slope), float(proxy.inter)
    if (slope, inter) == (1.0, 0.0):
        return values
    if not (slope.is_integer() and inter.is_integer() and proxy.dtype.kind in "iu"):
        return values.astype(np.float32)
    dtype = "int16" if np.abs(values).max(initial=0) < 1 << 15 else "int32"
    check_values(values, dtype)
    return values.astype(dtype)


def check_geometry(path: AnyPath, mask: AnyPath) -> None:
    """Raise a CodecError if a NIfTI mask is mirrored, turned or shifted against its NIfTI volume."""
    if ending_of(path.name) in NIFTI and ending_of(mask.name) in NIFTI:
        nibabel: Any = importlib.import_module("nibabel")
        volume, own = (np.asarray(nibabel.load(one).affine) for one in (path, mask))
        if not np.allclose(own, volume, rtol=0, atol=AFFINE_SHARE * np.abs(volume[:3, :3]).max()):
            raise CodecError("its affine differs from that of its volume: resample it to the volume", "geometry")


def check_values(values: Array, name: str, *, rounded: bool = False, say: str = "--dtype") -> None:
    """Raise a CodecError, "range", unless the dtype of this name holds every value exactly.

    rounded: allow values to be rounded to a float dtype, as long as they stay finite. say: the option that the message names.
    """
    dtype = np.dtype(name)
    inexact = dtype.kind == "f" and values.dtype.kind in "iu" and values.dtype.itemsize == 8  # which numpy calls safe
    if np.can_cast(values.dtype, dtype, "safe") and not inexact:
        return
    for part in np.array_split(values, max(1, min(len(values), values.size // CHECKED_VALUES))):
        with np.errstate(all="ignore"):
            cast = part.astype(dtype)
            if rounded and dtype.kind == "f":
                bad = np.isinf(cast) & ~np.isinf(part)
            else:  # cast back too, since numpy compares int64 with float64 as float64
                bad = ~((cast == part) & (cast.astype(part.dtype) == part) | ((cast != cast) & (part != part)))
        if bad.any():
            value = part[bad][0]
            raise CodecError(f"its {values.dtype} value {value} is not exact in {name}: see {say}", "range")
