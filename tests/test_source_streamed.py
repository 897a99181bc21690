"""Datasets of MosaicML Streaming and of LitData as SOURCE, as their packages wrote them (tools/make_foreign.py)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from archives import all_pixels
from fastdata import PrepError
from fastdata.sources.catalog import read_source
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions
from support import Array

FOREIGN = Path(__file__).parent / "data" / "foreign"


def expected(k: int) -> Array:
    """The image that was written as sample k."""
    return np.fromfunction(lambda y, x, c: 5 * y + 3 * x + 20 * c + 4 * k, (16 + k, 20, 3)).astype(np.uint8)


CASES: dict[str, tuple[tuple[str, ...], list[Any], int]] = {  # names of classes, labels, files
    "mds-jpeg": (("0", "1", "2"), [0, 1, 2, 0, 1], 1),
    "mds-bytes": (("0", "1", "2", "3", "4"), [0, 1, 2, 3, 4], 2),
    "litdata-dict": (("0", "1", "2"), [0, 1, 2, 0, 1], 2),
    "litdata-pair": (("label1",), [(k / 2,) for k in range(5)], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_images_and_labels(name: str) -> None:
    names, labels, count = CASES[name]
    found = list_sources(FOREIGN / name)
    assert (found.labels.names, [source.label for source in found.sources]) == (names, labels)
    files = sorted(path for path in (FOREIGN / name).iterdir() if path.name != "index.json")
    assert len(files) == count and [*dict.fromkeys(source.name.split("/")[0] for source in found.sources)] == [
        f.name for f in files
    ]
    for k, pixels in enumerate(all_pixels(FOREIGN / name)):
        assert pixels.shape == expected(k).shape and np.abs(pixels.astype(int) - expected(k)).max() <= 6
        assert read_source(found.root, found.sources[k]) in b"".join(file.read_bytes() for file in files)


def test_the_jpegs_are_taken_as_they_are(tmp_path: Path) -> None:
    summary = fastdata.prep(FOREIGN / "mds-jpeg", tmp_path / "o.fds", codec="original", workers=1)
    assert summary.originals == {"full": 5} and summary.bytes_before == summary.bytes_after
    assert any("1 column is not stored: note" in note for note in summary.notes)


def test_another_column_of_labels_or_none() -> None:
    def listed(name: str, column: str) -> Any:
        return list_sources(FOREIGN / name, LabelOptions(label_column=(column,))).labels

    assert listed("mds-jpeg", "note").names == ("n0", "n1", "n2", "n3", "n4")
    assert listed("litdata-dict", "none").kind == "none"
    for column in ("nota", "image"):
        with pytest.raises(
            PrepError, match=rf"{column}: .* no such column of numbers or texts; it has image \(jpeg\), label \(int\)"
        ):
            listed("mds-jpeg", column)


def test_compressed_shards_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match=r"mds-zipped is compressed: decompress it, as reading all of StreamingDataset"):
        list_sources(FOREIGN / "mds-zipped")
    zstandard = pytest.importorskip("zstandard")
    shutil.copytree(FOREIGN / "mds-zipped", tmp_path / "in")
    for path in (tmp_path / "in").glob("*.zstd"):
        path.with_suffix("").write_bytes(zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()))
    assert all(np.array_equal(image, expected(k)) for k, image in enumerate(all_pixels(tmp_path / "in")))


def changed(root: Path, name: str, change: Callable[[Any], Any] = lambda index: None) -> Path:
    """A copy of a dataset with another index.json."""
    shutil.copytree(FOREIGN / name, root / name, dirs_exist_ok=True)
    index = json.loads((FOREIGN / name / "index.json").read_text())
    change(index)
    (root / name / "index.json").write_text(json.dumps(index))
    return root / name


INDEXES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("mds-jpeg", lambda i: i.update(shards=[]), "lists no files of samples"),
    ("mds-jpeg", lambda i: i["shards"][0].update(samples=4), "does not hold the 4 samples that index.json lists"),
    *(("mds-jpeg", lambda i, n=n: i["shards"][0].update(samples=n), "cannot read .*shard.00000.mds") for n in (1 << 62, 1 << 99)),
    ("mds-jpeg", lambda i: i["shards"][0].update(samples=float("inf")), "index.json is damaged"),
    ("litdata-dict", lambda i: i["config"].update(data_spec="[" * 99_999), "index.json is damaged"),
    ("mds-jpeg", lambda i: i["shards"][0].update(samples=-3), "cannot read .*shard.00000.mds"),
    ("mds-jpeg", lambda i: i["shards"][0].pop("samples"), "index.json is damaged, or of a newer version: KeyError"),
    ("mds-jpeg", lambda i: i["shards"][0]["column_sizes"].pop(), "index.json is damaged|cannot read"),
    ("mds-jpeg", lambda i: i["shards"][0]["column_sizes"].__setitem__(1, -9), "a sample is larger than its place"),
    ("mds-jpeg", lambda i: i["shards"][0]["column_sizes"].__setitem__(1, 4), "cannot read"),
    ("mds-bytes", lambda i: i["shards"][1].update(format="csv"), "has shards of format csv, version 2"),
    ("mds-bytes", lambda i: i["shards"][1]["column_names"].__setitem__(1, "file"), "has other image or label columns"),
    (
        "mds-jpeg",
        lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "pil"),
        "image files .* there are image \\(pil\\), label",
    ),
    ("litdata-dict", lambda i: i["config"].update(compression="zstd"), r"compressed or encrypted: write it with"),
    ("litdata-dict", lambda i: i["config"].update(data_spec="["), "index.json is damaged"),
    *(
        ("mds-jpeg", lambda i, name=name: i["shards"][0]["raw_data"].update(basename=name), "which lies outside of its folder")
        for name in ("/etc/passwd", "../y/shard.00000.mds", "a/../../y/shard.00000.mds")
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), INDEXES)
def test_an_index_that_is_damaged_or_not_known_is_an_error(
    tmp_path: Path, name: str, change: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(PrepError, match=message):
        list_sources(changed(tmp_path, name, change))


@pytest.mark.parametrize(("name", "file"), [("mds-jpeg", "shard.00000.mds"), ("litdata-dict", "chunk-0-0.bin")])
def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path, name: str, file: str) -> None:
    root = changed(tmp_path, name)
    data = (root / file).read_bytes()
    for size in range(0, len(data), 7):
        (root / file).write_bytes(data[:size])
        with pytest.raises(PrepError, match=rf"cannot read .*{file}"):
            list_sources(root)


def test_a_cell_that_is_no_image_is_a_reject(tmp_path: Path) -> None:
    root = changed(tmp_path, "mds-jpeg")
    data = (root / "shard.00000.mds").read_bytes()
    (root / "shard.00000.mds").write_bytes(data.replace(b"\xff\xd8\xff", bytes(3), 1))
    summary = fastdata.prep(root, tmp_path / "o.fds", workers=1)
    assert summary.kept == 4 and sum(summary.rejected.values()) == 1


def test_splits_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(FOREIGN / "mds-jpeg", tmp_path / "in" / split)
    with pytest.raises(PrepError, match="holds train and val side by side"):
        list_sources(tmp_path / "in")
