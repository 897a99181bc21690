"""`--order shuffled`: the same samples in an order that is drawn once, by the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastdata
import stores
from fastdata import LMDBDataset
from fastdata.errors import PrepError
from fastdata.prepare.build_plan import build_plan
from support import MAIN, encode, picture, run


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
    with pytest.raises(PrepError, match=r"images.parquet is unpacked in large pieces"):
        fastdata.prep(tmp_path / "images.parquet", tmp_path / "a.fds", order="shuffled", workers=1)
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="order is about"):
        fastdata.prep(tmp_path / "t.txt", tmp_path / "c.fds", tokenizer="bytes", order="shuffled", workers=1)
