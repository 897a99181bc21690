"""List the files of text, take the first documents if asked, and cut them into pieces and shards."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from fastdata.errors import MissingExtraError, PrepError, RemoteError, needs
from fastdata.sources.arrow import is_text
from fastdata.sources.base import unreadable
from fastdata.sources.folder import Walk, walk_files
from fastdata.sources.inputs import SPLITS, SplitsError, look
from fastdata.sources.urls import AnyPath, explain_missing, seekable, to_path
from fastdata.text.documents import DOCUMENT_BYTES, Cutting, Head, Piece, document_lengths, documents, format_of, open_tokens
from fastdata.words import number_of

__all__ = ["TextList", "first_documents", "holds_tokens", "list_text", "shard_bounds"]

BUSY_SHARDS = 128  # enough to keep the cores of a large machine busy to the end
COMPANION = "meta.pkl"  # a file next to tokens
LEAST_BYTES, MOST_BYTES = 4 << 20, 1 << 30  # approximate bytes of text in a shard


@dataclass(frozen=True)
class TextList:
    """All inputs in the order of the store. skipped: how many files are not text, by extension. notes: for the caller."""

    root: AnyPath
    pieces: list[Piece]
    skipped: Counter[str]
    shard_bytes: int
    notes: tuple[str, ...] = ()


def holds_tokens(source: str | os.PathLike[str]) -> bool:
    """Return whether a source is a .bin file, or a folder that holds only .bin and nanoGPT's meta.pkl."""
    path = to_path(source)
    found = False
    for name in (name for name, _, _ in walk_files(path)) if path.is_dir() else [path.name]:
        if not name.lower().endswith((".bin", COMPANION)):
            return False
        found = found or name.lower().endswith(".bin")
    return found


