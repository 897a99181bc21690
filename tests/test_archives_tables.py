"""Parquet and HDF5 as SOURCE, whole and hostile; written by pyarrow and h5py themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archives import all_pixels, equal, png, problems, run_printed
from fastdata import MissingExtraError, PrepError, prep
from fastdata.sources.catalog import read_source
from fastdata.sources.listing import list_sources
from fastdata.store.store import Store
from stores import whole
from support import PREP, picture, run

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def features(**columns: Any) -> dict[bytes, bytes]:
    """The metadata that Hugging Face's datasets writes."""
    return {b"huggingface": json.dumps({"info": {"features": columns}}).encode()}


def table(rows: list[Any], labels: list[Any] | None = None, names: list[str] | None = None) -> Any:
    columns = {"image": pa.array(rows, IMAGE)}
    about: dict[str, Any] = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels)
        about["label"] = {"names": names, "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    return pa.table(columns).replace_schema_metadata(features(**about))


def rows(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"bytes": png(k)[1], "path": f"some/where/n{k}.png", **more} for k in range(first, first + count)]


def wanted(first: int, count: int) -> list[Any]:
    return [png(k)[0] for k in range(first, first + count)]


# Parquet


@pytest.mark.parametrize("per_group", [1, 7, 100])
def test_a_hugging_face_dataset(tmp_path: Path, per_group: int) -> None:
    labels = [k % 3 for k in range(50)]
    for part in range(2):
        one = table(rows(25 * part, 25), labels[25 * part : 25 * part + 25], ["cat", "dog", "eel"])
        pq.write_table(one, tmp_path / f"train-0000{part}-of-00002.parquet", row_group_size=per_group)
    found = list_sources(tmp_path)
    assert found.labels.names == ("cat", "dog", "eel") and [s.label for s in found.sources] == labels
    assert found.sources[26].name == "train-00001-of-00002.parquet/000001-n26.png"
    assert sum(s.size for s in found.sources) == sum(p.stat().st_size for p in tmp_path.glob("*.parquet"))
    equal(all_pixels(str(tmp_path / "train-*.parquet")), wanted(0, 50))
    made = Store(prep(tmp_path, tmp_path.parent / "o.fds", codec="rgb", workers=2, overwrite=True).out)
    assert made.samples["label"].tolist() == labels
    equal(whole(made.path), wanted(0, 50))


def test_rows_can_be_read_in_any_order(tmp_path: Path) -> None:
    pq.write_table(table(rows(0, 60)), tmp_path / "x.parquet", row_group_size=40)
    found = list_sources(tmp_path / "x.parquet")
    for k in (59, 0, 41, 39, 3, 3, 2, 40, 59):
        assert read_source(found.root, found.sources[k]) == png(k)[1]
    assert found.labels.kind == "none"


@pytest.mark.parametrize(
    ("columns", "image"),
    [
        ({"picture": (rows(0, 2), IMAGE), "other": ([1, 2], pa.int32())}, "picture"),
        ({"jpg": ([png(0)[1], png(1)[1]], pa.binary())}, "jpg"),
        ({"jpg": ([png(0)[1], png(1)[1]], pa.large_binary())}, "jpg"),
        ({"img": (rows(0, 2), IMAGE), "mask": (rows(7, 2), IMAGE)}, "img"),
        ({"image": ([png(0)[1], png(1)[1]], pa.binary()), "hash": ([b"a", b"b"], pa.binary())}, "image"),
        (
            {
                "raw": ([b"a", b"b"], pa.binary()),
                "pic": ([{"bytes": png(k)[1]} for k in (0, 1)], pa.struct([("bytes", pa.binary())])),
            },
            "pic",
        ),
    ],
)
def test_which_column_holds_the_images(tmp_path: Path, columns: dict[str, Any], image: str) -> None:
    pq.write_table(pa.table({name: pa.array(*values) for name, values in columns.items()}), tmp_path / "x.parquet")
    assert {s.place[2] for s in list_sources(tmp_path / "x.parquet").sources} == {image}
    equal(all_pixels(tmp_path / "x.parquet"), wanted(0, 2))


