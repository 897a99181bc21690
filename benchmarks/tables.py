"""Random batches of a table of 10 million rows: TableDataset beside a dataset of DataFrame rows, and beside quicker ways by hand.

    python benchmarks/tables.py [--rows 10000000] [--batch 1024] [--rounds 5] [--folder /tmp]

Eight columns of numbers, two of categories and a class, from a fixed seed. All contestants hold their data in memory, and deliver
random rows; that their values are the same is checked. Rounds are interleaved; the first one does not count.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from fastdata import Loader, TableDataset
from fastdata.bench.harness import Run, interleave, summarize, table

Array = np.ndarray[Any, np.dtype[Any]]
COLOURS, SIZES = [f"colour {k}" for k in range(12)], [f"size {k:04d}" for k in range(1000)]


def write_table(path: Path, rows: int) -> None:
    """The table as Parquet, a million rows at a time."""
    writer = None
    for start in range(0, rows, 1_000_000):
        n, rng = min(1_000_000, rows - start), np.random.default_rng(start)
        part = pa.table(
            {
                "id": np.arange(start, start + n),
                "age": rng.integers(0, 100, n),
                "count": rng.integers(-20_000, 20_000, n),
                "eighths": rng.integers(0, 800, n) / 8,
                "normal": rng.normal(size=n).astype(np.float32),
                "exact": rng.normal(size=n),
                "flag": rng.random(n) < 0.3,
                "day": rng.integers(0, 20_000, n).astype(np.int32),
                "colour": pa.DictionaryArray.from_arrays(rng.integers(0, 12, n), COLOURS).cast(pa.string()),
                "size": pa.DictionaryArray.from_arrays(rng.integers(0, 1000, n), SIZES).cast(pa.string()),
                "label": rng.integers(0, 10, n),
            }
        )
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()


class FrameRows(Dataset[Any]):
    """What many write first: a row of a DataFrame, made a dict of tensors. Categories are codes already."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return {name: torch.as_tensor(row[name]) for name in self.frame.columns if name != "label"}, int(row["label"])


class Batches:
    """A batch sampler: the given lists of rows."""

    def __init__(self, rows: Array) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def by_gather(dataset: TableDataset, rows: Array) -> Iterator[Any]:
    return (dataset.gather(dataset.locate(part)) for part in rows)


def by_column(columns: dict[str, torch.Tensor], target: torch.Tensor, rows: Array) -> Iterator[Any]:
    for part in map(torch.from_numpy, rows):
        yield {name: column.index_select(0, part) for name, column in columns.items()}, target.index_select(0, part)


def by_words(words: Array, rows: Array) -> Iterator[Any]:
    return (words.take(part, axis=0) for part in rows)


def contestants(dataset: TableDataset, frame: pd.DataFrame, batch: int) -> dict[str, tuple[Callable[[Array], Iterator[Any]], int]]:
    """Name -> (batches of given rows, how many batches a round takes)."""
    columns = {name: dataset.column(name) for name in dataset.columns}
    target = torch.from_numpy(dataset.targets)
    words = dataset._whole.memory.array.view(np.int64).reshape(len(dataset), -1)
    endless = itertools.chain.from_iterable(itertools.repeat(Loader(dataset, batch, shuffle=True, seed=0)))

    def workers(data: Dataset[Any]) -> Callable[[Array], Iterator[Any]]:
        return lambda rows: iter(DataLoader(data, batch_sampler=Batches(rows), num_workers=2))

    return {
        "TableDataset.gather": (lambda rows: by_gather(dataset, rows), 500),
        "Loader(TableDataset), shuffled": (lambda rows: endless, 500),
        "limit: numpy copies the same rows, without columns": (lambda rows: by_words(words, rows), 500),
        "torch, a gather for each column": (lambda rows: by_column(columns, target, rows), 500),
        "DataFrame rows (iloc), 2 workers": (workers(FrameRows(frame)), 10),
    }


def check(dataset: TableDataset, frame: pd.DataFrame, batch: int) -> None:
    """All deliver the same values."""
    rows = np.random.default_rng(5).integers(0, len(dataset), (1, batch))
    columns, target = dataset.gather(dataset.locate(rows[0]))
    other, labels = next(iter(DataLoader(FrameRows(frame), batch_sampler=Batches(rows))))
    same = [np.array_equal(columns[name].numpy().astype(np.float64), other[name].numpy().astype(np.float64)) for name in columns]
    assert all(same) and torch.equal(target, labels), "the contestants differ"
    with Loader(dataset, batch, shuffle=True, seed=0) as loader:
        first = next(iter(loader))
    assert np.array_equal(first[0]["id"].numpy(), first.ids), "the Loader delivers other rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        source = Path(folder) / "table.parquet"
        write_table(source, given.rows)
        dataset = TableDataset(source, target="label")
        frame = pd.read_parquet(source)
    for name in ("colour", "size"):
        frame[name] = frame[name].astype("category").cat.codes
    check(dataset, frame, given.batch)
    rng = np.random.default_rng(1)

    def turn(batches: Callable[[Array], Iterator[Any]], count: int) -> Callable[[float], Run]:
        def measure(_: float) -> Run:
            rows = rng.integers(0, len(dataset), (count, given.batch))
            cpu, started = time.process_time(), time.perf_counter()
            for _ in itertools.islice(batches(rows), count):
                pass
            return Run(rows.size, time.perf_counter() - started, time.process_time() - cpu)

        return measure

    turns = {name: turn(*runner) for name, runner in contestants(dataset, frame, given.batch).items()}
    runs = interleave(turns, seconds=0, repeats=given.rounds)
    rows = summarize(runs, reference="DataFrame rows (iloc), 2 workers")
    cells = [[row["name"], f"{row['images_per_s']['median']:,.0f}", f"{row['ratio']['median']:,.1f}"] for row in rows]
    print("\n".join(table(["", "rows/s", "times DataFrame rows with workers"], cells)))


if __name__ == "__main__":
    main()
