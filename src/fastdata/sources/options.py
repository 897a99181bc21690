"""Options on inputs, labels and masks, which several kinds of data share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fastdata.errors import PrepError
from fastdata.options import option
from fastdata.types import StrPath

NO_LABELS = "none"  # as the name of a label column
# usual names of columns of paths, and of labels
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "fine_label", "class", "class_name", "category", "cls", "target")


def find_column(columns: Iterable[str], names: Sequence[str]) -> str:
    """Return the column with the first of these names that occurs, ignoring case, or "" if none does."""
    lower = {str(column).lower(): column for column in reversed([*columns])}
    return next((lower[name] for name in names if name in lower), "")


def choose_label(columns: Sequence[str], wanted: str, where: object, likely: Sequence[str] = ()) -> str:
    """Return the column of labels: the one that the caller names, a usual one, or the only likely one; "" if there is none."""
    if wanted not in ("", NO_LABELS, *columns):
        raise PrepError(f"{where} has no column {wanted} for labels; it has {', '.join(map(str, columns))}")
    if wanted:
        return wanted if wanted in columns else ""
    return find_column(columns, LABELS) or (likely[0] if len(likely) == 1 else "")


@dataclass(frozen=True)
class LabelOptions:
    """Which inputs and labels to take."""

    labels: StrPath | None = option(
        "Table (CSV, TSV, JSONL, Parquet) of paths and labels. Paths are relative to SOURCE.", type="file", group="Labels"
    )
    classes: StrPath | Sequence[str] | None = option(
        "Number the classes as this store does, or in the order of this text file, with a name on each line.",
        type="path",
        metavar="STORE|FILE",
        group="Labels",
    )
    label_from: str | None = option(
        r"Take the class from each path: what the group of REGEX matches, as in '(n\d+)_'.", metavar="REGEX", group="Labels"
    )
    label_column: str | None = option(
        "The column of classes in a table or an archive; none: no labels.", metavar="COLUMN", group="Labels"
    )
    regression: tuple[str, ...] = option(
        "A column of numbers to predict, as float32. May repeat.", (), multiple=True, metavar="COLUMN", group="Labels"
    )
    path_column: str | None = option(
        "The column of a table that holds paths, or names of files without their ending.", metavar="COLUMN", group="Labels"
    )
    root: StrPath | None = option("The folder that a table's paths are relative to.", type="folder", group="Labels")
    split: str | None = option("Take only the rows of a table with this value in column `split`.", metavar="NAME", group="Labels")
    order: str | None = option(
        "The order of the samples in the store. listed: that of the inputs. shuffled: drawn once, so that each shard mixes "
        "the classes. Default: listed; for OUT in object storage, shuffled.",
        choices=("listed", "shuffled"),
    )
    shard_samples: int | None = option(
        "Maximum samples per shard, which also has at most about 2 GiB of input. Default: 10000, or fewer, for up to 128 "
        "shards of a few MiB of input.",
        type="int",
    )

    def __post_init__(self) -> None:
        if self.label_from is not None and (self.labels is not None or self.label_column is not None or self.regression):
            raise ValueError("--label-from takes labels from paths: leave out --labels, --label-column and --regression")
        if self.label_column is not None and self.regression:
            raise ValueError("use --label-column for classes or --regression for numbers to predict, not both")

    @property
    def column(self) -> str:
        """The column of labels, or the first column of numbers to predict; "" if none is named."""
        return self.label_column or "".join(self.regression[:1])

    @property
    def no_labels(self) -> bool:
        return self.label_column == NO_LABELS

    def of_source(self) -> LabelOptions:
        """Return the options on labels of SOURCE itself; none of them if labels come from elsewhere."""
        if self.no_labels or self.labels is not None or self.label_from is not None:
            return replace(self, label_column=NO_LABELS, regression=(), classes=None, labels=None, label_from=None)
        return self


@dataclass(frozen=True)
class SizeOptions:
    """Options on the size of inputs."""

    max_bytes: int | None = option(
        "Reject arrays and documents of more than this many bytes, before they are read. Default: 4294967296 for arrays, "
        "1073741824 for documents.",
        type="int",
    )


@dataclass(frozen=True)
class PairOptions:
    """Options on masks."""

    masks: StrPath | None = option(
        "A folder with a mask for each image (a PNG) or array. A mask has its input's name, except for the extension and what all "
        "masks add, such as _mask. Changed masks are noticed by name and size only: after editing them, use --overwrite.",
        type="folder",
        group="Masks",
    )
    mask_bits: int = option("8 for classes up to 255, or 16.", 8, choices=(8, 16), group="Masks")

    def __post_init__(self) -> None:
        if self.masks is None and self.mask_bits != 8:
            raise ValueError("--mask-bits is about masks: give --masks too")