def test_several_columns_are_listed_and_one_can_be_named(tmp_path: Path) -> None:
    both = pa.table({"left": pa.array(rows(0, 2), IMAGE), "right": pa.array(rows(5, 2), IMAGE)})
    pq.write_table(both, tmp_path / "x.parquet")
    with pytest.raises(PrepError, match=r"several: left, right; name one as .*x\.parquet::left"):
        list_sources(tmp_path / "x.parquet")
    equal(all_pixels(f"{tmp_path}/x.parquet::right"), wanted(5, 2))
    assert run(*PREP, "x.parquet::right", cwd=tmp_path).returncode == 0 and (tmp_path / "x-right.fds").is_dir()
    with pytest.raises(PrepError, match=r"no column 'middle' of images; it has 'left', 'right'"):
        list_sources(f"{tmp_path}/x.parquet::middle")
    pq.write_table(pa.table({"a": [1], "text": ["x"]}), tmp_path / "y.parquet")
    with pytest.raises(PrepError, match="there are none: a, text"):
        list_sources(tmp_path / "y.parquet")


@pytest.mark.parametrize(
    ("values", "names", "labels", "reasons"),
    [
        ([2, 0], ("0", "1", "2"), [2, 0], ["", ""]),
        (["dog", "cat"], ("cat", "dog"), [1, 0], ["", ""]),
        ([0.5, -1.0], ("label1",), [(0.5,), (-1.0,)], ["", ""]),
        ([[1.0, 2.0], [3.0, 4.0]], ("label1", "label2"), [(1, 2), (3, 4)], ["", ""]),
        ([None, 1], ("0", "1"), [-1, 1], ["no-label", ""]),
        ([-1, -1], (), [-1, -1], ["", ""]),
        ([True, False], ("0", "1"), [1, 0], ["", ""]),
    ],
)
def test_label_columns(tmp_path: Path, values: list[Any], names: tuple[str, ...], labels: list[Any], reasons: list[str]) -> None:
    pq.write_table(table(rows(0, 2), values), tmp_path / "x.parquet")
    found = list_sources(tmp_path / "x.parquet")
    assert (found.labels.names, [s.label for s in found.sources]) == (names, labels) and problems(found) == reasons


def test_a_lone_class_label_of_any_name_counts(tmp_path: Path) -> None:
    one = pa.table({"image": pa.array(rows(0, 2), IMAGE), "species": [1, 0]})
    about = features(image={"_type": "Image"}, species={"_type": "ClassLabel", "names": ["a", "b"]})
    pq.write_table(one.replace_schema_metadata(about), tmp_path / "x.parquet")
    found = list_sources(tmp_path / "x.parquet")
    assert found.labels.names == ("a", "b") and [s.label for s in found.sources] == [1, 0]


def test_null_images_and_images_that_are_only_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/here.png").write_bytes(png(9)[1])
    (tmp_path / "secret.png").write_bytes(png(8)[1])
    given = [None, {"bytes": None, "path": None}, {"bytes": b"", "path": "here.png"}, *rows(0, 1)]
    given += [
        {"bytes": None, "path": p} for p in ("here.png", "gone.png", "../secret.png", str(tmp_path / "secret.png"), "in", "\0")
    ]
    pq.write_table(table(given), tmp_path / "in/x.parquet")
    found = list_sources(tmp_path / "in/x.parquet")
    assert problems(found) == ["no-image", "no-image", "empty", "", "", "missing", "missing", "missing", "missing", "missing"]
    assert read_source(found.root, found.sources[4]) == png(9)[1]


