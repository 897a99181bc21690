"""`--tokenize`: text columns of images as tokens."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from corpora import sentences, tokenizer
from fastdata import LMDBDataset, Loader, Ragged, RAMDataset, prep
from fastdata.errors import PrepError, StoreError
from fastdata.images.tokens import decode_tokens, encode_columns, with_tokens
from fastdata.store.columns import Column
from fastdata.store.info import store_facts
from fastdata.store.store import Store, verify
from support import write_pictures

COUNT = 12
LENGTH = 10


@pytest.fixture(scope="module")
def captions() -> list[str]:
    return ["", "ü", *sentences(COUNT - 2, seed=3)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> Path:
    root = tmp_path_factory.mktemp("tokenize")
    write_pictures(root, COUNT)
    for k, caption in enumerate(captions):
        (root / f"{k:02d}.txt").write_text(caption)
        (root / f"{k:02d}.json").write_text(json.dumps([caption] * (k % 3)))
    lines = [{"path": f"{k:02d}.png", "caption": caption, "n": k} for k, caption in enumerate(captions)]
    (root / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root / "t.jsonl"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that puts tokens around a text, as CLIP's does, and has one to pad with."""
    made = Tokenizer.from_file(str(tokenizer()))
    made.no_truncation()
    made.no_padding()
    made.add_special_tokens(["<start>", "<pad>"])
    ids = made.get_vocab()
    around = [(name, ids[name]) for name in ("<start>", "<|endoftext|>")]
    made.post_processor = processors.TemplateProcessing(single="<start> $A <|endoftext|>", special_tokens=around)
    path = tmp_path_factory.mktemp("own") / "own.json"
    made.save(str(path))
    return path


def plain(path: Path) -> Any:
    """The library's own tokenizer, which neither cuts nor pads."""
    found = Tokenizer.from_file(str(path))
    found.no_truncation()
    found.no_padding()
    return found


@pytest.mark.parametrize("source", ["table", "files"])
def test_rows_of_a_length(table: Path, own: Path, captions: list[str], tmp_path: Path, source: str) -> None:
    """The reference is the library itself, told to cut and to pad."""
    where, field = (table, "caption") if source == "table" else (table.parent, "caption=txt")
    options: dict[str, Any] = {"fields": field, "tokenize": f"caption={own}:{LENGTH}", "label_column": "none", "workers": 1}
    done = prep(where, tmp_path / "o.fds", **options)
    assert f"columns: caption (uint16[{LENGTH}], tokens of own.json)" in done.notes
    reference = plain(own)
    cut = sum(len(reference.encode(text).ids) > LENGTH for text in captions)
    assert 0 < cut < COUNT and f"{cut} texts of caption were cut to {LENGTH} tokens" in done.notes
    reference.enable_truncation(LENGTH)
    reference.enable_padding(length=LENGTH, pad_id=reference.token_to_id("<pad>"))
    want = [reference.encode(text).ids for text in captions]
    dataset = LMDBDataset(done.out, fields="caption")
    assert dataset.columns["caption"].tolist() == want and dataset.columns["caption"].dtype == np.uint16
    (batch,) = Loader(dataset, COUNT, num_workers=0)
    assert batch[1].dtype == torch.uint16 and batch[1].tolist() == [want[k] for k in batch.ids.tolist()]
    store = Store(done.out)
    tokens = store.manifest.columns[0].tokens
    assert tokens is not None and tokens.pad == reference.token_to_id("<pad>") and tokens.vocab_size == reference.get_vocab_size()
    kept = (done.out / "columns" / "caption.tokenizer.json").read_bytes()
    assert kept == own.read_bytes() and tokens.tokenizer.sha256 == hashlib.sha256(kept).hexdigest()
    assert list(verify(done.out)) == [] and "tokenizers" in store.manifest.libraries
    assert store_facts(store)["columns"][0]["tokens"]["pad"] == tokens.pad
    (done.out / "columns" / "caption.tokenizer.json").write_bytes(kept[:-1] + b" ")
    assert any("caption.tokenizer.json" in line for line in verify(done.out))


def test_lists_of_their_own_length(table: Path, own: Path, captions: list[str], tmp_path: Path) -> None:
    done = prep(table, tmp_path / "o.fds", fields="caption", tokenize=f"caption={own}", label_column="none", workers=1)
    assert "columns: caption (lists of uint16, tokens of own.json)" in done.notes
    want = [plain(own).encode(text).ids for text in captions]
    dataset = RAMDataset(done.out, fields="caption")
    assert [one.tolist() for one in dataset.columns["caption"]] == want
    (batch,) = Loader(dataset, COUNT, num_workers=0)
    assert isinstance(batch[1], Ragged) and [one.tolist() for one in batch[1]] == [want[k] for k in batch.ids.tolist()]
    both = dataset + dataset.subset([5])
    assert both.decode(both[COUNT][1], "caption") == f"<start>{captions[5]}<|endoftext|>"


