"""Read documents from files of text, .txt, .jsonl and .parquet, the first two also compressed with gzip or zstd; and from files of
tokens: .bin, plain uint16 as nanoGPT writes them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any

import numpy as np

from fastdata.errors import CodecError, MissingExtraError, PrepError, needs
from fastdata.prepare.worker import reject_of
from fastdata.sources.arrow import open_parquet
from fastdata.sources.base import damaged_file, pointer_of
from fastdata.sources.inputs import ABSENT, detail_of, reason_of
from fastdata.sources.tables import ENCODING_BYTES, refuse_head
from fastdata.sources.urls import AnyPath
from fastdata.types import Array

BLOCK = 1 << 20
SLICE = 1 << 11  # bytes of zstd that are decompressed at once: one becomes 32 KiB at most
PROBED_TOKENS = 1 << 20  # of a .bin, to see whether it is of another dtype: vocabularies have fewer than 2^20 ids
MIN_PROBED, MIN_DISTINCT = 64, 1000  # numbers that tell
ROWS = 64  # of a Parquet that are in memory at once
DOCUMENT_BYTES = 1 << 30  # of a document, unless the user says otherwise
TEXTS = {".txt": "txt", ".text": "txt", ".md": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl"}
PACKED = {"": "", ".gz": "gzip", ".zst": "zstd"}
FORMATS = {text + end: (kind, packed) for text, kind in TEXTS.items() for end, packed in PACKED.items()}
FORMATS |= {".parquet": ("parquet", ""), ".bin": ("bin", "")}

Found = tuple[int | None, str | CodecError]  # the byte or row where a document begins, and its text or why it cannot be used
RawDocument = tuple[int, bytes | CodecError]  # the same before it is decoded


@dataclass(frozen=True)
class Piece:
    """A part of a file, readable by itself. documents: the most to yield.

    start, stop: bytes, or row groups of Parquet; a stop of -1 is the file's end.
    """

    name: str
    start: int
    stop: int
    size: int
    problem: str = ""
    documents: int | None = None

    @property
    def container(self) -> str:
        """The file of which it is a part, or "" for a whole file."""
        return "" if (self.start, self.stop) == (0, -1) else self.name


@dataclass(frozen=True)
class Cutting:
    """Rules for cutting documents. separator: between documents of a .txt; "" if the file is one. field: holds the text."""

    separator: str = ""
    field: str = "text"


def format_of(name: str) -> tuple[str, str]:
    """Return a file's format and compression by its name; ("", "") if it is not supported."""
    lower = name.lower()
    return next((found for ending, found in FORMATS.items() if lower.endswith(ending)), ("", ""))


def read_documents(root: AnyPath, piece: Piece, cutting: Cutting, most: int = DOCUMENT_BYTES) -> Iterator[Found]:
    """Yield the documents of a piece in order, without blank lines and blank parts between two separators.

    If the rest of a piece cannot be read, the last item says why, and has no position. A PrepError says that a file of many
    documents is damaged: nobody can tell how many are lost.

    root: names are relative to it. most: the bytes of a document, or of a line of JSON. A larger one is a reject that is
    never in memory as a whole.
    """
    path, (kind, packed) = root / piece.name, format_of(piece.name)
    separator = b"\n" if kind == "jsonl" else cutting.separator.encode()
    try:
        if piece.problem:
            if piece.problem in ABSENT and (kind != "txt" or separator):  # nobody knows what it held
                raise PrepError(f"{path}: {detail_of(piece.problem)}")
            raise CodecError(detail_of(piece.problem), reason_of(piece.problem))
        if kind == "parquet":
            found = _rows(path, piece, cutting.field, most)
        else:
            read = partial(_field, field=cutting.field) if kind == "jsonl" else partial(_text, separator=separator)
            parts = _split(path, packed, piece, separator, most)
            found = ((at, part if isinstance(part, CodecError) else _checked(read, part, at)) for at, part in parts)
        yield from islice(found, piece.documents)
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001  a library may raise anything for a bad file, which becomes a reject
        reason, detail = reject_of(error)
        yield None, CodecError(detail, reason)


