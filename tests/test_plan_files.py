"""A plan as files: what was written comes back, and its fingerprint is that of earlier versions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fastdata.errors import PrepError
from fastdata.images.masks import MaskRecipe
from fastdata.images.prepare import ImageRecipe
from fastdata.prepare.plan import Work, load_plan, make_plan, save_plan
from fastdata.sources.inputs import Source, SourceList
from fastdata.store.manifest import Labels


def _work(count: int, out: Path) -> Work:
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
    return Work(replace(plan, skipped={".txt": 2}, notes=("a note",)), out)


def _check(before: Work, after: Work) -> None:
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
