"""Which objects below a URL are those of its store.

They lie at the URL itself, or, if the store has replaced another one, in a folder `version-N`, which the manifest at the URL names
and says no more. Object storage has no rename: one PUT of that manifest is the moment from which readers get the new store.
"""

from __future__ import annotations

import json
import re

__all__ = ["pointed", "pointer", "prefix", "version_of"]


def prefix(version: int) -> str:
    """Return what the names of a version's objects begin with."""
    return f"version-{version}/" if version > 1 else ""


def version_of(name: str) -> int:
    """Return the version that an object belongs to."""
    found = re.match(r"version-([0-9]{1,9})/", name)
    return int(found[1]) if found else 1


def pointer(version: int, fingerprint: str) -> bytes:
    """Return the manifest at the URL of a store that lies in the folder of a version."""
    body = {
        "format": "fastdata",
        "version": "2.0",
        "shards_in": prefix(version)[:-1],
        "fingerprint": fingerprint,
        "files": {},
    }
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def pointed(raw: bytes) -> int:
    """Return the version that a manifest at a URL names; 1: it is that of a store which lies there itself, or damaged."""
    try:
        body = json.loads(raw)
        named = re.fullmatch(r"version-([1-9][0-9]{0,8})", body["shards_in"]) if body["files"] == {} else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return 1
    return 1 if named is None else int(named[1])
