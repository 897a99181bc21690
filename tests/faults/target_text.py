"""Targets: text, tokens and tokenizers, and tables."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pandas as pd
import zstandard

import corpora
from fastdata.errors import CodecError
from fastdata.tables import TableDataset
from fastdata.text.documents import Cutting, Piece, read_documents, read_tokens
from fastdata.tokenizer import Spec, character_file, load
from stores import folder
from target import Case, target
from target_archives import contents

TEXTS = corpora.sentences(12)
FRAME = pd.DataFrame(
    {"x": range(9), "f": [k / 7 for k in range(9)], "name": list("abcabcabc"), "day": pd.date_range("2026-01-01", periods=9)}
)


def plain_texts() -> dict[str, bytes]:
    lines = "".join(json.dumps({"id": k, "text": text}) + "\n" for k, text in enumerate(TEXTS)).encode()
    buffer = io.BytesIO()
    pd.DataFrame({"text": TEXTS}).to_parquet(buffer)
    return {"a.txt": "\n".join(TEXTS).encode(), "a.jsonl": lines, "texts.parquet": buffer.getvalue()}


def packed_texts() -> dict[str, bytes]:
    lines = plain_texts()["a.jsonl"]
    packer = zstandard.ZstdCompressor(write_checksum=True)
    return {"a.jsonl.gz": gzip.compress(lines, mtime=0), "b.jsonl.zst": packer.compress(lines)}


def read_all(case: Case) -> list[Any]:
    path = case.write()
    if not case.data:
        raise CodecError("a file of no bytes has no documents")
    found: list[Any] = []
    for separator in ("", "\n"):
        for at, text in read_documents(path.parent, Piece(case.name, 0, -1, len(case.data)), Cutting(separator)):
            if at is None:
                raise text
            found.append(text if isinstance(text, str) else text.reason)
    return found


@target(plain_texts, cases=2000)
def text(case: Case) -> Any:
    return read_all(case)


@target(packed_texts, exact="always", cases=2000)
def packed_text(case: Case) -> Any:
    if case.original in case.data[1:]:
        raise CodecError("several packed files in a row are one, with the documents of all")
    return read_all(case)


def token_files() -> dict[str, bytes]:
    return {"train.bin": np.arange(40, dtype="<u2").tobytes()}


@target(token_files, cases=2000)
def tokens(case: Case) -> Any:
    found, lengths = read_tokens(case.write().parent, Piece(case.name, 0, -1, 0), 3)
    return np.array(found), lengths


@target(lambda: {"characters.json": character_file("abcdefgh "), "tokenizer.json": corpora.tokenizer().read_bytes()}, cases=600)
def tokenizers(case: Case) -> Any:
    engine = load(Spec("chars" if case.name[0] == "c" else "tokenizers", case.name, ""), case.data)
    ids = engine.encode(["abc de"])[0]
    return ids, engine.decode(ids.tolist()), engine.encode_row("abc de", 3)[0]


def data_tables() -> dict[str, bytes]:
    root, text = folder(), FRAME.to_csv(index=False)
    FRAME.to_parquet(root / "c.parquet")
    FRAME.drop(columns="day").to_feather(root / "d.arrow", compression="uncompressed")
    return {"a.csv": text.encode(), "b.tsv": text.replace(",", "\t").encode(), **contents(root)}


@target(data_tables, cases=1500)
def table(case: Case) -> Any:
    dataset = TableDataset(case.write(), shared=False)
    return repr(dataset.columns), [dataset[k] for k in range(len(dataset))]
