"""`--shard-samples`: how many samples a shard has at most."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastdata
from fastdata.store.manifest import read_manifest
from fastdata.store.store import Store
from support import write_pictures


def test_no_shard_has_more_and_the_number_is_part_of_the_plan(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 7)
    out, other = (fastdata.prep(tmp_path / "in", tmp_path / f"{most}.fds", shard_samples=most, workers=1).out for most in (3, 9))
    assert sum(counts := read_manifest(out).shard_samples) == 7 and len(counts) == 3 and max(counts) == 3
    assert read_manifest(other).shard_samples == (7,)
    stores = [Store(path) for path in (out, other)]
    one, two = (store.reader(store.variant(None)) for store in stores)
    assert [bytes(one.get(k)) for k in range(7)] == [bytes(two.get(k)) for k in range(7)]
    with pytest.raises(fastdata.errors.PrepError, match="shard_samples 3, now 7"):
        fastdata.prep(tmp_path / "in", out, shard_samples=7, workers=1)
