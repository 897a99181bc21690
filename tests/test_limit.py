"""--limit of text and of tables: the first documents and rows, as if there were no others."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastdata
from corpora import as_bytes, jsonl, sentences, tokens
from fastdata import PrepError, TableDataset
from fastdata.prepare.estimate import estimate
from fastdata.store.store import Store
from fastdata.store.verify import verify
from fastdata.tokenizer import Spec, load
from support import PREP, kill_group, memory_of, run, start, tables, tree, until
from test_text import TEXTS, write

# Text


@pytest.mark.slow
@pytest.mark.parametrize("limit", [7, 33, 1000])
@pytest.mark.parametrize("kind", ["files", "lines", "crlf", "bom", "separator", "jsonl", "gz", "zst", "parquet"])
def test_the_first_documents_of_every_source(kind: str, limit: int, tmp_path: Path) -> None:
    options = write(kind, tmp_path / "in")
    made = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", tokenizer="bytes", limit=limit, workers=1, **options)
    assert np.array_equal(tokens(made.out), as_bytes(TEXTS[:limit]))
    assert made.inputs == made.kept == min(limit, 60) and list(verify(made.out)) == []


@pytest.mark.slow
def test_documents_of_several_files_and_pieces_count_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.text.listing.LEAST_BYTES", 300)  # some documents to a piece
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n".join(TEXTS[:20]) + "\n\n \n")
    jsonl(tmp_path / "in" / "b.jsonl", TEXTS[20:40])
    (tmp_path / "in" / "c.txt").write_text("\n".join(TEXTS[40:]))
    whole = fastdata.prep(tmp_path / "in", tmp_path / "all.fds", tokenizer="bytes", split_lines=True)
    assert len(Store(whole.out, "tokens").names()) > 10
    for limit in (1, 2, 19, 20, 21, 33, 40, 41, 60):
        made = fastdata.prep(
            tmp_path / "in", tmp_path / "o.fds", tokenizer="bytes", split_lines=True, limit=limit, workers=1, overwrite=True
        )
        assert np.array_equal(tokens(made.out), as_bytes(TEXTS[:limit])), limit
    assert tree(made.out) == tree(whole.out)


def test_what_is_rejected_counts_as_it_does_among_images(tmp_path: Path) -> None:
    lines = [*(json.dumps({"text": t}) for t in TEXTS[:3]), "no json", json.dumps({"other": 1}), json.dumps({"text": TEXTS[3]})]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.jsonl").write_text("\n".join(lines))
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(b"no gzip")  # one input: nothing in it can be read
    (tmp_path / "in" / "0.jsonl").symlink_to(tmp_path / "nowhere")
    for limit in (1, 2):
        with pytest.raises(PrepError, match=rf"none of {limit} inputs can be used"):
            fastdata.prep(tmp_path / "in", tmp_path / f"{limit}.fds", tokenizer="bytes", limit=limit, workers=1)
    for limit, kept, rejected in ((5, 3, 2), (6, 3, 3), (7, 3, 4), (8, 4, 4)):
        made = fastdata.prep(tmp_path / "in", tmp_path / f"{limit}.fds", tokenizer="bytes", limit=limit, workers=1)
        assert (made.inputs, made.kept, sum(made.rejected.values())) == (limit, kept, rejected)
        assert tokens(made.out).tolist() == as_bytes(TEXTS[:kept]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 8, 30])
def test_the_first_documents_of_tokens(limit: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    parts = [np.append(rng.integers(1, 9000, rng.integers(1, 40)), 0).astype(np.uint16) for _ in range(13)]
    np.concatenate(parts).tofile(tmp_path / "train.bin")
    made = fastdata.prep(tmp_path / "train.bin", tmp_path / "o.fds", end_token="0", limit=limit, workers=1)
    assert made.kept == min(limit, 13) and np.array_equal(tokens(made.out), np.concatenate(parts[:limit]))


def test_a_tokenizer_is_trained_on_these_documents_alone(tmp_path: Path) -> None:
    texts = ["abab " * 9] * 5 + ["xyxyxy " * 9] * 50
    jsonl(tmp_path / "a.jsonl", texts)
    jsonl(tmp_path / "b.jsonl", texts[:5])
    options: dict[str, Any] = {"train_bpe": 262, "workers": 1}
    one = fastdata.prep(tmp_path / "a.jsonl", tmp_path / "a.fds", limit=5, **options).out
    two = fastdata.prep(tmp_path / "b.jsonl", tmp_path / "b.fds", **options).out
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()
    section = Store(one, "tokens").manifest.section("tokens")
    assert section is not None
    engine = load(Spec(section.engine, section.name, section.sha256), (one / "tokenizer.json").read_bytes())
    assert len(engine.encode(["xyxyxy"])[0]) == 6


# Tables


def frame(rows: int) -> pd.DataFrame:
    """Names and numbers that need more room the further one reads; some values and targets are missing."""
    k = np.arange(rows)
    x = pd.array(k * 3, dtype="Int64")
    x[k % 11 == 10] = None
    return pd.DataFrame({"x": x, "f": k / 8, "c": [f"name {row // 10}" for row in k], "y": np.where(k % 50 == 49, None, "even")})


def as_source(kind: str, path: Path, table: pd.DataFrame) -> Any:
    if kind == "frame":
        return table
    if kind == "csv":
        table.to_csv(path / "t.csv", index=False)
    else:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path / "t.parquet", row_group_size=64)
    return path / f"t.{kind}"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 64, 100, 5000])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_the_first_rows_are_a_table_of_these_rows(kind: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.tables.cut.BLOCK", 700)
    (tmp_path / "some").mkdir()
    whole = as_source(kind, tmp_path, frame(300))
    some = as_source(kind, tmp_path / "some", frame(300)[:limit])
    made = fastdata.prep(whole, tmp_path / "a.fds", target="y", limit=limit, workers=1)
    want = fastdata.prep(some, tmp_path / "b.fds", target="y", workers=1)
    assert (made.inputs, made.kept, made.rejected) == (want.inputs, want.kept, want.rejected)
    one, two = TableDataset(made.out), TableDataset(want.out)
    assert one.columns == two.columns and one.missing == two.missing and one.classes == two.classes
    assert memory_of(one).tobytes() == memory_of(two).tobytes() and made.inputs == min(limit, 300)
    assert one.columns["x"].dtype == ("uint8" if limit <= 64 else "int16") and list(verify(made.out)) == []
    again = fastdata.prep(whole, tmp_path / "a.fds", target="y", limit=limit)
    assert again.resumed == again.inputs == made.inputs


def test_rows_behind_the_limit_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 9 + "2,word\n")
    with pytest.raises(PrepError, match="holds numbers, such as '2', and other text, such as 'word'"):
        fastdata.prep(path, tmp_path / "o.fds", target="y")
    assert fastdata.prep(path, tmp_path / "o.fds", target="y", limit=9).kept == 9
    with pytest.raises(PrepError, match="made, or begun, with other options or inputs"):
        fastdata.prep(path, tmp_path / "o.fds", target="y", limit=8)


# Both


def large(kind: str, path: Path) -> tuple[Path, list[str]]:
    if kind == "text":
        return jsonl(path / "large.jsonl", sentences(3000) * 50), ["--tokenizer", "bytes", "--limit", "120001"]
    k = np.arange(600_000)
    pq.write_table(pa.table({"x": k, "y": k % 7}), path / "t.parquet", row_group_size=50_000)
    return path / "t.parquet", ["--target", "y", "--limit", "480001"]


@pytest.mark.parametrize("kind", ["text", "table"])
@pytest.mark.slow
def test_a_limited_run_that_is_killed_goes_on(kind: str, tmp_path: Path) -> None:
    source, options = large(kind, tmp_path)
    done = run(*PREP, source, tmp_path / "whole.fds", *options, "--workers", "1")
    assert done.returncode == 0, done.stderr
    want, unfinished = tree(tmp_path / "whole.fds"), 0
    assert len(Store(tmp_path / "whole.fds", None)) == int(options[-1])
    rng = random.Random(5)
    for k in range(2):
        out = tmp_path / f"{k}.fds"
        process = start(*PREP, source, out, *options, "--workers", "2", "--progress", "off")
        until(lambda out=out: tables(out))
        time.sleep(rng.uniform(0, 0.02))
        kill_group(process)
        unfinished += not (out / "manifest.json").exists()
        again = run(*PREP, source, out, *options)
        assert again.returncode == 0 and tree(out) == want, again.stderr
    assert unfinished >= 1


def test_an_estimate_knows_the_limit(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", sentences(3000))
    made = fastdata.prep(tmp_path / "a.jsonl", tmp_path / "o.fds", tokenizer="bytes", limit=300)
    guessed = estimate(tmp_path / "a.jsonl", tmp_path / "p.fds", tokenizer="bytes", limit=300)
    assert guessed.inputs == 300 and made.tokens * 2 <= guessed.bytes < made.tokens * 2 + 50_000
    pq.write_table(pa.table({"x": np.arange(9000), "y": np.arange(9000)}), tmp_path / "t.parquet")
    assert estimate(tmp_path / "t.parquet", tmp_path / "p.fds", target="y", limit=500).inputs == 500
