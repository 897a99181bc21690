"""Files of tokens as nanoGPT has them, and how they come back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fastdata
from corpora import documents, lines, tokenizer, tokens
from fastdata.errors import PrepError
from fastdata.sources.inputs import SplitsError
from fastdata.store.export import export
from fastdata.store.store import Store
from fastdata.text.documents import Cutting, Piece, read_tokens
from fastdata.text.planning import list_text

RNG = np.random.default_rng(5)
DOCUMENTS = [RNG.integers(1, 50_000, n).astype(np.uint16) for n in (5, 1, 700, 3, 90)]
DOCUMENTS = [np.append(part, 0).astype(np.uint16) for part in DOCUMENTS]  # 0 is the end
WHOLE = np.concatenate(DOCUMENTS)


def test_there_and_back_is_byte_identical(tmp_path: Path) -> None:
    WHOLE.tofile(tmp_path / "train.bin")
    summary = fastdata.prep(tmp_path / "train.bin", tmp_path / "o.fds", end_token="0")
    assert [d.tolist() for d in documents(tmp_path / "o.fds")] == [p.tolist() for p in DOCUMENTS]
    assert summary.kept == 5 and tokens(tmp_path / "o.fds").dtype == np.uint16
    assert export(tmp_path / "o.fds", tmp_path / "out", val_fraction=0) == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.bin"]
    assert (tmp_path / "out/train.bin").read_bytes() == (tmp_path / "train.bin").read_bytes()


def test_a_tokenizer_lends_its_vocabulary_and_its_text(tmp_path: Path) -> None:
    fastdata.prep(lines(), tmp_path / "a.fds", tokenizer=str(tokenizer()), split_lines=True)
    export(tmp_path / "a.fds", tmp_path / "bin", to="nanogpt", val_fraction=0)
    fastdata.prep(tmp_path / "bin", tmp_path / "b.fds", tokenizer=str(tokenizer()))
    assert np.array_equal(tokens(tmp_path / "b.fds"), tokens(tmp_path / "a.fds"))
    a, b = (fastdata.TokenDataset(tmp_path / f"{x}.fds", 30, mode="document") for x in "ab")
    assert len(a) == len(b) and a.decode(a[7][0]) == b.decode(b[7][0]) != ""


def test_tokens_of_any_vocabulary_are_not_taken_for_another_dtype(tmp_path: Path) -> None:
    for largest in (1, 15, 4095, 65_535):
        ids = np.random.default_rng(0).integers(0, largest, 1000, dtype=np.uint16, endpoint=True)
        ids.tofile(tmp_path / "train.bin")
        found, lengths = read_tokens(tmp_path, Piece("train.bin", 0, -1, 0), None)
        assert np.array_equal(found, ids) and lengths.tolist() == [1000]


def test_files_that_do_not_hold_such_tokens_are_rejects(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_bytes(WHOLE.tobytes()[:-1])
    (WHOLE % 200).tofile(tmp_path / "in" / "b.bin")
    WHOLE.tofile(tmp_path / "in" / "c.bin")
    np.arange(5, 100_000, 999, dtype=np.uint32).tofile(tmp_path / "in" / "d.bin")
    summary = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", tokenizer="bytes", workers=1)
    assert np.array_equal(tokens(tmp_path / "o.fds"), WHOLE % 200)
    rejects = Store(summary.out, "tokens").rejects()
    assert {r["name"]: r["reason"] for r in rejects} == {"a.bin": "truncated", "c.bin": "id-out-of-range", "d.bin": "wrong-dtype"}
    assert "every second number is small, as in a file of uint32" in rejects[2]["detail"]


@pytest.mark.parametrize(
    ("names", "splits", "said"),
    [
        (["web_train_000001.bin", "web_train_000002.bin", "web_val_000000.bin"], None, "put each in a folder of its own"),
        (["train/0.bin", "val/0.bin"], ["train", "val"], "side by side, "),
        (["train.bin", "val.bin", "more.bin"], ["train", "val"], "side by side, and beside them more.bin"),
        (["train.txt", "valid.txt", "test.txt"], ["train", "test", "valid"], "side by side, "),
        (["train.md", "test.md", "about.md"], None, ""),
        (["train_0.bin", "train_1.bin"], None, ""),
    ],
)
def test_what_counts_as_splits(names: list[str], splits: list[str] | None, said: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"ab" * 8)
    with pytest.raises(PrepError, match=said) if said else nullcontext() as error:
        list_text(tmp_path / "in", Cutting())
    if splits is not None:
        assert isinstance(error.value, SplitsError) and [*error.value.splits] == splits
