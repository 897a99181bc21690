"""`--shard-samples`: how many samples a shard has at most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastdata
import stores
from fastdata import ArrayDataset, LMDBDataset
from fastdata.store.format import read_manifest
from support import PREP, run, tree


def prepared(out: Path, **options: object) -> Path:
    return fastdata.prep(stores.sources(), out, **{"size": 32, "codec": "rgb", "workers": 1, **options}).out


def shards(store: Path) -> list[int]:
    return list(read_manifest(store).shard_samples)


@pytest.mark.parametrize(("most", "count"), [(1, 42), (5, 9), (41, 2), (42, 1), (1000, 1)])
def test_no_shard_has_more(most: int, count: int, tmp_path: Path) -> None:
    out = prepared(tmp_path / "a.fds", shard_samples=most)
    assert len(shards(out)) == count and sum(shards(out)) == 42 and max(shards(out)) <= most
    default, chosen = LMDBDataset(prepared(tmp_path / "b.fds")), LMDBDataset(out)
    assert all(bool((chosen[k][0] == default[k][0]).all()) and chosen[k][1] == default[k][1] for k in range(42))


def test_arrays_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(7):
        np.save(tmp_path / "in" / f"{k}.npy", np.full((3, 4), k, np.int16))
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", shard_samples=2, workers=1).out
    assert shards(out) == [1, 2, 2, 2]
    assert [int(array[0][0, 0]) for array in ArrayDataset(out)] == [*range(7)]


def test_it_is_part_of_the_plan(tmp_path: Path) -> None:
    out = prepared(tmp_path / "a.fds", shard_samples=5)
    assert tree(prepared(tmp_path / "b.fds", shard_samples=5, workers=3)) == tree(out)
    with pytest.raises(fastdata.PrepError, match="shard_samples 5, now 7"):
        prepared(out, shard_samples=7)


def test_it_does_not_matter_for_merging(tmp_path: Path) -> None:
    out, other = prepared(tmp_path / "a.fds", shard_samples=5), prepared(tmp_path / "b.fds", order="shuffled")
    assert len(LMDBDataset(fastdata.merge([out, other], tmp_path / "c.fds"))) == 84


def test_a_wrong_number_is_refused(tmp_path: Path) -> None:
    done = run(*PREP, stores.sources(), tmp_path / "a.fds", "--shard-samples", "0")
    assert done.returncode == 2 and "--shard-samples is 0, but must be positive" in done.stderr
