"""Datasets of MosaicML Streaming and of LitData as SOURCE, as their packages wrote them (tools/make_foreign.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from archives import pixels_of
from fastdata.errors import PrepError
from fastdata.sources.base import read_source
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
    "litdata-pair": (("1",), [(k / 2,) for k in range(5)], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_images_and_labels(name: str) -> None:
    names, labels, count = CASES[name]
    found = list_sources(FOREIGN / name, LabelOptions(regression=("1",) if name == "litdata-pair" else ()))
    assert (found.labels.names, [source.label for source in found.sources]) == (names, labels)
    files = sorted(path for path in (FOREIGN / name).iterdir() if path.name != "index.json")
    assert len(files) == count and {source.name.split("/")[0] for source in found.sources} == {file.name for file in files}
    for k, pixels in enumerate(pixels_of(found, k) for k in range(len(found.sources))):
        assert pixels.shape == expected(k).shape and np.abs(pixels.astype(int) - expected(k)).max() <= 6
        assert read_source(found.root, found.sources[k]) in b"".join(file.read_bytes() for file in files)


def test_another_column_of_labels() -> None:
    assert list_sources(FOREIGN / "mds-jpeg", LabelOptions(label_column="note")).labels.names == ("n0", "n1", "n2", "n3", "n4")
    with pytest.raises(PrepError, match=r"its columns of numbers and texts, has no column image for labels; it has label, note"):
        list_sources(FOREIGN / "mds-jpeg", LabelOptions(label_column="image"))


def test_jpegs_are_taken_as_they_are_and_what_is_none_is_a_reject(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FOREIGN / "mds-jpeg", tmp_path / "in"))
    data = (root / "shard.00000.mds").read_bytes()
    (root / "shard.00000.mds").write_bytes(data.replace(b"\xff\xd8\xff", bytes(3), 1))
    summary = fastdata.prep(root, tmp_path / "o.fds", codec="original", workers=1)
    assert summary.originals == {"full": 4} and sum(summary.rejected.values()) == 1
    assert any("1 column is not stored: note" in note for note in summary.notes)


def test_compressed_shards_are_refused_with_a_way_out() -> None:
    with pytest.raises(PrepError, match=r"mds-zipped is compressed: to decompress it, iterate over StreamingDataset"):
        list_sources(FOREIGN / "mds-zipped")


INDEXES: list[tuple[tuple[str | int, ...], Any, str]] = [  # what is changed in it, the new value, and the error
    (("shards",), [], "lists no files of samples"),
    (("shards", 0, "samples"), 4, "does not hold the 4 samples that index.json lists"),
    (("shards", 0, "column_sizes", 0), 4, "shard.00000.mds is damaged"),
    (("shards", 1, "column_names", 1), "file", "differ in image column, label column or classes"),
    (("shards", 0, "column_encodings", 1), "pil", r"image files .* found cls \(int64\), image \(pil\)"),
    *((("shards", 0, "raw_data", "basename"), name, "which lies outside of") for name in ("/etc/passwd", "../x", "a/../../x")),
    (("config", "compression"), "zstd", "compressed or encrypted: rewrite it with"),
    (("config", "data_spec"), "[", "index.json is damaged, or of a newer version"),
]


@pytest.mark.parametrize(("where", "value", "message"), INDEXES)
def test_an_index_that_is_damaged_or_not_known_is_an_error(
    tmp_path: Path, where: tuple[str | int, ...], value: Any, message: str
) -> None:
    shutil.copytree(FOREIGN / ("mds-bytes" if where[0] == "shards" else "litdata-dict"), tmp_path / "in")
    part = index = json.loads((tmp_path / "in/index.json").read_text())
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    (tmp_path / "in/index.json").write_text(json.dumps(index))
    with pytest.raises(PrepError, match=message):
        list_sources(tmp_path / "in")


@pytest.mark.parametrize(("name", "file"), [("mds-jpeg", "shard.00000.mds"), ("litdata-dict", "chunk-0-0.bin")])
def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path, name: str, file: str) -> None:
    root = Path(shutil.copytree(FOREIGN / name, tmp_path / "in"))
    data = (root / file).read_bytes()
    for size in range(0, len(data), 7):
        (root / file).write_bytes(data[:size])
        with pytest.raises(PrepError, match=rf"{file} is damaged, or was cut short .*; copy it again"):
            list_sources(root)
