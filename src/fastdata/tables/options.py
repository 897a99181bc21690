"""What `fastdata-prep` can be asked for of tables."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.options import option
from fastdata.sources.options import StrPath

__all__ = ["TableOptions"]


@dataclass(frozen=True)
class TableOptions:
    """Tables"""

    target: tuple[str, ...] = option(
        "SOURCE is a table, and this the column to learn. Names and booleans are classes, whole numbers are themselves, others a "
        "vector of floats. May repeat for numbers.",
        (),
        several=True,
        metavar="COLUMN",
        common=True,
    )
    category: tuple[str, ...] = option(
        "A column whose values are names, though they look like numbers; may repeat.", (), several=True, metavar="COLUMN"
    )
    drop: tuple[str, ...] = option("A column of the table to leave out; may repeat.", (), several=True, metavar="COLUMN")
    classes: StrPath | None = option("Use the class list of this store.", type="folder", group="Labels")