def list_text(source: str | os.PathLike[str], cutting: Cutting) -> TextList:
    """List one text file, or those of a folder and its subfolders by name. Large files are cut into pieces between documents.

    Raises:
        PrepError: if there is nothing to prepare, or the folder holds several splits.
    """
    path = to_path(source)
    skipped = Counter[str]()
    walk = Walk(path, lambda name: format_of(name)[0] not in ("", "bin"))
    if not path.exists():
        raise PrepError(f"SOURCE {source} does not exist{explain_missing(path)}")
    files = list(walk_files(path, walk)) if path.is_dir() else [(path.name, *look(path))]
    text = [file for file in files if format_of(file[0])[0] not in ("", "bin")]
    found = text or [file for file in files if format_of(file[0])[0]]  # tokens that lie among text are skipped
    for name, _, _ in files:
        if not name.endswith(COMPANION) and (not format_of(name)[0] or (text and format_of(name)[0] == "bin")):
            skipped[os.path.splitext(name)[1].lower() or "without an ending"] += 1
    if not found:
        count = sum(skipped.values())
        left = f"; {number_of(count, 'other file')} {'are' if count > 1 else 'is'} there" if skipped else ""
        raise PrepError(f"no text in {source}{left}; text files end in .txt, .md, .jsonl or .parquet, also with .gz or .zst")
    _refuse_splits(path, [name for name, _, _ in found], tokens=not text)
    if any(format_of(name)[1] == "zstd" for name, _, _ in found):
        with needs("zstandard"):
            import zstandard  # noqa: F401  without it, each of these files would become a reject
    root = path if path.is_dir() else path.parent
    total = sum(max(size, 0) for _, size, _ in found)
    shard_bytes = min(max(total // BUSY_SHARDS, LEAST_BYTES), MOST_BYTES)
    pieces = [piece for name, size, problem in found for piece in _pieces(root, name, size, problem, cutting, shard_bytes)]
    return TextList(root, pieces, skipped, shard_bytes, walk.notes())


def _refuse_splits(path: AnyPath, names: list[str], *, tokens: bool) -> None:
    """Raise PrepError if names contain words such as train and val. For text, every name must: a document may be about tests."""
    splits: dict[str, list[str]] = {}
    for name in names:
        words = re.split(r"[-_.\d/]+", name.lower())
        splits.setdefault(next((word for word in words if word in SPLITS), ""), []).append(name)
    others = splits.pop("", [])
    if len(splits) < 2 or (others and not tokens):
        return
    tops = {split: {name.split("/")[0] for name in inside} for split, inside in splits.items()}
    if any(len(top) > 1 for top in tops.values()) or len(set.union(*tops.values())) < len(tops):
        raise PrepError(
            f"{path} holds {' and '.join(sorted(splits))} side by side, which would be mixed; put each in a folder of its own, and "
            "prepare each by itself"
        )
    raise SplitsError(
        path, {split: str(path / top.pop()) for split, top in tops.items()}, classes=False, beside="".join(others[:1])
    )


def first_documents(
    found: TextList, limit: int | None, cutting: Cutting, end: int | None = None, most: int = DOCUMENT_BYTES
) -> TextList:
    """Keep the pieces that hold the first `limit` documents, including future rejects; None keeps all.

    Documents are counted by reading them, and no more of them than needed.

    Args:
        end: the id after each document of a file of tokens.
        most: the bytes of a document that is not a reject.
    """
    if limit is None:
        return found
    pieces: list[Piece] = []
    left = limit
    for piece in found.pieces:
        if not left:
            break
        sizes = list(islice(_sizes(found.root, piece, cutting, end, most), left + 1))
        if len(sizes) > left:
            piece = Head(piece.name, piece.start, piece.stop, min(sum(sizes[:left]), piece.size), documents=left)
        pieces.append(piece)
        left -= min(left, len(sizes))
    return replace(found, pieces=pieces)


def _sizes(root: AnyPath, piece: Piece, cutting: Cutting, end: int | None, most: int) -> Iterator[int]:
    """Yield the bytes of each document. An error that ends the piece becomes a reject, so it counts as a document."""
    if piece.problem:
        yield 0
        return
    try:
        if format_of(piece.name)[0] == "bin":
            tokens = open_tokens(root / piece.name)
            yield from (document_lengths(tokens, end) * tokens.itemsize).tolist()
        else:
            for _, text in documents(root, piece, cutting, most):
                yield len(text.encode()) if isinstance(text, str) else 0
    except (MissingExtraError, PrepError, RemoteError):
        raise
    except Exception:  # noqa: BLE001  a library may raise anything for a bad file; the worker rejects it
        yield 0


def shard_bounds(pieces: list[Piece], shard_bytes: int) -> tuple[int, ...]:
    """Group consecutive pieces into shards of about `shard_bytes`, and return the first piece of each, and then their number."""
    bounds = [0]
    size = 0
    for k, piece in enumerate(pieces):
        if size and size + max(piece.size, 0) > shard_bytes:
            bounds.append(k)
            size = 0
        size += max(piece.size, 0)
    return (*bounds, len(pieces))


def _pieces(root: AnyPath, name: str, size: int, problem: str, cutting: Cutting, at_most: int) -> Iterator[Piece]:
    kind, packed = format_of(name)
    separator = b"\n" if kind == "jsonl" else cutting.separator.encode()
    if problem or packed or kind in ("parquet", "bin") or not separator or size <= at_most:
        if kind == "parquet" and not problem:
            yield from _row_groups(root, name, size, cutting.field, at_most)
        else:
            yield Piece(name, 0, -1, size, problem)
        return
    begin = 0
    for end in [*_cuts(root / name, size, separator, at_most), size]:
        yield Piece(name, begin, end, end - begin)
        begin = end


def _cuts(path: AnyPath, size: int, separator: bytes, at_most: int) -> Iterator[int]:
    """Yield where documents begin, about every `at_most` bytes. A separator that overlaps itself is counted from the beginning."""
    overlaps = any(separator[:k] == separator[-k:] for k in range(1, len(separator)))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        goal = at_most
        at = 0
        while goal < size:
            at = data.find(separator, at if overlaps else max(goal - len(separator), at))
            if at < 0 or (at := at + len(separator)) >= size:
                return
            if at >= goal:
                yield at
                goal = at + at_most


def _row_groups(root: AnyPath, name: str, size: int, field: str, at_most: int) -> Iterator[Piece]:
    with needs("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(seekable(root / name)) as file:
            schema = file.schema_arrow
            count = file.num_row_groups
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last is about names of columns
        raise unreadable(root / name, error) from error
    text = [f.name for f in schema if is_text(f.type)]
    if field not in text:
        if not text:
            yield Piece(name, 0, -1, size, "no-field")
            return
        raise PrepError(f"{root / name} has no column {field!r} of text; it has {', '.join(text)}: name one with --field")
    groups = max(1, min(count, -(-size // at_most)))
    for k in range(groups):
        begin, end = k * count // groups, (k + 1) * count // groups
        yield Piece(name, begin, end, size * (end - begin) // max(count, 1))
