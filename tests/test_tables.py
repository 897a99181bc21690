"""Tables: every value comes as pyarrow or pandas has it, in the narrowest dtype; one memory for all processes."""

from __future__ import annotations

import decimal
import pickle
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils.data import ConcatDataset

import stores
from fastdata import Loader, TableDataset
from fastdata.errors import StoreError
from test_node_memory import inodes

INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def make(table: Any, target: Any = "y", **options: Any) -> TableDataset:
    return TableDataset(table, target=target, **options)


def with_target(**columns: Any) -> pa.Table:
    """A table of these columns, and whole numbers as the target."""
    count = len(next(iter(columns.values())))
    return pa.table({**columns, "y": pa.array(range(count), pa.int64())})


def csv(text: str | bytes, name: str = "t.csv") -> Path:
    path = stores.folder() / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet(table: Any, **options: Any) -> Path:
    path = stores.folder() / "t.parquet"
    pq.write_table(table, path, **options)
    return path


def names_of(dataset: TableDataset, name: str) -> list[str | None]:
    """The names of a category, row by row."""
    names = [*dataset.categories[name], None]
    return [names[code] for code in dataset.column(name).tolist()]


ALIASES = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bool string date32 timestamp[s] timestamp[ns]"
ALIASES += " time32[ms] time64[us] duration[ms]"
TYPES = [*map(pa.type_for_alias, ALIASES.split()), pa.timestamp("us", "UTC"), pa.decimal128(12, 3)]
TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
TYPES += TEXTS[1:]
COARSE = [0.0, -0.0, 0.5, 65504.0, 65505.0, 2.0**-24, 2.0**-25, float("inf"), float("-inf"), float("nan")]  # half has some of them


def _values(kind: Any) -> st.SearchStrategy[Any]:
    """Python values, of a type that Arrow takes them from."""
    if pa.types.is_integer(kind):
        low, high = int(np.iinfo(kind.to_pandas_dtype()).min), int(np.iinfo(kind.to_pandas_dtype()).max)
        return st.one_of(st.integers(max(low, -300), min(high, 300)), st.integers(low, high))
    if pa.types.is_floating(kind):
        floats = st.floats(width=kind.bit_width)
        return floats if kind.bit_width == 16 else st.one_of(st.sampled_from(COARSE), floats)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if kind in TEXTS:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if pa.types.is_decimal(kind):
        return st.decimals(-999_999_999, 999_999_999, places=3)
    low, high = (0, 86_399) if pa.types.is_time(kind) else (-100_000, 100_000) if kind.bit_width == 32 else (-(1 << 40), 1 << 40)
    return st.integers(low, high)


def _column(kind: Any, values: list[Any]) -> Any:
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values, kind)


@st.composite
def _tables(draw: Any) -> pa.Table:
    rows = draw(st.integers(1, 20))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))
    columns = {}
    for k, kind in enumerate(kinds):
        value = _values(kind)
        some = draw(st.booleans())
        values = draw(st.lists(st.one_of(value, st.none()) if some else value, min_size=rows, max_size=rows))
        columns[f"c{k}"] = _column(kind, values)
    return with_target(**columns)


WAYS = ["memory", "parquet", "parquet, 7 rows a group", "arrow", "stream", "feather", "parts"]


@given(table=_tables(), way=st.sampled_from(WAYS))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_value_of_every_type_comes_as_it_is(table: pa.Table, way: str) -> None:
    folder, source = stores.folder(), table
    if way.startswith("parquet"):
        pq.write_table(table, source := folder / "t.parquet", row_group_size=7 if "group" in way else None)
        table = pq.read_table(source)  # Parquet has no seconds
    elif way == "feather":
        pyarrow.feather.write_feather(table, source := folder / "t.feather")
    elif way == "parts":
        source = [parquet(table[:3]), parquet(table[3:])]
        table = pa.concat_tables(map(pq.read_table, source))
    elif way != "memory":
        with (pa.ipc.new_file if way == "arrow" else pa.ipc.new_stream)(source := folder / "t.arrow", table.schema) as file:
            file.write_table(table, max_chunksize=5)
    dataset = make(source)
    _compare(table, dataset)
    _check_narrow(dataset)


