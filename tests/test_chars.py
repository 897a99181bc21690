"""--tokenizer chars, and export to nanoGPT: against what nanoGPT's own prepare.py makes, and how its train.py reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastdata
from corpora import documents, sentences, tokens
from fastdata import TokenDataset
from fastdata.errors import PrepError
from fastdata.store.export import export
from fastdata.store.info import info_lines
from fastdata.store.store import Store, verify
from support import MAIN, PREP, run

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
    assert any(f"vocab_size {len(set(TEXT))}, largest" in line for line in info_lines(Store(path, "tokens")))


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
    assert reject["detail"] == f"byte 7: '#', '%': not among the {len(ids)} characters of the vocabulary"
    assert "".join(ids[k] for k in tokens(summary.out)) == "the ofand a"


def test_documents_need_an_end_to_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match="chars does not say which token ends a document: give end_token TOKEN, or end_token none"):
        made(tmp_path, split_lines=True)
    path = made(tmp_path, split_lines=True, end_token="\n")
    ids = sorted(set(TEXT))
    assert "".join(ids[k] for k in tokens(path)) == TEXT, "the character itself joins the vocabulary"
    assert len(documents(path)) == 300


def test_wrong_use(tmp_path: Path) -> None:
    path = made(tmp_path)
    found = run(*MAIN, "export", path, tmp_path / "bin", "--val-fraction=1")
    assert found.returncode == 2 and "--val-fraction" in found.stderr and not (tmp_path / "bin").exists()
    export(path, tmp_path / "bin", to="nanogpt")
    train = tmp_path / "bin" / "train.bin"
    with pytest.raises(PrepError, match="tokenizer chars takes its characters from text, but SOURCE holds tokens"):
        fastdata.prep(train, tmp_path / "b.fds", tokenizer="chars")
    again = fastdata.prep(tmp_path / "bin", tmp_path / "b.fds", tokenizer=path, end_token="none", workers=1)
    assert [*again.splits] == ["train", "val"] and again.skipped == {}, "meta.pkl lies beside them"
    assert np.array_equal(tokens(tmp_path / "b-train.fds"), np.fromfile(train, np.uint16))
    for damaged in ('["b", "a"]', "[]", "[" * 200_000):
        (path / "characters.json").write_text(damaged)
        with pytest.raises(PrepError, match="is not a sorted list of characters"):
            made(tmp_path / "x", tokenizer=str(path), end_token="none")
