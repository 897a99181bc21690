"""A pointer of Git LFS or git-annex is never taken for what it points to, and the message says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import TableDataset, prep
from fastdata.errors import FastDataError
from stores import write_files
from support import picture

POINTERS = {
    "lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258\nsize 12345\n",
    "annex": "/annex/objects/SHA256E-s1234--4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393.png\n",
}
WAYS: dict[str, dict[str, Any]] = {  # the name of the pointer, and the options
    "a.txt": {"tokenizer": "bytes"},
    "a.md": {"tokenizer": "bytes"},
    "a.jsonl": {"tokenizer": "bytes"},
    "lines.txt": {"tokenizer": "bytes", "split_lines": True},
    "a.bin": {"end_token": "none"},
    "a.parquet": {},
    "a.tar": {},
    "a.png": {},
    "t.csv": {},
    "t.jsonl": {},
    "0.mask.png": {"masks": "masks"},
    "0.txt": {"fields": "caption=txt"},
}


@pytest.mark.parametrize("kind", POINTERS)
@pytest.mark.parametrize("name", [*WAYS, "table.csv"])
def test_a_pointer_is_an_error(tmp_path: Path, kind: str, name: str) -> None:
    root, options = tmp_path / "in", dict(WAYS.get(name, {}))
    source = root / name if name.startswith("t") else root
    path = root / name
    if name.startswith("0"):
        write_files(root, {"0.png": picture(0, 8, 9)})
    if "masks" in options:
        options["masks"], path = tmp_path / "masks", tmp_path / "masks/0.png"
    write_files(path.parent, {path.name: POINTERS[kind] + " " * (len(POINTERS[kind]) % 2)})  # a .bin has an even size
    with pytest.raises(FastDataError, match="a pointer of Git LFS"):
        TableDataset(path) if name == "table.csv" else prep(source, tmp_path / "o.fds", workers=1, **options)


@pytest.mark.parametrize("dtype", ["<u4", "<i8", "<f4", "<f8", ">u2", "u1"])
@pytest.mark.parametrize("largest", [250, 4000])
def test_tokens_of_another_dtype_are_refused(tmp_path: Path, dtype: str, largest: int) -> None:
    ids = np.random.default_rng(0).integers(0, largest if dtype != "u1" else 250, 20_000)
    ids.astype(dtype).tofile(tmp_path / "train.bin")
    with pytest.raises(FastDataError, match=r"wrong-dtype.*; a .bin must hold uint16: np.fromfile"):
        prep(tmp_path / "train.bin", tmp_path / "o.fds", workers=1)


@pytest.mark.parametrize("vocabulary", [2, 4, 65, 256, 300, 1024, 5000, 50_257, 65_536])
@pytest.mark.parametrize("frequent", [1.01, 1.3, 3.0])
def test_tokens_as_texts_have_them_are_taken(tmp_path: Path, vocabulary: int, frequent: float) -> None:
    """Frequent tokens have small ids, as those of tokenizers do."""
    ids = (np.random.default_rng(0).zipf(frequent, 20_000) % vocabulary).astype("<u2")
    ids.tofile(tmp_path / "train.bin")
    assert prep(tmp_path / "train.bin", tmp_path / "o.fds", workers=1).tokens == 20_000