def _compare(want: pa.Table, dataset: TableDataset) -> None:
    """Every tensor says the same as pyarrow: value, missing, name."""
    columns, targets = dataset.gather(dataset.locate(np.arange(len(dataset))))
    assert targets.tolist() == want["y"].to_pylist()
    for name, about in dataset.columns.items():
        array = want[name].combine_chunks()
        missing = np.array(array.is_null().to_pylist(), bool)
        mask = columns.get(f"{name}.missing")
        assert (mask is not None) == bool(missing.any()) == (name in dataset.missing)
        assert mask is None or mask.tolist() == missing.tolist()
        found = columns[name].numpy()
        assert found.dtype == about.dtype and torch.equal(columns[name].nan_to_num(), dataset.column(name).nan_to_num())
        if about.names is not None:
            assert names_of(dataset, name) == array.to_pylist()
        elif pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
            assert np.isnan(found[missing]).all()
            expected = np.array(array.filter(pa.array(~missing)).to_pylist(), np.float64)
            np.testing.assert_array_equal(found[~missing].astype(np.float64), expected)
            np.testing.assert_array_equal(np.signbit(found[~missing]), np.signbit(expected))
        else:
            assert not found[missing].any()
            whole = array.drop_null().cast(_whole(array.type))
            assert found[~missing].tolist() == whole.to_pylist()


def _whole(kind: Any) -> Any:
    return kind if not pa.types.is_temporal(kind) else pa.int32() if kind.bit_width == 32 else pa.int64()


def _check_narrow(dataset: TableDataset) -> None:
    """No column could be narrower."""
    for name, about in dataset.columns.items():
        values = dataset.column(name).numpy()
        if about.names is not None or about.type.startswith(("int", "uint")):
            low, high = (int(values.min()), int(values.max())) if about.names is None else (0, len(about.names))
            fitting = [d for d in INTEGERS if np.iinfo(d).min <= low and high <= np.iinfo(d).max]
            assert about.dtype == fitting[0] and np.iinfo(about.dtype).bits == min(np.iinfo(d).bits for d in fitting)
        elif about.type in ("halffloat", "float", "double"):
            for dtype in ("float16", "float32"):
                if np.dtype(dtype).itemsize < values.dtype.itemsize:
                    with np.errstate(over="ignore"):
                        assert not np.array_equal(values.astype(dtype).astype(values.dtype), values, equal_nan=True)


def test_a_null_and_a_nan_are_told_apart() -> None:
    dataset = make(with_target(x=pa.array([1.5, None, float("nan"), -0.0])))
    assert dataset.column("x.missing").tolist() == [False, True, False, False] and dataset.missing == {"x": 1}
    assert torch.isnan(dataset.column("x")).tolist() == [False, True, True, False]
    assert make(pd.DataFrame({"x": [1.5, np.nan], "y": [0, 1]})).missing == {"x": 1}  # to pandas, NaN is a missing value
    names = make(with_target(x=[str(k) for k in range(256)]))  # the code 256 means missing
    assert names.columns["x"].dtype == "int16" and names.column("x").tolist() == [*range(256)]


def test_names_are_sorted_and_categories_keep_their_order() -> None:
    levels = pd.Categorical(["low", "high", None, "low"], ["low", "mid", "high"], ordered=True)
    colours = pd.Categorical(["red", "blue", "red", None], ["red", "green", "blue"])
    frame = pd.DataFrame({"level": levels, "colour": colours, "n": ["10", "9", "9", "10"], "s": ["b", "a", None, "b"], "y": 0})
    frame.to_parquet(folder := stores.folder() / "t.parquet", row_group_size=1)
    for source in (frame, pa.Table.from_pandas(frame), folder, [folder]):
        dataset = make(source)
        assert dataset.categories["level"] == ["low", "mid", "high"] and dataset.categories["colour"] == ["red", "green", "blue"]
        assert dataset.categories["n"] == ["9", "10"] and dataset.categories["s"] == ["a", "b"]  # numbers by value
        assert dataset.column("level").tolist() == [0, 2, 3, 0]  # 3: missing
        for name, missing in (("level", 3), ("colour", 3)):
            assert dataset.column(name).tolist() == frame[name].cat.codes.replace(-1, missing).tolist()
        assert names_of(dataset, "s") == ["b", "a", None, "b"]
    numbers = make(pd.DataFrame({"x": pd.Categorical([30, 10, 30], [30, 10]), "y": 0}))
    assert numbers.column("x").tolist() == [30, 10, 30]


