"""Files of tokens as nanoGPT has them, and how they come back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fastdata
from corpora import documents, lines, tokenizer, tokens
from fastdata.errors import PrepError
from fastdata.store.export import export
from fastdata.store.store import Store
from support import Array

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
    assert np.array_equal(
        Store(tmp_path / "b.fds", "tokens").samples["tokens"], Store(tmp_path / "a.fds", "tokens").samples["tokens"]
    )
    a, b = (fastdata.TokenDataset(tmp_path / f"{x}.fds", 30, mode="document") for x in "ab")
    assert a.decode(a[7][0]) == b.decode(b[7][0]) != ""


@pytest.mark.parametrize("largest", [1, 15, 4095, 65_535])
def test_tokens_of_any_vocabulary_are_not_taken_for_uint32(largest: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, largest, 1000, dtype=np.uint16, endpoint=True)
    ids.tofile(tmp_path / "train.bin")
    fastdata.prep(tmp_path / "train.bin", tmp_path / "o.fds", workers=1)
    assert np.array_equal(tokens(tmp_path / "o.fds"), ids)


def test_a_file_that_lost_a_byte_is_a_reject_and_the_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_bytes(WHOLE.tobytes()[:-1])
    WHOLE.tofile(tmp_path / "in" / "b.bin")
    summary = fastdata.prep(tmp_path / "in", tmp_path / "o.fds")
    assert summary.rejected == {"truncated": 1} and np.array_equal(tokens(tmp_path / "o.fds"), WHOLE)
    assert Store(tmp_path / "o.fds", "tokens").rejects()[0]["name"] == "a.bin"


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        (np.arange(5, 100_000, 999, dtype=np.uint32), {}, r"wrong-dtype 1.*every second number is small, as in a file of uint32"),
        (WHOLE, {"tokenizer": "bytes"}, "id-out-of-range 1"),
    ],
)
def test_other_numbers_are_rejects(ids: Array, options: dict[str, str], said: str, tmp_path: Path) -> None:
    ids.tofile(tmp_path / "train.bin")
    with pytest.raises(PrepError, match=said):
        fastdata.prep(tmp_path / "train.bin", tmp_path / "o.fds", workers=1, **options)


@pytest.mark.parametrize(
    ("names", "stores"),
    [
        (["web_train_000001.bin", "web_train_000002.bin", "web_val_000000.bin"], None),
        (["train/0.bin", "val/0.bin"], ["train", "val"]),
        (["train.bin", "val.bin", "more.bin"], None),
        (["train.txt", "valid.txt", "test.txt"], ["train", "test", "valid"]),
        (["train.md", "test.md", "about.md"], []),
        (["train_0.bin", "train_1.bin"], []),
    ],
)
def test_what_counts_as_splits(names: list[str], stores: list[str] | None, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"ab" * 8)
    how = {"tokenizer": "bytes"} if not names[0].endswith(".bin") else {"end_token": "none"}
    with pytest.raises(fastdata.errors.PrepError, match="side by side") if stores is None else nullcontext():
        made = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1, **how)
        assert [*made.splits] == stores
