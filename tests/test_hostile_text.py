"""Text, and an array, that is too large, expands without measure, or is no UTF-8: what can be used is, in bounded memory."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import fastdata
from corpora import documents
from fastdata.errors import FastDataError, PrepError
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


def texts(store: Path | str) -> list[str]:
    """The documents of a store of bytes without ends."""
    return [bytes(ids.tolist()).decode() for ids in documents(Path(store))]


def made(source: Path, **options: Any) -> Any:
    out = source.with_suffix(".fds")
    return fastdata.prep(source, out, tokenizer="bytes", end_token="none", workers=1, **options)


def measured(source: Path, **options: Any) -> tuple[int, dict[str, int], str, int]:
    """Documents kept, rejects, the first of them or the error, and the largest memory of the run and its workers in MiB."""
    done = run(sys.executable, "-c", PEAK, source, source.with_suffix(".fds"), json.dumps(options))
    assert done.returncode == 0, done.stderr
    (kept, rejected, first), peak = map(json.loads, done.stdout.splitlines())
    return kept, rejected, first, peak


# Size


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".txt.zst", ".jsonl.zst", ".txt.gz"])
def test_a_line_that_expands_without_measure_is_a_reject_and_never_in_memory(tmp_path: Path, ending: str) -> None:
    around = (b"one", b"two") if "txt" in ending else (b'{"text": "one"}', b'{"text": "two"}')
    path = tmp_path / f"x{ending}"
    if ending.endswith("zst"):
        with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as writer:
            writer.write(around[0] + b"\n")
            for _ in range(64):
                writer.write(bytes(GIB // 64))
            writer.write(b"\n" + around[1])
    else:
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(around[0] + b"\n")
            for _ in range(64):
                file.write(bytes(GIB // 64))
            file.write(b"\n" + around[1])
    kept, rejected, first, peak = measured(path, tokenizer="bytes", end_token="none", split_lines=True, max_bytes=1 << 20)
    assert (kept, rejected) == (2, {"too-large": 1})
    start = len(around[0]) + 1
    assert f"byte {start}: the document has at least {GIB} bytes, more than the 1048576 of --max-bytes" in first
    assert texts(path.with_suffix(".fds")) == ["one", "two"]
    assert peak < 450


@pytest.mark.slow
def test_a_member_that_expands_without_measure(tmp_path: Path) -> None:
    header = np.lib.format.magic(1, 0) + struct.pack("<H", 118)
    header += repr({"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)}).encode().ljust(117) + b"\n"
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(header)
        for _ in range(1 << 10):
            member.write(bytes(1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.npz", max_bytes=1 << 20)
    assert kept == 0 and "bytes, more than 1048576: see max_bytes" in first and peak < 450


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "whole", "double"])
def test_a_document_may_have_so_many_bytes_and_no_more(tmp_path: Path, kind: str, packed: str) -> None:
    parts = ["x" * 10, "y" * 50, "é" * 25, "w" * 51, "z"]
    lines = [json.dumps({"text": part}, ensure_ascii=False) for part in parts] if kind == "jsonl" else parts
    data = ("\n\n" if kind == "double" else "\n").join(lines).encode()
    path = tmp_path / f"x.{'jsonl' if kind == 'jsonl' else 'txt'}{packed}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[packed](data))
    if kind == "whole":
        assert made(path, max_bytes=len(data)).kept == 1
        with pytest.raises(PrepError, match=rf"x.txt{packed}: too-large: .*more than the {len(data) - 1} of max_bytes"):
            made(path, max_bytes=len(data) - 1, overwrite=True)
        return
    options = {"txt": {"split_lines": True}, "double": {"split_on": "\n\n"}, "jsonl": {}}[kind]
    summary = made(path, max_bytes=50 + (len(lines[0]) - 10), **options)
    assert summary.rejected == {"too-large": 1} and texts(summary.out) == [part for part in parts if "w" not in part]
    assert f"byte {data.index(lines[3].encode())}: the document has at least {len(lines[3])} bytes" in summary.first_reject


# Encodings


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(("ending", "split"), [(".txt", True), (".jsonl", False), (".txt.gz", False), (".txt.zst", True)])
def test_utf_16_is_a_reject_that_says_so(tmp_path: Path, encoding: str, ending: str, split: bool) -> None:
    lines = ["first line", "second line"] if "txt" in ending else ['{"text": "first"}', '{"text": "second"}']
    data = "\n".join(lines).encode(encoding)
    if ending.endswith("gz"):
        data = gzip.compress(data)
    if ending.endswith("zst"):
        data = zstandard.compress(data)
    (tmp_path / f"x{ending}").write_bytes(data)
    name = "UTF-32" if "32" in encoding else "UTF-16" + encoding[6:].replace("-", "").upper()
    with pytest.raises(FastDataError, match=rf"it is {name}, not UTF-8: convert it with iconv -f {name} -t UTF-8"):
        made(tmp_path / f"x{ending}", split_lines=split)


@pytest.mark.parametrize(
    "text", ["", "\ufeffmark", "a\0b", "zeros \0\0\0\0 in the middle", "\0\0\0\0\0\0\0\0", "漢字\n仮名", "a\0", "ab\0\0cd\0\0"]
)
def test_plain_utf_8_stays_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_bytes(text.encode() + b"\nend")
    summary = made(tmp_path / "x.txt")
    assert texts(summary.out) == [text.removeprefix("\ufeff") + "\nend"]
