"""The columns of a dataset of images: what it emits of them, and samples that are chosen by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastdata.data.dataset import SlotDataset
from fastdata.errors import StoreError
from fastdata.images.fields import Columns, Fields
from fastdata.images.records import Images

__all__ = ["ColumnsDataset"]

Array = np.ndarray[Any, np.dtype[Any]]


class ColumnsDataset(SlotDataset):
    """A dataset whose images may have columns."""

    has_columns = True

    def __init__(self, images: Images, fields: Fields | None) -> None:
        super().__init__()
        self._images = images
        self._fields = fields

    @property
    def fields(self) -> str | tuple[str, ...] | None:
        """The columns that are emitted as targets; None: labels or masks."""
        if self._fields is None:
            return None
        return self._fields.names[0] if self._fields.single else self._fields.names

    @property
    def columns(self) -> Columns:
        """The columns of the store, in the order of this dataset: a mapping of names to arrays or lists of n values."""
        rows = self.rows(np.arange(len(self)))
        return Columns(self._images.columns, rows, self._images.targets[rows])

    def decode(self, tokens: Any, column: str | None = None) -> str:
        """Return the text of tokens, by the tokenizer of their column, without the padding at their end.

        Args:
            tokens: whole numbers [length].
            column: the column they come from; None: the only one that holds tokens.

        Raises:
            StoreError: if there is no such column.
            MissingExtraError: if the tokenizer's library is not installed.
        """
        known = [name for name, values in self._images.columns.items() if values.column.tokens is not None]
        if (column is None and len(known) != 1) or (column is not None and column not in known):
            which = "name one of them" if column is None and known else f"{column or 'tokens'} cannot be decoded"
            raise StoreError(f"{self._images.place} has the columns of tokens {', '.join(known) or 'none'}: {which}")
        return self._images.columns[column or known[0]].decode(np.asarray(tokens).reshape(-1).tolist())

    def where(self, condition: Callable[[Columns], Any]) -> Any:
        """Return the samples whose columns meet a condition, as a dataset of the same kind. No image is read.

        Args:
            condition: takes `columns` and returns a bool for each sample: `lambda columns: columns["score"] > 0.5`.

        Raises:
            TypeError, ValueError: if it returns anything else.
        """
        chosen = np.asarray(condition(self.columns))
        if chosen.dtype != bool:
            raise TypeError(f"the condition returned {chosen.dtype}, but must return a bool for each sample")
        if chosen.shape != (len(self),):
            raise ValueError(f"the condition returned {list(chosen.shape)} values, but the dataset has {len(self)} samples")
        return self.subset(chosen)

    def _strata(self, stratify: bool | str) -> Array:
        if not isinstance(stratify, str):
            return super()._strata(stratify)
        values = self.columns[stratify]
        if len(set(map(np.shape, values))) > 1 or np.ndim(values[0]):
            raise ValueError(
                f"stratify is {stratify!r}, but this column has lists or arrays: name one with a value for each sample"
            )
        return np.unique(np.array(values), return_inverse=True)[1]
