"""Tables from CSV, hostile ones, kills, any number of workers, and what the commands say."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastdata
import stores
from fastdata import TableDataset, prep
from fastdata.errors import FormatError, PrepError, StoreError
from fastdata.prepare.estimate import estimate
from fastdata.store.format import read_manifest
from fastdata.store.store import Store
from fastdata.store.verify import verify
from fastdata.tables import cut as cutting
from support import MAIN, PREP, kill_group, make_shard_here, run, start, tables, tree, until
from test_tables import make, with_target

TOOLS = Path(__file__).parent.parent / "tools"


def csv(text: str | bytes, name: str = "t.csv") -> Path:
    path = stores.folder() / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def from_csv(text: str | bytes, **options: Any) -> TableDataset:
    return TableDataset(make(csv(text), **options))


# ------------------------------------------------------------------------------------------------------------------ CSV


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "kind", "dtype", "values"),
    [
        (["1", "200", " 3"], "integer", "uint8", [1, 200, 3]),
        (["-1", "+2", "007"], "integer", "int8", [-1, 2, 7]),
        (["18446744073709551615", "0", "1"], "integer", "uint64", [2**64 - 1, 0, 1]),
        (["1", "0.5", "-2e3"], "float", "float16", [1, 0.5, -2000]),
        (["0.1", "inf", ".5"], "float", "float64", [0.1, float("inf"), 0.5]),
        (["true", "False", "TRUE"], "bool", "bool", [True, False, True]),
        (["2024-02-29", "1970-01-01", "1969-12-31"], "date", "int32", [19782, 0, -1]),
        (["2024-02-29 10:00", "1970-01-01T00:00:01", "1970-01-02"], "timestamp", "int64", [1709200800, 1, 86400]),
        (["1970-01-01 00:00:00.250", "1970-01-01", "1970-01-02"], "timestamp", "int64", [250, 0, 86_400_000]),
        (["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00", "1970-01-01T00:00:01Z"], "timestamp", "int64", [0, 0, 1]),
        (["b", "a", "b"], "category", "uint8", [1, 0, 1]),
        (["true", "maybe", "true"], "category", "uint8", [1, 0, 1]),
        (["0x1F", "0x20", "0x1F"], "category", "uint8", [0, 1, 0]),
        ([" a", "a", " a"], "category", "uint8", [0, 1, 0]),
    ],
)
def test_kinds_of_columns_in_a_csv(cells: list[str], kind: str, dtype: str, values: list[Any]) -> None:
    dataset = from_csv("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    assert (dataset.columns["x"].kind, dataset.columns["x"].dtype) == (kind, dtype)
    assert dataset.column("x").tolist() == values and dataset.missing == {}


def test_missing_values_of_a_csv() -> None:
    dataset = from_csv('n,f,c,e,b,y\n1,,NA,,true,1\nNA,nan,,NA,,2\n3,0.5,"",N/A,null,3\n4,1,x,,,4\n')
    assert dataset.missing == {"n": 1, "f": 1, "c": 2, "e": 4, "b": 3}
    assert dataset.column("n").tolist() == [1, 0, 3, 4] and dataset.columns["n"].dtype == "uint8"
    assert dataset.column("f.missing").tolist() == [True, False, False, False]  # nan is a value
    assert torch.isnan(dataset.column("f")).tolist() == [True, True, False, False]
    assert dataset.categories["c"] == ["NA", "x"] and dataset.column("c.missing").tolist() == [False, True, True, False]
    assert dataset.columns["e"].kind == "empty" and dataset.columns["b"].kind == "bool"


def test_quotes_and_line_ends_of_a_csv() -> None:
    text = 'x,y\r\n"a,b",1\r\n"line\r\nbreak",2\r\n"say ""hi""",3\r\n5" disk,4\r\n\r\nlast,5'
    dataset = from_csv(text)
    names = dataset.categories["x"]
    assert [names[k] for k in dataset.column("x").tolist()] == ["a,b", "line\r\nbreak", 'say "hi"', '5" disk', "last"]
    assert dataset.targets.tolist() == [1, 2, 3, 4, 5]
    tsv = TableDataset(make(csv("\ufeffx\ty\na,b\t1\nc\t2\n", "t.tsv")))
    assert tsv.categories == {"x": ["a,b", "c"]} and tsv.targets.tolist() == [1, 2]


