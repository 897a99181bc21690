"""Tables: what goes in comes out exactly, in the narrowest dtype; missing values and categories; the dataset in memory."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils.data import DataLoader

import fastdata
import stores
from fastdata import Loader, TableDataset
from fastdata.errors import PrepError, StoreError
from fastdata.prepare import worker
from fastdata.prepare.plan import Work
from fastdata.store.export import export
from fastdata.store.store import Store
from fastdata.store.verify import verify
from fastdata.tables.column_stats import exact, narrowest
from support import Array, make_shard_here

TARGET = "y"


def make(table: Any, out: Path | None = None, **options: Any) -> Path:
    """A store of a table, made by one worker."""
    out = out or stores.folder() / "t.fds"
    return fastdata.prep(table, out, workers=1, **{"target": TARGET, **options}).out


def _run_here(shards: list[int], report: Any, *, work: Work, **_: Any) -> None:
    plan, (root, masks, *_others) = work.plan, work.roots
    job = worker.Job(str(root), str(masks), str(work.out), plan.options, plan.fingerprint, plan.shared)
    for k in shards:
        task = worker.Task(k, plan.bounds[k], plan.shard(k), {})
        make_shard_here(job, task)


def with_target(**columns: Any) -> pa.Table:
    """A table of these columns, and whole numbers as the target."""
    count = len(next(iter(columns.values())))
    return pa.table({**columns, TARGET: pa.array(range(count), pa.int64())})


def exported(store: Path) -> pa.Table:
    folder = stores.folder() / "out"
    assert export(store, folder) == 1
    return pq.read_table(folder / "table.parquet")


def same(a: Any, b: Any) -> bool:
    """Whether two Arrow columns hold the same: nulls where nulls are, NaN where NaN is, the sign of zero too."""
    if a.type != b.type or a.is_null().to_pylist() != b.is_null().to_pylist():
        return False
    if pa.types.is_floating(a.type):
        x, y = (np.array(c.drop_null().to_pylist(), np.float64) for c in (a, b))
        return bool((((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))).all())
    if pa.types.is_temporal(a.type):  # Python has no years before 1
        a, b = a.cast(_whole(a.type)), b.cast(_whole(a.type))
    return bool(a.to_pylist() == b.to_pylist())


# ------------------------------------------------------------------------------------------------------------ exactness

WHOLE = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
ALL_TYPES = [
    *WHOLE,
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.duration("ms"),
    pa.decimal128(12, 3),
]


def _values(kind: Any) -> st.SearchStrategy[Any]:
    """Python values, of a type that Arrow takes them from."""
    if pa.types.is_integer(kind):
        span = np.iinfo(kind.to_pandas_dtype())
        small = st.integers(max(int(span.min), -300), min(int(span.max), 300))
        return st.one_of(small, st.integers(int(span.min), int(span.max)))
    if pa.types.is_floating(kind):
        width = kind.bit_width
        coarse = st.sampled_from([0.0, -0.0, 0.5, 65504.0, 65536.0, 1e-8, 3e38, float("inf"), float("-inf"), float("nan")])
        return (
            st.one_of(coarse.filter(lambda x: width > 32 or x != 3e38), st.floats(width=width))
            if width > 16
            else st.floats(width=16)
        )
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_string(kind):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if pa.types.is_date(kind):
        return st.integers(-100_000, 100_000)
    if pa.types.is_decimal(kind):
        return st.decimals(-999_999_999, 999_999_999, places=3)
    return st.integers(0, 86_399) if pa.types.is_time(kind) else st.integers(-(1 << 40), 1 << 40)


def _column(kind: Any, values: list[Any]) -> Any:
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.array(values, kind)


@st.composite
def _tables(draw: Any) -> pa.Table:
    rows = draw(st.integers(1, 20))
    kinds = draw(st.lists(st.sampled_from(ALL_TYPES), min_size=1, max_size=6))
    columns = {}
    for k, kind in enumerate(kinds):
        value = _values(kind)
        some = draw(st.booleans())
        values = draw(st.lists(st.one_of(value, st.none()) if some else value, min_size=rows, max_size=rows))
        columns[f"c{k}"] = _column(kind, values)
    return with_target(**columns)


@pytest.mark.slow
@given(table=_tables())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_value_of_every_type_comes_back(table: pa.Table) -> None:
    folder = stores.folder()
    pq.write_table(table, folder / "t.parquet", row_group_size=7)
    with mock.patch("fastdata.prepare.job.run_shards", _run_here):
        store = make(folder / "t.parquet", folder / "t.fds")
    assert list(verify(store)) == []
    back = exported(store)
    want = pq.read_table(folder / "t.parquet")
    assert back.column_names == want.column_names
    for name in want.column_names:
        assert same(want[name].combine_chunks(), back[name].combine_chunks()), name
    _compare_tensors(want, TableDataset(store))
    _check_narrow(store)


def _compare_tensors(want: pa.Table, dataset: TableDataset) -> None:
    """Every tensor says the same as pyarrow: value, missing, name."""
    columns, targets = dataset.gather(dataset.locate(np.arange(len(dataset))))
    assert targets.tolist() == want[TARGET].to_pylist()
    for name, about in dataset.columns.items():
        array = want[name].combine_chunks()
        missing = np.array(array.is_null().to_pylist(), bool)
        mask = columns.get(f"{name}.missing")
        assert (mask is not None) == bool(missing.any()) == (name in dataset.missing)
        assert mask is None or mask.tolist() == missing.tolist()
        found = columns[name].numpy()
        assert found.dtype == about.dtype and torch.equal(columns[name].nan_to_num(), dataset.column(name).nan_to_num())
        if about.kind == "category":
            names = [*dataset.categories[name], None]
            assert [names[code] for code in found.tolist()] == array.to_pylist()
        elif about.kind == "float":
            assert np.isnan(found[missing]).all()
            expected = np.array(array.filter(pa.array(~missing)).to_pylist(), np.float64)
            np.testing.assert_array_equal(found[~missing].astype(np.float64), expected)
        else:
            assert not found[missing].any()
            if about.kind == "decimal":
                expected = [int(v.scaleb(about.scale)) for v in array.drop_null().to_pylist()]
            else:
                expected = array.drop_null().cast(_whole(array.type)).to_pylist()
            assert found[~missing].tolist() == expected


def _whole(kind: Any) -> Any:
    return kind if not pa.types.is_temporal(kind) else pa.int32() if kind.bit_width == 32 else pa.int64()


def _check_narrow(store: Path) -> None:
    """No column could be narrower."""
    for name, about in TableDataset(store).columns.items():
        values = TableDataset(store).column(name).numpy()
        if about.kind == "integer":
            assert about.dtype == narrowest(int(values.min()), int(values.max()))
            assert np.iinfo(about.dtype).bits == min(
                np.iinfo(d).bits
                for d in (f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64))
                if np.iinfo(d).min <= int(values.min()) and int(values.max()) <= np.iinfo(d).max
            )
        elif about.kind == "float":
            narrower = {"float64": ["float16", "float32"], "float32": ["float16"], "float16": []}[about.dtype]
            assert not any(exact(values, dtype) for dtype in narrower)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 255], "uint8"),
        ([-1, 127], "int8"),
        ([0, 256], "int16"),
        ([0, 32768], "uint16"),
        ([-1, 32768], "int32"),
        ([0, 2**31], "uint32"),
        ([-1, 2**31], "int64"),
        ([0, 2**63], "uint64"),
        ([0.5, 65504.0, float("nan"), -float("inf"), -0.0], "float16"),
        ([0.5, 65505.0], "float32"),
        ([0.1], "float64"),
        ([2.0**-24], "float16"),
        ([2.0**-25], "float32"),
        ([1e-46], "float64"),
        ([True, False], "bool"),
        (["a", "b"], "uint8"),
        ([str(k) for k in range(256)], "int16"),
    ],
)
def test_the_narrowest_dtype(values: list[Any], dtype: str) -> None:
    kind = pa.uint64() if values[-1] == 2**63 else None
    dataset = TableDataset(make(with_target(x=pa.array(values, kind))))
    assert dataset.columns["x"].dtype == dtype
    assert dataset[0][0]["x"].dtype == getattr(torch, dtype)
    assert str(dataset.column("x").dtype) == f"torch.{dtype}"


@pytest.mark.slow
def test_a_null_and_a_nan_are_told_apart() -> None:
    table = with_target(x=pa.array([1.5, None, float("nan"), -0.0]))
    dataset = TableDataset(make(table))
    assert dataset.column("x.missing").tolist() == [False, True, False, False] and dataset.missing == {"x": 1}
    assert torch.isnan(dataset.column("x")).tolist() == [False, True, True, False]
    assert same(table["x"].combine_chunks(), exported(make(table))["x"].combine_chunks())
    frame = TableDataset(make(pd.DataFrame({"x": [1.5, np.nan], "y": [0, 1]})))
    assert frame.missing == {"x": 1}  # to pandas, NaN is a missing value


def test_categories_and_their_missing_code() -> None:
    frame = pd.DataFrame(
        {"c": pd.Categorical(["low", "high", None, "low"], ["low", "mid", "high"]), "n": ["10", "9", "9", "10"], "y": 0}
    )
    dataset = TableDataset(make(frame))
    assert dataset.categories == {"c": ["high", "low"], "n": ["9", "10"]}  # those that occur; numbers by value
    assert dataset.column("c").tolist() == [1, 0, 2, 1] and dataset.column("n").tolist() == [1, 0, 0, 1]
    assert json.loads((make(frame) / "manifest.json").read_bytes())["table"]["columns"][0]["names"] == ["high", "low"]


def test_a_category_of_numbers() -> None:
    dataset = TableDataset(make(with_target(zip=pa.array([10115, 501, 10115]), f=pa.array([1, 2, 3])), category="zip"))
    assert dataset.categories == {"zip": ["501", "10115"]} and dataset.column("zip").tolist() == [1, 0, 1]


def test_times_and_decimals() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)
    frame = pd.DataFrame(
        {
            "t": [moment, pd.NaT],
            "d": [datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)],
            "m": [decimal.Decimal("12.50"), decimal.Decimal("-0.01")],
            "y": [1, 2],
        }
    )
    dataset = TableDataset(make(frame))
    assert np.datetime64(int(dataset[0][0]["t"]), dataset.columns["t"].unit) == np.datetime64(moment)
    assert dataset.column("d").tolist() == [1, -1] and dataset.columns["d"].unit == "D"
    assert dataset.column("m").tolist() == [1250, -1] and dataset.columns["m"].scale == 2


# -------------------------------------------------------------------------------------------------------------- targets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "kind", "classes", "first"),
    [
        (["b", "a", "b"], "class", ["a", "b"], 1),
        ([True, False, True], "class", ["false", "true"], 1),
        ([7, 0, 300], "integer", [], 7),
        ([0.5, 1.0, 2.0], "vector", ["y"], [0.5]),
        ([decimal.Decimal("1.25"), decimal.Decimal("2.00"), decimal.Decimal("0.50")], "vector", ["y"], [1.25]),
    ],
)
def test_targets(values: list[Any], kind: str, classes: list[str], first: Any) -> None:
    dataset = TableDataset(make(pa.table({"x": [1, 2, 3], "y": values})))
    assert Store(make(pa.table({"x": [1, 2, 3], "y": values})), kind=None).manifest.labels.kind == kind
    assert dataset.classes == classes
    _, target = dataset[0]
    assert (target if isinstance(target, int) else target.tolist()) == first
    assert list(dataset[0][0]) == ["x"] == list(dataset.columns)
    _, targets = dataset.gather(np.arange(3))
    assert targets.dtype == (torch.float32 if kind == "vector" else torch.int64)
    assert np.array_equal(targets.numpy(), dataset.targets)


def test_several_targets_and_none() -> None:
    table = pa.table({"a": [1, 2], "x": [3, 4], "b": [0.5, 0.25]})
    dataset = TableDataset(make(table, target=["b", "a"]))
    assert dataset[1][1].tolist() == [0.25, 2.0] and dataset.classes == ["b", "a"] and list(dataset.columns) == ["x"]
    none = TableDataset(make(table, target=None))
    assert none[1][1] == -1 and none.targets.tolist() == [-1, -1] and list(none.columns) == ["a", "x", "b"]
    assert none.gather(np.arange(2))[1].tolist() == [-1, -1]


def test_rows_without_a_target_are_rejects() -> None:
    table = pa.table({"x": [10, 20, 30, 40], "y": pa.array([1.0, None, float("nan"), 4.0])})
    summary = fastdata.prep(table, stores.folder() / "o.fds", target="y", workers=1)
    assert (summary.inputs, summary.kept, summary.rejected) == (4, 2, {"no-target": 2})
    assert [(r["source"], r["name"]) for r in Store(summary.out, kind=None).rejects()] == [(1, "row 1"), (2, "row 2")]
    dataset = TableDataset(summary.out)
    assert dataset.column("x").tolist() == [10, 40] and dataset.targets.tolist() == [[1.0], [4.0]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_whose_target_is_not_finite_are_rejects(dtype: type[Any]) -> None:
    values = np.array([1, np.inf, -2, -np.inf, np.finfo(dtype).max], dtype)
    done = fastdata.prep(pa.table({"x": range(5), "y": values}), stores.folder() / "o.fds", target="y", workers=1)
    fitting = [k for k in range(5) if abs(float(values[k])) <= float(np.finfo(np.float32).max)]
    assert TableDataset(done.out).column("x").tolist() == fitting and TableDataset(done.out).targets[:, 0].tolist() == [
        values[k] for k in fitting
    ]


# -------------------------------------------------------------------------------------------------------------- dataset


@pytest.fixture(scope="module")
def store() -> Path:
    """500 rows: x = row, f = row / 8, c = one of three names, some values missing; the class is row % 5."""
    rows = np.arange(500)
    table = pa.table(
        {
            "x": rows,
            "f": pa.array(rows / 8, mask=rows % 7 == 0),
            "c": pa.array(np.array(["red", "green", "blue"])[rows % 3].tolist()),
            "y": pa.array([f"class{k}" for k in rows % 5]),
        }
    )
    return make(table)


def _right(columns: dict[str, torch.Tensor], targets: Any, rows: Array) -> bool:
    return (
        list(columns) == ["x", "f", "f.missing", "c"]
        and columns["x"].tolist() == rows.tolist()
        and columns["f.missing"].tolist() == (rows % 7 == 0).tolist()
        and torch.equal(columns["f"].nan_to_num(-1).float(), torch.from_numpy(np.where(rows % 7, rows / 8, -1)).float())
        and columns["c"].tolist() == [(2, 1, 0)[k] for k in rows % 3]
        and targets.tolist() == (rows % 5).tolist()
    )


def test_a_batch_is_what_its_items_are(store: Path) -> None:
    dataset = TableDataset(store)
    rows = np.random.default_rng(0).integers(0, 500, 64)
    assert _right(*dataset.gather(dataset.locate(rows, seed=1, epoch=2, repeats=None)), rows)
    columns, targets = dataset.gather(dataset.locate(rows))
    for k, row in enumerate(rows.tolist()):
        item, target = dataset[row]
        assert target == targets[k] and all(item[n].dim() == 0 and str(item[n]) == str(columns[n][k]) for n in columns)
    assert all(column.is_contiguous() for column in columns.values())
    assert dataset[-1][0]["x"] == 499
    with pytest.raises(IndexError, match="index 500, but the dataset has 500 samples"):
        dataset[500]
    with pytest.raises(KeyError, match=r"no column 'z'; there are 'x', 'f', 'f.missing', 'c'"):
        dataset.column("z")
    assert "500 rows of 3 columns" in repr(dataset)


def test_what_a_batch_holds_is_its_own(store: Path) -> None:
    dataset = TableDataset(store)
    columns, targets = dataset.gather(np.arange(8))
    columns["x"].zero_()
    targets.zero_()
    assert _right(*dataset.gather(np.arange(8)), np.arange(8))


def test_subset_and_split_mean_what_they_mean_for_images(store: Path) -> None:
    dataset = TableDataset(store)
    part = dataset.subset([5, -1, 5])
    assert part.column("x").tolist() == [5, 499, 5] and part.targets.tolist() == [0, 4, 0] and len(part) == 3
    assert part.subset([1])[0][0]["x"] == 499 and part.missing == dataset.missing
    assert dataset.subset(np.arange(500) < 3).column("x").tolist() == [0, 1, 2]
    first, second = dataset.split(0.8, seed=3, stratify=True)
    assert sorted([*first.column("x").tolist(), *second.column("x").tolist()]) == list(range(500))
    assert np.bincount(first.targets).tolist() == [80] * 5 and first.column("x").tolist() == sorted(first.column("x").tolist())
    again, _ = dataset.split(0.8, seed=3, stratify=True)
    other, _ = dataset.split(0.8, seed=4, stratify=True)
    assert again.column("x").equal(first.column("x")) and not other.column("x").equal(first.column("x"))
    with pytest.raises(ValueError, match=r"fraction is 1.5, but must lie between 0 and 1"):
        dataset.split(1.5, seed=0)
    with pytest.raises(ValueError, match=r"stratify needs classes"):
        TableDataset(make(pa.table({"x": [1], "y": [0.5]}))).split(0.5, seed=0, stratify=True)


def test_a_split_of_a_table_is_that_of_images(store: Path) -> None:
    images = fastdata.LMDBDataset(stores.store())
    table = TableDataset(store).subset(range(len(images)))
    one, two = images.split(0.5, seed=9), table.split(0.5, seed=9)
    assert [images.name(int(k)) for k in two[0].column("x")] == [one[0].name(k) for k in range(len(one[0]))]


def test_the_loader_delivers_it(store: Path) -> None:
    dataset = TableDataset(store)
    with Loader(dataset, batch_size=64, shuffle=True, seed=1, num_workers=0) as loader:
        batches = list(loader)
    for batch in batches:
        assert _right(*batch, batch.ids)
    assert stores.once([batch.ids for batch in batches], 500)


def test_torchs_own_loader_delivers_it_too(store: Path) -> None:
    columns, targets = next(iter(DataLoader(TableDataset(store), batch_size=9)))
    assert _right(columns, targets, np.arange(9))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_it_pickles_small_and_other_processes_share_it(store: Path, method: str) -> None:
    dataset = TableDataset(store)
    assert len(pickle.dumps(dataset)) < 3000 + len(pickle.dumps(dataset.columns))
    part = dataset.subset([3, 4])
    copied = pickle.loads(pickle.dumps(part))
    assert copied.column("x").tolist() == [3, 4]
    code = """
