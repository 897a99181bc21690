"""Read documents from files of text: .txt, .jsonl and .parquet, the first two also compressed with gzip or zstd."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, needs
from fastdata.remote.path import AnyPath
from fastdata.words import number_of

__all__ = ["Cutting", "Head", "Piece", "cutting_notes", "documents", "format_of"]

BLOCK = 1 << 20
BOM = b"\xef\xbb\xbf"
FORMATS = {".txt": "txt", ".text": "txt", ".md": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".bin": "bin"}
PACKED = {".gz": "gzip", ".zst": "zstd"}

Found = tuple[int, str | CodecError]  # the byte or row where a document begins, and its text or why it cannot be used


@dataclass(frozen=True)
class Piece:
    """A part of a file that can be read alone. start, stop: bytes, or row groups of Parquet; a stop of -1 is the file's end."""

    name: str
    start: int
    stop: int
    size: int
    problem: str = ""


@dataclass(frozen=True)
class Head(Piece):
    """The first `documents` documents of a piece."""

    documents: int = 0


@dataclass(frozen=True)
class Cutting:
    """How files become documents. separator: separates those of a .txt file; if empty, the file is one. field: holds the text."""

    separator: str = ""
    field: str = "text"


def format_of(name: str) -> tuple[str, str]:
    """Return a file's format and compression by its name; ("", "") if it is not supported."""
    path = Path(name.lower())
    packed = PACKED.get(path.suffix, "")
    kind = FORMATS.get(Path(path.stem).suffix if packed else path.suffix, "")
    return (kind, packed) if kind and not (kind in ("parquet", "bin") and packed) else ("", "")


def documents(root: AnyPath, piece: Piece, cutting: Cutting, seen: Counter[str] | None = None) -> Iterator[Found]:
    """Yield the documents of a piece in order, without blank lines and blank parts between two separators.

    Args:
        root: the folder that names count from.
        piece: what to read.
        cutting: how it is cut into documents.
        seen: counts the blank parts as "blank", and the places where the file was cut as "cuts".

    Raises:
        CodecError: if the rest of the file cannot be read; the documents before are good.
    """
    found = _documents(root, piece, cutting, Counter() if seen is None else seen)
    return islice(found, piece.documents) if isinstance(piece, Head) else found


def cutting_notes(cutting: Cutting, names: Iterable[str], seen: Mapping[str, int]) -> Iterator[str]:
    """Yield notes for the caller on how these files were cut. seen: the counts of `documents`, summed over all files."""
    separator = cutting.separator
    if blank := seen.get("blank", 0):
        what = "line" if separator in ("", "\n") else "document"
        yield f"skipped {number_of(blank, f'blank {what}')}"
    if separator not in ("", "\n") and not seen.get("cuts", 0) and any(format_of(name)[0] == "txt" for name in names):
        shell = f"; for line ends, type --split-on $'{separator}' in a shell" if "\\n" in separator else ""
        yield f"--split-on {shlex.quote(separator)} occurs in no .txt file, so each file is one document{shell}"


def _documents(root: AnyPath, piece: Piece, cutting: Cutting, seen: Counter[str]) -> Iterator[Found]:
    kind, packed = format_of(piece.name)
    if kind == "parquet":
        yield from _rows(root / piece.name, piece, cutting.field)
        return
    blocks = _blocks(root / piece.name, packed, piece)
    if kind == "jsonl":
        yield from ((at, _field(line, cutting.field)) for at, line in _filled(_split(blocks, b"\n", piece.start, seen), seen))
    elif cutting.separator:
        ending = b"\r" if cutting.separator == "\n" else b""
        parts = _filled(_split(blocks, cutting.separator.encode(), piece.start, seen), seen)
        yield from ((at, _text(part.removesuffix(ending), at)) for at, part in parts)
    else:
        yield 0, _text(b"".join(blocks), 0)