def test_several_texts_are_rows(table: Path, captions: list[str], tmp_path: Path) -> None:
    done = prep(table.parent, tmp_path / "o.fds", fields="all=json", tokenize=f"all=bytes:{LENGTH}", label_column="none", workers=1)
    assert f"columns: all (lists of uint16[{LENGTH}], tokens of bytes)" in done.notes
    found = LMDBDataset(done.out).columns["all"]
    for k, caption in enumerate(captions):
        row = ([*caption.encode()] + [256] * LENGTH)[:LENGTH]
        assert found[k].tolist() == [row] * (k % 3) and found[k].shape == (k % 3, LENGTH)
    with pytest.raises(PrepError, match=r"tokenize all=bytes: all \(json\) becomes rows of one length: give all=bytes:LENGTH"):
        prep(table.parent, tmp_path / "p.fds", fields="all=json", tokenize="all=bytes")


def test_the_tokenizer_belongs_to_the_store(table: Path, own: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"fields": "caption", "label_column": "none", "workers": 1}
    copy = tmp_path / "own.json"
    copy.write_bytes(own.read_bytes())
    prep(table, tmp_path / "o.fds", tokenize=f"caption={copy}:20", **options)
    assert prep(table, tmp_path / "o.fds", tokenize=f"caption={copy}:20", **options).resumed == COUNT
    with pytest.raises(PrepError, match=r"columns caption \(uint16\[20\], tokens of own.json\), now caption \(text\)"):
        prep(table, tmp_path / "o.fds", **options)
    copy.write_bytes(own.read_bytes() + b" ")
    with pytest.raises(PrepError, match="what values of columns mean"):
        prep(table, tmp_path / "o.fds", tokenize=f"caption={copy}:20", **options)
    copy.unlink()
    assert "<start>" in LMDBDataset(tmp_path / "o.fds").decode([plain(own).token_to_id("<start>")])
    prep(table, tmp_path / "o.fds", overwrite=True, **options)
    assert not (tmp_path / "o.fds" / "columns" / "caption.tokenizer.json").exists()
    with pytest.raises(StoreError, match="has the columns of tokens none: name one of them"):
        LMDBDataset(tmp_path / "o.fds").decode([1], "caption")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["caption"], "give NAME=TOKENIZER or NAME=TOKENIZER:LENGTH"),
        (["mood=bytes"], "there is no column mood of text; there are caption .text., n .int64.; --fields stores"),
        (["n=bytes"], r"tokenize n=bytes: there is no column n of text"),
        (["caption=bytes:0"], "a row of 0 has no room beside the 0 tokens that bytes adds"),
        (["caption=bytes", "caption=bytes:4"], "there is no column caption of text"),
        (["caption=gpt2.json:4"], "tokenize gpt2.json is neither a tokenizer.json"),
    ],
)
def test_wrong_use(options: list[str], message: str) -> None:
    with pytest.raises(PrepError, match=message):
        with_tokens([Column("caption", "text"), Column("n", "int64")], options)


def test_a_text_that_cannot_be_tokenized_is_rejected(table: Path, tmp_path: Path) -> None:
    characters = tmp_path / "characters.json"
    characters.write_text(json.dumps(sorted(set("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,0123456789'"))))
    done = prep(table, tmp_path / "o.fds", fields="caption", tokenize=f"caption={characters}:5", label_column="none", workers=1)
    (first, *_) = Store(done.out).rejects()
    assert first["reason"] == "unknown-character" and "'ü': not among the" in first["detail"] and first["name"] == "01.png"
    assert LMDBDataset(done.out).columns["caption"][0].tolist() == [0] * 5  # no token to pad with: 0


@settings(max_examples=150, deadline=None)
@given(st.text(), st.none() | st.integers(3, 12))
def test_any_text_comes_back_from_its_tokens(own: Path, text: str, length: int | None) -> None:
    (column,), files = with_tokens([Column("t", "text")], [f"t={own}" + (f":{length}" if length else "")])
    counts = Counter[str]()
    (row,) = encode_columns([column], [text], files, counts)
    assert row.dtype == np.uint16 and len(row) == (length or len(plain(own).encode(text).ids))
    root = own.parent
    (root / "columns").mkdir(exist_ok=True)
    (root / column.tokenizer_file).write_bytes(own.read_bytes())
    back = decode_tokens(root, column, row.tolist()).removeprefix("<start>").removesuffix("<|endoftext|>")
    assert text.startswith(back.rstrip("\ufffd")) if counts["cut t"] else text == back
