"""Read arrays from files: .npy, .npz and NIfTI."""

from __future__ import annotations

import gzip
import importlib
import math
import zipfile
from typing import Any

import numpy as np

from fastdata.arrays.convert import check_values
from fastdata.arrays.source import ENDINGS, ending_of
from fastdata.errors import CodecError, FastDataError
from fastdata.sources.urls import AnyPath

__all__ = ["npz_names", "read_array"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 20
HEADER_BYTES = 1 << 16  # a header of .npy is smaller


def read_array(path: AnyPath, key: str | None, max_bytes: int) -> Array:
    """Return the array of a file; that of an .npy file is mapped. key: its name in an .npz file; None: there is only one.

    Raises:
        CodecError: if the file is damaged, larger than `max_bytes`, or holds no numbers.
    """
    ending = ending_of(path.name)
    if ending not in ENDINGS:
        raise CodecError(f"files that end in {ending or 'nothing'} are no arrays that are known here", "unsupported")
    try:
        if ending == ".npy":
            values = _map_npy(path)
        elif ending == ".npz":
            values = _read_npz(path, key, max_bytes)
        else:
            values = _read_nifti(path, max_bytes)
    except (FastDataError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise CodecError(f"it is damaged, or ends early: {error}"[:200]) from None
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise CodecError(f"it holds {values.dtype}, and not integers or floats of 8 to 64 bits", "dtype")
    _check_size(values.nbytes, max_bytes)
    if max(values.shape, default=0) >= 1 << 32:
        raise CodecError(f"its shape is {values.shape}, and sides below 2^32 are stored", "too-large")
    return values


def npz_names(path: AnyPath) -> list[str]:
    """Return the names of the arrays in an .npz file.

    Raises:
        CodecError: if it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:  # a damaged directory raises any of these
        raise CodecError(f"the .npz file is damaged or ends early: {error}") from None
    if len(set(members)) < len(members) or not all(name.endswith(".npy") for name in members):
        raise CodecError("its members are not arrays of different names")
    return [name.removesuffix(".npy") for name in members]


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise CodecError(f"its values are {size} bytes, more than {max_bytes}: see --max-bytes", "too-large")


def _map_npy(path: AnyPath) -> Array:
    values = np.lib.format.open_memmap(path, mode="r")
    if path.stat().st_size > values.offset + values.nbytes:
        raise CodecError("the file goes on behind its array", "trailing")
    return values


def _read_npz(path: AnyPath, key: str | None, max_bytes: int) -> Array:
    names = npz_names(path)
    if key is None and len(names) != 1:
        raise CodecError(f"it holds {len(names)} arrays: choose one with --key, such as {', '.join(names[:3])}", "several-arrays")
    name = names[0] if key is None else key
    if name not in names:
        raise CodecError(f"it has no array {name!r}, it has {', '.join(names[:5])}", "no-such-key")
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        _check_size(archive.getinfo(f"{name}.npy").file_size - HEADER_BYTES, max_bytes)
        values: Array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # zip compares its checksum at the end
            raise CodecError("it goes on behind its array", "trailing")
    return values


def _read_nifti(path: AnyPath, max_bytes: int) -> Array:
    """Read a NIfTI-1 or -2 file, with nibabel's order of axes (x, y, z, ...), and scale its values as the header says.

    Values without a scale keep their dtype. Others are scaled in double precision, and become integers if slope and intercept are
    whole numbers, else float32.
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
