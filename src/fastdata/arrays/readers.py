"""Open an input of arrays: read its header now, and its values on demand."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from typing import IO, Any, NamedTuple

import numpy as np

from fastdata.arrays.nifti import open_nifti
from fastdata.arrays.source import NIFTI, ArraySource, Opened, ending_of
from fastdata.errors import CodecError
from fastdata.sources.urls import AnyPath

__all__ = ["checked", "npz_names", "open_array"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 24
LONGEST_HEADER = 1 << 20
LOCAL = struct.Struct("<4s2xH18xHH")  # in front of a member of a zip: the signature, flags, the bytes of the name and of the rest
UTF8 = 0x800  # the flag of names in UTF-8
DESCRIPTOR = 24  # most bytes of what may follow a member; a header has more


def open_array(root: AnyPath, source: ArraySource, key: str | None = None) -> Opened:
    """Read the header of an input.

    Raises:
        CodecError: if it is damaged, or of another format than its extension; `reason` is one word.
    """
    path, ending = root / source.file, ending_of(source.file)
    if ending in NIFTI:
        return open_nifti(path)
    if ending == ".npz":
        return _open_npz(path, source.key or key)
    if ending == ".npy":
        return _open_npy(path)
    raise CodecError(f"files that end in {ending or 'nothing'} are no arrays that are known here", "unsupported")


def checked(opened: Opened, max_bytes: int) -> Opened:
    """Return an input if it is small enough and holds numbers; raise CodecError if not."""
    if opened.dtype.hasobject:
        raise CodecError("it holds Python objects (pickles), which are never loaded: save numbers", "objects")
    if opened.dtype.kind not in "biuf" or opened.dtype.itemsize > 8:
        raise CodecError(f"it holds {opened.dtype}, and not integers or floats of 8 to 64 bits", "dtype")
    size = math.prod(opened.shape) * opened.dtype.itemsize
    if size > max_bytes or max(opened.shape, default=0) >= 1 << 32:
        raise CodecError(f"{opened.shape} {opened.dtype} are {size} bytes, more than {max_bytes}: see --max-bytes", "too-large")
    return opened


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> Any:
        return "F" if self.fortran else "C"


def _read_header(file: IO[bytes]) -> _Header:
    """Read a .npy header of any version, and leave the file at its values."""
    try:
        version = np.lib.format.read_magic(file)
        at = file.tell()
        length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
        if length > LONGEST_HEADER:  # numpy would read all of it first
            raise CodecError(f"its .npy header claims {length} bytes", "header")
        file.seek(at)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        if version > (2, 0):  # 3.0 differs only in names of fields in UTF-8, and structured dtypes are not supported
            raise CodecError(f"a .npy file of version {version}: save plain numbers, not structured ones", "unsupported")
        header = _Header(*read(file))
    except (CodecError, OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # noqa: BLE001  numpy evaluates the header, so damaged bytes may raise anything
        raise CodecError(f"its .npy header is damaged: {error}"[:200], "header") from None
    if any(side < 0 for side in header.shape):
        raise CodecError(f"its shape is {header.shape}", "header")
    return header


def _open_npy(path: AnyPath) -> Opened:
    with open(path, "rb") as file:
        header, at, size = _read_header(file), file.tell(), os.fstat(file.fileno()).st_size
    if not header.dtype.hasobject and size != at + header.nbytes:
        what = ("ends early", "truncated") if size < at + header.nbytes else ("goes on behind its array", "trailing")
        raise CodecError(f"the file {what[0]}: it has {size} bytes, its header asks for {at + header.nbytes}", what[1])

    def read() -> Array:
        """Map the file, so that only one chunk is in memory."""
        if not header.nbytes:
            return np.empty(header.shape, header.dtype)
        return np.memmap(path, header.dtype, "r", at, header.shape, header.order)

    return Opened(header.shape, header.dtype, read)


def npz_names(path: AnyPath) -> list[str]:
    """Return the names of the arrays in an .npz file.

    Raises:
        CodecError: if it is damaged, also if its directory does not list all that the file holds.
    """
    with _unzipped(path) as archive:
        _compare_directory(archive)
        return _names(archive)


def _names(archive: zipfile.ZipFile) -> list[str]:
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if len(set(names)) < len(names):
        raise CodecError("two of its arrays have the same name", "undecodable")
    return names


def _compare_directory(archive: zipfile.ZipFile) -> None:
    """Raise CodecError unless the entries of a zip's directory, and their names, are those of the headers in front of its members.

    The members have to follow each other from the beginning of the file to the directory: a gap in which there is room for a header
    holds one that the directory does not list.
    """
    file: Any = archive.fp
    at = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if not 0 <= entry.header_offset - at <= DESCRIPTOR:
            break
        file.seek(entry.header_offset)
        header = file.read(LOCAL.size)
        if len(header) < LOCAL.size:
            break
        signature, flags, name_bytes, extra_bytes = LOCAL.unpack(header)
        name = file.read(name_bytes).decode("utf-8" if flags & UTF8 else "cp437", "replace")
        if signature != b"PK\3\4" or name != entry.orig_filename:
            break
        at = file.tell() + extra_bytes + entry.compress_size
    else:
        if 0 <= archive.start_dir - at <= DESCRIPTOR:
            return
    raise CodecError("the directory of the .npz file does not fit what the file holds: it is damaged", "undecodable")


def _unzipped(path: AnyPath) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:  # a damaged directory raises any of these
        raise CodecError(f"the .npz file is damaged or ends early: {error}", "undecodable") from None


def _open_npz(path: AnyPath, key: str | None) -> Opened:
    with _unzipped(path) as archive:
        if key is None:  # otherwise nothing can be missed
            _compare_directory(archive)
        names = _names(archive)
        if key is None and len(names) != 1:
            raise CodecError(
                f"it holds {len(names)} arrays: choose one with --key, such as {', '.join(names[:3])}", "several-arrays"
            )
        name = names[0] if key is None else key
        if name not in names:
            raise CodecError(f"it has no array {name!r}, it has {', '.join(names[:5])}", "no-such-key")
        with archive.open(f"{name}.npy") as file:
            header, size = _read_header(file), archive.getinfo(f"{name}.npy").file_size - file.tell()
    if not header.dtype.hasobject and size != header.nbytes:
        raise CodecError(f"its header asks for {header.nbytes} bytes, {size} are there", "truncated")
    return Opened(header.shape, header.dtype, lambda: _read_member(path, name, header))


def _read_member(path: AnyPath, name: str, header: _Header) -> Array:
    with _unzipped(path) as archive, archive.open(f"{name}.npy") as file:
        _read_header(file)
        out = np.empty(math.prod(header.shape), header.dtype)
        view: Any = out.view(np.uint8).data
        at = 0
        while at < len(view) and (got := file.readinto(view[at : at + BLOCK])):  # type: ignore[attr-defined]
            at += got
        if at < len(view) or file.read(1):  # zip compares its checksum at the end
            problem = "fewer" if at < len(view) else "more"
            raise CodecError(f"its header asks for {len(view)} bytes, {problem} are there", "truncated")
    return out.reshape(header.shape, order=header.order)