def _blocks(path: AnyPath, packed: str, piece: Piece) -> Iterator[bytes]:
    """Yield the bytes of a piece, decompressed."""
    if packed == "gzip":
        with gzip.open(path) as file:
            try:
                yield from iter(lambda: file.read(BLOCK), b"")
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise CodecError(f"it is cut short or damaged: {error}", "truncated") from None
        return
    with path.open("rb") as file:
        if packed == "zstd":
            yield from _zstd(iter(lambda: file.read(BLOCK), b""))
            return
        file.seek(piece.start)
        left = piece.stop - piece.start
        while block := file.read(BLOCK if piece.stop < 0 else min(BLOCK, left)):
            left -= len(block)
            yield block


def _zstd(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress frame by frame: the library's own reader does not report a truncated frame."""
    with needs("zstandard"):
        import zstandard
    frame = None
    try:
        for block in blocks:
            data = block
            while data:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                yield frame.decompress(data)
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise CodecError(f"it is damaged: {error}", "truncated") from None
    if frame is not None:
        raise CodecError("its last frame is cut short", "truncated")


def _filled(parts: Iterator[tuple[int, bytes]], seen: Counter[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the parts that are not blank, and count the others."""
    for at, part in parts:
        if part.strip():
            yield at, part
        else:
            seen["blank"] += 1


def _split(blocks: Iterator[bytes], separator: bytes, at: int, seen: Counter[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the parts between separators, and where each begins. The last one needs no separator, and is left out if blank."""
    data = bytearray()
    scanned = 0
    for block in blocks:
        data += block
        begin = 0
        while (end := data.find(separator, max(begin, scanned))) >= 0:
            seen["cuts"] += 1
            yield at + begin, bytes(data[begin:end])
            begin = end + len(separator)
        del data[:begin]
        at += begin
        scanned = max(len(data) - len(separator) + 1, 0)
    if data.strip():
        yield at, bytes(data)


def _text(data: bytes, at: int) -> str | CodecError:
    try:
        text = (data.removeprefix(BOM) if at == 0 else data).decode()
    except UnicodeDecodeError as error:
        return CodecError(f"{error.reason} at byte {at + error.start}", "not-utf8")
    return text or CodecError("it is empty", "empty")


def _field(line: bytes, field: str) -> str | CodecError:
    """Return the text in a line of JSON."""
    try:
        entry = json.loads(line)
    except UnicodeDecodeError as error:
        return CodecError(str(error), "not-utf8")
    except (ValueError, RecursionError) as error:
        return CodecError(str(error), "not-json")
    if not isinstance(entry, dict) or field not in entry:
        found = ", ".join(list(entry)[:8]) if isinstance(entry, dict) else f"a {type(entry).__name__}"
        return CodecError(f"no field {field!r}; found {found}", "no-field")
    return _checked(entry[field])


def _checked(text: Any) -> str | CodecError:
    if not isinstance(text, str):
        return CodecError(f"a {type(text).__name__}, not text", "not-text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair: JSON can write it, UTF-8 cannot
            return CodecError(str(error), "not-utf8")
    return text or CodecError("it is empty", "empty")


def _rows(path: AnyPath, piece: Piece, field: str) -> Iterator[Found]:
    with needs("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path) as file:
            first = sum(file.metadata.row_group(k).num_rows for k in range(piece.start))
            for group in range(piece.start, file.num_row_groups if piece.stop < 0 else piece.stop):
                column = file.read_row_group(group, columns=[field]).column(0)
                for k in range(len(column)):
                    yield first + k, _value(column[k])
                first += len(column)
    except (pyarrow.ArrowException, OSError) as error:
        raise CodecError(f"it can't be read on: {error}", "truncated") from None


def _value(scalar: Any) -> str | CodecError:
    try:
        return _checked(scalar.as_py())
    except UnicodeDecodeError as error:
        return CodecError(str(error), "not-utf8")