def test_the_columns_of_several_files_are_joined() -> None:
    tables = [
        pa.table({"a": pa.array([1, 2], pa.int8()), "f": [1, 2], "n": pa.nulls(2), "s": ["x", "y"], "y": [0, 1]}),
        pa.table({"y": [2], "s": pa.array(["w"], pa.large_string()), "n": ["z"], "f": [0.5], "a": pa.array([700], pa.int64())}),
    ]
    dataset = make([parquet(table) for table in tables])
    assert dataset.column("a").tolist() == [1, 2, 700] and dataset.column("f").tolist() == [1, 2, 0.5]
    assert names_of(dataset, "n") == [None, None, "z"] and names_of(dataset, "s") == ["x", "y", "w"]
    assert dataset.targets.tolist() == [0, 1, 2] and "(3 rows of 4 columns, 2 files)" in repr(dataset)
    with pytest.raises(StoreError, match=r"column 'a' cannot be read as a table: .*incompatible types"):
        make([parquet(with_target(a=[1])), parquet(with_target(a=["x"]))])


@pytest.mark.parametrize(
    ("values", "classes", "first"),
    [
        (["b", "a", "b"], ["a", "b"], 1),
        (["01", "1", "01"], ["01", "1"], 0),
        (pd.Categorical(["b", "a", "b"], ["b", "a", "c"]), ["b", "a", "c"], 0),
        ([True, False, True], ["false", "true"], 1),
        ([7, 0, 300], [], 7),
        ([0.5, 1.0, 2.0], ["y"], [0.5]),
        ([decimal.Decimal("1.25"), decimal.Decimal("2.00"), decimal.Decimal("0.50")], ["y"], [1.25]),
    ],
)
def test_targets(values: Any, classes: list[str], first: Any) -> None:
    dataset = make(pd.DataFrame({"x": [1, 2, 3], "y": values}))
    assert dataset.classes == classes
    _, target = dataset[0]
    assert (target if isinstance(target, int) else target.tolist()) == first
    assert list(dataset[0][0]) == ["x"] == list(dataset.columns)
    _, targets = dataset.gather(np.arange(3))
    assert targets.dtype == (torch.float32 if isinstance(first, list) else torch.int64)
    assert np.array_equal(targets.numpy(), dataset.targets)


def test_several_targets_and_none() -> None:
    table = pa.table({"a": [1, 2], "x": [3, 4], "b": [0.5, 0.25]})
    dataset = make(table, ["b", "a"])
    assert dataset[1][1].tolist() == [0.25, 2.0] and dataset.classes == ["b", "a"] and list(dataset.columns) == ["x"]
    none = make(table, None)
    assert none[1][1] == -1 and none.targets.tolist() == [-1, -1] == none.gather(np.arange(2))[1].tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_without_a_finite_target_are_left_out_and_told(dtype: type[Any]) -> None:
    values = np.array([1, np.inf, -2, np.nan, np.finfo(dtype).max], dtype)
    fitting = [k for k in range(5) if abs(float(values[k])) <= float(np.finfo(np.float32).max)]
    table = pa.table({"x": range(5), "s": list("abcde"), "y": values})
    with pytest.warns(
        UserWarning, match=rf"{5 - len(fitting)} of 5 rows of the DataFrame are left out: row 1 is the first without"
    ):
        dataset = make(table)
    assert dataset.column("x").tolist() == fitting and dataset.targets[:, 0].tolist() == [values[k] for k in fitting]
    assert names_of(dataset, "s") == ["abcde"[k] for k in fitting]
    with pytest.warns(UserWarning, match="1 of 3 rows"):
        assert make(pd.DataFrame({"x": [1, 2, 3], "y": ["a", None, "b"]})).targets.tolist() == [0, 1]
    with pytest.raises(StoreError, match=r"the DataFrame has no rows with a target"):
        make(pa.table({"x": [1, 2], "y": pa.array([None, None], pa.float64())}))


