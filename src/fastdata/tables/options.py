"""The options of `fastdata-prep` for tables."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.options import option
from fastdata.sources.options import StrPath

__all__ = ["TableOptions"]


@dataclass(frozen=True)
class TableOptions:
    """Tables"""

    target: tuple[str, ...] = option(
        "Column to learn of SOURCE, which is a table. Names and booleans become classes, whole numbers stay as they are, other "
        "numbers become a vector of floats. May be given several times for numbers.",
        (),
        several=True,
        metavar="COLUMN",
        common=True,
    )
    category: tuple[str, ...] = option(
        "Column of names that look like numbers. May be given several times.", (), several=True, metavar="COLUMN"
    )
    drop: tuple[str, ...] = option("Column to leave out. May be given several times.", (), several=True, metavar="COLUMN")
    classes: StrPath | None = option("Use the class list of this store.", type="folder", group="Labels")
