"""Take the first documents of a source, to try a long preparation on a part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fastdata.errors import MissingExtraError
from fastdata.text.documents import Cutting, Head, Piece, documents, format_of
from fastdata.text.listing import TextList
from fastdata.text.pretokenized import open_tokens

__all__ = ["first_documents"]


def first_documents(found: TextList, limit: int | None, cutting: Cutting, end: int | None = None) -> TextList:
    """Keep the pieces that hold the first `limit` documents, including future rejects; None keeps all.

    Documents are counted by reading them, and no more of them than needed. end: the id after each document of a file of tokens.
    """
    if limit is None:
        return found
    pieces: list[Piece] = []
    left = limit
    for piece in found.pieces:
        if not left:
            break
        sizes = list(islice(_sizes(found.root, piece, cutting, end), left + 1))
        if len(sizes) > left:
            piece = Head(piece.name, piece.start, piece.stop, min(sum(sizes[:left]), piece.size), documents=left)
        pieces.append(piece)
        left -= min(left, len(sizes))
    return replace(found, pieces=pieces)


def _sizes(root: Path, piece: Piece, cutting: Cutting, end: int | None) -> Iterator[int]:
    """Yield the bytes of each document. An error that ends the piece becomes a reject, so it counts as a document."""
    if piece.problem:
        yield 0
        return
    try:
        if format_of(piece.name)[0] == "bin":
            file = open_tokens(root / piece.name)
            yield from (file.documents(end) * file.tokens.itemsize).tolist()
        else:
            for _, text in documents(root, piece, cutting):
                yield len(text.encode()) if isinstance(text, str) else 0
    except MissingExtraError:
        raise
    except Exception:  # noqa: BLE001  a library may raise anything for a bad file; the worker rejects it
        yield 0
