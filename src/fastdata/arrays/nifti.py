"""Read NIfTI files with nibabel."""

from __future__ import annotations

import gzip
import importlib
import struct
import zlib
from contextlib import closing
from typing import Any

import numpy as np

from fastdata.arrays.source import Opened
from fastdata.errors import CodecError
from fastdata.sources.urls import AnyPath

__all__ = ["open_nifti"]

HEAD = 176  # bytes in which both versions say where the values begin
MOST_BEFORE = 64 << 20  # bytes of the header and its extensions

Array = np.ndarray[Any, np.dtype[Any]]


def open_nifti(path: AnyPath) -> Opened:
    """Open a NIfTI-1 or -2 file, with nibabel's order of axes (x, y, z, ...), and scale its values as the header says.

    Values without a scale keep their dtype. Others are scaled in double precision, and become int16 if slope and intercept are
    whole numbers and all values fit, else float32.
    """
    try:
        with closing(_stream(path)) as file:
            image = _image(file)
            proxy = image.dataobj
            dtype = np.dtype(proxy.dtype)
            slope, inter = float(proxy.slope), float(proxy.inter)
    except (OSError, EOFError, zlib.error, CodecError) as error:
        raise _damaged(error) from None
    except Exception as error:  # noqa: BLE001  nibabel and damaged headers may raise anything
        raise CodecError(f"nibabel cannot read its header: {error}"[:200], "header") from None
    if (slope, inter) != (1.0, 0.0):
        dtype = np.dtype(np.int16 if slope.is_integer() and inter.is_integer() and dtype.kind in "iu" else np.float32)
    return Opened(tuple(proxy.shape), dtype, lambda: _read(path, dtype))


def _read(path: AnyPath, dtype: np.dtype[Any]) -> Array:
    try:
        with closing(_stream(path)) as file:
            values: Array = np.asanyarray(_image(file).dataobj)
            while file.read(1 << 20):  # gzip compares its checksum at the end
                pass
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise _damaged(error) from None
    return values if dtype == np.int16 else values.astype(dtype, copy=False)


def _stream(path: AnyPath) -> Any:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def _image(file: Any) -> Any:
    nibabel: Any = importlib.import_module("nibabel")  # optional; the listing has checked that it is installed
    head = file.read(HEAD)
    is_second = head[:4] in (b"\x1c\x02\0\0", b"\0\0\x02\x1c")
    if len(head) == HEAD:  # nibabel reports a shorter file
        at, form = (168, "q") if is_second else (108, "f")
        (start,) = struct.unpack_from(f"{'<' if head[0] else '>'}{form}", head, at)
        if not start <= MOST_BEFORE:  # nibabel would read all of it
            raise CodecError(f"its values begin at byte {start:g}, behind more than {MOST_BEFORE} bytes of extensions", "header")
    file.seek(0)
    return (nibabel.Nifti2Image if is_second else nibabel.Nifti1Image).from_stream(file)


def _damaged(error: Exception) -> CodecError:
    if isinstance(error, CodecError):
        return error
    if isinstance(error, OSError) and error.errno:
        raise error
    return CodecError(f"it is damaged, or ends early: {error}"[:200], "truncated")
