"""Text to tokens: every kind of source and tokenizer against its own library and plain numpy; what can't be used is listed."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import tokenizers
import zstandard
from pyarrow import parquet

import fastdata
from corpora import as_bytes, documents, jsonl, lines, sentences, tokenizer, tokens
from fastdata import TokenDataset
from fastdata.errors import FastDataError, PrepError
from fastdata.store.store import Store, verify
from fastdata.text.documents import Cutting, Piece, read_documents
from fastdata.text.planning import list_text
from stores import write_files
from support import PREP, run, tree

TEXTS = sentences(60)


def rejects(path: Path) -> list[tuple[str, str]]:
    return [(reject["name"], reject["reason"]) for reject in Store(path, "tokens").rejects()]


# ------------------------------------------------------------------------------------------------------------- sources


@pytest.mark.slow
def test_every_source_gives_the_same_tokens(tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "a.jsonl", TEXTS, "content").read_bytes()
    long = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=30))
    files = {f"files/{k:03d}/a.txt": text for k, text in enumerate(TEXTS)}
    files["crlf/a.txt"] = "\ufeff" + "\r\n".join(TEXTS)
    files["separator/a.md"] = "<|sep|>".join(TEXTS)
    write_files(tmp_path, {**files, "zst/a.jsonl.zst": zstandard.compress(lines[:500]) + long.compress(lines[500:])})
    (tmp_path / "parquet").mkdir()
    table = pyarrow.table({"body": TEXTS, "n": list(range(len(TEXTS)))})
    parquet.write_table(table, tmp_path / "parquet/a.parquet", row_group_size=7)
    options: dict[str, dict[str, Any]] = {
        "files": {},
        "crlf": {"split_lines": True},
        "separator": {"split_on": "<|sep|>"},
        "parquet": {"field": "body"},
        "zst": {"field": "content"},
    }
    for kind, how in options.items():
        for limit in (None, 33, 1000):
            count = min(limit or 60, 60)
            made = fastdata.prep(tmp_path / kind, tmp_path / f"{kind}{limit}.fds", tokenizer="bytes", limit=limit, workers=1, **how)
            assert np.array_equal(tokens(made.out), as_bytes(TEXTS[:count]))
            assert (made.inputs, made.kept, made.rejected, made.tokens) == (count, count, {}, len(as_bytes(TEXTS[:count])))
            assert Store(made.out, "tokens").samples["tokens"].tolist() == [len(text.encode()) + 1 for text in TEXTS[:count]]
            assert list(verify(made.out)) == []


# ---------------------------------------------------------------------------------------------------------- tokenizers


def test_hugging_face(tmp_path: Path) -> None:
    """Whole documents, although the file says to cut and pad; batches of the library's own give the same."""
    fastdata.prep(lines(), tmp_path / "o.fds", tokenizer=str(tokenizer()), split_lines=True)
    library = tokenizers.Tokenizer.from_file(str(tokenizer()))
    library.no_truncation()
    library.no_padding()
    encoded = library.encode_batch(sentences(500), add_special_tokens=False)
    end = library.token_to_id("<|endoftext|>")
    assert np.array_equal(tokens(tmp_path / "o.fds"), np.concatenate([[*e.ids, end] for e in encoded]))
    section = Store(tmp_path / "o.fds", "tokens").manifest.section("tokens")
    assert (section.vocab_size, section.end) == (library.get_vocab_size(), end)
    assert (tmp_path / "o.fds" / "tokenizer.json").read_bytes() == tokenizer().read_bytes()


