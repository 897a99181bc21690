"""Column: what a column of a store holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.store.files import COLUMNS

__all__ = ["NUMBERS", "TEXTS", "Column"]

NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")  # that torch has
TEXTS = ("text", "bytes", "json")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        name: letters, digits, "_" and "-"; it names the column's files.
        type: a dtype by its name in numpy, or "text", "bytes" or "json".
        shape: the shape of a value; of a list, that of one item.
        many: whether each sample has a list of values, whose length differs.

    Raises:
        ValueError: if these do not fit together.
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    many: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a column cannot be called {self.name!r}: use letters, digits, - and _")
        if self.type not in (*NUMBERS, "bool", *TEXTS):
            raise ValueError(f"column {self.name} has the type {self.type}, but types are {', '.join((*NUMBERS, 'bool', *TEXTS))}")
        if self.type in TEXTS and (self.shape or self.many):
            raise ValueError(f"column {self.name} of {self.type} holds one value for each sample: use json for lists")

    @property
    def ragged(self) -> bool:
        """Whether the lengths of values differ, so that they are stored with offsets."""
        return self.many or self.type in TEXTS

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values: bytes for text."""
        return np.dtype(np.uint8 if self.type in TEXTS else self.type)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the column's files in its store."""
        stems = (f"{self.name}.values", f"{self.name}.offsets") if self.ragged else (self.name,)
        return tuple(f"{COLUMNS}/{stem}.npy" for stem in stems)
