"""The members of a tar file, and where their bytes lie.

Python's `tarfile` parses the headers, but its own list ends silently at a damaged header. This one raises.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath

__all__ = ["Member", "members"]

BLOCK = 512
LONGEST = 1 << 20  # bytes of a name, or of the attributes of one member
DIGITS = 8  # of the length of an attribute, with the space behind them
ZEROS = bytes(BLOCK)


class Member(NamedTuple):
    """A file in a tar. A member without a name stands for the missing end of a tar.

    Attributes:
        size: the bytes that are there; a header may claim any number.
        problem: why it cannot be used, or "".
    """

    name: str
    offset: int
    size: int
    problem: str


def members(file: BinaryIO, path: AnyPath) -> Iterator[Member]:
    """Yield the members that are not folders, in order. If the end of the file is missing, the last has the problem `truncated`.

    Raises:
        PrepError: the file is not a tar, or is damaged so that later members cannot be found.
    """
    end = os.fstat(file.fileno()).st_size
    place = 0
    closed = cut = False
    changes = dict[str, str]()
    while place < end:
        block = os.pread(file.fileno(), BLOCK, place)
        if block == ZEROS:  # two of them end a tar, but another tar may be appended
            place += BLOCK
            closed = True
            continue
        if len(block) < BLOCK:
            break
        header = _header(block, place, path)
        closed = False
        start = place + BLOCK + _sparse_blocks(file, header, block, place + BLOCK)
        size = int(changes.get("size", header.size)) if header.type not in EXTENDED else header.size
        place = start + (-(-size // BLOCK) * BLOCK if header.type not in WITHOUT_DATA else 0)
        if header.type in EXTENDED and start + size <= end:
            changes |= _extended(file, header, start, path)
        elif header.type not in (*EXTENDED, *GLOBAL):
            cut = start + size > end and header.type not in WITHOUT_DATA
            if not header.isdir():
                name = changes.get("path", header.name).removeprefix("./").rstrip("/") or "."
                there = 0 if header.type in WITHOUT_DATA else max(min(size, end - start), 0)
                yield Member(name, start, there, _problem(header, changes, cut))
            changes = {}
    if not closed and not cut:
        yield Member("", 0, 0, "truncated")


EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
GLOBAL = (tarfile.XGLTYPE, b"V", b"M", b"N")  # attributes of all members, a volume label, parts of old multi-volume tars
WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


def _header(block: bytes, place: int, path: AnyPath) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        if place == 0:
            raise PrepError(f"{path} is not a tar file: {error}") from None
        raise _damaged(path, place, error) from None
    if header.size < 0:
        raise _damaged(path, place, f"a member of {header.size} bytes")
    return header


def _damaged(path: AnyPath, place: int, why: object) -> PrepError:
    return PrepError(f"{path} is damaged at byte {place} ({why}), and what follows cannot be found; copy it again")


def _sparse_blocks(file: BinaryIO, header: tarfile.TarInfo, block: bytes, place: int) -> int:
    """Return the bytes of the further headers that an old GNU sparse member may have."""
    length = 0
    more = header.type == tarfile.GNUTYPE_SPARSE and block[482] != 0
    while more:
        block = os.pread(file.fileno(), BLOCK, place + length)
        length += BLOCK
        more = len(block) == BLOCK and block[504] != 0
    return length


def _extended(file: BinaryIO, header: tarfile.TarInfo, start: int, path: AnyPath) -> dict[str, str]:
    """Return the attributes that an extended header sets for the next member."""
    if header.size > LONGEST:
        raise _damaged(path, start, f"{header.size} bytes of attributes")
    data = os.pread(file.fileno(), header.size, start)
    if header.type == tarfile.GNUTYPE_LONGLINK:
        return {}
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    found = {}
    try:
        at = 0
        while data[at : at + 1].isdigit():
            length = int(data[at : at + DIGITS].partition(b" ")[0])
            name, equals, value = data[at : at + length].partition(b" ")[2].partition(b"=")
            if not equals or not 0 < length <= len(data) - at or value[-1:] != b"\n":
                raise ValueError("attributes are cut short")
            found[name.decode()] = value[:-1].decode("utf-8", "surrogateescape")
            at += length
        if int(found.get("size", 0)) < 0:
            raise ValueError("negative size")
    except ValueError as error:
        raise _damaged(path, start, error) from None
    return found


def _problem(header: tarfile.TarInfo, changes: dict[str, str], cut: bool) -> str:
    if cut:
        return "truncated"
    if header.type == tarfile.GNUTYPE_SPARSE or any(name.startswith("GNU.sparse.") for name in changes):
        return "unsupported"
    return "" if header.isreg() else "not-a-file"
