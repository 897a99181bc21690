"""Make a plan from the options of text."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, PrepError, needs
from fastdata.kinds import Planned, StrPath
from fastdata.prepare.plan import freeze
from fastdata.prepare.plan_files import plan_folder, plan_path
from fastdata.store.files import MANIFEST
from fastdata.store.format import Labels
from fastdata.text.documents import DOCUMENT_BYTES, Cutting, documents, format_of
from fastdata.text.listing import TextList, first_documents, list_text, shard_bounds
from fastdata.text.options import TokenOptions
from fastdata.text.shards import TokenRecipe
from fastdata.tokenizer import FILES, Engine, Spec, character_file, find_tokenizer, load

__all__ = ["plan_text"]

END = "<|endoftext|>"
ANY_ID = 1 << 16  # above what uint16 holds


def plan_text(source: StrPath, out: Path, options: TokenOptions, limit: int | None = None) -> Planned:
    """List the text and decide how to tokenize it. limit: take this many documents, the first ones; None: all.

    Raises:
        PrepError: if there is no text or no such tokenizer, or the tokenizer lacks the end token.
        ValueError: if an option is wrong.
    """
    tokenizer = None if options.tokenizer is None else os.fspath(options.tokenizer)
    train_bpe, cutting, end_token = options.train_bpe, options.cutting, options.end_token
    most = DOCUMENT_BYTES if options.max_bytes is None else options.max_bytes
    if tokenizer is not None and train_bpe is not None:
        raise ValueError("give --tokenizer or --train-bpe, not both")
    if train_bpe is not None and train_bpe < 257:
        raise ValueError(f"--train-bpe is {train_bpe}, but must be 257 or more: 256 bytes and an end token")
    found = list_text(source, cutting)
    are_tokens = all(format_of(piece.name)[0] == "bin" for piece in found.pieces)
    if train_bpe is not None and are_tokens:
        raise ValueError(f"SOURCE {source} holds tokens, not text to train a tokenizer on: leave --train-bpe out")
    if not are_tokens:
        if tokenizer is None and train_bpe is None:
            raise PrepError(f"SOURCE {source} is text, which needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB")
        found = first_documents(found, limit, cutting, most=most)
    if tokenizer is None and train_bpe is None:
        recipe, files = _without_tokenizer(end_token), dict[str, bytes]()
    else:
        trained_on = ""
        if train_bpe is not None or (tokenizer == "chars" and not are_tokens):
            kind, name = ("chars", "chars") if train_bpe is None else ("tokenizers", f"bpe-{train_bpe}")
            trained_on = _trained_on(found, cutting, train_bpe, end_token, most)
            data = _made_before(out, trained_on, kind)
            if not data:
                texts = _texts(found, cutting, most)
                data = _characters(texts, end_token) if train_bpe is None else _train(texts, train_bpe)
            spec = Spec(kind, name, hashlib.sha256(data).hexdigest())
            one_document = len(found.pieces) == 1 and not cutting.separator and format_of(found.pieces[0].name)[0] == "txt"
            if train_bpe is None and end_token is None and one_document:
                end_token = "none"
        else:
            spec, data = find_tokenizer(str(tokenizer))
        engine = load(spec, data)
        recipe = TokenRecipe(spec, engine.vocab_size, _end_id(engine, spec, end_token), cutting, trained_on, most)
        files = {spec.file: data} if spec.file else {}
    if are_tokens:
        found = first_documents(found, limit, cutting, recipe.end)
    plan = freeze(recipe, Labels("none"), tuple(found.pieces), shard_bounds(found.pieces, found.shard_bytes), files)
    return Planned(plan, dict(found.skipped), found.notes)


def _without_tokenizer(end_token: str | None) -> TokenRecipe:
    """Return the recipe for tokens whose tokenizer is not known: any id of uint16 is valid."""
    if end_token not in (None, "none") and not str(end_token).isdecimal():
        raise ValueError(f"--end-token is {end_token}, but must be an id, or none: these tokens come without a tokenizer")
    end = None if end_token in (None, "none") else int(end_token or 0)
    if end is not None and end >= ANY_ID:
        raise ValueError(f"--end-token is {end}, but the tokens' dtype holds ids below {ANY_ID}")
    return TokenRecipe(Spec("none", "", ""), ANY_ID, end)


def _end_id(engine: Engine, spec: Spec, end_token: str | None) -> int | None:
    """Return the id that follows each document, or None."""
    if end_token == "none":
        return None
    if end_token is None:
        if engine.end is None:
            raise PrepError(f"{spec.name} does not say which token ends a document: give --end-token TOKEN, or --end-token none")
        return engine.end
    number = int(end_token) if end_token.isdecimal() else engine.id_of(end_token)
    if number is None or number >= engine.vocab_size:
        raise PrepError(f"--end-token {end_token}: {spec.name} has no such token; its vocabulary has {engine.vocab_size}")
    return number


def _trained_on(found: TextList, cutting: Cutting, vocab: int | None, end_token: str | None, most: int) -> str:
    """Hash all that a tokenizer made of the text depends on. vocab: size of a BPE; None: a tokenizer of characters."""
    files = [tuple(vars(piece).values()) for piece in found.pieces]
    whole: list[Any] = ["chars", end_token, vars(cutting), files]
    if vocab is not None:
        with needs("tokenizers"):
            import tokenizers
        whole = [vocab, vars(cutting), tokenizers.__version__, files]
    if most != DOCUMENT_BYTES:  # without it, the hash is that of earlier versions
        whole.append(most)
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _made_before(out: Path, trained_on: str, kind: str) -> bytes:
    """Return the file of the tokenizer that an earlier run made of the same text; empty if there is none."""
    begun = plan_folder(out)
    for folder, place in ((out, out / MANIFEST), (begun, plan_path(begun))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            options = json.loads(place.read_bytes())["options"]
            data = (folder / FILES[kind]).read_bytes()
            if options["trained_on"] == trained_on and options["tokenizer"]["sha256"] == hashlib.sha256(data).hexdigest():
                return data
    return b""


def _train(texts: Iterator[str], vocab: int) -> bytes:
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


def _characters(texts: Iterator[str], end_token: str | None) -> bytes:
    """Return the file of the characters of all documents that can be read, and of the end token if it is one character."""
    characters = {end_token} if end_token is not None and len(end_token) == 1 and not end_token.isdecimal() else set[str]()
    for text in texts:
        characters.update(text)
    return character_file(characters)


def _texts(found: TextList, cutting: Cutting, most: int) -> Iterator[str]:
    for piece in found.pieces:
        if piece.problem:
            continue
        try:
            yield from (text for _, text in documents(found.root, piece, cutting, most) if isinstance(text, str))
        except (CodecError, OSError, MemoryError):  # tokenizing rejects it, with its name
            continue
