"""`--fields` from every source: tables of several formats, columns of archives, members of tars, files next to images."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
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
from support import Array, write_pictures

COUNT = 20
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def value(k: int) -> dict[str, Any]:
    """What belongs to image k, as Python has it."""
    return {
        "caption": f'a "döner", {k}\nand more' if k % 4 else "",
        "score": k / 8,
        "views": 2**40 + k,
        "ids": list(range(k % 4)),
        "boxes": [[j, j + 0.5, 2.0, k] for j in range(k % 3)],
        "embedding": [k / 2, -1.5, 0.25],
        "meta": {"k": [k, None], "from": "ü"},
    }


def assert_values(store: Path, order: list[int], names: tuple[str, ...]) -> None:
    """Compare columns of a store with what belongs to its images."""
    columns = LMDBDataset(store).columns
    for name in names:
        found = [one.tolist() if isinstance(one, np.ndarray | np.generic) else one for one in columns[name]]
        assert found == [value(k)[name] for k in order], name
    assert list(verify(store)) == []


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
            ("000003-3.png", "vector", "an array of [1], but vector holds [2] for each sample"),
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
        ("x.parquet", "caption=txt", r"fields caption=txt: SOURCE .* has no such members: NAME=ENDING are files"),
        ("{x,y}.parquet", "n", r"x.parquet has n \(int64\), y.parquet has n \(text\); prepare them separately"),
    ):
        with pytest.raises(PrepError, match=message):
            prep(str(tmp_path / source), tmp_path / "o.fds", fields=field)


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def sample(k: int) -> dict[str, bytes]:
    """The members of a sample, or the files next to an image, by their endings."""
    one = value(k)
    return {
        "txt": one["caption"].encode() + b"\r\n" * (k % 2),
        "json": json.dumps(one["meta"]).encode(),
        "npy": npy(np.array(one["embedding"], ">f4" if k % 2 else "<f4")),
        "boxes.npy": npy(np.array(one["boxes"], np.float32).reshape(-1, 4)),
        "ids.npy": npy(np.array(one["ids"], np.int16)),
        "score.json": json.dumps(one["score"]).encode(),
        "cls": str(one["views"]).encode() + b"\n",
        "bin": bytes([k, 255, 0]),
    }


MEMBERS = (
    "caption=txt",
    "meta=json",
    "embedding=npy",
    "boxes=boxes.npy:float32[]",
    "ids=ids.npy:int64[]",
    "score=.score.json:float32",
    "views=cls:int64",
    "raw=bin",
)


def as_folder(root: Path, samples: Callable[[int], dict[str, bytes]] = sample) -> Path:
    write_pictures(root, COUNT, height=20, width=24)
    for k in range(COUNT):
        for ending, data in samples(k).items():
            (root / f"{k:02d}.{ending}").write_bytes(data)
    return root


def as_tars(root: Path, samples: Callable[[int], dict[str, bytes]] = sample) -> Path:
    root.mkdir(parents=True)
    for part in range(2):
        files = [
            (f"./deep/{k:02d}.{ending}", data)
            for k in range(part * 10, part * 10 + 10)
            for ending, data in sorted({"png": png(k)[1], **samples(k)}.items())
        ]
        write_tar(root / f"s-{part}.tar", files)
    return root


@pytest.fixture(params=[as_folder, as_tars], ids=["files", "tars"])
def write(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_members_and_files(write: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "data")
    done = prep(source, tmp_path / "o.fds", fields=MEMBERS, workers=2, label_column="none")
    assert (
        "columns: caption (text), meta (json), embedding (float32[3]), boxes (lists of float32[4]), ids (lists of int64), "
        "score (float32), views (int64), raw (bytes)"
    ) in done.notes
    assert_values(done.out, [*range(COUNT)], ("caption", "meta", "embedding", "boxes", "ids", "score", "views"))
    assert LMDBDataset(done.out).columns["raw"] == [bytes([k, 255, 0]) for k in range(COUNT)]
    assert not done.skipped


def damaged(k: int) -> dict[str, bytes]:
    found = sample(k)
    if k == 3:
        del found["txt"]
    wrong = {
        4: ("txt", b"\xff\xfe\xfd"),
        5: ("npy", npy(np.zeros(4, np.float32))),
        6: ("npy", found["npy"][:-1]),
        7: ("json", b'{"k": '),
        8: ("cls", b"many"),
        9: ("npy", npy(np.array([{}], object))),
    }
    return {**found, **dict([wrong[k]])} if k in wrong else found


def test_what_is_missing_or_does_not_fit_is_rejected_by_name(write: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "data", damaged)
    fields = ("caption=txt", "meta=json", "embedding=npy:float32[3]", "views=cls:int64")
    out = prep(source, tmp_path / "o.fds", fields=fields, label_column="none", workers=2).out
    rejects = {int(one["source"]): (one["reason"], one["detail"]) for one in Store(out).rejects()}
    prefix = "s-0.tar/deep/" if write is as_tars else ""
    details = {
        3: ("txt", "is not there"),
        4: ("txt", ": 'utf-8' codec can't decode"),
        5: ("npy", ": an array of [4], but embedding holds [3] for each sample"),
        6: ("npy", ": it is no .npy file of numbers"),
        7: ("json", ": Expecting value"),
        8: ("cls", ": invalid literal for int"),
        9: ("npy", ": it is no .npy file of numbers"),
    }
    assert {k: reason for k, (reason, _) in rejects.items()} == {3: "missing-field"} | dict.fromkeys(range(4, 10), "bad-field")
    for k, (ending, message) in details.items():
        assert rejects[k][1].startswith(f"the .{ending} of {prefix}{k:02d}.png{' ' * (k == 3)}{message}")
    assert_values(out, [k for k in range(COUNT) if k not in rejects], ("caption", "meta", "embedding", "views"))


def test_numbers_of_a_csv_are_no_text_unless_asked_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "t.csv").write_text("path,v,w\n00.png,1,007\n01.png,,8\n")
    with pytest.raises(PrepError, match=r"fields v: its values are no text: give their type: v:float32, .* or v:text"):
        prep(tmp_path / "t.csv", tmp_path / "o.fds", fields="v")
    done = prep(tmp_path / "t.csv", tmp_path / "o.fds", fields=("v:float32", "w:text"), label_column="none", workers=1)
    columns = LMDBDataset(done.out).columns
    assert columns["w"] == ["007", "8"] and columns["v"][0] == 1 and np.isnan(columns["v"][1])


def test_wrong_fields_say_what_to_give(tmp_path: Path) -> None:
    for write in (as_folder, as_tars):
        source = write(tmp_path / write.__name__)
        for fields, message in (
            (["caption=text"], r"fields caption=text: no image has a file or member of its name that ends in .text"),
            (["caption"], r"fields caption: SOURCE .* has no such columns: NAME is a column of a table of paths"),
            (["label=cls"], "label is the name of the image's label"),
            (["=txt"], "give NAME, NAME:TYPE or NAME=ENDING"),
            (["caption=txt", "caption=json"], "fields caption: this name is given twice"),
        ):
            with pytest.raises(PrepError, match=message):
                prep(source, tmp_path / "o.fds", fields=fields, label_column="none")


def test_columns_and_files_of_one_store_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    """A table's columns come from the plan, files from the workers."""
    source, order = as_folder(tmp_path / "data"), [*reversed(range(COUNT))]
    path, fields = source / "t.jsonl", ("caption=txt", "views:int64", "meta=json")
    path.write_text("".join(f'{{"path": "{k:02d}.png", "views": {2**40 + k}}}\n' for k in order))
    assert_values(prep(path, tmp_path / "o.fds", fields=fields, workers=2).out, order, ("views", "caption", "meta"))
    (source / "07.txt").write_text("a longer caption than it was before")
    with pytest.raises(PrepError, match="was made, or begun, with other options or inputs"):
        prep(path, tmp_path / "o.fds", fields=fields, workers=1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"path": "00.png"}', "[1]"], r"t.jsonl, line 2 is not an object of JSON"),
        (['{"path": "00.png", "v": 1, "v": 2}'], r"line 1 .* an object has the key 'v' twice"),
        (['{"path": "00.png", "v": "x"}', '{"path": "01.png"}'], r"row of '01.png': it holds no text: fill it"),
        (['{"path": "00.png", "v": "\\ud800"}'], r"row of '00.png': 'utf-8' codec can't encode"),
        (
            ['{"path": "00.png", "v": "x"}', '{"path": "01.png", "v": 1}'],
            r"'01.png': its values are no text: give their type",
        ),
        (['{"path": "00.png", "v": "x", "label": {"a": 1}}'], r"column label of t.jsonl holds a dict, but labels are numbers"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, lines: list[str], message: str) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    with pytest.raises(PrepError, match=message):
        prep(tmp_path / "t.jsonl", tmp_path / "o.fds", fields="v", label_column="label" if "label" in lines[0] else "none")
