"""URLs of stores, and the arguments that say where their cache is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Storage = Mapping[str, Any]

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https", "http", "file")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def scheme(text: str) -> str:
    """Return the scheme of a URL in lower case, or "" for a path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    return found[1].lower() if found else ""


def is_url(path: Any) -> bool:
    """Return whether this is a URL of object storage, and not a path. Raise a ValueError for a URL of another scheme."""
    if not isinstance(path, str) or not scheme(path):
        return False
    if scheme(path) not in SCHEMES:
        raise ValueError(f"{path} is a URL of an unknown scheme; known are {', '.join(SCHEMES)}")
    return True


def local_path(url: str) -> Path:
    """Return the path of a file:// URL."""
    return Path(unquote("/" + url.partition("://")[2].partition("/")[2]))


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of a bucket, or of the first folder of a server, and the key of an object in it."""
    head, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    key = key.strip("/")
    if scheme(url) not in ("http", "https", "file"):
        return f"{head}://{host}", key
    first, slash, inner = key.partition("/")  # of a server of S3 or Azure, the first folder is the bucket
    return (f"{head}://{host}/{first}", unquote(inner)) if slash else (f"{head}://{host}", unquote(key))


def parse_bytes(text: int | str, name: str) -> int:
    """Return a size in bytes, given as a number or with a unit, such as "200GB". A ValueError names the argument `name`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]I?B|B|)", str(text).strip().upper())
    if found is None:
        raise ValueError(f"{name} is {text!r}, but must be bytes, as 500000000, or have a unit, as '200GB' or '512MiB'")
    return int(float(found[1]) * UNITS[found[2]])


def parse_storage(words: Iterable[str]) -> dict[str, Any]:
    """Return options of a client that are given as KEY=VALUE, or raise a ValueError."""
    found = dict[str, Any]()
    for word in words:
        key, is_given, value = word.partition("=")
        if not key or not is_given:
            raise ValueError(f"--storage is {word!r}, but must be KEY=VALUE, such as endpoint=http://127.0.0.1:9000")
        found[key] = value.lower() == "true" if value.lower() in ("true", "false") else value
    return found
