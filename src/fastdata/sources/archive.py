"""What all kinds of archives share: the interface, reading a piece of a file, the archive in hand, pixels as a file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import cv2
import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.sources.inputs import EXTENSIONS, SPLITS, Place, Source, SourceList, splits_error
from fastdata.sources.labels import Value, number_labels
from fastdata.sources.notes import refuse_captions

__all__ = [
    "Chosen",
    "Folder",
    "Item",
    "Kind",
    "alone",
    "as_file",
    "held",
    "in_order",
    "looks_like_image",
    "read_range",
    "release",
    "shares",
    "unreadable",
]

Array = np.ndarray[Any, np.dtype[Any]]
Item = tuple[str, int, str, Place]  # name, size, problem and place of an input


@dataclass(frozen=True)
class Folder:
    """A folder given as SOURCE, and the names of what lies in it."""

    path: Path
    files: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """What the caller named in an archive.

    Attributes:
        key: what stood behind `::`, or "".
        label: the column of labels, NO_LABELS, or "".
    """

    key: str = ""
    label: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of archive.

    Attributes:
        name: begins the `place` of its inputs.
        takes: whether a path, which exists, is such an archive, by its name.
        inside: the archives of this kind that a folder consists of; none, if it is another folder. Raises PrepError where it holds
            several splits.
        inputs: of these archives below a root, which is the first argument.
        read: the bytes of an image file, of the archive and the rest of a `place`.
        has_columns: whether a column of labels can be named.
    """

    name: str
    takes: Callable[[Path], bool]
    inside: Callable[[Folder], list[Path]]
    inputs: Callable[[Path, list[Path], Chosen], SourceList]
    read: Callable[..., bytes]
    has_columns: bool = False


class _Closes(Protocol):
    def close(self) -> Any: ...


Opened = TypeVar("Opened", bound=_Closes)
_in_hand: list[tuple[Any, Any]] = []


def held(path: Path, opener: Callable[[Path], Opened]) -> Opened:
    """The archive that this process has in hand: opened if it is another than the last, or changed; the last is closed then."""
    info = path.stat()
    stamp = opener, path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
    if not _in_hand or _in_hand[0][0] != stamp:
        release()
        _in_hand.append((stamp, opener(path)))
    opened: Opened = _in_hand[0][1]
    return opened


def release() -> None:
    """Close the archive in hand."""
    while _in_hand:
        _in_hand.pop()[1].close()


def read_range(path: Path, offset: int, length: int) -> bytes:
    """A piece of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) < length:
        raise CodecError(f"the archive ends inside the image: {len(data)} of {length} bytes are there", "truncated")
    return data


def as_file(pixels: Array) -> bytes:
    """An uncompressed PNG of [H, W] or [H, W, 3], of uint8 or uint16: what an image file is to the decoder, and nothing is lost."""
    stored = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    stored = np.ascontiguousarray(stored) if stored.ndim == 2 else cv2.cvtColor(stored, cv2.COLOR_RGB2BGR)
    made, data = cv2.imencode(".png", stored, [cv2.IMWRITE_PNG_COMPRESSION, 0])
    if not made:
        raise CodecError(f"OpenCV could not write {pixels.shape} pixels as PNG", "undecodable")
    return data.tobytes()


def shares(total: int, count: int) -> list[int]:
    """`total` bytes as equal parts, where nobody knows better."""
    return [(k + 1) * total // count - k * total // count for k in range(count)]


def looks_like_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def in_order(
    root: Path,
    items: Sequence[Item],
    labels: Sequence[Value],
    names: Sequence[str] = (),
    skipped: Counter[str] | None = None,
    *,
    by: str,
    sure: bool = False,
    notes: tuple[str, ...] = (),
) -> SourceList:
    """The list of inputs; `names` of the classes, where they are known. by: what the labels were read from. sure: they are labels,
    whatever they look like.

    Raises:
        PrepError: the labels do not fit together, or are captions.
    """
    if not names and not sure:
        refuse_captions([label for label in labels if isinstance(label, str)], by)
    meaning, numbers, problems = number_labels(labels, names)
    sources = [
        Source(name, label, size, problem or unlabelled, place=place)
        for (name, size, problem, place), label, unlabelled in zip(items, numbers, problems, strict=True)
    ]
    return SourceList(root, meaning, sources, skipped or Counter(), by, notes)


def alone(folder: Folder, ending: str) -> list[Path]:
    """The files of a folder that end so, if no images and no folders are beside them.

    Raises:
        PrepError: their names begin with the names of several splits.
    """
    files = [name for name in folder.files if name.lower().endswith(ending)]
    if not files or folder.folders or any(looks_like_image(name) for name in folder.files):
        return []
    splits: dict[str, str] = {}
    for name in files:
        first = re.split(r"[-_.\d]", name)[0]
        if first.lower() in SPLITS:
            splits[first] = str(folder.path / f"{first}[-_.0-9]*{name[-len(ending) :]}")
    if len(splits) > 1:
        raise splits_error(folder.path, splits)
    return [folder.path / name for name in files]


def unreadable(path: Path, error: Exception) -> PrepError:
    """Of a file that cannot be read at all."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return PrepError(f"cannot read {path}: {why}")
