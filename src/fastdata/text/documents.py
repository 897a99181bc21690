"""Read documents from files of text: .txt, .jsonl and .parquet, the first two also compressed with gzip or zstd."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, needs
from fastdata.sources.base import damaged_file, pointer_of, unreadable
from fastdata.sources.tables import ENCODING_BYTES, name_encoding, not_utf8
from fastdata.sources.urls import AnyPath, seekable
from fastdata.words import number_of

__all__ = ["DOCUMENT_BYTES", "Cutting", "Head", "Piece", "cutting_notes", "documents", "format_of"]

BLOCK = 1 << 20
SLICE = 1 << 11  # bytes of zstd that are decompressed at once: one becomes 32 KiB at most
ROWS = 64  # of a Parquet that are in memory at once
DOCUMENT_BYTES = 1 << 30  # of a document, unless the user says otherwise
BOM = b"\xef\xbb\xbf"
FORMATS = {".txt": "txt", ".text": "txt", ".md": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".bin": "bin"}
PACKED = {".gz": "gzip", ".zst": "zstd"}

Found = tuple[int, str | CodecError]  # the byte or row where a document begins, and its text or why it cannot be used
Part = tuple[int, bytes | CodecError]  # the same before it is decoded


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


def documents(
    root: AnyPath, piece: Piece, cutting: Cutting, seen: Counter[str] | None = None, most: int = DOCUMENT_BYTES
) -> Iterator[Found]:
    """Yield the documents of a piece in order, without blank lines and blank parts between two separators.

    Args:
        root: the folder that names count from.
        piece: what to read.
        cutting: how it is cut into documents.
        seen: counts the blank parts as "blank", the places where the file was cut as "cuts", and a file that is empty as "hollow".
        most: the bytes of a document, or of a line of JSON. A larger one is a reject that is never in memory as a whole.

    Raises:
        CodecError: if the rest of the file cannot be read; the documents before are good.
    """
    found = _documents(root, piece, cutting, Counter() if seen is None else seen, most)
    return islice(found, piece.documents) if isinstance(piece, Head) else found


def cutting_notes(cutting: Cutting, names: Iterable[str], seen: Mapping[str, int]) -> Iterator[str]:
    """Yield notes for the caller on how these files were cut. seen: the counts of `documents`, summed over all files."""
    separator = cutting.separator
    if blank := seen.get("blank", 0):
        what = "line" if separator in ("", "\n") else "document"
        yield f"skipped {number_of(blank, f'blank {what}')}"
    if hollow := seen.get("hollow", 0):
        yield f"{number_of(hollow, 'file')} without a byte of text, and so without a document"
    if separator not in ("", "\n") and not seen.get("cuts", 0) and any(format_of(name)[0] == "txt" for name in names):
        shell = f"; for line ends, type --split-on $'{separator}' in a shell" if "\\n" in separator else ""
        yield f"--split-on {shlex.quote(separator)} occurs in no .txt file, so each file is one document{shell}"


def _documents(root: AnyPath, piece: Piece, cutting: Cutting, seen: Counter[str], most: int) -> Iterator[Found]:
    kind, packed = format_of(piece.name)
    if kind == "parquet":
        yield from _rows(root / piece.name, piece, cutting.field, most)
        return
    blocks = _blocks(root / piece.name, packed, piece)
    if kind == "jsonl":
        make, separator = partial(_field, field=cutting.field), b"\n"
    else:
        make, separator = partial(_text, ending=b"\r" if cutting.separator == "\n" else b""), cutting.separator.encode()
    if separator:
        blocks = _whole_file(blocks, root / piece.name)
    first = next(blocks, b"")
    if separator and not first:
        seen["hollow"] += 1
    blocks = chain([first], blocks)
    parts = _filled(_split(blocks, separator, piece.start, seen, most), seen) if separator else [(0, _whole(blocks, most))]
    for at, part in parts:
        yield at, part if isinstance(part, CodecError) else _made(make, part, at)


def _whole_file(blocks: Iterator[bytes], path: AnyPath) -> Iterator[bytes]:
    """Yield blocks. Damage is an error of the run: nobody knows how many documents the rest of the file has held."""
    try:
        yield from blocks
    except CodecError as error:
        if error.reason != "truncated":
            raise
        raise damaged_file(path, str(error).removeprefix("it ")) from None


def _made(make: Callable[[bytes, int], str | CodecError], part: bytes, at: int) -> str | CodecError:
    try:
        return make(part, at)
    except MemoryError:
        return _too_large(len(part), len(part))


def _blocks(path: AnyPath, packed: str, piece: Piece) -> Iterator[bytes]:
    """Yield the bytes of a piece, decompressed, some MB at a time however well they are compressed.

    Raises:
        CodecError: the file is damaged, or not UTF-8 but UTF-16.
    """
    if packed:
        with path.open("rb") as file:
            if not file.read(1):
                raise CodecError("it has 0 bytes, which no compressed file has", "truncated")
        blocks = filter(None, _gzip(path) if packed == "gzip" else _zstd(path))
        for head in islice(blocks, 1):
            _refuse_head(path, head)
            yield head
        yield from blocks
        return
    with path.open("rb") as file:
        _refuse_head(path, file.read(ENCODING_BYTES))
        file.seek(piece.start)
        left = piece.stop - piece.start
        while block := file.read(BLOCK if piece.stop < 0 else min(BLOCK, left)):
            left -= len(block)
            yield block


def _refuse_head(path: AnyPath, head: bytes) -> None:
    if pointer := pointer_of(head):
        raise CodecError(f"it is {pointer}", "pointer")
    if encoding := name_encoding(head[:ENCODING_BYTES]):
        raise CodecError(not_utf8(path.name, encoding), "not-utf8")


def _gzip(path: AnyPath) -> Iterator[bytes]:
    with path.open("rb") as raw, gzip.open(raw) as file:
        try:
            yield from iter(lambda: file.read(BLOCK), b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CodecError(f"it is cut short or damaged: {error}", "truncated") from None


def _zstd(path: AnyPath) -> Iterator[bytes]:
    """Decompress frame by frame: the library's own reader does not report a truncated frame."""
    with needs("zstandard"):
        import zstandard
    frame = None
    try:
        with path.open("rb") as file:
            while data := file.read(SLICE):
                while data:
                    frame = frame or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                    yield frame.decompress(data)
                    data = frame.unused_data if frame.eof else b""
                    frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise CodecError(f"it is damaged: {error}", "truncated") from None
    if frame is not None:
        raise CodecError("its last frame is cut short", "truncated")


