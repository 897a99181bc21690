"""Parse SOURCE as it is typed: a path, or `shards-{000..099}.tar`, `part-*.parquet`, `file.parquet::image`."""

from __future__ import annotations

import glob
import os
import re
from itertools import islice
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.options import StrPath
from fastdata.sources.urls import AnyPath, UrlPath, explain_missing, look_at_all, to_path

__all__ = ["FUNCTION", "expand", "function_of", "locate", "split_key"]

FUNCTION = re.compile(r"(?P<module>[^\W\d][\w.]*):(?P<name>[^\W\d][\w.]*)")
MAX_FILES = 1_000_000
SPECIAL = re.compile(r"[*?\[]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
KEYED = re.compile(r"(.+\.(?:parquet|arrow|feather))::(.+)", re.IGNORECASE | re.DOTALL)


def function_of(source: StrPath) -> re.Match[str] | None:
    """Return the module and the name that SOURCE gives as `module:function`; None: it is a path."""
    match = FUNCTION.fullmatch(str(source))
    return None if match is None or Path(source).exists() else match


def split_key(source: StrPath) -> tuple[AnyPath, str]:
    """Return the path, and the text after `::`."""
    path = to_path(source)
    match = None if path.exists() else KEYED.fullmatch(str(path))
    return (_like(path, match[1]), match[2]) if match else (path, "")


def _like(path: AnyPath, text: str) -> AnyPath:
    """Return the path of this text, in the same place."""
    return path.at(text) if isinstance(path, UrlPath) else Path(text)


def expand(source: StrPath) -> list[AnyPath]:
    """Return the files that a path or a pattern stands for. A path that exists is never a pattern.

    Braces expand in the order of their numbers; `*`, `?` and `[...]` expand in the order of the names.

    Raises:
        PrepError: a file that braces expand to is missing, or nothing matches a pattern.
    """
    path = to_path(source)
    text = str(path)
    if path.exists() or not SPECIAL.search(text):
        return [path] if path.exists() else []
    names = _expand_braces(text)
    paths = [_like(path, name) for name in names]
    look_at_all(paths[0].parent, [one.name for one in paths if one.parent == paths[0].parent])
    matches = [[one] if one.exists() else _matching(one) for one in paths]
    if missing := [name for name, files in zip(names, matches, strict=True) if not files]:
        raise PrepError(
            f"SOURCE {text}: {len(missing)} of {len(names)} are not there: {', '.join(missing[:5])}{' ...' * (len(missing) > 5)}"
            f"{explain_missing(path)}"
        )
    return [file for files in matches for file in files]


def _matching(pattern: AnyPath) -> list[AnyPath]:
    """Return what matches `*`, `?` and `[...]`, in the order of the names."""
    if isinstance(pattern, Path):  # Path.glob takes no absolute patterns
        return [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207
    special = SPECIAL.search(pattern.url)
    if special is None:
        return []
    folder = pattern.at(pattern.url[: special.start()].rpartition("/")[0])
    return [*folder.glob(pattern.url[len(folder.url) + 1 :])] if folder.is_dir() else []


def _expand_braces(text: str) -> list[str]:
    """Return what braces stand for, as in WebDataset: `{000..099}` counts, with leading zeros to one width; `{a,b}` is a list."""
    if "{" not in text:
        return [text]
    from braceexpand import braceexpand

    large = any(abs(int(last) - int(first)) >= MAX_FILES for first, last in re.findall(r"\{(\d+)\.\.(\d+)", text))
    try:
        names = [] if large else [*islice(braceexpand(text, escape=False), MAX_FILES + 1)]
    except ValueError:  # unbalanced braces
        return [text]
    if large or len(names) > MAX_FILES:
        raise PrepError(f"SOURCE {text} expands to more than {MAX_FILES} files")
    return names


def locate(source: StrPath) -> tuple[AnyPath, str]:
    """Return the folder that names are relative to, and the default name of a store of SOURCE, without ".fds"."""
    if match := function_of(source):
        return Path(), match["name"].rpartition(".")[2]
    path, key = split_key(source)
    text = str(path)
    special = None if path.exists() else SPECIAL.search(text)
    if special is None and path.is_dir():
        return path, _absolute(path).name
    name, root = _absolute(path).stem, path.parent
    if special is not None:
        folder, start = os.path.split(text[: special.start()])
        root = _like(path, folder)
        name = start.rstrip("-_. ") or _absolute(root).name or "archives"
    return root, name + (f"-{key.strip('/').replace('/', '-')}" if key else "")


def _absolute(path: AnyPath) -> AnyPath:
    """Return the absolute path without resolving links, so that a link keeps its name."""
    return Path(os.path.normpath(path.absolute())) if isinstance(path, Path) else path
