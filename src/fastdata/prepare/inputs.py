"""What an input is: a file, or a part of an archive; and the list of them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.store.format import Labels

__all__ = ["EXTENSIONS", "SPLITS", "Label", "Place", "Source", "SourceList", "StrPath", "splits_error"]

EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .tif .tiff .gif .avif .jp2 .j2k .j2c .pbm .pgm .ppm .pnm .pam .ras .sun "
    ".hdr .exr .pfm .heic .heif .jxl .psd .svg .cr2 .cr3 .nef .arw .dng".split()  # not read, so that each is rejected by name
)
SPLITS = frozenset("train training val valid validation test testing dev eval".split())

StrPath = str | os.PathLike[str]
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
    """All inputs, in the order of the store, and the labels' meaning. skipped: files without an image's extension, by extension."""

    root: Path
    labels: Labels
    sources: list[Source]
    skipped: Counter[str] = field(default_factory=Counter)


def splits_error(root: Path, splits: dict[str, str]) -> PrepError:
    """That SOURCE holds several splits, by name, each with what to give as SOURCE instead; the commands to type."""
    names = sorted(splits, key=lambda name: not name.lower().startswith("train"))  # its classes are the ones that the others reuse
    outs = [f"{root.resolve().name}-{name}.fds" for name in names]
    commands = [["fastdata-prep", splits[name], out] for name, out in zip(names, outs, strict=True)]
    for command in commands[1:]:
        command += ["--classes", outs[0]]
    return PrepError(
        f"{root} holds {' and '.join(names)} side by side, which would be mixed; prepare each by itself, with your options:\n"
        + "\n".join(f"  {shlex.join(command)}" for command in commands)
    )
