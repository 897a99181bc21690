"""Other people's files of tokens: written as their own code writes them, read as it reads them, byte for byte there and back."""

from __future__ import annotations

import shlex
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from corpora import documents, lines, store, tokenizer, tokens
from fastdata.errors import PrepError, StoreError
from fastdata.store.export import export
from fastdata.store.store import Store
from support import MAIN, PREP, Array, run, tree

RNG = np.random.default_rng(5)
DOCUMENTS = [RNG.integers(1, 50_000, n).astype(np.uint16) for n in (5, 1, 700, 3, 90)]
DOCUMENTS = [np.append(part, 0).astype(np.uint16) for part in DOCUMENTS]  # 0 is the end
WHOLE = np.concatenate(DOCUMENTS)


def write_nanogpt(root: Path, parts: list[Array]) -> None:
    """As data/openwebtext/prepare.py has it: np.memmap of uint16."""
    whole = np.concatenate(parts)
    memory = np.memmap(root / "train.bin", dtype=np.uint16, mode="w+", shape=(len(whole),))
    memory[:] = whole
    memory.flush()


def write_llmc(root: Path, parts: list[Array]) -> None:
    """As dev/data/data_common.py's write_datafile has it."""
    whole = np.concatenate(parts)
    wide = whole.dtype == np.uint32
    header = np.zeros(256, dtype=np.int32)
    header[0], header[1], header[2] = (20240801, 7, len(whole)) if wide else (20240520, 1, len(whole))
    (root / "tokens_000000.bin").write_bytes(header.tobytes() + whole.tobytes())


def write_megatron(root: Path, parts: list[Array]) -> None:
    """As megatron/core/datasets/indexed_dataset.py's _IndexWriter has it, one sequence a document."""
    wide = parts[0].dtype == np.uint32
    kind: Any = np.int32 if wide else np.uint16
    (root / "tokens.bin").write_bytes(b"".join(part.astype(kind).tobytes() for part in parts))
    lengths = [len(part) for part in parts]
    places = np.cumsum([0, *lengths[:-1]]) * np.dtype(kind).itemsize
    with (root / "tokens.idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", 4 if wide else 8))
        file.write(struct.pack("<Q", len(parts)) + struct.pack("<Q", len(parts) + 1))
        file.write(np.array(lengths, np.int32).tobytes() + places.astype(np.int64).tobytes())
        file.write(np.arange(len(parts) + 1, dtype=np.int64).tobytes())


ALL: dict[str, Any] = {"nanogpt": {"val_fraction": 0}}  # in one file
WRITERS = {"nanogpt": write_nanogpt, "llmc": write_llmc, "megatron": write_megatron}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_there_and_back_is_byte_identical(kind: str, wide: bool, tmp_path: Path) -> None:
    if kind == "nanogpt" and wide:
        pytest.skip("nanoGPT has uint16 only")
    parts = [(part + 70_000 * (part > 0)).astype(np.uint32) for part in DOCUMENTS] if wide else DOCUMENTS
    (tmp_path / "in").mkdir()
    WRITERS[kind](tmp_path / "in", parts)
    summary = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", end_token="0")
    assert [d.tolist() for d in documents(tmp_path / "o.fds")] == [p.tolist() for p in parts]
    assert summary.kept == 5 and tokens(tmp_path / "o.fds").dtype == (np.uint32 if wide else np.uint16)
    export(tmp_path / "o.fds", tmp_path / "out", to=kind, **ALL.get(kind, {}))
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


@pytest.mark.parametrize("kind", WRITERS)
def test_our_own_tokens_are_read_as_they_read_theirs(kind: str, tmp_path: Path) -> None:
    whole = ("--val-fraction", 0) if kind == "nanogpt" else ()
    assert run(*MAIN, "export", store(), tmp_path / "out", "--to", kind, *whole).returncode == 0
    (tmp_path / "in").mkdir()
    WRITERS[kind](tmp_path / "in", documents(store()))
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


