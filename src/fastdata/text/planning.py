"""List files of text, cut them into pieces and shards, and make a plan."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, PrepError, needs
from fastdata.prepare.plan import BUSY_SHARDS, LEAST_BYTES, Plan, freeze, plan_folder, plan_path
from fastdata.sources.arrow import is_text, open_parquet
from fastdata.sources.files import look
from fastdata.sources.folder import Walk, walk_files
from fastdata.sources.inputs import SPLITS, SplitsError
from fastdata.sources.urls import AnyPath, explain_missing, to_path
from fastdata.store.files import MANIFEST
from fastdata.store.manifest import Labels
from fastdata.system.machine import installed_versions
from fastdata.text.documents import DOCUMENT_BYTES, Cutting, Piece, format_of, read_documents, read_tokens
from fastdata.text.kind import COMPANION, TokenOptions
from fastdata.text.shards import TokenRecipe
from fastdata.tokenizer import FILES, Spec, TokenizerEngine, character_file, find_tokenizer, load
from fastdata.types import StrPath
from fastdata.words import number_of

END = "<|endoftext|>"
SHARD_BYTES = 1 << 30  # of text in a shard, approximately


@dataclass(frozen=True)
class TextList:
    """All inputs in the order of the store, and how they become documents, of `max_bytes` at most.

    skipped: how many files are not text, by extension.
    """

    root: AnyPath
    pieces: list[Piece]
    cutting: Cutting
    max_bytes: int
    skipped: Counter[str]
    shard_bytes: int
    are_tokens: bool
    notes: tuple[str, ...] = ()

    def texts(self) -> Iterator[str]:
        """Yield the documents that can be read."""
        for piece in self.pieces:
            found = read_documents(self.root, piece, self.cutting, self.max_bytes)
            yield from (text for _, text in found if isinstance(text, str))

    def first(self, limit: int | None, end: int | None) -> TextList:
        """Keep the pieces with the first `limit` documents, counting those rejected later; None keeps all.

        Documents are counted by reading them, and no more of them than needed. end: the id after each document of a file of tokens.
        """
        if limit is None:
            return self
        pieces, left = list[Piece](), limit
        for piece in self.pieces:
            sizes = list(islice(self._sizes(piece, end), left + 1))
            if len(sizes) > left:
                piece = replace(piece, size=min(sum(sizes[:left]), piece.size), documents=left)
            pieces.append(piece)
            left -= min(left, len(sizes))
            if not left:
                break
        return replace(self, pieces=pieces)

    def _sizes(self, piece: Piece, end: int | None) -> Iterable[int]:
        """Return the bytes of each document. An error that ends the piece becomes a reject, so it counts as a document."""
        if format_of(piece.name)[0] != "bin":
            found = read_documents(self.root, piece, self.cutting, self.max_bytes)
            return (len(text.encode()) if isinstance(text, str) else 0 for _, text in found)
        try:
            tokens, lengths = read_tokens(self.root, piece, end)
            return [*(lengths * tokens.itemsize).tolist()]
        except (CodecError, OSError):
            return [0]

    def shard_bounds(self) -> tuple[int, ...]:
        """Group consecutive pieces into shards of about `shard_bytes`; return where each begins, and the number of pieces."""
        bounds, size = [0], 0
        for k, piece in enumerate(self.pieces):
            if size and size + max(piece.size, 0) > self.shard_bytes:
                bounds.append(k)
                size = 0
            size += max(piece.size, 0)
        return (*bounds, len(self.pieces))


def plan_source(source: StrPath, out: Path, options: TokenOptions, limit: int | None = None) -> Plan:
    """List the text and decide how to tokenize it. limit: take only this many documents, the first ones."""
    tokenizer, train_bpe = options.tokenizer, options.train_bpe
    if tokenizer is not None and train_bpe is not None:
        raise ValueError("give --tokenizer or --train-bpe, not both")
    if train_bpe is not None and train_bpe < 257:
        raise ValueError(f"--train-bpe is {train_bpe}, but must be 257 or more: 256 bytes and an end token")
    cutting = Cutting("\n" if options.split_lines else options.split_on or "", options.field)
    found = list_text(source, cutting, DOCUMENT_BYTES if options.max_bytes is None else options.max_bytes)
    are_tokens, end_token, trained_on, data = found.are_tokens, options.end_token, "", b""
    if train_bpe is not None and are_tokens:
        raise ValueError(f"SOURCE {source} holds tokens, not text to train a tokenizer on: leave --train-bpe out")
    if tokenizer is None and train_bpe is None and not are_tokens:
        raise PrepError(f"SOURCE {source} is text, which needs a tokenizer: give --tokenizer NAME_OR_FILE, or --train-bpe VOCAB")
    if train_bpe is not None or (tokenizer == "chars" and not are_tokens):
        found = found.first(limit, None)
        spec, data, trained_on = _trained(found, out, train_bpe, end_token)
        is_one = len(found.pieces) == 1 and not cutting.separator and format_of(found.pieces[0].name)[0] == "txt"
        end_token = "none" if train_bpe is None and end_token is None and is_one else end_token
    elif tokenizer is not None:
        spec, data = find_tokenizer(os.fspath(tokenizer))
    else:
        spec = Spec("none", "", "")
    engine = load(spec, data)
    end = _end_id(engine, spec, end_token)
    found = found.first(limit, end)
    recipe = TokenRecipe(spec, engine.vocab_size, end, cutting, trained_on, found.max_bytes)
    more = {"files": {spec.file: data} if spec.file else {}, "skipped": dict(found.skipped)}
    bounds = found.shard_bounds()
    return freeze(recipe, Labels("none"), tuple(found.pieces), bounds, roots=(found.root,), notes=found.notes, **more)


def _end_id(engine: TokenizerEngine, spec: Spec, end_token: str | None) -> int | None:
    """Return the id that follows each document, or None."""
    if end_token == "none" or (end_token is None and spec.engine == "none"):
        return None
    number = engine.end if end_token is None else int(end_token) if end_token.isdecimal() else engine.id_of(end_token)
    if end_token is None and number is None:
        raise PrepError(f"{spec.name} does not say which token ends a document: give --end-token TOKEN, or --end-token none")
    if number is None or number >= engine.vocab_size:
        name = spec.name or "a file of uint16"
        raise PrepError(f"--end-token {end_token}: {name} has no such token; its vocabulary has {engine.vocab_size} tokens")
    return number


def _trained(found: TextList, out: Path, vocab: int | None, end_token: str | None) -> tuple[Spec, bytes, str]:
    """Return a tokenizer that is made of the text, its file, and a hash of all that it depends on.

    vocab: size of a BPE, or None for a tokenizer of characters.
    """
    files = [[value for value in vars(piece).values() if value is not None] for piece in found.pieces]
    whole: list[Any] = ["chars", end_token, vars(found.cutting), files]
    whole = whole if vocab is None else [vocab, vars(found.cutting), installed_versions().get("tokenizers"), files]
    if found.max_bytes != DOCUMENT_BYTES:  # without it, the hash is that of earlier versions
        whole.append(found.max_bytes)
    trained_on = hashlib.sha256(json.dumps(whole).encode()).hexdigest()
    kind, name = ("chars", "chars") if vocab is None else ("tokenizers", f"bpe-{vocab}")
    data = _made_before(out, trained_on, kind)
    if not data:
        data = _characters(found.texts(), end_token) if vocab is None else _train(found.texts(), vocab)
    return Spec(kind, name, hashlib.sha256(data).hexdigest()), data, trained_on


def _made_before(out: Path, trained_on: str, kind: str) -> bytes:
    """Return the file of the tokenizer that an earlier run made of the same text; empty if there is none."""
    for folder, place in ((out, out / MANIFEST), (plan_folder(out), plan_path(plan_folder(out)))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            options = json.loads(place.read_bytes())["options"]
            data = (folder / FILES[kind]).read_bytes()
            if options["trained_on"] == trained_on and options["tokenizer"]["sha256"] == hashlib.sha256(data).hexdigest():
                return data
    return b""


def _train(texts: Iterable[str], vocab: int) -> bytes:
    """Train a byte-level BPE like GPT-2's on all documents that can be read, and return its tokenizer.json."""
    with needs("tokenizers"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=False).encode()