CELLS = st.text(st.sampled_from('ab,"\n\r \u00e9'), max_size=6)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=30), block=st.integers(8, 60))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_csv_is_cut_where_rows_end(rows: list[tuple[str, str]], block: int) -> None:
    """Each part read by itself gives the rows that the whole gives, wherever the blocks end."""
    import csv as python_csv

    text = io.StringIO()
    python_csv.writer(text, quoting=python_csv.QUOTE_MINIMAL).writerows([("x", "z"), *rows])
    path = csv(text.getvalue())
    before, cutting.BLOCK = cutting.BLOCK, block
    try:
        names, begin = cutting.header(path, ",")
        parts = list(cutting.cut(path, begin, ",", 2))
    finally:
        cutting.BLOCK = before
    assert names == ["x", "z"] and b"".join(data for _, _, data in parts) == path.read_bytes()[begin:]
    assert [(a, b) for a, b, _ in parts] == [(a, a + len(data)) for a, _, data in parts]
    read = [row for _, _, data in parts for row in python_csv.reader(io.StringIO(data.decode(), newline=""))]
    assert read == [list(row) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("block", [16, 64, 8 << 20])
def test_the_parts_of_a_csv_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{k},{k / 8},{'red' if k % 3 else chr(34) + 'light' + chr(10) + 'blue' + chr(34)},{k % 4}\n" for k in range(300)]
    monkeypatch.setattr(cutting, "BLOCK", block)
    dataset = from_csv("a,f,c,y\n" + "".join(rows))
    assert dataset.column("a").tolist() == list(range(300)) and dataset.categories["c"] == ["light\nblue", "red"]
    assert dataset.column("f").tolist() == [k / 8 for k in range(300)]
    assert dataset.column("c").tolist() == [int(k % 3 > 0) for k in range(300)]


# -------------------------------------------------------------------------------------------------------------- hostile


def _parquet(table: Any, **options: Any) -> Path:
    path = stores.folder() / "t.parquet"
    pq.write_table(table, path, **options)
    return path


def _cut_parquet() -> Path:
    path = _parquet(with_target(x=list(range(1000))))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def _damaged_parquet() -> Path:
    path = _parquet(
        with_target(x=np.random.default_rng(0).integers(0, 1 << 40, 1000)), write_page_checksum=True, use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[200:400] = bytes(200)
    path.write_bytes(data)
    return path


HOSTILE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "short row": (lambda: csv("a,b,y\n1,2,3\n4,5\n"), {}, r"row 2 has 2 columns, the header has 3: '4,5'"),
    "long row": (lambda: csv("a,y\n" + "1,2\n" * 5 + "1,2,3\n"), {}, r"row 6 has 3 columns, the header has 2"),
    "numbers and text": (
        lambda: csv("a,y\n1,1\n?,1\n"),
        {},
        r"column 'a' holds numbers, such as '1', and other text, such as '\?': correct it, or take all of it as names "
        r"\(category a\), or leave it out \(drop a\)",
    ),
    "text, then numbers": (lambda: csv("a,y\nx,1\n1,1\n"), {}, r"numbers, such as '1', and other text, such as 'x'"),
    "too large": (lambda: csv(f"a,y\n{1 << 70},1\n"), {}, r"column 'a' holds whole numbers of more than 64 bits"),
    "negative and huge": (lambda: csv(f"a,y\n-1,1\n{(1 << 64) - 1},1\n"), {}, r"column 'a' .*more than 64 bits"),
    "open quote": (lambda: csv('a,y\n"b,1\nc,2\n'), {}, r"ends inside quotes, after byte 4"),
    "no header": (lambda: csv(""), {}, r"has no header"),
    "unnamed": (lambda: csv("a,,y\n1,2,3\n"), {}, r"leaves column 2 without a name"),
    "twice": (lambda: csv("a,a,y\n1,2,3\n"), {}, r"names 'a' twice"),
    "utf-16": (
        lambda: csv("a,y\n1,2\n".encode("utf-16")),
        {},
        r"it is UTF-16, not UTF-8: convert it with iconv",
    ),
    "latin-1": (lambda: csv("a,y\nn\xe9e,2\n".encode("latin-1")), {}, r"cannot be read as a table: .*UTF8"),
    "no rows": (lambda: csv("a,y\n"), {}, r"has no rows"),
    "empty parquet": (
        lambda: _parquet(pa.table({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())})),
        {},
        r"has no rows",
    ),
    "cut parquet": (_cut_parquet, {}, r"cannot be read as a table: Parquet magic bytes not found"),
    "damaged parquet": (_damaged_parquet, {}, r"cannot be read as a table"),
    "not parquet": (lambda: csv("hello", "t.parquet"), {}, r"cannot be read as a table"),
    "wrong target": (
        lambda: csv("a,y\n1,2\n"),
        {"target": "label"},
        r"target label: .*t.csv has no such column; it has 'a', 'y'",
    ),
    "wrong drop": (lambda: csv("a,y\n1,2\n"), {"drop": "b"}, r"drop b: .* has no such column"),
    "dropped target": (lambda: csv("a,y\n1,2\n"), {"drop": "y"}, r"column 'y' is to be left out \(drop\), and to be used too"),
    "nothing left": (lambda: csv("a,y\n1,2\n"), {"drop": "a"}, r"has no column beside"),
    "nested": (
        lambda: _parquet(with_target(tags=[[1, 2], [3]])),
        {},
        r"column 'tags' holds nested values \(list<.*\); leave it out \(drop tags\)",
    ),
    "struct": (lambda: _parquet(with_target(s=[{"a": 1}, {"a": 2}])), {}, r"column 's' holds nested values \(struct<"),
    "bytes": (lambda: _parquet(with_target(b=[b"\0", b"\1"])), {}, r"column 'b' holds bytes \(binary\)"),
    "decimals": (
        lambda: _parquet(with_target(d=pa.array([10**30], pa.decimal128(38, 0)))),
        {},
        r"column 'd' holds decimals \(decimal128\(38, 0\)\) of more than 64 bits",
    ),
    "times as target": (
        lambda: _parquet(pa.table({"x": [1], "y": pa.array([1], pa.timestamp("s"))})),
        {},
        r"target 'y' holds timestamp",
    ),
    "names as one of targets": (
        lambda: _parquet(pa.table({"x": [1], "y": [1], "n": ["a"]})),
        {"target": ["y", "n"]},
        r"^target 'n' holds names: give it as the only target",
    ),
    "a target that int64 does not hold": (
        lambda: csv(f"a,y\n1,{2**63}\n2,1\n"),
        {},
        r"^target 'y' holds whole numbers above 2\^63 - 1, and targets are int64: to take them as classes, add category y",
    ),
    "name of a mask": (
        lambda: _parquet(with_target(**{"a": pa.array([1, None]), "a.missing": [1, 2]})),
        {},
        r"columns 'a' and 'a.missing'",
    ),
    "mixed objects": (
        lambda: pd.DataFrame({"a": [1, "x"], "y": [1, 2]}),
        {},
        r"the DataFrame cannot be read as a table: .*column a",
    ),
    "frame of lists": (lambda: pd.DataFrame({"a": [[1], [2]], "y": [1, 2]}), {}, r"column 'a' holds nested values"),
    "same names": (lambda: pd.DataFrame([[1, 2, 3]], columns=["a", "a", "y"]), {}, r"the DataFrame cannot be read as a table"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables_are_refused_clearly(name: str) -> None:
    source, options, message = HOSTILE[name]
    out = stores.folder() / "o.fds"
    with pytest.raises(PrepError, match=message):
        prep(source(), out, workers=1, **{"target": "y", **options})
    assert not (out / "manifest.json").exists()


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(PrepError, match=r"a column of images .* is needed, but there are none: x, y; .*: target COLUMN"):
        prep(_parquet(with_target(x=[1])), stores.folder() / "o.fds")
    with pytest.raises(ValueError, match=r"target is about a table, but SOURCE .* is images here"):
        prep(stores.sources(), stores.folder() / "o.fds", target="label")
    with pytest.raises(ValueError, match=r"size is about images, but SOURCE .* is a table here"):
        prep(csv("a,y\n1,2\n"), stores.folder() / "o.fds", target="y", size=32)
    with pytest.raises(ValueError, match=r"out is None, but a DataFrame has no name"):
        prep(pd.DataFrame({"x": [1]}))
    with pytest.raises(TypeError, match=r"source is a dict, but must be a path, a DataFrame, or a sequence of images"):
        prep({"x": [1]}, stores.folder() / "o.fds")


def test_drop_and_category_are_ways_out() -> None:
    text = "id,zip,bad,y\n1,010,1,0\n2,9,x,1\n"
    dataset = from_csv(text, drop=["bad", "id"], category="zip")
    assert list(dataset.columns) == ["zip"] and dataset.categories == {"zip": ["9", "010"]}


def test_too_many_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.tables.column_stats.MOST_NAMES", 10)
    with pytest.raises(PrepError, match=r"column 'x' holds more than 10 different names, such as 'a0': leave it out \(drop x\)"):
        make(with_target(x=[f"a{k}" for k in range(11)]))
    moments = "x,y\n" + "".join(f"2024-01-{k:02d},1\n" for k in range(1, 29))
    assert from_csv(moments).columns["x"].kind == "date"  # these are no names in the end


def test_a_table_that_changes_under_the_run(tmp_path: Path) -> None:
    """What a worker reads must be what the plan saw."""
    from fastdata.prepare import worker
    from fastdata.prepare.build_plan import build_plan

    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,1\n2,2\n")
    work = build_plan(path, tmp_path / "o.fds", target="y")
    (work.out / "work").mkdir(parents=True)
    (work.out / "table").mkdir()
    job = worker.Job(str(tmp_path), "", str(work.out), work.plan.options, work.plan.fingerprint, work.plan.shared)
    for text in ("x,y\n1,1\n999,2\n", "x,y\n1,1\n,2\n", "x,y\n1,1\nab,2\n", "x,y\n1,1\n"):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"than when it was listed|cannot be read as a table"):
            make_shard_here(job, worker.Task(0, 0, work.plan.shard(0), {}))
    with pytest.raises(StoreError, match=r"t.csv: rows 0 to 1 cannot be read: its decoder took"):
        task = worker.Task(0, 0, work.plan.shard(0), {0: ("crashed", "its decoder took the process down (SIGSEGV)")})
        make_shard_here(job, task)


# ------------------------------------------------------------------------------------------------------- the same bytes


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million rows in 25 row groups, 9 shards; not to be written to."""
    path, n, rng = tmp_path_factory.mktemp("big") / "big.parquet", 1_000_000, np.random.default_rng(0)
    table = pa.table(
        {
            **{f"f{k}": rng.normal(size=n) for k in range(6)},
            "a": pa.array(rng.integers(0, 100, n), mask=rng.random(n) < 0.1),
            "c": pa.DictionaryArray.from_arrays(rng.integers(0, 50, n), [f"name {k}" for k in range(50)]),
            "y": pa.array(rng.integers(0, 10, n), mask=rng.random(n) < 1e-5),
        }
    )
    pq.write_table(table, path, row_group_size=40_000)
    return path


@pytest.fixture(scope="module")
def undisturbed(big: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    out = tmp_path_factory.mktemp("undisturbed") / "o.fds"
    summary = prep(big, out, target="y", workers=1)
    manifest = read_manifest(out)
    assert len(manifest.shard_samples) == 7 and summary.rejected.keys() == {"no-target"}
    assert sum(manifest.shard_samples) + manifest.num_rejects == 1_000_000
    return tree(out)


@pytest.mark.slow
def test_neither_workers_nor_place_change_a_byte(big: Path, undisturbed: dict[str, bytes | None], tmp_path: Path) -> None:
    assert tree(prep(big, tmp_path / "elsewhere" / "x.fds", target="y", workers=3).out) == undisturbed
    text = json.dumps(json.loads((tmp_path / "elsewhere" / "x.fds" / "manifest.json").read_bytes()))
    assert str(tmp_path) not in text and "workers" not in text


@pytest.mark.slow
def test_kill_9_at_random_moments(big: Path, undisturbed: dict[str, bytes | None], tmp_path: Path) -> None:
    rng, unfinished, kept = random.Random(3), 0, 0
    for k in range(6):
        out = tmp_path / f"{k}.fds"
        command = (*PREP, big, out, "--target", "y", "--workers", "2", "--progress", "off")
        process = start(*command)
        until(lambda out=out, k=k: tables(out) if k % 2 else list(out.glob("work/table-*.tmp")))
        time.sleep(rng.uniform(0, 0.03))
        kill_group(process)
        unfinished += not (out / "manifest.json").exists()
        kept += bool(tables(out))
        second = run(*command)
        assert second.returncode == 0, second.stderr
        assert tree(out) == undisturbed, f"round {k} ended otherwise"
    assert unfinished >= 3 and kept >= 2


@pytest.mark.slow
def test_csv_and_frames_go_on_too(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(200_000), "c": np.where(np.arange(200_000) % 2, "odd", "even"), "y": 1.5})
    frame.loc[5, "c"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    for source in (frame, tmp_path / "t.csv"):
        whole = prep(source, tmp_path / "whole.fds", target="y", workers=1, overwrite=True).out
        begun = prep(source, tmp_path / "begun.fds", target="y", workers=2, overwrite=True).out
        assert tree(whole) == tree(begun)
        again = prep(source, begun, target="y")
        assert again.resumed == again.inputs == 200_000
        with pytest.raises(PrepError, match=r"target y, now x"):
            prep(source, begun, target="x")


def test_a_changed_table_is_noticed_even_if_its_size_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,1\n2,2\n")
    prep(path, tmp_path / "o.fds", target="y")
    path.write_text("x,y\n1,1\n3,2\n")
    with pytest.raises(PrepError, match=r"made, or begun, with other options or inputs:\n  the list of sources"):
        prep(path, tmp_path / "o.fds", target="y")
    assert prep(path, tmp_path / "o.fds", target="y", overwrite=True).kept == 2


# ------------------------------------------------------------------------------------------------------------- commands


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,city,score,y\n34,Rome,0.5,no\n,Oslo,,yes\n51,Rome,2.25,\n")
    done = run(*PREP, "t.csv", "--target", "y", "--max-reject-rate", "0.5", cwd=tmp_path)
    assert done.returncode == 0 and "2 of 3 rows kept, 1 rejected (no-target 1), listed in rejects.jsonl" in done.stdout, (
        done.stderr
    )
    info = run(*MAIN, "info", tmp_path / "t.fds").stdout
    for line in (
        "2 rows of 4 columns, 2 classes",
        "  age: uint8, integer (int64), 1 missing",
        "  city: uint8, category (string), 2 names: Oslo, Rome",
        "  score: float16, float (double), 1 missing",
        "  y: uint8, category (string), 2 names: no, yes (target)",
        "  rejected: no-target 1",
    ):
        assert line in info
    assert run(*MAIN, "verify", tmp_path / "t.fds").returncode == 0
    assert run(*MAIN, "export", tmp_path / "t.fds", tmp_path / "out", "--to", "parquet").returncode == 0
    assert pq.read_table(tmp_path / "out" / "table.parquet").to_pylist() == [
        {"age": 34, "city": "Rome", "score": 0.5, "y": "no"},
        {"age": None, "city": "Oslo", "score": None, "y": "yes"},
    ]
    strict = run(*PREP, "t.csv", "two.fds", "--target", "y", cwd=tmp_path)
    assert strict.returncode == 3 and "1.00%" in strict.stderr
    assert run(*PREP, "t.csv", "--target", "z", cwd=tmp_path).returncode == 2
    names = run(*PREP, "t.csv", "n.fds", "--target", "age", "--target", "city", cwd=tmp_path)
    assert names.returncode == 2 and "--target 'city' holds names: give it as the only target" in names.stderr
    dry = run(*PREP, "t.csv", "x.fds", "--target", "y", "--dry-run", "--max-reject-rate", "0.5", cwd=tmp_path)
    assert dry.returncode == 0 and "3 inputs" in dry.stdout and "no-target 1" in dry.stdout and not (tmp_path / "x.fds").exists()
    assert run(*MAIN, "export", tmp_path / "t.fds", tmp_path / "bad", "--to", "nanogpt").returncode == 2
    assert "4 columns drawn in" in run(*MAIN, "info", tmp_path / "t.fds", "--sheet", tmp_path / "s.png").stdout


@pytest.mark.slow
def test_an_estimate_is_close(big: Path, tmp_path: Path, undisturbed: dict[str, bytes | None]) -> None:
    found = estimate(big, tmp_path / "o.fds", target="y", workers=1)
    size = sum(len(data or b"") for name, data in undisturbed.items() if name.endswith(".mdb"))
    assert found.inputs == 1_000_000 and abs(found.bytes - size) < 0.05 * size


def test_classes_of_another_store() -> None:
    train = make(pa.table({"c": ["a", "b", "c"], "y": ["cat", "dog", "eel"]}))
    other = TableDataset(make(pa.table({"c": ["c", None], "y": ["dog", "dog"]}), classes=train))
    assert other.column("c").tolist() == [2, 3] and other.classes == ["cat", "dog", "eel"] and other.targets.tolist() == [1, 1]
    with pytest.raises(PrepError, match=r"column 'c' has names that .* does not have: 'z'"):
        make(pa.table({"c": ["z"], "y": ["dog"]}), classes=train)
    with pytest.raises(PrepError, match=r"that store holds no table"):
        make(pa.table({"c": ["z"], "y": ["dog"]}), classes=stores.store())


def test_without_pyarrow_the_message_names_it(tmp_path: Path) -> None:
    csv("a,y\n1,2\n")
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    code = "import sys; sys.modules['pyarrow'] = None; from fastdata.cli import prep_main; prep_main()"
    done = run(sys.executable, "-c", code, tmp_path / "t.csv", tmp_path / "o.fds", "--target", "y")
    assert done.returncode == 1 and "this needs pyarrow, which is not installed: pip install pyarrow" in done.stderr


@pytest.mark.slow
def test_reading_needs_no_pyarrow() -> None:
    store = make(with_target(x=[1, 2], c=["a", "b"]))
    code = (
        "import sys, json; sys.modules['pyarrow'] = sys.modules['pandas'] = None\n"
        "from fastdata import TableDataset; print(json.dumps(TableDataset(sys.argv[1]).column('x').tolist()))"
    )
    src = str(Path(fastdata.__file__).parents[1])
    assert stores.script(code, store, env={"PYTHONPATH": src}) == [1, 2]


# ------------------------------------------------------------------------------------------------------------ the format


def _checked(store: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, TOOLS / "check_format.py", store)


def test_the_other_reader_agrees(undisturbed: dict[str, bytes | None], tmp_path: Path) -> None:
    store = make(with_target(x=[1, None, 3], c=["a", None, "b"], f=[0.5, None, float("nan")], e=pa.nulls(3)))
    assert _checked(store).returncode == 0, _checked(store).stdout
    for name, data in undisturbed.items():
        if data is not None:
            (tmp_path / "big.fds" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "big.fds" / name).write_bytes(data)
    assert _checked(tmp_path / "big.fds").returncode == 0
    shard = store / "table" / "shard-00000.mdb"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert _checked(store).returncode == 1
    assert any("not what was written: its checksum differs" in line for line in verify(store))


def _with_manifest(store: Path, change: Any) -> Path:
    body = json.loads((store / "manifest.json").read_bytes())
    change(body)
    (store / "manifest.json").write_text(json.dumps(body))
    return store


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("table"),
        lambda m: m["table"]["columns"].pop(),
        lambda m: m["table"]["columns"][0].update(dtype="object"),
        lambda m: m["table"]["columns"][0].update(kind="magic"),
        lambda m: m["table"]["columns"][0].update(missing=-1),
        lambda m: m["table"]["columns"][0].update(missing=1),
        lambda m: m["table"]["columns"][0].update(names=[1]),
        lambda m: m["table"]["columns"][0].update(name="y"),
        lambda m: m["table"].update(targets=["z"]),
        lambda m: m["variants"][0].update(records=None),
        lambda m: m["files"].pop("rejects.jsonl"),
    ],
)
def test_a_manifest_that_can_not_be_is_refused(change: Any) -> None:
    store = _with_manifest(make(with_target(x=[1, 2])), change)
    with pytest.raises(FormatError, match=r"is damaged"):
        TableDataset(store)


def test_records_of_other_lengths_are_refused() -> None:
    store = _with_manifest(make(with_target(x=[1, 2])), lambda m: m["table"]["columns"][0].update(dtype="int32"))
    with pytest.raises(FormatError, match=r"record 0 has 2 bytes, the store's tables say 8; run fastdata verify"):
        TableDataset(store)
    with pytest.raises((FormatError, ValueError)):
        fastdata.store.export.export(store, stores.folder() / "o")


def test_records_are_what_the_format_says() -> None:
    store = make(with_target(x=[1, None, 300], c=["b", "a", "b"]))
    with lmdb.open(str(store / "table" / "shard-00000.mdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        records = [value for _, value in txn.cursor()]
    assert records == [
        np.array([1, 0, 300], "<i2").tobytes(),
        bytes([0, 1, 0]),
        bytes([1, 0, 1]),
        bytes([0, 1, 2]),
    ]
    assert sorted(p.name for p in store.iterdir()) == ["manifest.json", "rejects.jsonl", "table"]
    assert (store / "rejects.jsonl").read_bytes() == b"" and len(Store(store, kind=None).samples) == 0