@pytest.mark.slow
def test_splits_side_by_side_are_refused_with_commands_that_work(tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    for split in ("train", "validation"):
        for part in range(2):
            pq.write_table(table(rows(part, 1), [1 - part], ["a", "b"]), tmp_path / f"my data/{split}-0000{part}-of-00002.parquet")
    refused = run(*PREP, "my data", cwd=tmp_path)
    assert refused.returncode == 2 and "train and validation side by side" in refused.stderr
    run_printed(refused.stderr, tmp_path)
    assert [len(Store(p)) for p in sorted(tmp_path.glob("*.fds"))] == [2, 2]


def test_tables_that_do_not_go_together(tmp_path: Path) -> None:
    pq.write_table(table(rows(0, 1), [0], ["a", "b"]), tmp_path / "0.parquet")
    pq.write_table(table(rows(0, 1), [0], ["b", "a"]), tmp_path / "1.parquet")
    with pytest.raises(PrepError, match=r"1\.parquet has other image or label columns, or other classes, than .*0\.parquet"):
        list_sources(tmp_path)
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(PrepError, match="SOURCE mixes parquet and tar"):
        list_sources(str(tmp_path / "{0.parquet,x.tar}"))
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(PrepError, match=r"x\.txt is not a known archive"):
        list_sources(str(tmp_path / "{0.parquet,x.txt}"))


def test_damaged_tables(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(rows(0, 40), list(range(40))), path, row_group_size=20, compression="none", use_dictionary=False)
    good = path.read_bytes()
    for wrong in (good[: len(good) // 2], b"", b"PAR1" * 10, good[:-8] + b"\xff" * 4 + b"PAR1"):
        path.write_bytes(wrong)
        with pytest.raises(PrepError, match=r"cannot read .*x\.parquet"):
            list_sources(path)
    damaged = bytearray(good)
    at = good.index(png(0)[1])
    damaged[at - 60 : at] = b"\xff" * 60  # the header of the first page
    path.write_bytes(damaged)
    summary = prep(path, tmp_path / "o.fds", workers=1)
    assert summary.inputs == 40 and summary.kept == 20 and sum(summary.rejected.values()) == 20
    assert Store(summary.out).samples["label"].tolist() == list(range(20, 40))


# HDF5


def h5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file.create_dataset(name.replace("__", "/"), data=data)
    return path


SHAPES = [(5, 6, 7), (5, 6, 7, 1), (5, 6, 7, 3), (5, 1, 6, 7), (5, 3, 6, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, ">u2"])
def test_datasets_of_pixels(tmp_path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    data = np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)
    path = h5(tmp_path / "x.h5", images=data, labels=np.arange(5) % 2)
    want = data.transpose(0, 2, 3, 1) if shape[1] in (1, 3) and len(shape) == 4 else data
    want = want[..., 0] if want.shape[3:] == (1,) else want
    bits = 8 * data.dtype.itemsize
    equal(all_pixels(path, bits=bits), want)
    found = list_sources(path)
    assert [s.label for s in found.sources] == [0, 1, 0, 1, 0] and found.sources[2].name == "x.h5/000002"
    made = prep(path, tmp_path / "o.fds", codec="rgb", bits=bits, workers=1).out
    equal(whole(made), [np.dstack([w] * 3) if w.ndim == 2 else w for w in want.astype(data.dtype.newbyteorder("="))])


def test_encoded_files_of_variable_length(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        data = file.create_dataset("files", (4,), h5py.vlen_dtype(np.uint8))
        for k in range(3):
            data[k] = np.frombuffer(png(k)[1], np.uint8)
    assert problems(list_sources(tmp_path / "x.hdf5")) == ["", "", "", "empty"]
    found = list_sources(tmp_path / "x.hdf5")
    assert [read_source(found.root, s) for s in found.sources[:3]] == [png(k)[1] for k in range(3)]


def test_which_dataset_is_meant(tmp_path: Path) -> None:
    a, b = (np.full((3, 4, 5), value, np.uint8) for value in (1, 2))
    path = h5(
        tmp_path / "x.h5", x_train=a, y_train=[2, 1, 0], x_test=b, y_test=[0, 0, 1], deep__images=b, deep__label=[b"p", b"o", b"p"]
    )
    with pytest.raises(PrepError, match=r"several datasets of images; name one: .*x\.h5::deep/images, .*::x_test, .*::x_train"):
        list_sources(path)
    assert [s.label for s in list_sources(f"{path}::x_train").sources] == [2, 1, 0]
    equal(all_pixels(f"{path}::/x_test"), b)
    deep = list_sources(f"{path}::deep/images")
    assert deep.labels.names == ("o", "p") and [s.label for s in deep.sources] == [1, 0, 1]
    done = run(*PREP, "x.h5::deep/images", "--codec", "rgb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    equal(whole(tmp_path / "x-deep-images.fds"), b)
    with pytest.raises(PrepError, match=r"has no dataset z; it has deep/images, deep/label, x_test, x_train, y_test, y_train"):
        list_sources(f"{path}::z")
    with pytest.raises(PrepError, match=r"y_test is int64 of \[3\]; images are uint8"):
        list_sources(f"{path}::y_test")


@pytest.mark.parametrize(
    ("labels", "names", "found"),
    [
        (np.array([1, 0, 2]), ("0", "1", "2"), [1, 0, 2]),
        (np.array([[1], [0], [2]], np.uint8), ("0", "1", "2"), [1, 0, 2]),
        (np.array([0.5, 1, 2], np.float32), ("label1",), [(0.5,), (1,), (2,)]),
        (np.arange(6.0).reshape(3, 2), ("label1", "label2"), [(0, 1), (2, 3), (4, 5)]),
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
    ],
)
def test_labels_beside_a_dataset(tmp_path: Path, labels: Any, names: tuple[str, ...], found: list[Any]) -> None:
    listed = list_sources(h5(tmp_path / "x.h5", data=np.zeros((3, 4, 5), np.uint8), label=labels))
    assert (listed.labels.names, [s.label for s in listed.sources]) == (names, found)


def test_hostile_hdf5(tmp_path: Path) -> None:
    zeros = np.zeros((3, 4, 5), np.uint8)
    path = h5(tmp_path / "x.h5", images=picture(0, 300, 300), labels=[1, 2])
    with pytest.raises(PrepError, match="labels has 2 labels, images 300 images"):
        list_sources(path)
    for data in (zeros.astype(np.float32), np.zeros((3, 4, 5, 2), np.uint8), np.zeros((3, 0, 5), np.uint8), np.uint8(3), zeros > 0):
        with pytest.raises(PrepError, match="no dataset of images, only a"):
            list_sources(h5(tmp_path / "y.h5", a=data))
    good = h5(tmp_path / "z.h5", images=np.random.default_rng(0).integers(0, 255, (50, 40, 40)).astype(np.uint8)).read_bytes()
    for wrong in (good[: len(good) // 2], b"", b"\x89HDF\r\n\x1a\n", b"no HDF5" * 99):
        path.write_bytes(wrong)
        with pytest.raises(PrepError, match=r"cannot read .*x\.h5"):
            list_sources(path)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "images",
            data=np.random.default_rng(0).integers(0, 255, (8, 40, 40)),
            dtype=np.uint8,
            chunks=(1, 40, 40),
            fletcher32=True,
        )
        at = file["images"].id.get_chunk_info(3).byte_offset
    damaged = bytearray(path.read_bytes())
    damaged[at + 9] ^= 1
    path.write_bytes(damaged)
    summary = prep(path, tmp_path / "o.fds", workers=1)
    assert summary.kept == 7 and summary.rejected == {"undecodable": 1}


@pytest.mark.parametrize(("package", "name"), [("pyarrow", "x.parquet"), ("h5py", "x.h5")])
def test_without_the_package_the_message_names_the_command(
    tmp_path: Path, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    with pytest.raises(MissingExtraError, match=f"pip install {package}"):
        list_sources(tmp_path / name)