def _blocks(path: AnyPath, packed: str, piece: Piece) -> Iterator[bytes]:
    """Yield the bytes of a piece, decompressed, some MB at a time however well they are compressed."""
    with path.open("rb") as file:
        if packed and not file.read(1):
            raise CodecError("it has 0 bytes, which no compressed file has", "truncated")
        file.seek(piece.start)
        blocks = filter(None, _gzip(file) if packed == "gzip" else _zstd(file) if packed else _plain(file, piece))
        head = next(blocks, b"")
        if not piece.start:
            refuse_head(path.name, head)
        yield head
        yield from blocks


def _plain(file: IO[bytes], piece: Piece) -> Iterator[bytes]:
    left = piece.stop - piece.start
    while block := file.read(BLOCK if piece.stop < 0 else min(BLOCK, left)):
        left -= len(block)
        yield block


def _gzip(raw: IO[bytes]) -> Iterator[bytes]:
    try:
        with gzip.open(raw) as file:
            yield from iter(lambda: file.read(BLOCK), b"")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CodecError(f"it is cut short or damaged: {error}", "truncated") from None


def _zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Decompress frame by frame: the library's own reader does not report a truncated frame."""
    with needs("zstandard"):
        import zstandard
    frame = None
    try:
        while data := file.read(SLICE):
            while data:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                yield frame.decompress(data)
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise CodecError(f"it is damaged: {error}", "truncated") from None
    if frame is not None:
        raise CodecError("it is cut short in its last frame", "truncated")


def _split(path: AnyPath, packed: str, piece: Piece, separator: bytes, most: int) -> Iterator[RawDocument]:
    """Yield the parts between separators that are not blank, and where each begins; without a separator, all as one part."""
    at, data, overlap = piece.start, bytearray(), max(len(separator) - 1, 0)
    lost, visible = 0, False  # bytes of the first part that were dropped, and whether one of them is not blank

    def part(begin: int, end: int) -> bytes | CodecError:
        return _too_large(lost + end - begin, most) if lost or end - begin > most else bytes(data[begin:end])

    try:
        for block in _blocks(path, packed, piece):
            begin, scanned = 0, max(len(data) - overlap, 0)
            data += block
            while separator and (end := data.find(separator, max(begin, scanned))) >= 0:
                if visible or data[begin:end].strip():
                    yield at, part(begin, end)
                at += lost + end - begin + len(separator)
                begin, lost, visible = end + len(separator), 0, False
            del data[:begin]
            if (excess := len(data) - overlap) > most:
                lost, visible = lost + excess, visible or bool(data[:excess].strip())
                del data[:excess]
    except CodecError as error:
        if not separator:
            raise
        said = f"{path}: {error}"  # nobody knows how many documents it held
        raise damaged_file(path, str(error).removeprefix("it ")) if error.reason == "truncated" else PrepError(said) from None
    if visible or data.strip() or not separator:
        yield at, part(0, len(data))


def _too_large(size: int, most: int) -> CodecError:
    return CodecError(f"the document has at least {size} bytes, more than the {most} of --max-bytes", "too-large")


def _text(data: bytes, at: int, *, separator: bytes) -> str:
    return data.removesuffix(b"\r" if separator == b"\n" else b"").decode("utf-8-sig" if at == 0 else "utf-8")


def _field(line: bytes, _: int, *, field: str) -> Any:
    entry = json.loads(line)
    if not isinstance(entry, dict) or field not in entry:
        found = ", ".join(list(entry)[:8]) if isinstance(entry, dict) else f"a {type(entry).__name__}"
        raise CodecError(f"it has no field {field!r}; found {found}", "no-field")
    return entry[field]