import json, multiprocessing, sys
from fastdata import TableDataset
from support import memory_of

def work(dataset, pipe):
    columns, targets = dataset.gather(dataset.locate([7, 8]))
    before = columns["x"].tolist()
    memory_of(dataset)["c0"][0] = 99
    pipe.send([before, targets.tolist()])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    dataset = TableDataset(sys.argv[1], shared=False)
    here, there = context.Pipe()
    process = context.Process(target=work, args=(dataset, there))
    process.start()
    answer = here.recv()
    process.join()
    print(json.dumps([answer, int(dataset[0][0]["x"])]))
"""
    assert stores.script(code, store, method) == [[[7, 8], [2, 3]], 99]  # one memory: what the child wrote stands here


def test_a_dataset_outlives_its_store(tmp_path: Path) -> None:
    import shutil

    dataset = TableDataset(make(with_target(x=[1, 2]), tmp_path / "t.fds"))
    shutil.rmtree(tmp_path / "t.fds")
    assert dataset.column("x").tolist() == [1, 2]


def test_a_table_that_does_not_fit_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.tables.dataset.free_memory", lambda: 1000)
    with pytest.raises(StoreError, match=r"takes 8000 bytes in memory, but 1000 are free; prepare it without some columns"):
        TableDataset(store, shared=False)


def test_other_kinds_of_stores_say_what_opens_them(store: Path) -> None:
    with pytest.raises(StoreError, match=r"holds images, not table; open it with LMDBDataset"):
        TableDataset(stores.store())
    with pytest.raises(StoreError, match=r"holds table, not images; open it with TableDataset"):
        fastdata.LMDBDataset(store)


def test_a_table_without_any_target_makes_no_store() -> None:
    with pytest.raises(PrepError, match=r"none of 2 inputs can be used \(no-target 2\).*row 0: no-target: it has no value"):
        make(pa.table({"x": [1, 2], "y": pa.array([None, None], pa.float64())}))
