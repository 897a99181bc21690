"""Make shards of tokens in a worker, and the store's tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fastdata.errors import CodecError
from fastdata.kinds import Tables
from fastdata.prepare.plan import Plan, PrepareRun
from fastdata.prepare.worker import ProgressReport, ShardTask, Writers, reject_of
from fastdata.sources.urls import to_path
from fastdata.store.manifest import Form
from fastdata.text.documents import DOCUMENT_BYTES, Cutting, Found, Piece, format_of, read_documents, read_tokens
from fastdata.text.sections import RECORD_BYTES, SAMPLES_DTYPE, Tokens
from fastdata.tokenizer import Spec, TokenizerEngine, load, unknown_note
from fastdata.types import Array

Ids: TypeAlias = "Array | tuple[str, str]"  # of a document; or the reason and detail why there are none

BATCH_CHARS = 1 << 20  # characters of text that the tokenizer gets at once
BATCH_DOCUMENTS = 1024
SLOWEST = 100_000  # characters a second that any tokenizer manages: a large document is not a hang


@dataclass(frozen=True)
class TokenRecipe:
    """The recipe of a store of text. trained_on: if the tokenizer was made of this text, a hash of what it depends on."""

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
        return self.tokenizer.libraries

    def variants(self) -> list[tuple[str, int | None, Form]]:
        return [("tokens", None, Form("tokens", 1, "uint16" if self.vocab_size <= 1 << 16 else "uint32"))]


PLAN_TYPES = TokenRecipe, (Piece,)


def make_shard(job: PrepareRun, task: ShardTask, writers: Writers, progress: ProgressReport) -> dict[str, Any]:
    """Tokenize the pieces of a task, one after another."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    shard = _Shard(job, task, writers, progress)
    for number, piece in enumerate(task.sources, task.first):
        counts = shard.copy(number, piece) if format_of(piece.name)[0] == "bin" else shard.tokenize(number, piece)
        shard.table["pieces"].append(counts)
        progress.add(finished=max(piece.size, 0))
    shard.flush()
    return {"kept": sum(map(len, shard.table["pieces"])), **shard.table}