def _checked(read: Callable[..., Any], *part: Any) -> str | CodecError:
    """Return the text that a function reads, or why it cannot be used."""
    try:
        text = read(*part)
        if isinstance(text, str) and not text.isascii():
            text.encode()  # not half of a surrogate pair: JSON can write it, UTF-8 cannot
    except CodecError as error:
        return error
    except (ValueError, RecursionError) as error:
        return CodecError(str(error), "not-utf8" if isinstance(error, UnicodeError) else "not-json")
    if not isinstance(text, str):
        return CodecError(f"it is of type {type(text).__name__}, not text", "not-text")
    return text or CodecError("it is empty", "empty")


def _rows(path: AnyPath, piece: Piece, field: str, most: int) -> Iterator[Found]:
    with open_parquet(path) as file:
        first = sum(file.metadata.row_group(k).num_rows for k in range(piece.start))
        groups = list(range(piece.start, file.num_row_groups if piece.stop < 0 else piece.stop))
        for batch in file.iter_batches(ROWS, row_groups=groups, columns=[field], use_threads=False):
            if not batch.num_columns:
                raise damaged_file(path, f"is damaged: a part of it lacks the column {field!r}")
            column = batch.column(0)
            column = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
            for k, scalar in enumerate(column):
                yield first + k, _checked(_value, scalar, most)
            first += len(column)


def _value(scalar: Any, most: int) -> Any:
    if scalar.is_valid and (size := len(scalar.as_buffer())) > most:
        raise _too_large(size, most)
    return scalar.as_py()


def read_tokens(root: AnyPath, piece: Piece, end: int | None) -> tuple[Array, Array]:
    """Map a file of uint16 tokens. Return the tokens, and the number of tokens in each document; each token `end` ends one.

    Raise a CodecError if the file holds no such tokens.
    """
    if piece.problem:
        raise CodecError(detail_of(piece.problem), reason_of(piece.problem))
    path = root / piece.name
    size = path.stat().st_size
    if size % 2:
        raise CodecError("its size is odd, so it does not hold uint16 tokens", "truncated")
    tokens = np.memmap(path, "<u2", "r") if size else np.zeros(0, "<u2")
    probe = tokens[:PROBED_TOKENS]
    if pointer := pointer_of(probe.tobytes()[:ENCODING_BYTES]):
        raise CodecError(f"it is {pointer}", "pointer")
    if other := _other_dtype(probe):
        convert = "np.fromfile(FILE, DTYPE).astype('<u2').tofile('train.bin') converts it"
        raise CodecError(f"{other}; a .bin must hold uint16: {convert}", "wrong-dtype")
    ends = np.zeros(0, np.int64) if end is None else np.flatnonzero(tokens == end) + 1
    lengths = np.diff(np.unique(np.concatenate([[0], ends, [len(tokens)]])))[: piece.documents]
    return tokens[: int(lengths.sum())], lengths


def _other_dtype(tokens: Array) -> str:
    """Return, as text, a sign that uint16 tokens have another dtype, or ""."""
    tokens = np.ascontiguousarray(tokens[: len(tokens) // 4 * 4])
    low, high = tokens[::2], tokens[1::2]
    if len(high) < MIN_PROBED:
        return ""
    if (high.max() < 16 and low.max() >= 1 << 12) or (high.max() == 0) != (low.max() == 0):
        return "every second number is small, as in a file of uint32 or int64"
    for dtype in ("<f4", "<f8"):
        values = tokens.view(dtype)
        with np.errstate(invalid="ignore"):
            if values.any() and (values == np.rint(values)).all() and 0 <= values.min() and values.max() < 1 << 20:
                return f"its bytes are whole numbers of {np.dtype(dtype).name}"
    distinct = np.unique(tokens)
    lower, upper = (distinct & 255).max(), (distinct >> 8).max()
    if lower < 16 <= upper or (len(distinct) >= MIN_DISTINCT and lower < 250 and 2 * upper > lower):  # of so many, one has 250
        return "its bytes look like uint8, or big-endian numbers"
    return ""
