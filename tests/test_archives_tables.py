"""Parquet and Arrow as SOURCE, whole and hostile; written by pyarrow itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from archives import all_pixels, equal, png, problems
from fastdata import prep
from fastdata.errors import CodecError, PrepError
from fastdata.sources.base import read_source
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions
from fastdata.store.store import Store
from stores import whole
from support import PREP, run

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(rows: list[Any], labels: list[Any] | None = None, names: list[str] | None = None) -> Any:
    """As Hugging Face's datasets writes it, with labels of an unusual name if they are a ClassLabel."""
    columns = {"image": pa.array(rows, IMAGE)}
    about: dict[str, Any] = {"image": {"_type": "Image"}}
    if labels is not None:
        name = "species" if names else "label"
        columns[name] = pa.array(labels)
        about[name] = {"names": names, "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    meta = {"huggingface": json.dumps({"info": {"features": about}})}
    return pa.table(columns).replace_schema_metadata(meta)


def rows(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"bytes": png(k)[1], "path": f"some/where/n{k}.png", **more} for k in range(first, first + count)]


def wanted(first: int, count: int) -> list[Any]:
    return [png(k)[0] for k in range(first, first + count)]


def write(path: Path, table: Any, rows: int = 100) -> Path:
    """A file of the kind that its name says, in pieces of so many rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, chunksize=rows)
    else:
        with (pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file)(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize(("ending", "per_group"), [(".parquet", 7), (".parquet", 100), ("-stream.arrow", 7), ("-file.arrow", 7)])
def test_a_hugging_face_dataset(tmp_path: Path, ending: str, per_group: int) -> None:
    labels = [k % 3 for k in range(50)]
    for part in range(2):
        one = table(rows(25 * part, 25), labels[25 * part : 25 * part + 25], ["cat", "dog", "eel"])
        write(tmp_path / f"train-0000{part}-of-00002{ending}", one, per_group)
    found = list_sources(tmp_path)
    assert found.labels.names == ("cat", "dog", "eel") and [s.label for s in found.sources] == labels
    assert found.sources[26].name == f"train-00001-of-00002{ending}/000001-n26.png"
    assert sum(s.size for s in found.sources) == sum(p.stat().st_size for p in tmp_path.iterdir())
    equal(all_pixels(str(tmp_path / f"train-*{ending}")), wanted(0, 50))
    made = Store(prep(tmp_path, tmp_path.parent / "o.fds", codec="rgb", workers=2, overwrite=True).out)
    assert made.samples["label"].tolist() == labels
    equal(whole(made.path), wanted(0, 50))
    for k in (49, 0, 41, 39, 3, 3, 2, 40, 49):
        assert read_source(found.root, found.sources[k]) == png(k)[1]


@pytest.mark.parametrize(
    ("columns", "image"),
    [
        ({"picture": rows(0, 2), "other": [1, 2]}, "picture"),
        ({"jpg": [png(0)[1], png(1)[1]]}, "jpg"),
        ({"img": rows(0, 2), "mask": rows(7, 2)}, "img"),
        ({"image": [png(0)[1], png(1)[1]], "hash": [b"a", b"b"]}, "image"),
        ({"raw": [b"a", b"b"], "pic": [{"bytes": png(k)[1]} for k in (0, 1)]}, "pic"),
    ],
)
def test_which_column_holds_the_images(tmp_path: Path, columns: dict[str, Any], image: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert {s.locator[2] for s in list_sources(tmp_path / "x.parquet").sources} == {image}
    equal(all_pixels(tmp_path / "x.parquet"), wanted(0, 2))


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_null_images_and_images_that_are_only_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "here.png").write_bytes(png(9)[1])
    given = [None, {}, {"bytes": b"", "path": "here.png"}, *rows(0, 1), {"path": "here.png"}]
    found = list_sources(write(tmp_path / name, table(given)))
    assert problems(found) == ["no-image", "no-image", "empty", "", "missing"]
    with pytest.raises(CodecError, match=r"only a path, here.png: .*embed_table_storage"):
        read_source(found.root, found.sources[4])


def test_tables_that_do_not_go_together(tmp_path: Path) -> None:
    one = table(rows(0, 1), [0], ["a", "b"])
    pq.write_table(one, tmp_path / "0.parquet")
    pq.write_table(one.append_column("note", [["x"]]), tmp_path / "1.parquet")  # which is not stored
    equal(all_pixels(tmp_path), [*wanted(0, 1), *wanted(0, 1)])
    pq.write_table(table(rows(0, 1), [0], ["b", "a"]), tmp_path / "1.parquet")
    with pytest.raises(PrepError, match=r"1\.parquet and .*0\.parquet differ in image column, label column or classes"):
        list_sources(tmp_path)
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(PrepError, match="SOURCE mixes parquet and tar"):
        list_sources(str(tmp_path / "{0.parquet,x.tar}"))


def test_tables_that_are_not_whole_are_errors(tmp_path: Path) -> None:
    """A stream of Arrow may end behind any batch, as far as pyarrow is concerned."""
    for name in ("x.parquet", "x.feather", "file.arrow", "stream.arrow"):
        path = write(tmp_path / name, table(rows(0, 40), list(range(40))), 10)
        good = path.read_bytes()
        cuts = [good[:size] for size in (*range(0, len(good), 997), len(good) - 8, len(good) - 1)]
        for wrong in (*cuts, b"PAR1" * 10, good[:-8] + b"\xff" * 4 + b"PAR1"):
            path.write_bytes(wrong)
            with pytest.raises(PrepError, match=rf"{name} is damaged, or was cut short .*; copy it again"):
                list_sources(path)


def test_a_damaged_page_leaves_the_other_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(rows(0, 40), list(range(40))), path, row_group_size=20, compression="none", use_dictionary=False)
    damaged = bytearray(path.read_bytes())
    at = damaged.index(png(0)[1])
    damaged[at - 60 : at] = b"\xff" * 60  # the header of the first page
    path.write_bytes(damaged)
    summary = prep(path, tmp_path / "o.fds", workers=1)
    assert summary.inputs == 40 and summary.kept == 20 and sum(summary.rejected.values()) == 20
    assert Store(summary.out).samples["label"].tolist() == list(range(20, 40))


def test_counts_that_the_bytes_cannot_hold_are_errors(tmp_path: Path) -> None:
    """Rows without an image take no bytes where they are compressed: a million of them is no lie."""
    few, many = tmp_path / "few.parquet", tmp_path / "many.parquet"
    for path, count in ((few, 100_000), (many, 2_000_000)):
        pq.write_table(pa.table({"image": pa.nulls(count, pa.binary())}), path)
    assert few.stat().st_size < 10_000 and len(list_sources(few).sources) == 100_000
    with pytest.raises(PrepError, match=r"claims to hold 2000000 images in \d+ bytes: it is damaged"):
        list_sources(many)


def test_caches_of_datasets_are_no_inputs(tmp_path: Path) -> None:
    for k in range(2):
        one = table(rows(7 * k, 7)).append_column("kind", pa.array(["a", "b"] * 3 + ["a"]))
        write(tmp_path / f"data-{k:05d}-of-00002-stream.arrow", one, 3)
    (tmp_path / "state.json").write_text("{}")
    write(tmp_path / "cache-0123456789abcdef-stream.arrow", pa.table({"other": [1]}))
    found = list_sources(tmp_path, LabelOptions(label_column="kind"))
    assert found.labels.names == ("a", "b") and [s.label for s in found.sources] == [0, 1, 0, 1, 0, 1, 0] * 2
    equal(all_pixels(tmp_path), wanted(0, 14))


def with_far_offsets(path: Path, lengths: list[int]) -> Path:
    """The values of these lengths, of which the last is said to end a gigabyte later."""
    data, offsets = path.read_bytes(), np.cumsum([0, *lengths]).astype("<i4")
    assert data.count(offsets.tobytes()) == 1
    far = offsets.copy()
    far[-1] += 1 << 30
    path.write_bytes(data.replace(offsets.tobytes(), far.tobytes()))
    return path


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_offsets_that_lead_out_of_a_file_are_errors(tmp_path: Path, kind: str) -> None:
    """pyarrow follows them: in a process of its own, since it would end by SIGSEGV or SIGBUS."""
    far = with_far_offsets(write(tmp_path / f"i-{kind}.arrow", table(rows(0, 3))), [len(png(k)[1]) for k in range(3)])
    done = run(*PREP, far, tmp_path / "i.fds", "--workers", 1)
    assert done.returncode == 2 and "arrow is damaged" in done.stderr
    names = pa.table({"x": [1, 2, 3], "y": ["cat", "mouse", "ox"]})
    far = with_far_offsets(write(tmp_path / f"t-{kind}.arrow", names), [3, 5, 2])
    done = run(sys.executable, "-c", "import sys, fastdata; fastdata.TableDataset(sys.argv[1])", far)
    assert done.returncode == 1 and "StoreError" in done.stderr and "cannot be read as a table" in done.stderr
