"""The kind of data "table", for the packages that serve every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fastdata.kinds import Kind, Planned, StrPath
from fastdata.tables.options import TableOptions

__all__ = ["KIND", "TableKind"]


class TableKind(Kind):
    """Rows of numbers and names, stored column by column."""

    name = "table"
    says = "a table"
    item = "row"
    reader = "TableDataset"
    held_by = "TableDataset"
    adopts = "a DataFrame"
    options = TableOptions
    shards = "fastdata.tables.shards"
    files = ()
    labels = ("class", "vector", "integer", "none")
    drawn = "columns"
    exports = ("parquet",)
    untyped = ("columns",)
    hint = "; a table is a .parquet, .csv or .tsv file with a --target"

    def claims(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether a target is given and the source is a file of a table, or the source was a DataFrame."""
        from fastdata.tables.source import is_table_file

        return is_table_file(source, with_target=bool(given.get("target")))

    def suggest(self, source: StrPath) -> list[str]:
        """Return files in a folder that may be tables."""
        from fastdata.remote.path import to_path
        from fastdata.sources.walk import walk_files
        from fastdata.tables.source import is_table_file

        folder = to_path(source)
        names = (name for name, _, _ in walk_files(folder)) if folder.is_dir() else ()
        return [str(folder / name) for name in names if is_table_file(folder / name, with_target=True)][:3]

    def adopt(self, source: Any, labels: Any) -> AbstractContextManager[tuple[StrPath, Any]] | None:
        """Write a DataFrame to a temporary file."""
        from fastdata.tables.frame import as_file, is_frame

        return as_file(source, labels) if is_frame(source) else None

    def plan(self, source: StrPath, out: Path, options: TableOptions, limit: int | None) -> Planned:
        """Read the table once and decide how to store its columns."""
        from fastdata.remote.path import to_path
        from fastdata.tables.planning import plan_table

        return plan_table(to_path(source), options, limit)

    def sizes(self, store: Any, sources: Sequence[Any]) -> tuple[int, int]:
        """Return the bytes of the file and of the shards."""
        return sum(source.size for source in sources), sum(shard.bytes for shard in store.manifest.variants[0].shards)

    def differences(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        """Yield a line if the table has changed."""
        if old.get("columns") != new.get("columns"):
            yield "  columns: other names, types or values"

    def alike(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return nothing: `join` compares the columns, and names the first that differs."""
        return {}

    def join(self, stores: Any, samples: Any) -> dict[str, Any]:
        """Join the columns, which must be stored alike."""
        from fastdata.tables.columns import join_tables

        return {"table": join_tables([store.manifest.section("table") for store in stores])}

    def form(self, codec: str, channels: int, dtype: str, *, mask: bool) -> Any:
        from fastdata.store.format import Form

        fits = codec == "table" and channels in (1, 3) and dtype == "uint8" and not mask
        return Form(codec, channels, dtype) if fits else None

    def sections(self, body: dict[str, Any], variants: tuple[Any, ...]) -> dict[str, Any]:
        """Read the columns."""
        from fastdata.tables.columns import parse_table

        return {"table": parse_table(body["table"], variants[0].records)}

    def record_bytes(self, store: Any, variant: Any) -> Any:
        """Return the bytes of the columns and masks of each shard."""
        import numpy as np

        table = store.manifest.section("table")
        each = [1 if is_mask else np.dtype(column.dtype).itemsize for column, is_mask in table.records()]
        return np.outer(store.manifest.shard_samples, each).reshape(-1)

    def samples_dtype(self, labels: Any, variants: Iterable[str]) -> Any:
        """Return a dtype without columns: there is no samples.npy."""
        import numpy as np

        return np.dtype([])

    def classes(self, store: Any) -> Any:
        """Return the target of each row."""
        from fastdata.tables.info import column_values

        table = store.manifest.section("table")
        return column_values(store, table.column(table.targets[0])).astype("int64")

    def facts(self, store: Any) -> dict[str, Any]:
        """Return what `info` says on the targets and the columns."""
        from fastdata.tables.info import table_facts

        return {"table": table_facts(store)}

    def memory(self, store: Any) -> Iterator[dict[str, Any]]:
        """Yield the size of a TableDataset."""
        from fastdata.tables.layout import Layout

        layout = Layout(store.manifest.section("table"), store.manifest.labels.kind)
        yield {"size": None, "bytes": len(store) * layout.row.itemsize}

    def lines(self, facts: dict[str, Any]) -> Iterator[str]:
        from fastdata.tables.info import table_lines

        return table_lines(facts)

    def sheet(self, store: Any, size: int | None) -> tuple[Any, int, str]:
        """Draw the distribution of the values of each column."""
        from fastdata.tables.contact_sheet import draw_columns

        return draw_columns(store)

    def report(self, store: Any) -> Iterator[Any]:
        """Yield the sections on columns."""
        from fastdata.tables.report import table_sections

        return table_sections(store)

    def export(self, store: Any, root: Path, to: str, size: int | None, tick: Callable[[int], None], options: Any) -> int:
        """Write a Parquet file."""
        from fastdata.tables.export import export_table

        return export_table(store, root, tick)

    def dataset(self, manifest: Any) -> Any:
        from fastdata.tables.dataset import TableDataset

        return TableDataset

    def in_memory(self) -> Any:
        from fastdata.tables.dataset import RAMTable

        return RAMTable


KIND = TableKind()