def _filled(parts: Iterator[Part], seen: Counter[str]) -> Iterator[Part]:
    """Yield the parts that are not blank, and count the others."""
    for at, part in parts:
        if isinstance(part, CodecError) or part.strip():
            yield at, part
        else:
            seen["blank"] += 1


def _split(blocks: Iterator[bytes], separator: bytes, at: int, seen: Counter[str], most: int) -> Iterator[Part]:
    """Yield the parts between separators, and where each begins. The last one needs no separator, and is left out if blank."""
    data = bytearray()
    overlap = len(separator) - 1  # the bytes at the end that may begin a separator
    scanned = lost = 0  # lost: how many bytes of the part that data begins with were dropped, because it is too large
    for block in blocks:
        try:
            data += block
        except MemoryError:
            lost += len(data) - overlap
            data = data[len(data) - overlap :] + block
        begin = 0
        while (end := data.find(separator, max(begin, scanned))) >= 0:
            seen["cuts"] += 1
            yield at, _part(data, begin, end, lost, most)
            at += lost + end - begin + len(separator)
            begin, lost = end + len(separator), 0
        del data[:begin]
        if len(data) - overlap > most:
            lost += len(data) - overlap
            del data[: len(data) - overlap]
        scanned = max(len(data) - overlap, 0)
    if lost or data.strip():
        yield at, _part(data, 0, len(data), lost, most)


def _part(data: bytearray, begin: int, end: int, lost: int, most: int) -> bytes | CodecError:
    size = lost + end - begin
    try:
        return _too_large(size, most) if lost or size > most else bytes(data[begin:end])
    except MemoryError:
        return _too_large(size, most)


def _whole(blocks: Iterator[bytes], most: int) -> bytes | CodecError:
    """Join all blocks."""
    data = bytearray()
    try:
        for block in blocks:
            data += block
            if len(data) > most:
                break
        return _part(data, 0, len(data), 0, most)
    except MemoryError:
        return _too_large(len(data), most)


def _too_large(size: int, most: int) -> CodecError:
    why = f"more than the {most} of --max-bytes" if size > most else "more than there is memory for"
    return CodecError(f"the document has at least {size} bytes, {why}", "too-large")


def _text(data: bytes, at: int, ending: bytes) -> str | CodecError:
    try:
        text = (data.removeprefix(BOM) if at == 0 else data).removesuffix(ending).decode()
    except UnicodeDecodeError as error:
        return CodecError(f"{error.reason} at byte {at + error.start}", "not-utf8")
    return text or CodecError("it is empty", "empty")


def _field(line: bytes, _at: int, field: str) -> str | CodecError:
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


def _rows(path: AnyPath, piece: Piece, field: str, most: int) -> Iterator[Found]:
    with needs("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(seekable(path)) as file:
            first = sum(file.metadata.row_group(k).num_rows for k in range(piece.start))
            groups = list(range(piece.start, file.num_row_groups if piece.stop < 0 else piece.stop))
            for batch in file.iter_batches(ROWS, row_groups=groups, columns=[field], use_threads=False):
                if not batch.num_columns:
                    raise damaged_file(path, f"is damaged: a part of it lacks the column {field!r}")
                column = batch.column(0)
                column = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
                for k in range(len(column)):
                    yield first + k, _value(column[k], most)
                first += len(column)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last is about names of columns
        raise unreadable(path, error) from None


def _value(scalar: Any, most: int) -> str | CodecError:
    try:
        if scalar.is_valid and (size := len(scalar.as_buffer())) > most:
            return _too_large(size, most)
        return _checked(scalar.as_py())
    except UnicodeDecodeError as error:
        return CodecError(str(error), "not-utf8")
