"""What an input is: a file, or a part of an archive; the list of them; and what a caller says of both."""

from __future__ import annotations

import os
import shlex
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.options import StrPath
from fastdata.store.format import Labels

__all__ = ["EXTENSIONS", "SPLITS", "Label", "Place", "Source", "SourceList"]
__all__ += ["FOLDERS", "fits_float", "is_image", "look", "splits_error"]

EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .tif .tiff .gif .avif .jp2 .j2k .j2c .pbm .pgm .ppm .pnm .pam .ras .sun "
    ".avifs .heic .heif .hif .jxl .psd .qoi .sgi .msp "
    ".hdr .exr .pfm .dds .svg .cr2 .cr3 .nef .arw .dng".split()  # not read, so that each is rejected by name
)
SPLITS = frozenset("train training val valid validation test testing dev eval".split())
FOLDERS = "the folders"  # as what labels are read from
LARGEST_FLOAT = 3.4028234663852886e38  # of float32, as which float labels are stored

Label = int | tuple[float, ...]
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """One input. name: relative to the root, as file names are in Python (surrogateescape). label: -1 where there is none.
    size: bytes, its mask's too; -1 where the file could not be looked at. problem: why it can't be used, if that is known already.
    mask: relative to the folder of masks. place: of what lies in an archive, the kind of archive, its path relative to the root,
    and where in it; empty for a file."""

    name: str
    label: Label
    size: int
    problem: str = ""
    mask: str = ""
    place: Place = ()


@dataclass(frozen=True)
class SourceList:
    """All inputs, in the order of the store, and the labels' meaning. skipped: files without an image's extension, by extension.
    labelled_by: what the labels were read from. notes: what the caller shall know of them."""

    root: Path
    labels: Labels
    sources: list[Source]
    skipped: Counter[str] = field(default_factory=Counter)
    labelled_by: str = ""
    notes: tuple[str, ...] = ()


def is_image(name: str) -> bool:
    """Whether a file's name ends as an image's."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def fits_float(*values: float) -> bool:
    """Whether all can be float labels: finite numbers, in a store too."""
    return all(abs(value) <= LARGEST_FLOAT for value in values)  # of NaN, nothing is true


def look(path: StrPath) -> tuple[int, str]:
    """The size of a file, and why it can't be used; -1 if so."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return -1, "broken-link" if os.path.islink(path) else "missing"
    except (OSError, ValueError):  # ValueError: a table's name with a zero byte
        return -1, "unreadable"
    return (info.st_size, "") if stat.S_ISREG(info.st_mode) else (-1, "not-a-file")  # a pipe would be read for ever


def splits_error(source: Path, splits: dict[str, str], *, column: bool = False, classes: bool = True) -> PrepError:
    """That SOURCE holds several splits, by name, each with what to give as SOURCE instead; the commands to type. column: a column
    of a table names them, and --split chooses one. classes: it may have some, which the others are to have too."""
    names = sorted(splits, key=lambda name: not name.lower().startswith("train"))  # its classes are the ones that the others reuse
    stem = source.stem if column else source.absolute().name
    outs = [f"{stem}-{name}.fds" for name in names]
    commands = [["fastdata-prep", splits[name], out] for name, out in zip(names, outs, strict=True)]
    for name, command in zip(names, commands, strict=True):
        command += ["--split", name] * column + ["--classes", outs[0]] * (classes and name != names[0])
    return PrepError(
        f"{source} holds {' and '.join(names)} side by side, which would be mixed; prepare each by itself, with your options:\n"
        + "\n".join(f"  {shlex.join(command)}" for command in commands)
    )
