"""Datasets of MosaicML Streaming and of LitData as SOURCE, as their packages wrote them (tools/make_foreign.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata import PrepError
from fastdata.store.store import Store
from fastdata.store.verify import verify
from stores import whole
from support import Array

FOREIGN = Path(__file__).parent / "data" / "foreign"


def expected(k: int, height: int) -> Array:
    """The image that was written as sample k."""
    return np.fromfunction(lambda y, x, c: 5 * y + 3 * x + 20 * c + 4 * k, (height, 20, 3)).astype(np.uint8)


CASES: dict[str, tuple[bool, int, tuple[str, ...], list[Any]]] = {  # all of one height, codes of difference, names, labels
    "mds-jpeg": (False, 6, ("0", "1", "2"), [0, 1, 2, 0, 1]),
    "mds-pil": (False, 0, ("c0", "c1"), [0, 1, 0, 1, 0]),
    "mds-array": (True, 0, ("label1",), [[k / 2] for k in range(5)]),
    "mds-fixed": (True, 0, (), [-1] * 5),
    "mds-bytes": (False, 6, ("0", "1", "2", "3", "4"), [0, 1, 2, 3, 4]),
    "litdata-dict": (False, 6, ("0", "1", "2"), [0, 1, 2, 0, 1]),
    "litdata-arrays": (True, 0, ("label1",), [[k / 2] for k in range(5)]),
    "litdata-pil": (False, 0, ("c0", "c1"), [0, 1, 0, 1, 0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_images_and_labels(tmp_path: Path, name: str) -> None:
    same, codes, names, labels = CASES[name]
    summary = fastdata.prep(FOREIGN / name, tmp_path / "o.fds", codec="rgb", workers=1)
    store = Store(summary.out)
    assert (summary.kept, summary.rejected) == (5, {}) and list(verify(store.path)) == []
    for k, image in enumerate(whole(store.path)):
        reference = expected(k, 16 if same else 16 + k)
        assert image.shape == reference.shape and np.abs(image.astype(int) - reference).max() <= codes
    assert store.manifest.labels.names == names and store.samples["label"].tolist() == labels
    assert {line.split("/")[0] for line in store.names()} == {p.name for p in (FOREIGN / name).iterdir()} - {"index.json"}


def test_the_jpegs_are_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("mds-jpeg", "litdata-dict"):
        summary = fastdata.prep(FOREIGN / name, tmp_path / f"{name}.fds", codec="original", workers=1)
        assert summary.originals == {"full": 5} and summary.bytes_before == summary.bytes_after
        store = Store(summary.out)
        files = b"".join(path.read_bytes() for path in sorted((FOREIGN / name).iterdir()))
        reader = store.reader(store.variant())
        assert all(bytes(reader.get(k)) in files for k in range(5))


def test_another_column_of_labels_or_none(tmp_path: Path) -> None:
    noted = Store(fastdata.prep(FOREIGN / "mds-jpeg", tmp_path / "a.fds", label_column="note", workers=1).out)
    assert noted.manifest.labels.names == ("n0", "n1", "n2", "n3", "n4")
    without = fastdata.prep(FOREIGN / "litdata-dict", tmp_path / "b.fds", label_column="none", workers=1)
    assert Store(without.out).manifest.labels.kind == "none" and any("label, note" in note for note in without.notes)
    with pytest.raises(PrepError, match=r"label_column nota: .* has no such column; it has image \(jpeg\), label \(int\), note"):
        fastdata.prep(FOREIGN / "mds-jpeg", tmp_path / "c.fds", label_column="nota")
    with pytest.raises(PrepError, match="label_column mask: it is ndarray:uint8:16,20, but labels are numbers or texts"):
        fastdata.prep(FOREIGN / "mds-array", tmp_path / "c.fds", label_column="mask")


def test_compressed_shards_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match=r"shard.00000.mds.zstd is compressed \(zstd\): decompress the shards in place"):
        fastdata.prep(FOREIGN / "mds-zipped", tmp_path / "o.fds")
    zstandard = pytest.importorskip("zstandard")
    shutil.copytree(FOREIGN / "mds-zipped", tmp_path / "in")
    for path in (tmp_path / "in").glob("*.zstd"):
        path.with_suffix("").write_bytes(zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()))
    made = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec="rgb", workers=1).out
    assert all(np.array_equal(image, expected(k, 16 + k)) for k, image in enumerate(whole(made)))


def changed(root: Path, name: str, change: Any) -> Path:
    """A copy of a dataset with another index.json."""
    shutil.copytree(FOREIGN / name, root / name, dirs_exist_ok=True)
    index = json.loads((FOREIGN / name / "index.json").read_text())
    change(index)
    (root / name / "index.json").write_text(json.dumps(index))
    return root / name


def test_what_is_damaged_or_not_known(tmp_path: Path) -> None:
    for name, change, message in (
        ("mds-pil", lambda i: i["shards"][0].update(samples=4), "does not hold the 4 samples that index.json lists"),
        ("mds-pil", lambda i: i["shards"][0].pop("samples"), "index.json is damaged, or of a newer version: KeyError"),
        ("mds-pil", lambda i: i["shards"][1].update(format="csv"), "has shards of format csv, version 2"),
        (
            "mds-pil",
            lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "str"),
            "one column of images .* is needed; there are x",
        ),
        ("litdata-pil", lambda i: i["config"].update(compression="zstd"), r"compression \(zstd\): write them without"),
        ("litdata-pil", lambda i: i["config"].update(data_spec="["), "index.json is damaged"),
    ):
        with pytest.raises(PrepError, match=message):
            fastdata.prep(changed(tmp_path, name, change), tmp_path / "o.fds")
    for size in (0, 3, 900):
        root = changed(tmp_path, "mds-pil", lambda i: None)
        data = (root / "shard.00000.mds").read_bytes()
        (root / "shard.00000.mds").write_bytes(data[:size])
        with pytest.raises(PrepError, match=r"cannot read .*shard\.00000\.mds"):
            fastdata.prep(root, tmp_path / "o.fds")


def test_a_cell_that_is_no_image_is_a_reject(tmp_path: Path) -> None:
    for mode, reason in ((b"LAB", "unsupported"), (b"RGX", "unsupported")):
        root = changed(tmp_path, "mds-pil", lambda i: None)
        data = (root / "shard.00001.mds").read_bytes()
        (root / "shard.00001.mds").write_bytes(data.replace(b"RGB", mode, 1))
        summary = fastdata.prep(root, tmp_path / "o.fds", overwrite=True, workers=1)
        assert (summary.kept, summary.rejected) == (4, {reason: 1})


def test_splits_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(FOREIGN / "mds-pil", tmp_path / "in" / split)
    with pytest.raises(PrepError, match="holds train and val side by side"):
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds")
