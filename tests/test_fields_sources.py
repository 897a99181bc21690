"""`--fields` from every source: tables of several formats, columns of archives, members of tars, files next to images."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives import png, write_tar
from fastdata import LMDBDataset, prep
from fastdata.errors import PrepError
from fastdata.sources.fields import fit
from fastdata.store.columns import NUMBERS, Column
from fastdata.store.store import Store, verify
from support import write_pictures

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

numbers = st.integers(-(2**40), 2**40) | st.integers(-300, 300) | st.floats(allow_nan=False) | st.floats(-70000, 70000)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NUMBERS), st.lists(numbers, min_size=1, max_size=4), st.booleans(), st.sampled_from([list, np.array]))
def test_a_number_fits_its_type_or_is_refused(type: str, values: list[Any], scalar: bool, make: Any) -> None:
    """By Python's own numbers."""
    if type.startswith("float"):
        with np.errstate(over="ignore"):
            fits = [np.isfinite(np.float64(one).astype(type)) or abs(one) == float("inf") for one in values]
    else:
        signed, bits = not type.startswith("u"), int(type.lstrip("uint"))
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        whole = scalar or all(isinstance(one, int) for one in values)
        fits = [whole and isinstance(one, int) and low <= one <= high for one in values]
    column = Column("v", type) if scalar else Column("v", type, many=True)
    given, good = (values[0], fits[0]) if scalar else (make(values), all(fits))
    if scalar and make is np.array:
        given = np.array(given)
    if not good:
        with pytest.raises(ValueError, match=r"does not fit|is too large for|is not a whole number|does not hold whole numbers"):
            fit(column, given)
        return
    stored = np.array(fit(column, given), type)
    want = np.array(values[0] if scalar else values, type)
    np.testing.assert_array_equal(stored, want)


def rows_of_images(first: int, count: int) -> Any:
    return pa.array([{"bytes": png(k)[1], "path": f"{k}.png"} for k in range(first, first + count)], IMAGE)


def test_what_the_cells_of_a_parquet_lack_is_rejected(tmp_path: Path) -> None:
    about = {"caption": ["a", None, "c", "d", "e"], "score": pa.array([1.0, 2.0, None, 4.0, 5.0], pa.float32())}
    about["vector"] = [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0], [1.0, None]]
    pq.write_table(pa.table({"image": rows_of_images(0, 5), **about}), tmp_path / "x.parquet")
    done = prep(tmp_path / "x.parquet", tmp_path / "o.fds", fields=("caption", "score", "vector:float32[2]"), workers=1)
    columns = LMDBDataset(done.out).columns
    assert columns["caption"] == ["a", "c", "e"] and np.isnan(columns["score"][1]) and np.isnan(columns["vector"][2, 1])
    assert [(reject["name"], reject["reason"], reject["detail"]) for reject in Store(done.out).rejects()] == [
        (f"x.parquet/{name}", "bad-field", f"column {column} of x.parquet/{name}: {detail}")
        for name, column, detail in (
            ("000001-1.png", "caption", "it holds no text: fill it, or leave the image out"),
            ("000003-3.png", "vector", "it has shape [1], but vector has shape [2] for each sample"),
        )
    ]


def test_classes_of_another_column_keep_their_names(tmp_path: Path) -> None:
    about = {"image": {"_type": "Image"}, "coarse": {"_type": "ClassLabel", "names": ["animal", "thing"]}}
    meta = {b"huggingface": json.dumps({"info": {"features": about}}).encode()}
    table = pa.table({"image": rows_of_images(0, 4), "coarse": [1, 0, 1, 1]}, metadata=meta)
    pq.write_table(table, tmp_path / "x.parquet")
    columns = LMDBDataset(prep(tmp_path / "x.parquet", tmp_path / "o.fds", fields="coarse", workers=1).out).columns
    assert columns.names("coarse") == ("animal", "thing") and columns["coarse"].tolist() == [1, 0, 1, 1]


def test_wrong_columns_of_a_parquet(tmp_path: Path) -> None:
    days = pa.array([0] * 4, pa.int32()).cast(pa.date32())
    for name, numbers in (("x", [1] * 4), ("y", ["1"] * 4)):
        pq.write_table(pa.table({"image": rows_of_images(0, 4), "day": days, "n": numbers}), tmp_path / f"{name}.parquet")
    for source, field, message in (
        ("x.parquet", "mood", r"fields mood: .*x.parquet has no such column; it has image, day, n"),
        ("x.parquet", "day", r"fields day: it is of Arrow's type date32"),
        ("x.parquet", "caption=txt", r"fields caption=txt: SOURCE .* has no such members: NAME=ENDING takes files"),
        ("{x,y}.parquet", "n", r"x.parquet has n \(int64\), y.parquet has n \(text\); prepare such files separately"),
    ):
        with pytest.raises(PrepError, match=message):
            prep(str(tmp_path / source), tmp_path / "o.fds", fields=field)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


