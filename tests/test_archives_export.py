"""Stores as WebDataset tars, and back; against Python's tarfile."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from fastdata import prep
from fastdata.errors import StoreError
from fastdata.store.export import export
from fastdata.store.store import Store
from stores import floats, store, unlabelled
from support import encode, picture


def test_floats_and_stores_without_labels_come_back(tmp_path: Path) -> None:
    export(floats(), tmp_path / "f", to="webdataset")
    first, again = Store(floats()), Store(prep(tmp_path / "f", tmp_path / "f.fds", regression="label", workers=1).out)
    assert again.manifest.labels == first.manifest.labels
    np.testing.assert_array_equal(again.samples["label"], first.samples["label"])
    export(unlabelled(), tmp_path / "u", to="webdataset")
    assert Store(prep(tmp_path / "u", tmp_path / "u.fds", workers=1).out).manifest.labels.kind == "none"


def test_wrong_use_of_export(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--to is 'zip', but .* holds images, which go to imagefolder, webdataset"):
        export(unlabelled(), tmp_path / "x", to="zip")
    with pytest.raises(StoreError, match="has no size 9"):
        export(unlabelled(), tmp_path / "x", size=9, to="webdataset")
    with pytest.raises(ValueError, match=r"--shard-size goes with --to webdataset, but .* is exported to imagefolder: leave"):
        export(unlabelled(), tmp_path / "x", shard_size=1 << 20)
    with pytest.raises(ValueError, match="--shard-size is 0, but must be positive"):
        export(unlabelled(), tmp_path / "x", to="webdataset", shard_size=0)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("most", [10_240, 23_456, 10_000_000])
def test_no_tar_is_larger_than_it_may_be(tmp_path: Path, most: int) -> None:
    """Nor is one smaller than it could be: the first sample of the next would not have fitted."""
    made = Store(store("jpeg"))
    assert export(made.path, tmp_path / "x", size=64, to="webdataset", shard_size=most) == 42
    tars = sorted((tmp_path / "x").glob("*.tar"))
    assert [tar.name for tar in tars] == [f"{k:05d}.tar" for k in range(len(tars))]
    members, sizes = list[str](), list[int]()
    for tar in tars:
        with tarfile.open(tar) as opened:
            members += opened.getnames()
            assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in opened} == {(0, 0, 0, "", 0o644)}
            sizes.append(next(512 + -(-m.size // 512) * 512 for m in opened) + 1024)
        assert tar.stat().st_size <= most
    assert members == [f"{k:08d}.{ending}" for k in range(42) for ending in ("jpg", "cls")], "each sample once, in order"
    for tar, first in zip(tars, sizes[1:], strict=False):
        with tarfile.open(tar) as opened:
            used = sum(512 + -(-m.size // 512) * 512 for m in opened)
        assert -(-(used + first + 1024) // 10_240) * 10_240 > most


def test_no_two_classes_share_a_folder(tmp_path: Path) -> None:
    rows = ["path,label"]
    for k, name in enumerate(("a/b", "a_b", "a_b_", "..")):
        (tmp_path / f"{k}.png").write_bytes(encode(picture(k, 9, 9), ".png"))
        rows.append(f"{k}.png,{name}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    export(prep(tmp_path / "t.csv", tmp_path / "o.fds", workers=1).out, tmp_path / "x")
    files = sorted(str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*.jpg"))
    assert files == ["_../3.jpg", "a_b/0.jpg", "a_b_/1.jpg", "a_b__/2.jpg"]
