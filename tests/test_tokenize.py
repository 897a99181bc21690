"""`--tokenize`: text columns of images as tokens."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
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
from stores import folder, write_files
from support import write_pictures

COUNT = 12
LENGTH = 10


CAPTIONS = ["", "ü", *sentences(COUNT - 2, seed=3)]


@cache
def table() -> Path:
    """A table of pictures and captions, beside which each picture also has files of them."""
    root = folder()
    write_pictures(root, COUNT)
    rows = [{"path": f"{k:02d}.png", "caption": caption, "n": k} for k, caption in enumerate(CAPTIONS)]
    files = {"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    files |= {f"{k:02d}.txt": caption for k, caption in enumerate(CAPTIONS)}
    write_files(root, files | {f"{k:02d}.json": json.dumps([caption] * (k % 3)) for k, caption in enumerate(CAPTIONS)})
    return root / "t.jsonl"


def plain(path: Path) -> Any:
    """The library's own tokenizer, which neither cuts nor pads."""
    found = Tokenizer.from_file(str(path))
    found.no_truncation()
    found.no_padding()
    return found


@cache
def own() -> Path:
    """A tokenizer that puts tokens around a text, as CLIP's does, and has one to pad with."""
    made = plain(tokenizer())
    made.add_special_tokens(["<start>", "<pad>"])
    around = [(name, made.token_to_id(name)) for name in ("<start>", "<|endoftext|>")]
    made.post_processor = processors.TemplateProcessing(single="<start> $A <|endoftext|>", special_tokens=around)
    path = folder() / "own.json"
    made.save(str(path))
    return path


def prepared(source: Path, out: Path, field: str, how: str, **options: Any) -> Any:
    """Prepare pictures with a field of tokens, and without labels."""
    name = field.partition("=")[0]
    return prep(source, out, fields=field, tokenize=f"{name}={how}", label_column="none", workers=1, **options)


@pytest.mark.parametrize("length", [LENGTH, None])
def test_tokens_are_those_of_the_library(tmp_path: Path, length: int | None) -> None:
    """Told to cut and to pad, it makes rows of a length; else lists."""
    where, field = (table(), "caption") if length is None else (table().parent, "caption=txt")
    done, reference = prepared(where, tmp_path / "o.fds", field, f"{own()}:{length}" if length else str(own())), plain(own())
    stored = f"uint16[{LENGTH}]" if length else "lists of uint16"
    assert f"columns: caption ({stored}, tokens of own.json)" in done.notes
    if length:
        cut = sum(len(reference.encode(text).ids) > LENGTH for text in CAPTIONS)
        assert 0 < cut < COUNT and f"{cut} texts of caption were cut to {LENGTH} tokens" in done.notes
        reference.enable_truncation(LENGTH)
        reference.enable_padding(length=LENGTH, pad_id=reference.token_to_id("<pad>"))
    want = [reference.encode(text).ids for text in CAPTIONS]
    dataset = (LMDBDataset if length else RAMDataset)(done.out, fields="caption")
    assert [row.tolist() for row in dataset.columns["caption"]] == want
    (batch,) = Loader(dataset, COUNT, num_workers=0)
    assert isinstance(batch[1], torch.Tensor if length else Ragged)
    assert [row.tolist() for row in batch[1]] == [want[k] for k in batch.ids.tolist()]
    both = dataset + dataset.subset([1])
    assert both.decode(both[COUNT][1], "caption") == f"<start>{CAPTIONS[1]}<|endoftext|>"
    store = Store(done.out)
    tokens, kept = store.manifest.columns[0].tokens, done.out / "columns" / "caption.tokenizer.json"
    assert tokens is not None and tokens.vocab_size == reference.get_vocab_size()
    pad = reference.token_to_id("<pad>") if length else None
    assert tokens.pad == store_facts(store)["columns"][0]["tokens"].get("pad") == pad
    assert kept.read_bytes() == own().read_bytes() and "tokenizers" in store.manifest.libraries and list(verify(done.out)) == []
    kept.write_bytes(own().read_bytes()[:-1] + b" ")
    assert any("caption.tokenizer.json" in line for line in verify(done.out))


def test_several_texts_are_rows(tmp_path: Path) -> None:
    done = prepared(table().parent, tmp_path / "o.fds", "all=json", f"bytes:{LENGTH}")
    assert f"columns: all (lists of uint16[{LENGTH}], tokens of bytes)" in done.notes
    found = LMDBDataset(done.out).columns["all"]
    for k, caption in enumerate(CAPTIONS):
        row = ([*caption.encode()] + [256] * LENGTH)[:LENGTH]
        assert found[k].tolist() == [row] * (k % 3) and found[k].shape == (k % 3, LENGTH)
    with pytest.raises(PrepError, match=r"tokenize all=bytes: json columns need a length: give all=bytes:LENGTH"):
        prepared(table().parent, tmp_path / "p.fds", "all=json", "bytes")


def test_the_tokenizer_belongs_to_the_store(tmp_path: Path) -> None:
    out, options = tmp_path / "o.fds", {"fields": "caption", "label_column": "none", "workers": 1}
    copy = tmp_path / "own.json"
    copy.write_bytes(own().read_bytes())
    prepared(table(), out, "caption", f"{copy}:20")
    assert prepared(table(), out, "caption", f"{copy}:20").resumed == COUNT
    with pytest.raises(PrepError, match=r"columns caption \(uint16\[20\], tokens of own.json\), now caption \(text\)"):
        prep(table(), out, **options)
    copy.write_bytes(own().read_bytes() + b" ")
    with pytest.raises(PrepError, match="the meaning of columns is different"):
        prepared(table(), out, "caption", f"{copy}:20")
    copy.unlink()
    assert "<start>" in LMDBDataset(out).decode([plain(own()).token_to_id("<start>")])
    prep(table(), out, overwrite=True, **options)
    assert not (out / "columns" / "caption.tokenizer.json").exists()
    with pytest.raises(StoreError, match=r"column must name a column of tokens; .* has none$"):
        LMDBDataset(out).decode([1], "caption")


def test_wrong_use() -> None:
    wrong = {
        "give NAME=TOKENIZER or NAME=TOKENIZER:LENGTH": ["caption"],
        "there is no text column mood .columns: caption .text., n .int64..; --fields adds": ["mood=bytes"],
        "LENGTH must be above 0, the number of tokens that bytes adds": ["caption=bytes:0"],
        "there is no text column caption": ["caption=bytes", "caption=bytes:4"],
        "tokenize gpt2.json is neither a Hugging Face tokenizer.json": ["caption=gpt2.json:4"],
    }
    for message, options in wrong.items():
        with pytest.raises(PrepError, match=message):
            with_tokens([Column("caption", "text"), Column("n", "int64")], options)


@settings(max_examples=150, deadline=None)
@given(st.text(), st.none() | st.integers(3, 12))
def test_any_text_comes_back_from_its_tokens(text: str, length: int | None) -> None:
    (column,), files = with_tokens([Column("t", "text")], [f"t={own()}" + (f":{length}" if length else "")])
    counts = Counter[str]()
    (row,) = encode_columns([column], [text], files, counts)
    assert row.dtype == np.uint16 and len(row) == (length or len(plain(own()).encode(text).ids))
    root = own().parent
    (root / "columns").mkdir(exist_ok=True)
    (root / column.tokenizer_file).write_bytes(own().read_bytes())
    back = decode_tokens(root, column, row.tolist()).removeprefix("<start>").removesuffix("<|endoftext|>")
    assert text.startswith(back.rstrip("\ufffd")) if counts["cut t"] else text == back
