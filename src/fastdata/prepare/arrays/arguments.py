"""Which of the arguments of `prep` are about which kind of data."""

from __future__ import annotations

from typing import Any

from fastdata.prepare.kinds import kind_of

__all__ = ["arguments_of_arrays"]

BOTH = {"labels": None, "classes": None, "masks": None, "mask_suffix": "", "mask_bits": 8, "limit": None}
ARRAYS = {"chunk": None, "channels": "none", "key": None, "dtype": None, "max_bytes": 1 << 32}
TEXT = {"tokenizer": None, "train_bpe": None, "end_token": None, "split_lines": False, "split_on": None, "field": "text"}
IMAGES = {
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
}


def arguments_of_arrays(given: dict[str, Any]) -> dict[str, Any] | None:
    """Those of `prep`, or those of them that differ from its defaults, that are about arrays; None: it is of images or text.

    Raises:
        ValueError: one is given that is about the other kind.
    """
    kind = given.get("kind") or kind_of(given["source"])
    if kind not in ("images", "arrays"):
        raise ValueError(f"kind is {kind!r}, but must be images or arrays")
    foreign: dict[str, dict[str, Any]] = {"images": IMAGES, "text": TEXT} if kind == "arrays" else {"arrays": ARRAYS}
    for name, default, other in ((name, default, what) for what in foreign for name, default in foreign[what].items()):
        if given.get(name, default) != default:
            hint = "" if given.get("kind") or other == "text" else f"; if these are {other}, say so with kind (--kind {other})"
            raise ValueError(f"{name} is about {other}, but {given['source']} holds {kind}{hint}")
    if kind == "images":
        return None
    return {name: given.get(name, default) for name, default in {**BOTH, **ARRAYS}.items()}
