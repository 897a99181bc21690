"""Column: what a column of a store holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.store.files import COLUMNS, Count, Entry
from fastdata.tokenizer import Spec

NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")  # that torch has
TEXTS = ("text", "bytes", "json")
GEOMETRIES = {"xyxy": (4,), "xy": (3,)}  # the last axis of values
INSTANCES = "instances"  # the group of what annotations say of the objects in an image
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class ColumnTokens(Entry, frozen=True):
    """How a column's tokens were made of text."""

    tokenizer: Spec  # its identity
    vocab_size: Count  # all ids are below it
    pad: Count | None  # the id that fills the rest of a row of fixed length; None: rows have lengths of their own


class Column(Entry, frozen=True):
    """What a column holds. Raise ValueError if that does not fit together.

    The geometry is "xyxy" for boxes, x1, y1, x2, y2, or "xy" for keypoints, x, y, visibility; in pixels of the prepared file,
    upright; 0, 0 is the upper left corner of the upper left pixel.
    """

    name: str  # letters, digits, "_" and "-"; it names the column's files
    type: str  # a dtype by its name in numpy, or "text", "bytes" or "json"
    shape: tuple[Count, ...] = ()  # of a value; of a list, that of one item
    many: bool = False  # whether each sample has a list of values, whose length differs
    geometry: str | None = None
    group: str | None = None  # lists of one group have the same length in each sample: they describe the same instances
    names: tuple[str, ...] = ()  # what whole numbers stand for, such as categories; with keypoints, their names
    ids: tuple[int, ...] = ()  # the numbers that the prepared annotations had for the names; columns may differ in these
    tokens: ColumnTokens | None = None  # how whole numbers were made of text

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a column cannot be called {self.name!r}: use letters, digits, - and _")
        if self.type not in (*NUMBERS, "bool", *TEXTS):
            raise ValueError(f"column {self.name} has the type {self.type}, but types are {', '.join((*NUMBERS, 'bool', *TEXTS))}")
        if self.type in TEXTS and (self.shape or self.many):
            raise ValueError(f"column {self.name} of {self.type} holds one value for each sample: use json for lists")
        if self.geometry is not None and (self.type, self.shape[-1:]) != ("float32", GEOMETRIES.get(self.geometry)):
            raise ValueError(f"column {self.name} of {self.type} {list(self.shape)} cannot have the geometry {self.geometry}")
        if self.ids and len(self.ids) != len(self.names):
            raise ValueError(f"column {self.name} has {len(self.ids)} ids for {len(self.names)} names")

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

    @property
    def tokenizer_file(self) -> str:
        """The name of the tokenizer's file in the store; empty if there is none."""
        file = "" if self.tokens is None else self.tokens.tokenizer.file
        return f"{COLUMNS}/{self.name}.{file}" if file else ""

    def __str__(self) -> str:
        """The name and the type, such as "boxes (lists of float32[4])"."""
        each = self.type + (str(list(self.shape)) if self.shape else "")
        tokens = "" if self.tokens is None else f", tokens of {self.tokens.tokenizer.name}"
        return f"{self.name} ({'lists of ' if self.many else ''}{each}{tokens})"


SOURCE_SIZE = Column("source_size", "int32", (2,))  # (height, width) of the prepared file, upright, where columns have a geometry


def mirror_order(names: Sequence[str]) -> list[int]:
    """Return which keypoint each one becomes in a mirror image: "left_..." and "right_..." change places."""
    place, other = {name: k for k, name in enumerate(names)}, {"left": "right", "right": "left"}
    parts = [name.partition("_") for name in names]
    return [place.get(f"{other[side]}_{rest}", k) if side in other else k for k, (side, _, rest) in enumerate(parts)]
