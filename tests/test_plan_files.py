"""A plan: lists of inputs in little memory, their order, and their files, whose fingerprint is that of earlier versions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastdata
import stores
from fastdata import LMDBDataset
from fastdata.arrays.files import ArraySource
from fastdata.errors import PrepError
from fastdata.images.prepare import ImageRecipe, MaskRecipe
from fastdata.prepare.build_plan import build_plan
from fastdata.prepare.plan import PrepareRun, load_plan, make_plan, save_plan
from fastdata.sources.inputs import Packed, Source, SourceList
from fastdata.store.manifest import Labels, read_manifest
from support import MAIN, PEAK_MEMORY, encode, picture, run, write_pictures


def _work(count: int, out: Path) -> PrepareRun:
    sources = [
        Source(f"{k}.npy", (k / 7, 1.0), k, "", ("tar", f"{k}.npz", 7), (None, [1], "t", [7, k]), (Source("m", -1, k),))
        if k % 3
        else Source(f"ä\udcff{k}.png", k % 7, k % 99, "missing" * (k % 5 == 0))
        for k in range(count)
    ]
    for source in sources:
        (out.parent / source.container).touch()
    found = SourceList(out.parent, Labels("class", tuple("abcdefg")), sources)
    recipe = ImageRecipe(sizes=(32, None), mask=MaskRecipe(8, ((1, 2, 3),), ("x",)))
    plan = make_plan(found, recipe, files={"t.json": b"\0\xff"}, companions=(out.parent / "masks",))
    (out / "work").mkdir(parents=True)
    return PrepareRun(replace(plan, skipped={".txt": 2}, notes=("a note",)), out)


def _check(before: PrepareRun, after: PrepareRun) -> None:
    old, new = before.plan, after.plan
    assert {**vars(old), "sources": [*old.sources]} == {**vars(new), "sources": [*new.sources]}


@pytest.mark.slow
def test_a_task_reads_the_inputs_of_its_shard_alone(tmp_path: Path) -> None:
    work = _work(45_000, tmp_path / "o.fds")
    save_plan(work.plan, work.out)
    loaded = load_plan(work.out)
    _check(work, loaded)
    files = sorted(work.out.glob("work/sources-*.json"))
    assert len(files) == work.plan.num_shards and max(path.stat().st_size for path in files) < 1 << 20
    for path in files[:-1]:
        path.unlink()
    last = load_plan(work.out).plan
    assert last.shard(last.num_shards - 1) == work.plan.shard(last.num_shards - 1)
    with pytest.raises(PrepError, match=r"sources-\w+-00000\.json cannot be used: No such file or directory"):
        last.shard(0)


def test_written_twice_the_files_are_the_same(tmp_path: Path) -> None:
    work = _work(300, tmp_path / "o.fds")
    save_plan(work.plan, work.out)
    before = {path: path.read_bytes() for path in work.out.rglob("*") if path.is_file()}
    save_plan(load_plan(work.out).plan, work.out)
    assert {path: path.read_bytes() for path in work.out.rglob("*") if path.is_file()} == before


def test_the_fingerprint_depends_on_all_that_decides_the_bytes(tmp_path: Path) -> None:
    plan = _work(30, tmp_path / "o.fds").plan
    changed = [
        replace(plan, sources=[*plan.sources[:-1], replace(plan.sources[-1], size=7)]),
        replace(plan, sources=[plan.sources[1], plan.sources[0], *plan.sources[2:]]),
        replace(plan, options=replace(plan.options, quality=91)),
        replace(plan, labels=Labels("class", tuple("abcdefh"))),
        replace(plan, libraries={**plan.libraries, "lmdb": "0"}),
        replace(plan, bounds=(0, 9, 30)),
    ]
    assert len({plan.fingerprint, *(one.with_fingerprint().fingerprint for one in changed)}) == 7
    assert replace(plan, roots=("elsewhere",), notes=("other",)).with_fingerprint().fingerprint == plan.fingerprint


@pytest.mark.parametrize("count", [1, 5, 200])
def test_there_are_never_more_shards_than_inputs(tmp_path: Path, count: int) -> None:
    for claimed in (1 << 20, 3 << 30, 1 << 50, 1 << 90):
        sources = [Source(f"{k:03d}.png", -1, claimed) for k in range(count)]
        plan = make_plan(SourceList(tmp_path, Labels("none"), sources), ImageRecipe())
        assert plan.num_shards <= count and all(first < end for first, end in pairwise(plan.bounds))


def test_no_shard_has_more_samples_than_the_option_says(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 7)
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", shard_samples=3, workers=1).out
    assert sorted(read_manifest(out).shard_samples) == [2, 2, 3]
    with pytest.raises(PrepError, match="shard_samples 3, now 7"):
        fastdata.prep(tmp_path / "in", out, shard_samples=7, workers=1)


NAMES = ["a.jpg", "é/日本.png", "\udcff.jpg", "\ud800", "", "x" * 300]
INPUTS = [
    *(Source(name, label, size) for label, (name, size) in enumerate(zip(NAMES, [0, -1, 1, 1 << 31, 1 << 40, 7], strict=True))),
    Source("a", (1.5, float("inf")), 3, "no-label"),
    Source("b", -1, 3, locator=("tar", "a.tar", 512, 1 << 40), values=("text", [1, 2], (1, 2), None, b"\0")),
    Source("c", -1, 3, companions=(Source("d", -1, -1, "missing"),), values=(True, 1, 1.0)),
    ArraySource("e.npz/a", 1, 5, key="a"),
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
    taken = packed.taken(np.array(places, np.int64))
    assert list(taken) == [items[k] for k in places] and len(taken) == len(places)
    assert [repr(one) for one in packed] == [repr(one) for one in items] and len(packed) == len(items)  # True is not 1
    with pytest.raises(IndexError):
        packed[len(items)]


PLANNING = f"""{PEAK_MEMORY}
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
    command = [sys.executable, "-c", PLANNING, str(table), str(folder / f"{rows}.fds")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_planning_takes_less_than_120_bytes_an_input(tmp_path: Path) -> None:
    (tmp_path / "class00000").mkdir()
    (tmp_path / "class00000" / "image_000000000.jpg").write_bytes(b"not read")
    few, many = (_peak(tmp_path, rows) for rows in (30_000, 130_000))
    assert (many - few) / 100_000 < 120


def prepared(out: Path, **options: object) -> Path:
    return fastdata.prep(stores.sources(), out, size=32, codec="rgb", workers=1, **options).out


def test_the_same_samples_in_another_order(tmp_path: Path) -> None:
    listed, shuffled = prepared(tmp_path / "a.fds"), prepared(tmp_path / "b.fds", order="shuffled")
    first, second = LMDBDataset(listed), LMDBDataset(shuffled)
    names = [first.name(k) for k in range(42)], [second.name(k) for k in range(42)]
    assert names[0] == sorted(names[0]) and names[1] != names[0] and sorted(names[1]) == names[0]
    for k, name in enumerate(names[1]):
        pixels, label = first[names[0].index(name)]
        assert second[k][1] == label and bool((second[k][0] == pixels).all())
    assert first.classes == second.classes
    runs = (np.diff(second.targets) != 0).sum()
    assert runs > 20, "neighbours have different classes: 27 changes by chance, 2 as listed"
    assert run(*MAIN, "verify", shuffled).returncode == 0


def test_the_order_stays_what_it_is(tmp_path: Path) -> None:
    """A run that is continued by a newer version has the same plan."""
    names = [s.name for s in build_plan(stores.sources(), tmp_path / "a.fds", order="shuffled", limit=6).plan.sources]
    assert names == [f"{stores.CLASSES[k % 3]}/{k:03d}.png" for k in [1, 21, 22, 23, 0, 2]]


def test_what_is_read_forward_or_lies_in_memory_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [{"bytes": encode(picture(k, 20, 24), ".png"), "path": f"{k}.png"} for k in range(3)]
    pq.write_table(pa.table({"image": images}), tmp_path / "images.parquet")
    with pytest.raises(PrepError, match=r"images.parquet would read a large part of it for each input"):
        fastdata.prep(tmp_path / "images.parquet", tmp_path / "a.fds", order="shuffled", workers=1)
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="order is about"):
        fastdata.prep(tmp_path / "t.txt", tmp_path / "c.fds", tokenizer="bytes", order="shuffled", workers=1)
