"""`--shard-samples`: how many samples a shard has at most."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastdata
import stores
from fastdata import LMDBDataset
from fastdata.store.manifest import read_manifest
from support import tree


def prepared(out: Path, **options: object) -> Path:
    return fastdata.prep(stores.sources(), out, **{"size": 32, "codec": "rgb", "workers": 1, **options}).out


def shards(store: Path) -> list[int]:
    return list(read_manifest(store).shard_samples)


@pytest.mark.parametrize(("most", "count"), [(1, 42), (5, 9), (1000, 1)])
def test_no_shard_has_more(most: int, count: int, tmp_path: Path) -> None:
    out = prepared(tmp_path / "a.fds", shard_samples=most)
    assert len(shards(out)) == count and sum(shards(out)) == 42 and max(shards(out)) <= most
    default, chosen = LMDBDataset(prepared(tmp_path / "b.fds")), LMDBDataset(out)
    assert all(bool((chosen[k][0] == default[k][0]).all()) and chosen[k][1] == default[k][1] for k in range(42))


def test_it_is_part_of_the_plan(tmp_path: Path) -> None:
    out = prepared(tmp_path / "a.fds", shard_samples=5)
    assert tree(prepared(tmp_path / "b.fds", shard_samples=5, workers=3)) == tree(out)
    with pytest.raises(fastdata.errors.PrepError, match="shard_samples 5, now 7"):
        prepared(out, shard_samples=7)