def _characters(texts: Iterable[str], end_token: str | None) -> bytes:
    """Return the tokenizer file of all characters of the texts, and of the end token if it is one character."""
    characters = {end_token} if end_token is not None and len(end_token) == 1 and not end_token.isdecimal() else set[str]()
    return character_file(characters.union(*texts))


def list_text(source: StrPath, cutting: Cutting, max_bytes: int = DOCUMENT_BYTES) -> TextList:
    """List one text file, or all of a folder and its subfolders by name. Large files are cut into pieces between documents."""
    path = to_path(source)
    walk = Walk(path)
    if not path.exists():
        raise PrepError(f"SOURCE {source} does not exist{explain_missing(path)}")
    files = list(walk_files(path, walk)) if path.is_dir() else [(path.name, *look(path))]
    text = [file for file in files if format_of(file[0])[0] not in ("", "bin")]
    found = text or [file for file in files if format_of(file[0])[0]]  # tokens that lie among text are skipped
    left = {name for name, _, _ in files} - {name for name, _, _ in found}
    endings = [os.path.splitext(name)[1].lower() for name in left if not name.endswith(COMPANION)]
    skipped = Counter(ending or "without an ending" for ending in endings)
    if not found:
        there = f"no text in {source}, which has {number_of(len(left), 'other file')}"
        raise PrepError(f"{there}; text files end in .parquet, or in .txt, .md or .jsonl, also with .gz or .zst")
    _refuse_splits(path, [name for name, _, _ in found], tokens=not text)
    if any(format_of(name)[1] == "zstd" for name, _, _ in found):
        with needs("zstandard"):
            import zstandard  # noqa: F401  without it, each of these files would become a reject
    root = path if path.is_dir() else path.parent
    shard_bytes = min(max(sum(max(size, 0) for _, size, _ in found) // BUSY_SHARDS, LEAST_BYTES), SHARD_BYTES)
    pieces = [piece for name, size, problem in found for piece in _pieces(root, name, size, problem, cutting, shard_bytes)]
    return TextList(root, pieces, cutting, max_bytes, skipped, shard_bytes, not text, walk.notes())


def _refuse_splits(path: AnyPath, names: list[str], *, tokens: bool) -> None:
    """Raise PrepError if names hold words such as train and val; for text, only if all do, as one may be about tests."""
    tops: dict[str, set[str]] = {}
    for name in names:
        words = re.split(r"[-_.\d/]+", name.lower())
        tops.setdefault(next((word for word in words if word in SPLITS), ""), set()).add(name.split("/")[0])
    others = tops.pop("", set())
    if len(tops) < 2 or (others and not tokens):
        return
    places = {split: str(path / min(inside)) for split, inside in tops.items()}
    if sum(map(len, tops.values())) > len(set(places.values())):
        mixed = f"{path} holds {' and '.join(sorted(tops))} side by side, which would be mixed"
        raise PrepError(f"{mixed}; put each in a folder of its own, and prepare each by itself")
    raise SplitsError(path, places, classes=False, beside=min(others, default=""))


def _pieces(root: AnyPath, name: str, size: int, problem: str, cutting: Cutting, at_most: int) -> Iterator[Piece]:
    """Yield a file, or pieces of about `at_most` bytes that end between documents."""
    kind, packed = format_of(name)
    separator = b"\n" if kind == "jsonl" else cutting.separator.encode()
    if kind == "parquet" and not problem:
        yield from _row_groups(root, name, size, cutting.field, at_most)
        return
    if problem or packed or kind == "bin" or not separator or size <= at_most:
        yield Piece(name, 0, -1, size, problem)
        return
    overlaps = any(separator[:k] == separator[-k:] for k in range(1, len(separator)))  # it is counted from the beginning
    begin = at = 0
    with open(root / name, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while begin + at_most < size:
            at = data.find(separator, at if overlaps else max(begin + at_most - len(separator), at))
            if at < 0 or (at := at + len(separator)) >= size:
                break
            if at >= begin + at_most:
                yield Piece(name, begin, at, at - begin)
                begin = at
    yield Piece(name, begin, size, size - begin)


def _row_groups(root: AnyPath, name: str, size: int, field: str, at_most: int) -> Iterator[Piece]:
    with open_parquet(root / name) as file:
        count, text = file.num_row_groups, [f.name for f in file.schema_arrow if is_text(f.type)]
    if not text:
        yield Piece(name, 0, -1, size, "no-field: it has no column of text")
        return
    if field not in text:
        raise PrepError(f"{root / name} has no text column {field!r}, only {', '.join(text)}: name one with --field")
    groups = max(1, min(count, -(-size // at_most)))
    for begin, end in pairwise(k * count // groups for k in range(groups + 1)):
        yield Piece(name, begin, end, size * (end - begin) // max(count, 1))