class _Shard:
    """Tokens, joined into records of equal size.

    table: what has been made so far: for each piece the tokens of its documents, the rejects, the largest token, and how many
    tokens, unknown ones and records there are.
    """

    def __init__(self, job: PrepareRun, task: ShardTask, writers: Writers, progress: ProgressReport) -> None:
        self._options: TokenRecipe = job.plan.options
        self._root = to_path(job.plan.roots[0])
        self._skip, self._writers, self._progress = task.skip, writers, progress
        spec = self._options.tokenizer
        self._engine = load(spec, job.plan.files.get(spec.file, b""))
        self._step = 0
        self._dtype, self._pending = np.dtype(self._options.variants()[0][2].dtype), bytearray()
        self.table: dict[str, Any] = {"pieces": [], "rejects": [], "largest": 0, "unknown": 0, "tokens": 0, "records": 0}

    def tokenize(self, number: int, piece: Piece) -> list[int]:
        """Tokenize a piece, and return the number of tokens of each document that is not rejected."""
        options, counts = self._options, list[int]()
        end = np.array([] if options.end is None else [options.end], self._dtype)
        batches = _batches(read_documents(self._root, piece, options.cutting, options.max_bytes))
        while True:
            self._progress.at(self._step)  # a worker that dies here, while reading, leaves out the rest of the piece
            if self._step in self._skip or not (batch := next(batches, [])):
                break
            extra_s = sum(len(text) for _, text in batch if isinstance(text, str)) // SLOWEST
            self._progress.at(self._step + 1, extra_s=extra_s)  # one that dies here, while tokenizing, leaves out this batch
            for at, ids in _encoded(self._engine, batch, self._skip.get(self._step + 1)):
                if isinstance(ids, tuple):
                    self._reject(number, piece, ids, at)
                else:
                    counts.append(len(ids) + len(end))
                    self._append(ids)
                    self._append(end)
            self._step += 2
        if self._step in self._skip:
            self._reject(number, piece, self._skip[self._step])
        self._step += 1  # the next piece begins at another place
        return counts

    def copy(self, number: int, piece: Piece) -> list[int]:
        """Copy the tokens of a .bin file, and return the number of tokens of each document."""
        self._progress.at(self._step)
        counts = list[int]()
        try:
            if skip := self._skip.get(self._step):
                raise CodecError(skip[1], skip[0])
            tokens, lengths = read_tokens(self._root, piece, self._options.end)
            if (top := int(tokens.max(initial=0))) >= self._options.vocab_size:
                raise CodecError(f"its id {top} is not below the vocabulary size {self._options.vocab_size}", "id-out-of-range")
            self._append(tokens)
            counts = lengths.tolist()
        except (CodecError, OSError) as error:
            self._reject(number, piece, reject_of(error))
        self._step += 1
        return counts

    def _append(self, ids: Array) -> None:
        self.table["largest"] = max(self.table["largest"], int(ids.max(initial=0)))
        self.table["tokens"] += len(ids)
        if self._engine.unknown is not None:
            self.table["unknown"] += int(np.count_nonzero(ids == self._engine.unknown))
        step = RECORD_BYTES // self._dtype.itemsize
        for start in range(0, len(ids), step):
            self._pending += ids[start : start + step].astype(self._dtype).tobytes()
            if len(self._pending) >= RECORD_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the pending tokens as a record; the last one of a shard is shorter."""
        if self._pending:
            self._writers.append([bytes(self._pending[:RECORD_BYTES])])
            del self._pending[:RECORD_BYTES]
            self.table["records"] += 1

    def _reject(self, number: int, piece: Piece, problem: tuple[str, str], at: int | None = None) -> None:
        reason, detail = problem
        if at is not None:
            detail = f"{'row' if piece.name.endswith('.parquet') else 'byte'} {at}: {detail}"
        self.table["rejects"].append({"source": number, "name": piece.name, "reason": reason, "detail": detail})
        self._progress.add(rejected=1)


def _batches(found: Iterable[Found]) -> Iterator[list[Found]]:
    """Yield documents in batches of a size that suits tokenizers."""
    batch, chars = list[Found](), 0
    for at, text in found:
        batch.append((at, text))
        chars += len(text) if isinstance(text, str) else 0
        if chars >= BATCH_CHARS or len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _encoded(engine: TokenizerEngine, batch: list[Found], skip: tuple[str, str] | None) -> list[tuple[int | None, Ids]]:
    """Return the ids of each document, or the reason and detail why there are none."""
    texts = [text for _, text in batch if isinstance(text, str)]
    encoded = iter(_ids(engine, texts) if skip is None else [skip] * len(texts))
    return [(at, next(encoded) if isinstance(text, str) else reject_of(text)) for at, text in batch]


def _ids(engine: TokenizerEngine, texts: Sequence[str]) -> Sequence[Ids]:
    """Encode texts together, or one by one if encoding them together fails."""
    try:
        return engine.encode(texts) if texts else []
    except Exception as error:  # noqa: BLE001  a tokenizer may raise anything
        return [_ids(engine, [text])[0] for text in texts] if len(texts) > 1 else [reject_of(error)]


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Make a row for each document and a name for each piece."""
    counts = [np.array(tokens, np.uint64) for table in found for tokens in table["pieces"]]
    samples = np.zeros(sum(map(len, counts)), SAMPLES_DTYPE)
    samples["tokens"] = np.concatenate(counts) if counts else 0
    samples["source"] = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
    samples["start"] = np.cumsum(samples["tokens"]) - samples["tokens"]
    options: TokenRecipe = plan.options
    spec, counted, unknown = options.tokenizer, tuple(table["tokens"] for table in found), sum(table["unknown"] for table in found)
    largest = max((table["largest"] for table in found), default=0)
    tokens = Tokens(spec.engine, spec.name, spec.sha256, options.vocab_size, options.end, largest, counted, unknown)
    return Tables(
        samples=samples,
        names=(piece.name for piece in plan.sources),
        records=tuple(table["records"] for table in found),
        sections={"tokens": tokens},
        notes=(unknown_note(spec.name, unknown / sum(counted)),) if unknown else (),
    )