GOOD = {"txt": b"a caption\r\n", "json": b'{"k": [1, null]}', "npy": npy(np.arange(3, dtype=">f4")), "cls": b"5\n", "bin": b"\xff"}
WRONG: list[tuple[str, bytes | None, str]] = [  # the ending of a member, its bytes or None, and the detail of the reject
    ("txt", None, " is not there"),
    ("txt", b"\xff\xfe\xfd", ": 'utf-8' codec can't decode"),
    ("npy", npy(np.zeros(4, np.float32)), ": it has shape [4], but embedding has shape [3] for each sample"),
    ("npy", GOOD["npy"][:-1], ": it is no .npy file of numbers"),
    ("npy", npy(np.array([{}], object)), ": it is no .npy file of numbers"),
    ("json", b'{"k": ', ": Expecting value"),
    ("cls", b"many", ": invalid literal for int"),
]


def write(root: Path, kind: str) -> Path:
    """A sample for each thing that is wrong, and a good one, in a tar or as files next to images."""
    samples = [{"png": png(0)[1], **GOOD, ending: data} for ending, data, _ in [*WRONG, ("txt", GOOD["txt"], "")]]
    members = [(f"{k}.{ending}", data) for k, one in enumerate(samples) for ending, data in one.items() if data is not None]
    if kind == "tar":
        return write_tar(root / "s.tar", members)
    for name, data in members:
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("kind", ["files", "tar"])
def test_what_is_missing_or_does_not_fit_is_rejected_by_name(kind: str, tmp_path: Path) -> None:
    fields = ("caption=txt", "meta=json", "embedding=npy:float32[3]", "views=cls:int64", "raw=.bin")
    done = prep(write(tmp_path, kind), tmp_path.with_suffix(".fds"), fields=fields, label_column="none", workers=1)
    rejects = Store(done.out).rejects()
    assert [one["reason"] for one in rejects] == ["missing-field", *["bad-field"] * 6]
    for k, (reject, (ending, _, detail)) in enumerate(zip(rejects, WRONG, strict=True)):
        assert reject["detail"].startswith(f"the .{ending} of {'s.tar/' * (kind == 'tar')}{k}.png{detail}")
    columns = LMDBDataset(done.out).columns
    found = [np.asarray(columns[name][0]).tolist() for name in ("caption", "meta", "embedding", "views", "raw")]
    assert found == ["a caption", {"k": [1, None]}, [0, 1, 2], 5, b"\xff"]
    assert not done.skipped and list(verify(done.out)) == []


def test_numbers_of_a_csv_are_no_text_unless_asked_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "t.csv").write_text("path,v,w\n00.png,1,007\n01.png,,8\n")
    with pytest.raises(PrepError, match=r"fields v: its values are not text: give their type: v:float32, .* or v:text"):
        prep(tmp_path / "t.csv", tmp_path / "o.fds", fields="v")
    done = prep(tmp_path / "t.csv", tmp_path / "o.fds", fields=("v:float32", "w:text"), label_column="none", workers=1)
    columns = LMDBDataset(done.out).columns
    assert columns["w"] == ["007", "8"] and columns["v"][0] == 1 and np.isnan(columns["v"][1])


@pytest.mark.parametrize("kind", ["files", "tar"])
def test_wrong_fields_say_what_to_give(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path, kind)
    for fields, message in (
        (["caption=text"], r"fields caption=text: no image has a .text file or tar member of the same name"),
        (["caption"], r"fields caption: SOURCE .* has no such columns: NAME is a column of a table of paths"),
        (["label=cls"], "label is the name of the image's label"),
        (["=txt"], "give NAME, NAME:TYPE or NAME=ENDING"),
        (["caption=txt", "caption=json"], "fields caption: this name is given more than once"),
    ):
        with pytest.raises(PrepError, match=message):
            prep(source, tmp_path.with_suffix(".fds"), fields=fields, label_column="none")


def test_columns_and_files_of_one_store_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    """A table's columns come from the plan, files from the workers."""
    source, fields = write(tmp_path, "files") / "t.jsonl", ("caption=txt", "views:int64", "raw=bin")
    source.write_text("".join(f'{{"path": "{k}.png", "views": {2**40 + k}}}\n' for k in (7, 2)))
    columns = LMDBDataset(prep(source, tmp_path.with_suffix(".fds"), fields=fields, workers=1).out).columns
    assert columns["views"].tolist() == [2**40 + 7, 2**40 + 2] and columns["caption"] == ["a caption"] * 2
    (source.parent / "7.txt").write_text("a longer caption than it was before")
    with pytest.raises(PrepError, match="was made, or begun, with other options or inputs"):
        prep(source, tmp_path.with_suffix(".fds"), fields=fields, workers=1)