def test_a_trained_bpe_is_the_library_s_own_and_is_not_trained_twice(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_bpe": 500, "split_lines": True}
    fastdata.prep(lines(), tmp_path / "o.fds", **options)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "o.fds/tokenizer.json"))
    assert 257 < library.get_vocab_size() <= 500
    expected = np.concatenate([[*library.encode(text).ids, library.token_to_id("<|endoftext|>")] for text in sentences(500)])
    assert np.array_equal(tokens(tmp_path / "o.fds"), expected)
    assert [library.decode(ids[:-1].tolist()) for ids in documents(tmp_path / "o.fds")] == sentences(500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastdata.text.planning._train", None)
        assert fastdata.prep(lines(), tmp_path / "o.fds", **options).resumed == 500
    fastdata.prep(lines(), tmp_path / "again.fds", **options)
    assert tree(tmp_path / "again.fds") == tree(tmp_path / "o.fds")


def test_the_end_token_is_what_was_asked_for(tmp_path: Path) -> None:
    texts = sentences(500)
    fastdata.prep(lines(), tmp_path / "65.fds", tokenizer="bytes", split_lines=True, end_token="65")
    assert tokens(tmp_path / "65.fds").tolist() == [k for text in texts for k in [*text.encode(), 65]]
    fastdata.prep(lines(), tmp_path / "e.fds", tokenizer=str(tokenizer()), split_lines=True, end_token="e")
    assert documents(tmp_path / "e.fds")[0][-1] == tokenizers.Tokenizer.from_file(str(tokenizer())).token_to_id("e")


def test_vocabularies_above_65536_are_uint32(tmp_path: Path) -> None:
    vocab = {"<|endoftext|>": 0, "[UNK]": 1, "far": 70_000, "near": 65_535}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("near far away")
    fastdata.prep(tmp_path / "a.txt", tmp_path / "o.fds", tokenizer=str(tmp_path / "t.json"))
    found = tokens(tmp_path / "o.fds")
    assert found.dtype == np.uint32 and found.tolist() == [65_535, 70_000, 1, 0]


# -------------------------------------------------------------------------------------------------------- hostile input


def test_documents_that_can_t_be_used_are_listed(tmp_path: Path) -> None:
    good = '{"text": "fine"}'
    bad = {
        "not-json": '{"text": "cut',
        "no-field": '{"body": "x"}',
        "not-text": '{"text": 7}',
        "empty": '{"text": ""}',
        "too-large": json.dumps({"text": "x" * 100}),
        "not-utf8": '{"text": "\\ud800"}',
    }
    data = b"".join(f"{good}\n{line}\n".encode() for line in bad.values()) + b'{"text": "\xff"}\n\n  \n["list"]\n' + good.encode()
    write_files(tmp_path / "in", {"a.jsonl": data, "b.jsonl": b"", "c.jsonl.gz": gzip.compress(b"")})
    summary = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", tokenizer="bytes", max_bytes=50)
    assert (summary.inputs, summary.kept) == (15, 7)
    assert [reason for _, reason in rejects(tmp_path / "o.fds")] == [*bad, "not-utf8", "no-field"]
    details = [reject["detail"] for reject in Store(tmp_path / "o.fds", "tokens").rejects()]
    assert details[0].startswith(f"byte {len(good) + 1}: ") and "found body" in details[1]
    assert np.array_equal(tokens(tmp_path / "o.fds"), as_bytes(["fine"] * 7))


def test_files_that_can_t_be_used_are_listed(tmp_path: Path) -> None:
    files = {
        "fine.txt": "fine",
        "empty.txt": "",
        "latin.txt": "café".encode("latin-1"),
        "cut.txt.gz": gzip.compress(random.Random(0).randbytes(5000).hex().encode())[:-2000],
        "zero.txt.zst": "",
        "pointer.txt": "version https://git-lfs.github.com/spec/v1\n",
        "picture.jpg": b"",
    }
    root = write_files(tmp_path / "in", files)
    (root / "gone.txt").symlink_to(tmp_path / "nowhere")
    summary = fastdata.prep(root, tmp_path / "o.fds", tokenizer="bytes")
    assert dict(rejects(tmp_path / "o.fds")) == {
        "cut.txt.gz": "truncated",
        "empty.txt": "empty",
        "gone.txt": "broken-link",
        "latin.txt": "not-utf8",
        "pointer.txt": "pointer",
        "zero.txt.zst": "truncated",
    }
    assert summary.skipped == {".jpg": 1}
    assert TokenDataset(summary.out, 2, mode="document").decode(tokens(summary.out)) == "fine"


def test_a_file_of_many_documents_that_is_not_whole_ends_the_run(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % k for k in range(2000))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [str(k) for k in range(2000)]}), buffer, compression="none", use_dictionary=False)
    table, pointer = buffer.getvalue(), b"version https://git-lfs.github.com/spec/v1\n"
    files = {
        "a.jsonl.gz": gzip.compress(lines)[:500],
        "b.jsonl.zst": zstandard.compress(lines)[:-20],
        "c.jsonl.gz": b"",
        "d.jsonl.gz": pointer,
        "e.parquet": table[:-100],
        "f.parquet": table[:8] + b"\xff" * 60 + table[68:],
        "g.parquet": table.replace(b"text", b"t\xf4xt"),
        "h.jsonl": pointer,
    }
    write_files(tmp_path, files)
    for name in files:
        with pytest.raises(FastDataError, match=rf"{name}:? (.*; copy it again|(it )?is a pointer of Git LFS)"):
            list(read_documents(tmp_path, list_text(tmp_path / name, Cutting()).pieces[0], Cutting(), 1 << 20))
    with pytest.raises(FastDataError, match=r"gone.jsonl: it is a link"):
        list(read_documents(tmp_path, Piece("gone.jsonl", 0, -1, 0, "broken-link"), Cutting(), 1 << 20))
    for options in ({}, {"limit": 1999}):
        with pytest.raises(FastDataError, match=r"a.jsonl.gz .*; copy it again"):
            fastdata.prep(tmp_path / "a.jsonl.gz", tmp_path / "o.fds", tokenizer="bytes", workers=1, **options)
    assert not (tmp_path / "o.fds" / "manifest.json").exists()