def test_names_of_another_table() -> None:
    train = make(pa.table({"c": ["a", "b", "c"], "y": ["cat", "dog", "eel"]}))
    other = make(pa.table({"c": ["c", None], "y": ["dog", "dog"]}), classes=train)
    assert other.column("c").tolist() == [2, 3] and other.classes == ["cat", "dog", "eel"] and other.targets.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"column 'c' has names that the table of `classes` lacks: 'z'"):
        make(pa.table({"c": ["z"], "y": ["dog"]}), classes=train)
    written = csv("c,y\n3,dog\n1,eel\n")  # a part in which all names look like numbers
    train = make(csv("c,y\n1,cat\n2,dog\n3,eel\n", "train.csv"), category="c")
    assert make(written, classes=train).column("c").tolist() == [2, 0]
    for kind, others in ((pa.timestamp("ms"), pa.timestamp("us")), (pa.bool_(), pa.int64())):
        train, other = (with_target(c=pa.nulls(2, one)) for one in (kind, others))
        with pytest.raises(ValueError, match=rf"column 'c' is .*, but {re.escape(str(make(train).columns['c'].type))} in"):
            make(other, classes=make(train))


def test_categories_that_two_tables_number_otherwise_are_told() -> None:
    parts = [make(pa.table({"c": names, "y": [1, 2]})) for names in (["x", "y"], ["y", "z"])]
    with pytest.warns(UserWarning, match="c 0 is x in one dataset of this ConcatDataset, and y in another: .*classes="):
        Loader(ConcatDataset(parts), 2, num_workers=0)


@pytest.fixture(scope="module")
def dataset() -> TableDataset:
    """500 rows: x = row, f = row / 8, c = one of three names, some values missing; the class is row % 5."""
    rows = np.arange(500)
    f, c = pa.array(rows / 8, mask=rows % 7 == 0), np.array(["red", "green", "blue"])[rows % 3]
    return make(pa.table({"x": rows, "f": f, "c": c.tolist(), "y": [f"class{k}" for k in rows % 5]}))


def test_a_batch_is_a_copy_of_what_its_items_are(dataset: TableDataset) -> None:
    rows = np.random.default_rng(0).integers(0, 500, 64)
    for _ in range(2):
        columns, targets = dataset.gather(dataset.locate(rows, seed=1, epoch=2, repeats=None))
        assert list(columns) == ["x", "f", "f.missing", "c"] and all(column.is_contiguous() for column in columns.values())
        assert columns["x"].tolist() == rows.tolist() and targets.tolist() == (rows % 5).tolist()
        for k, row in enumerate(rows.tolist()):
            item, target = dataset[row]
            assert target == targets[k] and all(item[n].dim() == 0 and str(item[n]) == str(columns[n][k]) for n in columns)
        columns["x"].zero_()
        targets.zero_()
    assert dataset[-1][0]["x"] == 499
    assert "500 rows of 3 columns" in repr(dataset)


def test_subsets_and_stratified_splits(dataset: TableDataset) -> None:
    part = dataset.subset([5, -1, 5])
    assert part.column("x").tolist() == [5, 499, 5] and part.targets.tolist() == [0, 4, 0] and part.missing == dataset.missing
    assert part.subset([1])[0][0]["x"] == 499 and len(pickle.dumps(part)) < 3000 + 2 * len(pickle.dumps(dataset.columns))
    first, second = dataset.split(0.8, seed=3, stratify=True)
    assert sorted([*first.column("x").tolist(), *second.column("x").tolist()]) == list(range(500))
    assert np.bincount(first.targets).tolist() == [80] * 5 and first.column("x").tolist() == sorted(first.column("x").tolist())
    with pytest.raises(ValueError, match=r"stratify needs classes"):
        make(pa.table({"x": [1], "y": [0.5]})).split(0.5, seed=0, stratify=True)


