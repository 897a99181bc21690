"""SOURCE as it is typed: a path, or `shards-{000..099}.tar`, `part-*.parquet`, `file.h5::images`."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.options import StrPath

__all__ = ["expand", "locate", "split_key"]

MOST_FILES = 1_000_000
BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
SPECIAL = re.compile(r"[*?\[]|" + BRACES.pattern)
KEYED = re.compile(r"(.+\.(?:h5|hdf5|hdf|he5|parquet|arrow))::(.+)", re.IGNORECASE | re.DOTALL)


def split_key(source: StrPath) -> tuple[str, str]:
    """The path, and what stands behind `::`."""
    text = os.fspath(source)
    found = None if Path(text).exists() else KEYED.fullmatch(text)
    return (found[1], found[2]) if found else (text, "")


def expand(text: str) -> list[Path]:
    """The files that a path or a pattern stands for. A path that exists is itself, whatever is in its name.

    Numbers in braces come in their order, `*`, `?` and `[...]` in the order of the names.

    Raises:
        PrepError: what braces ask for is missing, or nothing fits a pattern.
    """
    if Path(text).exists() or not SPECIAL.search(text):
        return [Path(text)] if Path(text).exists() else []
    wanted = _braced(text)
    found = [[name] if Path(name).exists() else _globbed(name) for name in wanted]
    if missing := [name for name, there in zip(wanted, found, strict=True) if not there]:
        raise PrepError(
            f"SOURCE {text}: {len(missing)} of {len(wanted)} are not there: {', '.join(missing[:5])}{' ...' * (len(missing) > 5)}"
        )
    return [Path(name) for there in found for name in there]


def _globbed(text: str) -> list[str]:
    return sorted(glob.glob(text, recursive=True))  # noqa: PTH207  Path.glob takes no absolute patterns


def _braced(text: str) -> list[str]:
    found = BRACES.search(text)
    if found is None:
        return [text]
    rest = _braced(text[found.end() :])
    parts = _parts(found)
    if len(parts) * len(rest) > MOST_FILES:
        raise PrepError(f"SOURCE {text} stands for more than {MOST_FILES} files")
    return [text[: found.start()] + part + end for part in parts for end in rest]


def _parts(found: re.Match[str]) -> list[str]:
    """`000..099` counts, up or down; zeros in front give the width. `a,b` lists."""
    first, last, listed = found.groups()
    if listed is not None:
        return [str(part) for part in listed.split(",")]
    if abs(int(last) - int(first)) >= MOST_FILES:
        raise PrepError(f"SOURCE with {found[0]} stands for more than {MOST_FILES} files")
    step = 1 if int(last) >= int(first) else -1
    width = max(len(n) for n in (first, last)) if any(n != str(int(n)) for n in (first, last)) else 0
    return [str(k).zfill(width) for k in range(int(first), int(last) + step, step)]


def locate(source: StrPath) -> tuple[Path, str]:
    """The folder that names are relative to, and what a store of SOURCE is called."""
    text, key = split_key(source)
    path = Path(text)
    if path.is_dir():
        return path, _typed(path).name
    name, root = _typed(path).stem, path.parent
    if not path.exists() and (special := SPECIAL.search(text)):
        folder, begin = os.path.split(text[: special.start()])
        root = Path(folder)
        name = begin.rstrip("-_. ") or _typed(root).name or "archives"
    return root, name + (f"-{key.strip('/').replace('/', '-')}" if key else "")


def _typed(path: Path) -> Path:
    """The whole path, with the names that were typed: a link keeps its own."""
    return Path(os.path.normpath(path.absolute()))
