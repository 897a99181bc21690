"""Text, and an array, that is too large, expands without measure, or is no UTF-8: what can be used is, in bounded memory."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corpora import documents
from fastdata.errors import CodecError, PrepError
from fastdata.text import documents as module
from fastdata.text import planning
from fastdata.text.documents import Cutting, read_documents
from fastdata.text.planning import list_text
from support import PEAK_MEMORY, run

GIB = 1 << 30
PEAK = f"""{PEAK_MEMORY}
import json, resource, sys
import fastdata
try:
    made = fastdata.prep(sys.argv[1], sys.argv[2], workers=1, **json.loads(sys.argv[3]))
    print(json.dumps([made.kept, made.rejected, made.first_reject]))
except fastdata.errors.PrepError as error:
    print(json.dumps([0, {{}}, str(error)]))
print(max(peak_memory(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10) >> 20)
"""
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.compress(data[:40]) + zstandard.compress(data[40:]),
}


def read(path: Path, separator: str = "", most: int = GIB) -> list[tuple[int | None, str | tuple[str, str]]]:
    """Where the documents of a file begin, and their texts, or the reasons and details of why they cannot be used."""
    found = list[Any]()
    for piece in list_text(path, Cutting(separator)).pieces:
        for at, text in read_documents(path.parent, piece, Cutting(separator), most):
            found.append((at, (text.reason, str(text)) if isinstance(text, CodecError) else text))
    return found


# Size


@settings(max_examples=150, deadline=None)
@example(parts=["\n\n\n"], separator="aa", ending=".txt", at_most=1, block=1, most=1)
@given(
    parts=st.lists(
        st.text("ab\n", max_size=20) | st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=30), max_size=30
    ),
    separator=st.sampled_from(["\n", "aa", "aba", "<|end|>", "\n\n", "é"]),
    ending=st.sampled_from([".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst"]),
    at_most=st.integers(1, 60),
    block=st.integers(1, 70),
    most=st.integers(1, 70),
)
def test_documents_are_those_of_bytes_split(
    parts: list[str], separator: str, ending: str, at_most: int, block: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However a file is compressed, cut into pieces, and read in blocks, and where a separator overlaps itself."""
    separator = "\n" if "json" in ending else separator
    lines = [json.dumps({"text": part}, ensure_ascii=False) for part in parts] if "json" in ending else parts
    path, data = tmp_path_factory.getbasetemp() / f"cut{ending}", separator.join(lines).encode()
    path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "LEAST_BYTES", at_most)
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "SLICE", block)
        pieces = list_text(path, Cutting(separator)).pieces
        found = read(path, separator, most)
    assert [p.stop for p in pieces[:-1]] == [p.start for p in pieces[1:]]
    expected, at = list[Any](), 0
    for part in data.split(separator.encode()):
        if part.strip():
            text = json.loads(part)["text"] if "json" in ending else part.removeprefix(b"\xef\xbb\xbf" if at == 0 else b"").decode()
            too_large = "too-large", f"the document has at least {len(part)} bytes, more than the {most} of --max-bytes"
            expected.append((at, too_large if len(part) > most else text or ("empty", "it is empty")))
        at += len(part) + len(separator.encode())
    assert found == expected


def measured(source: Path, **options: Any) -> tuple[int, dict[str, int], str]:
    """Documents kept, rejects, the first of them or the error, of a run in bounded memory."""
    done = run(sys.executable, "-c", PEAK, source, source.with_suffix(".fds"), json.dumps(options))
    assert done.returncode == 0, done.stderr
    (kept, rejected, first), peak = map(json.loads, done.stdout.splitlines())
    assert peak < 450, "MiB, of the run and its workers"
    return kept, rejected, first


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".txt.zst", ".jsonl.zst", ".txt.gz"])
def test_a_line_that_expands_without_measure_is_a_reject_and_never_in_memory(tmp_path: Path, ending: str) -> None:
    around = (b"one", b"two") if "txt" in ending else (b'{"text": "one"}', b'{"text": "two"}')
    path = tmp_path / f"x{ending}"
    with path.open("wb") as raw:
        zst = zstandard.ZstdCompressor(level=3).stream_writer(raw)
        with zst if ending.endswith("zst") else gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
            for part in (around[0] + b"\n", *[bytes(GIB // 64)] * 64, b"\n" + around[1]):
                file.write(part)
    options = {"tokenizer": "bytes", "end_token": "none", "split_lines": True, "max_bytes": 1 << 20}
    kept, rejected, first = measured(path, **options)
    assert (kept, rejected) == (2, {"too-large": 1})
    assert f"byte {len(around[0]) + 1}: the document has at least {GIB} bytes, more than the 1048576 of --max-bytes" in first
    assert [bytes(ids.tolist()) for ids in documents(path.with_suffix(".fds"))] == [b"one", b"two"]


@pytest.mark.slow
def test_a_member_that_expands_without_measure(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)})
        for _ in range(1 << 10):
            file.write(bytes(1 << 20))
    kept, _, first = measured(tmp_path / "x.npz", max_bytes=1 << 20)
    assert kept == 0 and "bytes, more than 1048576: see max_bytes" in first


# Encodings


@pytest.mark.parametrize("name", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32"])
@pytest.mark.parametrize("packed", PACKED)
def test_utf_16_is_said(tmp_path: Path, name: str, packed: str) -> None:
    """A file that is one document is a reject; of one with many, nobody knows how many it has."""
    said = f"it is {name}, not UTF-8: convert it with iconv -f {name} -t UTF-8"
    path = tmp_path / f"x.txt{packed}"
    path.write_bytes(PACKED[packed]("first line\nsecond line".encode(name)))
    ((_, (reason, detail)),) = read(path)
    assert reason == "not-utf8" and said in detail
    with pytest.raises(PrepError, match=said):
        read(path, "\n")


@pytest.mark.parametrize("text", ["\ufeffmark", "a\0b", "zeros \0\0\0\0 in the middle", "\0\0\0\0\0\0\0\0", "ab\0\0cd\0\0"])
def test_plain_utf_8_stays_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_bytes(text.encode() + b"\nend")
    assert read(tmp_path / "x.txt") == [(0, text.removeprefix("\ufeff") + "\nend")]
