"""Make shards of tokens in a worker, and the store's tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from fastdata.errors import CodecError, MissingExtraError
from fastdata.kinds import Tables
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import Job, Progress, Task, Writers, reject_of
from fastdata.sources.notes import detail_of
from fastdata.sources.urls import AnyPath, to_path
from fastdata.store.manifest import Form
from fastdata.text.documents import DOCUMENT_BYTES, Cutting, Found, Head, Piece, document_lengths, documents, open_tokens
from fastdata.text.sections import RECORD_BYTES, SAMPLES_DTYPE, Tokens
from fastdata.tokenizer import LIBRARIES, Engine, Spec, load

__all__ = ["TokenRecipe", "make_shard", "tables"]

Array = np.ndarray[Any, np.dtype[Any]]

BATCH_CHARS = 1 << 20  # characters of text that the tokenizer gets at once
BATCH_DOCUMENTS = 1024
COPIED_TOKENS = 1 << 22  # tokens of a .bin file that are copied at once
SLOWEST = 100_000  # characters a second that any tokenizer manages: a large document is not a hang


@dataclass(frozen=True)
class TokenRecipe:
    """How text is stored.

    Attributes:
        end: the id after each document, or None.
        trained_on: if the tokenizer was made of this text, a hash of what it depends on.
        max_bytes: larger documents are rejected before they are in memory.
    """

    tokenizer: Spec
    vocab_size: int
    end: int | None
    cutting: Cutting = field(default_factory=Cutting)
    trained_on: str = ""
    max_bytes: int = field(default=DOCUMENT_BYTES, metadata={"newer": True})

    kind: ClassVar[str] = "tokens"
    unit: ClassVar[str] = "B"

    @property
    def libraries(self) -> tuple[str, ...]:
        return LIBRARIES[self.tokenizer.engine]

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def variants(self) -> list[tuple[str, int | None, Form]]:
        return [("tokens", None, Form("tokens", 1, self.dtype))]


PLAN_TYPES = TokenRecipe, (Piece, Head)


@cache
def _engine(spec: Spec, data: bytes) -> Engine:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    return load(spec, data)


def make_shard(job: Job, task: Task, writers: Writers, progress: Progress) -> dict[str, Any]:
    """Tokenize the pieces of a task, one after another."""
    shard = _Shard(job, task, writers, progress)
    for number, piece in enumerate(task.sources, task.first):
        shard.add(number, piece)
    shard.flush()
    return {
        "kept": sum(map(len, shard.pieces)),
        "pieces": shard.pieces,
        "rejects": shard.rejects,
        "largest": shard.largest,
        "tokens": shard.total,
        "records": shard.records,
    }


class _Shard:
    """What has been made of a task so far: tokens, joined into records of equal size.

    Attributes:
        pieces: for each piece, the tokens of its documents.
        largest, total, records: the largest token, and how many tokens and records there are.
    """

    def __init__(self, job: Job, task: Task, writers: Writers, progress: Progress) -> None:
        self._job = job
        self._options: TokenRecipe = job.options
        self._skip = task.skip
        self._writers = writers
        self._progress = progress
        self._place = 0
        self._record = np.empty(RECORD_BYTES // np.dtype(self._options.dtype).itemsize, self._options.dtype)
        self._used = 0
        self.pieces: list[list[int]] = []
        self.rejects: list[dict[str, Any]] = []
        self.largest = self.total = self.records = 0

    def add(self, number: int, piece: Piece) -> None:
        """Tokenize a piece. Documents that cannot be read or tokenized become rejects; those before and after are kept."""
        counts: list[int] = []
        self.pieces.append(counts)
        if piece.name.lower().endswith(".bin"):
            self._add_tokens(number, piece, counts)
            return
        spec = self._options.tokenizer
        engine = _engine(spec, self._job.files.get(spec.file, b""))
        end = [] if self._options.end is None else [self._options.end]
        batches = _batches(to_path(self._job.roots[0]), piece, self._options)
        size = max(piece.size, 0)
        done = 0
        while True:
            self._progress.at(self._place)  # a worker that dies here, while reading, leaves out the rest of the piece
            batch = self._skip.get(self._place) or next(batches, None)
            if not isinstance(batch, list):
                if batch is not None:
                    self._reject(number, piece, batch)
                self._place += 1  # the next piece begins at another place
                break
            extra_s = sum(len(text) for _, text in batch if isinstance(text, str)) // SLOWEST
            self._progress.at(self._place + 1, extra_s=extra_s)  # one that dies here, while tokenizing, leaves out this batch
            for at, ids in _encoded(engine, batch, self._skip.get(self._place + 1)):
                if isinstance(ids, tuple):
                    self._reject(number, piece, ids, at)
                else:
                    counts.append(len(ids) + len(end))
                    self._append(ids)
                    self._append(np.array(end, self._record.dtype))
            self._place += 2
            now = min(batch[-1][0] - piece.start, size) if piece.stop >= 0 else done  # elsewhere `at` is not a byte of the file
            self._progress.add(done=now - done)
            done = now
        self._progress.add(done=size - done)

    def _add_tokens(self, number: int, piece: Piece, counts: list[int]) -> None:
        """Copy the tokens of a .bin file."""
        self._progress.at(self._place)
        try:
            if skip := self._skip.get(self._place):
                raise CodecError(skip[1], skip[0])
            if piece.problem:
                raise CodecError(detail_of(piece.problem), piece.problem)
            tokens = open_tokens(to_path(self._job.roots[0]) / piece.name)
            lengths = document_lengths(tokens, self._options.end)
            if isinstance(piece, Head):
                lengths = lengths[: piece.documents]
                tokens = tokens[: int(lengths.sum())]
            parts = [tokens[start : start + COPIED_TOKENS] for start in range(0, len(tokens), COPIED_TOKENS)]
            if (top := max((int(part.max()) for part in parts), default=0)) >= self._options.vocab_size:
                raise CodecError(f"an id of {top} in a vocabulary of {self._options.vocab_size}", "id-out-of-range")
        except (CodecError, OSError) as error:
            self._reject(number, piece, reject_of(error))
        else:
            for part in parts:
                self._append(part)
            counts.extend(lengths.tolist())
        self._place += 1
        self._progress.add(done=max(piece.size, 0))

    def _append(self, ids: Array) -> None:
        self.largest = max(self.largest, int(ids.max(initial=0)))
        self.total += len(ids)
        while len(ids):
            taken = min(len(ids), len(self._record) - self._used)
            self._record[self._used : self._used + taken] = ids[:taken]
            self._used += taken
            ids = ids[taken:]
            if self._used == len(self._record):
                self.flush()

    def flush(self) -> None:
        """Write the pending tokens as a record; the last one of a shard is shorter."""
        if self._used:
            self._writers.append([self._record[: self._used].tobytes()])
            self._used = 0
            self.records += 1

    def _reject(self, number: int, piece: Piece, problem: tuple[str, str], at: int | None = None) -> None:
        reason, detail = problem
        if at is not None:
            detail = f"{'row' if piece.name.endswith('.parquet') else 'byte'} {at}: {detail}"
        self.rejects.append({"source": number, "name": piece.name, "reason": reason, "detail": detail})
        self._progress.add(rejected=1)


def _batches(root: AnyPath, piece: Piece, options: TokenRecipe) -> Iterator[list[Found] | tuple[str, str]]:
    """Yield the documents of a piece in batches of a size that suits tokenizers, and then why the rest cannot be read, if so."""
    batch: list[Found] = []
    chars = 0
    problem = None
    try:
        if piece.problem:
            raise CodecError(detail_of(piece.problem), piece.problem)
        for at, text in documents(root, piece, options.cutting, options.max_bytes):
            batch.append((at, text))
            chars += len(text) if isinstance(text, str) else 0
            if chars >= BATCH_CHARS or len(batch) == BATCH_DOCUMENTS:
                yield batch
                batch, chars = [], 0
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001  a library may raise anything for a bad file, which becomes a reject
        problem = reject_of(error)
    if batch:
        yield batch
    if problem is not None:
        yield problem


def _encoded(engine: Engine, batch: list[Found], skip: tuple[str, str] | None) -> Iterator[tuple[int, Array | tuple[str, str]]]:
    """Yield the ids of each document, or the reason and detail why there are none."""
    texts = [text for _, text in batch if isinstance(text, str)]
    encoded: Iterator[Array | tuple[str, str]] = iter(_ids(engine, texts)) if skip is None else repeat(skip)
    for at, text in batch:
        yield at, next(encoded) if isinstance(text, str) else reject_of(text)


def _ids(engine: Engine, texts: Sequence[str]) -> Sequence[Array | tuple[str, str]]:
    """Encode texts; one by one if that fails for all at once."""
    if not texts:
        return []
    try:
        encoded = engine.encode(texts)
    except Exception as error:  # noqa: BLE001  a tokenizer may raise anything
        return [_ids(engine, [text])[0] for text in texts] if len(texts) > 1 else [reject_of(error)]
    detail = "the tokenizer made the id {} of a vocabulary of {}"
    return [
        ids if (top := int(ids.max(initial=0))) < engine.vocab_size else ("id-out-of-range", detail.format(top, engine.vocab_size))
        for ids in encoded
    ]


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Make a row for each document and a name for each piece."""
    counts = [np.array(tokens, np.uint64) for table in found for tokens in table["pieces"]]
    samples = np.zeros(sum(map(len, counts)), SAMPLES_DTYPE)
    samples["tokens"] = np.concatenate(counts) if counts else 0
    samples["source"] = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
    samples["start"] = np.cumsum(samples["tokens"]) - samples["tokens"]
    options: TokenRecipe = plan.options
    spec = options.tokenizer
    return Tables(
        samples=samples,
        names=(piece.name for piece in plan.sources),
        records=tuple(table["records"] for table in found),
        sections={
            "tokens": Tokens(
                spec.engine,
                spec.name,
                spec.sha256,
                options.vocab_size,
                options.end,
                max((table["largest"] for table in found), default=0),
                tuple(table["tokens"] for table in found),
            )
        },
    )
