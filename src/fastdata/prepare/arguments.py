"""Which kind of data a source is, and which of the arguments of `prep` are about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata.prepare.kinds import kind_of
from fastdata.prepare.naming import as_option
from fastdata.prepare.table.options import is_table_file
from fastdata.prepare.text.sources import holds_tokens
from fastdata.prepare.walk import walk_files

__all__ = ["own_arguments", "what_is_asked"]

PAIRS = {
    "labels": None,
    "classes": None,
    "label_from": None,
    "label_column": None,
    "root": None,
    "split": None,
    "masks": None,
    "mask_suffix": "",
    "mask_bits": 8,
    "limit": None,
}
OWN: dict[str, dict[str, Any]] = {
    "images": {
        "size": None,
        "resize": "short",
        "upscale": False,
        "codec": "jpeg",
        "quality": 90,
        "gray": False,
        "bits": 8,
        "background": (255, 255, 255),
        "max_pixels": 1 << 28,
        "palette": None,
        **PAIRS,
    },
    "arrays": {"chunk": None, "channels": "none", "key": None, "dtype": None, "max_bytes": 1 << 32, **PAIRS},
    "tokens": {
        "tokenizer": None,
        "train_bpe": None,
        "end_token": None,
        "split_lines": False,
        "split_on": None,
        "field": "text",
        "limit": None,
    },
    "table": {"target": None, "category": None, "drop": None, "classes": None, "limit": None},
}
NAMES = {"images": "images", "arrays": "arrays", "tokens": "text or tokens", "table": "a table"}
HINTS = {
    "tokens": "; of text, give --tokenizer or --train-bpe",
    "table": "; a table is a .parquet, .csv or .tsv file with a --target",
    "arrays": "; if these are arrays, say so: --kind arrays",
}


def what_is_asked(source: str | os.PathLike[str], given: dict[str, Any]) -> str:
    """The kind that is asked for, by name, or by an argument that only one kind has; else by the endings of the files."""
    kind = given.get("kind")
    if kind is not None:
        if kind not in OWN:
            raise ValueError(f"--kind is {kind}, but must be one of {', '.join(OWN)}")
        return str(kind)
    if given.get("tokenizer") is not None or given.get("train_bpe") is not None or holds_tokens(source):
        return "tokens"
    if is_table_file(source, with_target=bool(given.get("target"))):
        return "table"
    return kind_of(source)


def _tables_in(folder: Path) -> list[str]:
    """The first files of a folder that may be meant as tables."""
    names = (name for name, _, _ in walk_files(folder)) if folder.is_dir() else ()
    return [str(folder / name) for name in names if is_table_file(folder / name, with_target=True)][:3]


def own_arguments(kind: str, source: str | os.PathLike[str], given: dict[str, Any]) -> dict[str, Any]:
    """Those of `prep` that are about a kind, with their defaults.

    Raises:
        TypeError: there is no such argument.
        ValueError: one is given that is about another kind.
    """
    for name, value in given.items():
        others = [other for other in OWN if name in OWN[other] and OWN[other][name] != value]
        if name not in OWN[kind] and others:
            if others[0] == "table" and (files := _tables_in(Path(source))):
                raise ValueError(
                    f"{as_option(name)} is about a table, which is a file, but SOURCE {source} is a folder: "
                    f"give {' or '.join(files)}"
                )
            hint = HINTS.get(others[0], "") if given.get("kind") is None else ""
            raise ValueError(
                f"{as_option(name)} is about {NAMES[others[0]]}, but SOURCE {source} is {NAMES[kind]} here: leave it out{hint}"
            )
        if name != "kind" and not any(name in arguments for arguments in OWN.values()):
            raise TypeError(f"prep has no argument {name!r}")
    return {name: given.get(name, default) for name, default in OWN[kind].items()}