def test_a_column_of_any_type_of_text(tmp_path: Path) -> None:
    texts, root = pyarrow.array(["first", "second", None, "first"]), tmp_path / "in"
    root.mkdir()
    columns = [texts.dictionary_encode(), texts.cast(pyarrow.large_string())]
    columns += [texts.cast(pyarrow.string_view())] if hasattr(pyarrow, "string_view") else []
    for k, column in enumerate([*columns, pyarrow.array([1, 2])]):
        parquet.write_table(pyarrow.table({"text": column}), root / f"{k}.parquet")
    summary = fastdata.prep(root, tmp_path / "o.fds", tokenizer="bytes", workers=1)
    assert summary.kept == 3 * len(columns) and summary.rejected == {"not-text": len(columns), "no-field": 1}
    assert list(Store(summary.out, "tokens").rejects())[-1]["detail"] == "it has no column of text"
    assert np.array_equal(tokens(summary.out), as_bytes(["first", "second", "first"] * len(columns)))


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "give the tokenizer.json of a model that uses it": {"tokenizer": "gpt2"},
        "is about images": {"tokenizer": "bytes", "size": 64},
        "not both": {"tokenizer": "bytes", "train_bpe": 300},
        "or neither": {"tokenizer": "bytes", "split_lines": True, "split_on": "x"},
        "is text, which needs a tokenizer": {"kind": "tokens"},
        "has a backslash and an n": {"tokenizer": "bytes", "split_on": "\\n\\n"},
    }
    for message, options in wrong.items():
        with pytest.raises((PrepError, ValueError), match=message):
            fastdata.prep(lines(), tmp_path / "o.fds", **options)
    assert not (tmp_path / "o.fds").exists()


# ------------------------------------------------------------------------------------------------- resume, verify, info


def test_what_takes_the_worker_down_is_left_out_alone(tmp_path: Path) -> None:
    """While it is read: the rest of its file. While it is tokenized: the documents beside it. Other files are whole."""
    files = {"1.txt": "crash the reader\n" * 3, "2.txt": "crash the tokenizer\n" * 3}
    files |= {f"{k}.txt": "\n".join(sentences(50, seed=k)) for k in (0, 3)}
    root = write_files(tmp_path / "in", files)
    site = (
        "import os, signal, sys\n"
        "if 'fastdata.prepare.worker' in ' '.join(sys.orig_argv):\n"
        "    import fastdata.text.shards as t\n"
        "    documents, encoded = t.read_documents, t._encoded\n"
        "    def read(*a):\n"
        "        for at, text in documents(*a):\n"
        "            text == 'crash the reader' and os.kill(os.getpid(), signal.SIGSEGV)\n"
        "            yield at, text\n"
        "    def encode(engine, batch, skip):\n"
        "        if not skip and any(text == 'crash the tokenizer' for _, text in batch):\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return encoded(engine, batch, skip)\n"
        "    t.read_documents, t._encoded = read, encode\n"
    )
    write_files(tmp_path, {"site/sitecustomize.py": site})
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = run(*PREP, root, tmp_path / "o.fds", "--tokenizer", "bytes", "--split-lines", env=env)
    assert done.returncode == 3, done.stderr
    assert rejects(tmp_path / "o.fds") == [("1.txt", "crashed"), *[("2.txt", "crashed")] * 3]
    assert np.array_equal(tokens(tmp_path / "o.fds"), as_bytes([*sentences(50, seed=0), *sentences(50, seed=3)]))