def test_llmc_files_hold_a_hundred_million_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.text import export as export_tokens

    assert export_tokens.LLMC_TOKENS == 100_000_000
    monkeypatch.setattr(export_tokens, "LLMC_TOKENS", 1000)
    whole = tokens(store())
    export(store(), tmp_path / "out", to="llmc")
    files = sorted((tmp_path / "out").iterdir())
    parts = [np.frombuffer(path.read_bytes()[1024:], np.uint16) for path in files]
    assert [len(p) for p in parts] == [1000] * (len(whole) // 1000) + [len(whole) % 1000]
    assert np.array_equal(np.concatenate(parts), whole)
    fastdata.prep(tmp_path / "out", tmp_path / "o.fds")
    assert np.array_equal(tokens(tmp_path / "o.fds"), whole)


def test_sentences_of_a_megatron_document_are_joined(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_megatron(tmp_path / "in", DOCUMENTS)
    index = (tmp_path / "in" / "tokens.idx").read_bytes()
    head = index[:18] + struct.pack("<QQ", 5, 3) + index[34 : 34 + 5 * 12] + np.array([0, 2, 5], np.int64).tobytes()
    (tmp_path / "in" / "tokens.idx").write_bytes(head)
    fastdata.prep(tmp_path / "in", tmp_path / "o.fds")
    assert [len(d) for d in documents(tmp_path / "o.fds")] == [8, len(WHOLE) - 8]


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


def test_tokens_of_uint32_without_a_header_are_a_reject(tmp_path: Path) -> None:
    np.arange(5, 100_000, 999, dtype=np.uint32).tofile(tmp_path / "train.bin")
    with pytest.raises(PrepError, match=r"wrong-dtype 1.*every second number is small, as in a file of uint32"):
        fastdata.prep(tmp_path / "train.bin", tmp_path / "o.fds", workers=1)


def damaged(kind: str) -> tuple[dict[str, bytes], str]:
    """Files, and the reason why they are rejected."""
    whole, index = WHOLE.tobytes(), _index()
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(WHOLE)
    cases: dict[str, tuple[dict[str, bytes], str]] = {
        "odd": ({"a.bin": whole[:-1]}, "truncated"),
        "llmc cut": ({"a.bin": head.tobytes() + whole[:-4]}, "truncated"),
        "llmc version": ({"a.bin": struct.pack("<3i", 20240520, 2, len(WHOLE)) + head.tobytes()[12:] + whole}, "truncated"),
        "index magic": ({"a.bin": whole, "a.idx": b"X" + index[1:]}, "wrong-magic"),
        "index version": ({"a.bin": whole, "a.idx": index[:9] + struct.pack("<Q", 2) + index[17:]}, "wrong-magic"),
        "index dtype": ({"a.bin": whole, "a.idx": index[:17] + b"\x06" + index[18:]}, "wrong-dtype"),
        "index cut": ({"a.bin": whole, "a.idx": index[:-9]}, "truncated"),
        "index of another file": ({"a.bin": whole[:-2], "a.idx": index}, "truncated"),
        "index with a gap": ({"a.bin": whole, "a.idx": index[:54] + struct.pack("<q", 4) + index[62:]}, "truncated"),
        "index without the last": ({"a.bin": whole, "a.idx": index[:-8] + struct.pack("<q", 4)}, "truncated"),
        "index empty": ({"a.bin": whole, "a.idx": b""}, "wrong-magic"),
    }
    return cases[kind]


def _index() -> bytes:
    from stores import folder

    root = folder()
    write_megatron(root, DOCUMENTS)
    return (root / "tokens.idx").read_bytes()


CASES = ["odd", "llmc cut", "llmc version", "index magic", "index version", "index dtype", "index cut", "index of another file"]
CASES += ["index with a gap", "index without the last", "index empty"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_damaged_files_are_rejects_and_the_others_are_kept(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files, reason = damaged(kind)
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    WHOLE.tofile(tmp_path / "in" / "b.bin")
    summary = fastdata.prep(tmp_path / "in", tmp_path / "o.fds")
    assert summary.rejected == {reason: 1} and np.array_equal(tokens(tmp_path / "o.fds"), WHOLE)
    assert Store(tmp_path / "o.fds", "tokens").rejects()[0]["name"] == "a.bin"


def test_ids_beyond_the_vocabulary_are_a_reject(tmp_path: Path) -> None:
    WHOLE.tofile(tmp_path / "a.bin")
    with pytest.raises(PrepError, match=r"none of 1 inputs can be used \(id-out-of-range 1\)"):
        fastdata.prep(tmp_path / "a.bin", tmp_path / "o.fds", tokenizer="bytes")
    (tmp_path / "in").mkdir()
    write_megatron(tmp_path / "in", [np.array([3, 0xFFFFFFFF], np.uint32)])  # -1 as an int32
    with pytest.raises(PrepError, match=r"none of 1 inputs can be used \(id-out-of-range 1\)"):
        fastdata.prep(tmp_path / "in", tmp_path / "n.fds")


def test_options_that_tokens_do_not_take_are_refused(tmp_path: Path) -> None:
    WHOLE.tofile(tmp_path / "a.bin")
    for options, message in (
        ({"train_bpe": 300}, "not text to train a tokenizer on"),
        ({"end_token": "70000"}, "holds ids below 65536"),
        ({"end_token": "²"}, "must be an id, or none"),
    ):
        with pytest.raises(ValueError, match=message):
            fastdata.prep(tmp_path / "a.bin", tmp_path / "o.fds", **options)


def test_what_a_format_can_t_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_llmc(tmp_path / "in", [np.array([70_000, 5], np.uint32)])
    fastdata.prep(tmp_path / "in", tmp_path / "w.fds")
    with pytest.raises(StoreError, match="nanoGPT reads its tokens as uint16"):
        export(tmp_path / "w.fds", tmp_path / "n", to="nanogpt")
    with pytest.raises(ValueError, match="holds tokens, which go to nanogpt, llmc, megatron"):
        export(store(), tmp_path / "o", to="imagefolder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    with pytest.raises(StoreError, match="not an empty folder"):
        export(store(), tmp_path / "full", to="llmc")


def test_splits_side_by_side_are_refused_with_commands_that_work(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("train", "val"):
        WHOLE.tofile(tmp_path / f"bin/{name}.bin")
    refused = run(*PREP, "bin", "--end-token", "0", cwd=tmp_path)
    assert refused.returncode == 2 and "holds train and val side by side, which would be mixed" in refused.stderr
    commands = [shlex.split(line) for line in refused.stderr.splitlines() if line.strip().startswith("fastdata-prep ")]
    assert len(commands) == 2
    for _, *arguments in commands:
        assert run(*PREP, *arguments, "--end-token", "0", cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.fds")) == ["bin-train.fds", "bin-val.fds"]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["web_train_000001.bin", "web_train_000002.bin", "web_val_000000.bin"], True),
        (["train/0.bin", "val/0.bin"], True),
        (["train.bin", "val.bin", "more.bin"], True),
        (["train.txt", "valid.txt", "test.txt"], True),
        (["train.md", "test.md", "about.md"], False),
        (["train_0.bin", "train_1.bin"], False),
    ],
)
def test_what_counts_as_splits(names: list[str], refused: bool, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"ab" * 8)
    how = {"tokenizer": "bytes"} if not names[0].endswith(".bin") else {"end_token": "none"}
    with pytest.raises(fastdata.PrepError, match="side by side") if refused else nullcontext():
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1, **how)
