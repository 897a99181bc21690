"""--limit of text and of tables: the first documents and rows, as if there were no others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastdata
from corpora import as_bytes, jsonl, tokens
from fastdata.errors import PrepError
from fastdata.store.store import Store
from support import tree
from test_text import TEXTS

# Text


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
    (tmp_path / "in" / "a.txt").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "0.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PrepError, match="none of 2 inputs can be used"):
        fastdata.prep(tmp_path / "in", tmp_path / "2.fds", tokenizer="bytes", limit=2, workers=1)
    for limit, kept, rejected in ((5, 3, 2), (7, 3, 4)):
        made = fastdata.prep(tmp_path / "in", tmp_path / f"{limit}.fds", tokenizer="bytes", limit=limit, workers=1)
        assert (made.inputs, made.kept, sum(made.rejected.values())) == (limit, kept, rejected)
        assert tokens(made.out).tolist() == as_bytes(TEXTS[:kept]).tolist()
