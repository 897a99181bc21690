"""--limit of text and of tables: the first documents and rows, as if there were no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from corpora import as_bytes, jsonl, tokens
from fastdata import PrepError
from fastdata.store.store import Store
from fastdata.store.verify import verify
from fastdata.tokenizer import Spec, load
from support import tree
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
    monkeypatch.setattr("fastdata.text.planning.LEAST_BYTES", 300)  # some documents to a piece
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
    (tmp_path / "in" / "a.jsonl").symlink_to(tmp_path / "elsewhere")
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


# Both
