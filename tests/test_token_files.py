"""Files of tokens as nanoGPT has them, and back; --tokenizer chars against what nanoGPT's own prepare.py makes."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastdata
from corpora import documents, lines, sentences, tokenizer, tokens
from fastdata import TokenDataset
from fastdata.errors import PrepError
from fastdata.sources.inputs import SplitsError
from fastdata.store.export import export
from fastdata.store.info import info_lines
from fastdata.store.store import Store, verify
from fastdata.text.documents import Cutting
from fastdata.text.planning import list_text
from stores import write_files
from support import MAIN, PREP, run

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


def test_what_counts_as_splits(tmp_path: Path) -> None:
    files: dict[str, tuple[list[str] | None, str]] = {
        "web_train_000001.bin web_train_000002.bin web_val_000000.bin": (None, "put each in a folder of its own"),
        "train/0.bin val/0.bin": (["train", "val"], "side by side, "),
        "train.bin val.bin more.bin": (["train", "val"], r"side by side \(beside them: more.bin\)"),
        "train.txt valid.txt test.txt": (["train", "test", "valid"], "side by side, "),
        "train.md test.md about.md": (None, ""),
        "train_0.bin train_1.bin": (None, ""),
    }
    for k, (names, (splits, said)) in enumerate(files.items()):
        root = write_files(tmp_path / str(k), dict.fromkeys(names.split(), b"ab" * 8))
        with pytest.raises(PrepError, match=said) if said else nullcontext() as error:
            list_text(root, Cutting())
        assert splits is None or (isinstance(error.value, SplitsError) and [*error.value.splits] == splits)


# Characters

TEXT = "\n".join(sentences(300)) + "\n"


def shakespeare_char(data: str, root: Path) -> None:
    """data/shakespeare_char/prepare.py of nanoGPT (MIT licence), without its download and its prints."""
    chars = sorted(list(set(data)))  # noqa: C414
    stoi = {ch: i for i, ch in enumerate(chars)}
    itos = {i: ch for i, ch in enumerate(chars)}  # noqa: C416
    n = len(data)
    root.mkdir()
    for name, part in (("train.bin", data[: int(n * 0.9)]), ("val.bin", data[int(n * 0.9) :])):
        np.array([stoi[c] for c in part], dtype=np.uint16).tofile(root / name)
    with (root / "meta.pkl").open("wb") as f:
        pickle.dump({"vocab_size": len(chars), "itos": itos, "stoi": stoi}, f)


def made(path: Path, text: str = TEXT, **options: Any) -> Path:
    """A store of the characters of one file."""
    path.mkdir(exist_ok=True)
    (path / "input.txt").write_text(text)
    return fastdata.prep(path / "input.txt", path / "o.fds", workers=1, **{"tokenizer": "chars", **options}).out


def test_the_same_files_as_nanogpt_makes(tmp_path: Path) -> None:
    shakespeare_char(TEXT, tmp_path / "theirs")
    path = made(tmp_path)
    assert export(path, tmp_path / "ours", to="nanogpt") == 3
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    ours, theirs = (pickle.loads((tmp_path / name / "meta.pkl").read_bytes()) for name in ("ours", "theirs"))
    assert ours == theirs and list(ours["itos"].items()) == list(theirs["itos"].items())
    assert json.loads((path / "characters.json").read_text()) == sorted(set(TEXT))
    dataset = TokenDataset(path, block_size=50, mode="sequential")
    assert dataset.decode(dataset[0]) == TEXT[:51] and dataset[0].dtype == torch.uint16
    assert list(verify(path)) == [] and run(PREP[0], "tools/check_format.py", path, cwd=Path(__file__).parents[1]).returncode == 0
    assert any(f"vocab size {len(set(TEXT))}, largest" in line for line in info_lines(Store(path, "tokens")))


def test_another_text_with_the_characters_of_a_store(tmp_path: Path) -> None:
    train = made(tmp_path / "train")
    held_out = made(tmp_path / "val", "that was naïve", tokenizer=str(train), end_token="none")
    ids = sorted(set(TEXT))
    assert tokens(held_out).tolist() == [ids.index(c) for c in "that was naïve"]
    (tmp_path / "lines.txt").write_text("the of\nthe %#\nand a\n")
    summary = fastdata.prep(
        tmp_path / "lines.txt", tmp_path / "l.fds", tokenizer=str(train), split_lines=True, end_token="none", workers=1
    )
    assert (summary.kept, summary.rejected) == (2, {"unknown-character": 1})
    (reject,) = Store(summary.out, "tokens").rejects()
    assert reject["detail"] == f"byte 7: the {len(ids)} characters of the vocabulary lack '#', '%'"
    assert "".join(ids[k] for k in tokens(summary.out)) == "the ofand a"


def test_documents_need_an_end_to_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match="chars does not say which token ends a document: give end_token TOKEN, or end_token none"):
        made(tmp_path, split_lines=True)
    path = made(tmp_path, split_lines=True, end_token="\n")
    ids = sorted(set(TEXT))
    assert "".join(ids[k] for k in tokens(path)) == TEXT, "the character itself joins the vocabulary"
    assert len(documents(path)) == 300


def test_wrong_use_of_characters(tmp_path: Path) -> None:
    path = made(tmp_path)
    found = run(*MAIN, "export", path, tmp_path / "bin", "--val-fraction=1")
    assert found.returncode == 2 and "--val-fraction" in found.stderr and not (tmp_path / "bin").exists()
    export(path, tmp_path / "bin", to="nanogpt")
    train = tmp_path / "bin" / "train.bin"
    with pytest.raises(PrepError, match="tokenizer chars needs a SOURCE of text"):
        fastdata.prep(train, tmp_path / "b.fds", tokenizer="chars")
    again = fastdata.prep(tmp_path / "bin", tmp_path / "b.fds", tokenizer=path, end_token="none", workers=1)
    assert [*again.splits] == ["train", "val"] and again.skipped == {}, "meta.pkl lies beside them"
    assert np.array_equal(tokens(tmp_path / "b-train.fds"), np.fromfile(train, np.uint16))
    for damaged in ('["b", "a"]', "[]", "[" * 200_000):
        (path / "characters.json").write_text(damaged)
        with pytest.raises(PrepError, match="is not the sorted list of characters"):
            made(tmp_path / "x", tokenizer=str(path), end_token="none")
