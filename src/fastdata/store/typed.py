"""The options that a store was made with, by the names that they are typed by."""

from __future__ import annotations

from typing import Any

__all__ = ["UNTYPED", "typed_options"]

UNTYPED = ("columns", "libraries", "rounded", "trained-on", "vocab-size")  # which follow from others, or from the files
NAMES = {"sizes": "size", "end": "end-token"}


def typed_options(options: dict[str, Any]) -> dict[str, Any]:
    """A manifest's options: `--size` without its dashes stands for "sizes", and so on."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if key == "mask":
            found |= _mask(value or {})
        elif key == "cutting":
            found |= _cutting(value.get("separator", ""), value.get("field", "text"))
        elif key == "tokenizer":
            found |= _tokenizer(value, trained=bool(options.get("trained_on")))
        else:
            found[NAMES.get(key, key.replace("_", "-"))] = value
    return found


def _mask(mask: dict[str, Any]) -> dict[str, Any]:
    if not mask:
        return {}
    palette = [
        " ".join(map(str, [*color, name])) for color, name in zip(mask.get("colors", ()), mask.get("names", ()), strict=False)
    ]
    return {"mask-bits": mask.get("bits"), **({"palette": palette} if palette else {})}


def _cutting(separator: str, field: str) -> dict[str, Any]:
    cut = {"split-lines": True} if separator == "\n" else {"split-on": separator} if separator else {}
    return {**cut, "field": field}


def _tokenizer(spec: dict[str, Any], *, trained: bool) -> dict[str, Any]:
    if trained and spec["engine"] == "tokenizers":
        return {"train-bpe": int(spec["name"].removeprefix("bpe-"))}
    return {"tokenizer": spec["name"]} if spec["name"] else {}
