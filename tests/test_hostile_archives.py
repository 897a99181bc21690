"""Archives that lie about themselves: they cost no more than their bytes, whatever they claim."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archives import png
from fastdata import PrepError
from fastdata.images.prepare import ImageRecipe
from fastdata.prepare.plan import make_plan
from fastdata.sources.listing import list_sources


@pytest.mark.parametrize("part", ["path", "label"])
def test_a_parquet_whose_rows_disagree_with_its_groups_is_damaged(tmp_path: Path, part: str) -> None:
    """One byte of its tables becomes another number of rows, values or bytes."""
    images = [{"bytes": png(k)[1], "path": f"{k}.png"} if part == "path" else {"bytes": png(k)[1]} for k in range(3)]
    table = pa.table({"image": images, **({"label": [0, 1, 2]} if part == "label" else {})})
    pq.write_table(table, tmp_path / "x.parquet")
    data = (tmp_path / "x.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    said = set()
    for at in range(footer, len(data) - 8):
        if data[at] == 2 * 3:  # 3 as Thrift writes it
            (tmp_path / "y.parquet").write_bytes(data[:at] + bytes([2 * 4]) + data[at + 1 :])
            try:
                found = list_sources(tmp_path / "y.parquet")
            except PrepError as error:
                said.add(str(error).partition(" is damaged: ")[2])
            else:
                assert len(found.sources) in (3, 4)
    column = "image.path" if part == "path" else "label"
    assert f"{column} has 3 rows, its row groups 4; copy it again" in said


def test_counts_that_the_bytes_cannot_hold_are_errors(tmp_path: Path) -> None:
    """Rows without an image take no bytes where they are compressed: a million of them is no lie."""
    few, many = tmp_path / "few.parquet", tmp_path / "many.parquet"
    for path, count in ((few, 100_000), (many, 2_000_000)):
        pq.write_table(pa.table({"image": pa.nulls(count, pa.binary())}), path)
    assert few.stat().st_size < 10_000 and len(list_sources(few).sources) == 100_000
    with pytest.raises(PrepError, match=r"claims to hold 2000000 images in \d+ bytes: it is damaged"):
        list_sources(many)


# The plan


@pytest.mark.parametrize("count", [1, 5, 200])
def test_there_are_never_more_shards_than_inputs(tmp_path: Path, count: int) -> None:
    for k in range(count):
        (tmp_path / f"{k:03d}.png").write_bytes(b"")
    found = list_sources(tmp_path)
    for claimed in (1 << 20, 3 << 30, 1 << 50, 1 << 90):
        plan = make_plan(replace(found, sources=[replace(source, size=claimed) for source in found.sources]), ImageRecipe())
        assert plan.num_shards <= count and all(first < end for first, end in pairwise(plan.bounds))
