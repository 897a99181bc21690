"""Lists of inputs in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.arrays.files import ArraySource
from fastdata.sources.inputs import Source
from fastdata.sources.packed import Packed
from support import PEAK_MEMORY

NAMES = ["a.jpg", "é/日本.png", "\udcff.jpg", "\ud800", "", "x" * 300]
INPUTS = [
    *(Source(name, label, size) for label, (name, size) in enumerate(zip(NAMES, [0, -1, 1, 1 << 31, 1 << 40, 7], strict=True))),
    Source("a", (1.5, float("inf")), 3, "no-label"),
    Source("b", -1, 3, place=("tar", "a.tar", 512, 1 << 40), values=("text", [1, 2], (1, 2), None, b"\0")),
    Source("c", -1, 3, companions=(Source("d", -1, -1, "missing"),), values=(True, 1, 1.0)),
    ArraySource("e.npz/a", 1, 5, key="a", archive="e.npz"),
    Source("f", 0, 0),
]


ITEMS = st.one_of(st.sampled_from(INPUTS), st.integers(), st.text(), st.lists(st.none() | st.floats(allow_nan=False)))


@given(st.lists(ITEMS, min_size=1, max_size=200), st.data())
def test_a_packed_list_is_read_as_a_list_is(items: list[Any], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(items) - 1))
    packed = Packed(iter(items[:cut]))
    packed.extend(items[cut:-1])
    packed.append(items[-1])
    where = st.integers(-len(items), len(items) - 1)
    for k in data.draw(st.lists(where, max_size=5)):
        assert packed[k] == items[k]
    found = data.draw(st.slices(len(items)))
    assert packed[found] == tuple(items[found])
    places = [k % len(items) for k in data.draw(st.lists(where, max_size=50))]
    for chosen in (places, np.array(places, np.int64)):
        taken = packed.taken(chosen)
        assert list(taken) == [items[k] for k in places] and len(taken) == len(places)
        assert list(taken.taken(np.arange(len(places))[::-2])) == [items[k] for k in places[::-2]]
    assert [repr(one) for one in packed] == [repr(one) for one in items] and len(packed) == len(items)  # True is not 1
    with pytest.raises(IndexError):
        packed[len(items)]


PEAK = f"""{PEAK_MEMORY}
import sys
import fastdata.images.planning, fastdata
before = peak_memory()
fastdata.prep_plan(sys.argv[1], sys.argv[2])
print(peak_memory() - before)
"""


def _peak(folder: Path, rows: int) -> int:
    """Return the bytes that it takes to plan a table with so many rows."""
    table = folder / f"{rows}.csv"
    table.write_text("path,label\n" + "".join(f"class{k // 1000:05d}/image_{k:09d}.jpg,c{k % 100}\n" for k in range(rows)))
    command = [sys.executable, "-c", PEAK, str(table), str(folder / f"{rows}.fds")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_planning_takes_less_than_100_bytes_an_input(tmp_path: Path) -> None:
    (tmp_path / "class00000").mkdir()
    (tmp_path / "class00000" / "image_000000000.jpg").write_bytes(b"not read")
    few, many = (_peak(tmp_path, rows) for rows in (30_000, 130_000))
    assert (many - few) / 100_000 < 100