@pytest.mark.slow
def test_ranks_hold_it_once_however_they_read_it() -> None:
    """The memory is known by the values and their meaning: a file, a copy of it and a DataFrame of it are one, others are not."""
    frame = pd.DataFrame({"x": np.arange(1000), "c": ["a", "b"] * 500, "y": np.arange(1000) % 3})
    code = "import json, sys; from fastdata import TableDataset; from test_node_memory import inodes\n"
    code += "print(json.dumps([*inodes(TableDataset(sys.argv[1], target='y'))]))"
    here = make(frame)
    for source in (parquet(pa.Table.from_pandas(frame)), parquet(pa.Table.from_pandas(frame), row_group_size=9)):
        assert stores.script(code, source) == [*inodes(here)]
    frame.loc[3, "x"] = 2
    assert stores.script(code, parquet(pa.Table.from_pandas(frame))) != [*inodes(here)]


def from_csv(text: str | bytes, **options: Any) -> TableDataset:
    return make(csv(text), **options)


@pytest.mark.parametrize(
    ("cells", "kind", "dtype", "values"),
    [
        (["1", "200", " 3"], "int64", "uint8", [1, 200, 3]),
        (["01", "1", "10"], "string", "uint8", [0, 1, 2]),
        (["18446744073709551615", "0", "1"], "uint64", "uint64", [2**64 - 1, 0, 1]),
        (["1", "0.5", "-2e3"], "double", "float16", [1, 0.5, -2000]),
        (["0.1", "inf", ".5"], "double", "float64", [0.1, float("inf"), 0.5]),
        (["2024-02-29", "1970-01-01", "1969-12-31"], "date32[day]", "int32", [19782, 0, -1]),
        (["2024-02-29 10:00", "1970-01-01T00:00:01", "1970-01-02"], "timestamp[s]", "int64", [1709200800, 1, 86400]),
        (["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00", "1970-01-01T00:00:01Z"], "timestamp[s, tz=UTC]", "int64", [0, 0, 1]),
        (["b", "a", "b"], "string", "uint8", [1, 0, 1]),
        ([" a", "a", " a"], "string", "uint8", [0, 1, 0]),
    ],
)
def test_kinds_of_columns_in_a_csv(cells: list[str], kind: str, dtype: str, values: list[Any]) -> None:
    dataset = from_csv("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    assert (dataset.columns["x"].type, dataset.columns["x"].dtype) == (kind, dtype)
    assert dataset.column("x").tolist() == values and dataset.missing == {}


def test_missing_values_of_a_csv() -> None:
    dataset = from_csv('n,f,c,e,b,y\n1,,NA,,true,1\nNA,nan,,NA,,2\n3,0.5,"",N/A,null,3\n4,1,x,,,4\n')
    assert dataset.missing == {"n": 1, "f": 1, "c": 2, "e": 4, "b": 3}
    assert dataset.column("n").tolist() == [1, 0, 3, 4] and dataset.columns["n"].dtype == "uint8"
    assert dataset.column("f.missing").tolist() == [True, False, False, False]  # nan is a value
    assert torch.isnan(dataset.column("f")).tolist() == [True, True, False, False]
    assert dataset.categories["c"] == ["NA", "x"] and dataset.column("c.missing").tolist() == [False, True, True, False]
    assert dataset.columns["e"].type == "null" and dataset.columns["b"].type == "bool"


def test_quotes_and_line_ends_of_a_csv() -> None:
    text = 'x,y\r\n"a,b",1\r\n"line\r\nbreak",2\r\n"say ""hi""",3\r\n5" disk,4\r\n\r\nlast,5'
    dataset = from_csv(text)
    names = dataset.categories["x"]
    assert [names[k] for k in dataset.column("x").tolist()] == ["a,b", "line\r\nbreak", 'say "hi"', '5" disk', "last"]
    assert dataset.targets.tolist() == [1, 2, 3, 4, 5]
    tsv = make(csv("\ufeffx\ty\na,b\t1\nc\t2\n", "t.tsv"))
    assert tsv.categories == {"x": ["a,b", "c"]} and tsv.targets.tolist() == [1, 2]


def _damaged_parquet() -> Path:
    path = parquet(with_target(x=range(1000)), write_page_checksum=True, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[200:400] = bytes(200)
    path.write_bytes(data)
    return path


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-100])
    return path


