"""Lists of inputs in little memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fastdata.arrays.source import ArraySource
from fastdata.sources.inputs import Source
from fastdata.sources.packed import Packed, PackedInputs
from support import PEAK_MEMORY

NAMES = ["a.jpg", "é/日本.png", "\udcff.jpg", "\ud800", "", "x" * 70_000]
INPUTS = [
    *(Source(name, label, size) for label, (name, size) in enumerate(zip(NAMES, [0, -1, 1, 1 << 31, 1 << 40, 7], strict=True))),
    Source("a", (1.5, float("inf")), 3, "no-label"),
    Source(
        "b", -1, 3, mask="m.png", place=("tar", "a.tar", 512, 1 << 40), values=("text", [1, 2], None, b"\0"), parts=((1, 2), None)
    ),
    Source("c", -1, 3, others=(Source("d", -1, -1, "no-partner"),), values=(True, 1, 1.0)),
    ArraySource("e.npy", 1, 5, ending=".npy"),
    Source("f", 0, 0),
]


def test_packed_inputs_are_those_that_were_given() -> None:
    packed = PackedInputs(iter(INPUTS))
    assert list(packed) == INPUTS and len(packed) == len(INPUTS)
    assert [repr(one) for one in packed] == [repr(one) for one in INPUTS]  # True is not 1, and 1 not 1.0
    assert [packed[k] for k in range(-len(INPUTS), len(INPUTS))] == INPUTS * 2
    assert packed[2:7] == tuple(INPUTS[2:7]) and packed[::-3] == tuple(INPUTS[::-3]) and packed[5:2] == ()
    assert not PackedInputs(()) and list(PackedInputs(())) == []
    with pytest.raises(IndexError):
        packed[len(INPUTS)]


def test_some_of_the_inputs_in_another_order() -> None:
    packed = PackedInputs(INPUTS)
    places = np.array([4, 1, 1, 10, 0])
    taken = packed.taken(places)
    assert list(taken) == [INPUTS[k] for k in places] and taken[1:3] == (INPUTS[1],) * 2 and taken[-1] == INPUTS[0]
    assert list(taken.taken(np.array([3, 0]))) == [INPUTS[10], INPUTS[4]]
    assert list(packed) == INPUTS


def test_packed_rows_are_equal_lists() -> None:
    rows = [["a", "b"], ["", "\udc80"], ["1", {"x": [None, 1.5]}]]
    assert list(Packed(rows)) == rows and Packed(rows)[1] == rows[1]


def test_an_input_takes_less_than_60_bytes_besides_its_text() -> None:
    def inputs(count):
        return (Source(f"class{k // 1000:05d}/image_{k:09d}.jpg", k % 1000, 100_000 + k) for k in range(count))

    text = sum(len(one.name) for one in inputs(50_000))
    tracemalloc.start()
    packed = PackedInputs(inputs(50_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held - text < 60 * len(packed)


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
def test_planning_takes_less_than_250_bytes_an_input(tmp_path: Path) -> None:
    (tmp_path / "class00000").mkdir()
    (tmp_path / "class00000" / "image_000000000.jpg").write_bytes(b"not read")
    few, many = (_peak(tmp_path, rows) for rows in (30_000, 130_000))
    assert (many - few) / 100_000 < 250