TWO, UNREADABLE = "a,y\n1,2\n", "cannot be read as a table: "
LONG, MASKED = pa.array([10**30], pa.decimal128(38, 0)), pa.array([1, None])
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {  # a source, options, and a StoreError, or a ValueError that begins with ^
    "too large": (lambda: csv(f"a,y\n{1 << 70},1\n"), {}, r"column 'a' holds whole numbers of more than 64 bits: correct it, or"),
    "twice": (lambda: csv("a,a,y\n1,2,3\n"), {}, r"t.csv has two columns of the same name, or .*; it has 'a', 'a', 'y'"),
    "cut parquet": (lambda: _cut(parquet(with_target(x=range(1000)))), {}, UNREADABLE + "Parquet magic bytes not found"),
    "damaged parquet": (_damaged_parquet, {}, r"t.parquet, column 'x' " + UNREADABLE),
    "nested": (lambda: parquet(with_target(a=[[1, 2], [3]])), {}, r"'a' holds nested values \(list<.*: leave it out \(drop='a'\)"),
    "decimals": (lambda: parquet(with_target(d=LONG)), {}, r"column 'd' cannot be read as a table: "),
    "target": (lambda: csv(TWO), {"target": "label"}, r"^target is 'label', but must be among the columns 'a', 'y' of .*t.csv$"),
    "times as target": (lambda: pa.table({"x": [1], "y": pa.array([1], pa.timestamp("s"))}), {}, r"^target 'y' holds timestamp"),
    "names of targets": (
        lambda: with_target(n=["a"], x=[1]),
        {"target": ["y", "n"]},
        r"^target 'n' holds string values: use numbers only, or one column of names",
    ),
    "large target": (lambda: csv(f"a,y\n1,{2**63}\n2,1\n"), {}, r"^target 'y' exceeds int64: to take its numbers .* category='y'$"),
    "a mask's name": (lambda: with_target(**{"a": MASKED, "a.missing": [1, 2]}), {}, r"^column 'a.missing' clashes with the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_clearly(name: str) -> None:
    source, options, message = REFUSED[name]
    with pytest.raises(ValueError if message.startswith("^") else StoreError, match=message):
        TableDataset(source(), **{"target": "y", **options})


LOST = ("9007199254740993", "-9007199254740993", "1e400", "-1e999")
DOUBTFUL = [  # cells of a column, and what is told of it
    (["1", "x"], "numbers, such as '1', and other text, such as 'x'"),
    (["0,5", "1,5"], "numbers with a comma, such as '0,5', .* written as"),
    (["1,234,567", "2,000"], "numbers with a comma, such as '1,234,567'"),
    (["1,234.5", "-2,000,000.25"], "numbers with a comma, such as '1,234.5'"),
    *(([lost, "2.5"], f"numbers that no float holds, such as '{lost}'") for lost in LOST),
]


@pytest.mark.parametrize(("cells", "told"), DOUBTFUL)
def test_columns_that_may_be_damaged_are_names_if_that_is_asked_for(cells: list[str], told: str) -> None:
    text = "id;a;y\n" + "".join(f"{k};{cell};{k}\n" for k, cell in enumerate(cells))
    for target in ("y", "a"):
        with pytest.raises(StoreError, match=rf"column 'a' holds {told}.*: correct it, .* \(category='a'\), or .*\(drop='a'\)"):
            make(csv(text), target)
    assert from_csv(text, category="a").categories == {"a": sorted(cells)}
    assert list(from_csv(text, drop="a").columns) == ["id"]


def test_numbers_are_names_if_that_is_asked_for() -> None:
    for source in (with_target(zip=pa.array([10115, 501, 10115])), csv("zip,y\n10115,0\n501,1\n10115,2\n")):
        numbers = make(source, category="zip")
        assert numbers.categories == {"zip": ["501", "10115"]} and numbers.column("zip").tolist() == [1, 0, 1]
    found = from_csv("x,y\n9007199254740992,1\n2.5,2\n1e300,0\ninf,0\n").column("x")
    assert found.tolist() == [9007199254740992, 2.5, 1e300, float("inf")]
