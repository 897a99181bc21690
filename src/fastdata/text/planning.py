"""From the options of text to a plan."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, PrepError, needs
from fastdata.kinds import Planned, StrPath
from fastdata.prepare.folder import PLAN
from fastdata.prepare.plan import Plan, freeze
from fastdata.store.files import MANIFEST, WORK
from fastdata.store.format import Labels, read_manifest
from fastdata.text.documents import Cutting, documents, format_of
from fastdata.text.limit import first_documents
from fastdata.text.listing import TextList, list_text, shard_bounds
from fastdata.text.options import TokenOptions
from fastdata.text.pretokenized import ready_dtype
from fastdata.text.shards import TokenRecipe
from fastdata.text.tokenizer import FILES, Engine, Spec, character_file, find_tokenizer, load

__all__ = ["plan_text"]

END = "<|endoftext|>"


def plan_text(source: StrPath, out: Path, asked: TokenOptions, limit: int | None = None) -> Planned:
    """List the text and decide how it is tokenized. limit: take so many documents, the first ones.

    Raises:
        PrepError: there is no text or no such tokenizer, or it has no such token.
        ValueError: a wrong argument.
    """
    plan, found = _planned(source, out, asked, limit)
    return Planned(plan, dict(found.skipped), found.notes)


def _planned(source: StrPath, out: Path, asked: TokenOptions, limit: int | None) -> tuple[Plan, TextList]:
    tokenizer = None if asked.tokenizer is None else os.fspath(asked.tokenizer)
    train_bpe, end_token, cutting = asked.train_bpe, asked.end_token, asked.cutting
    if tokenizer is not None and train_bpe is not None:
        raise ValueError("give --tokenizer or --train-bpe, one of them")
    if train_bpe is not None and train_bpe < 257:
        raise ValueError(f"--train-bpe is {train_bpe}, but a vocabulary has 256 bytes and an end at least: 257 or more")
    found = list_text(source, cutting)
    are_tokens = all(format_of(piece.name)[0] == "bin" for piece in found.pieces)
    if train_bpe is not None and are_tokens:
        raise ValueError(f"SOURCE {source} holds tokens, no text to train a tokenizer on: leave --train-bpe out")
    if not are_tokens:
        found = first_documents(found, limit, cutting)
    of_characters = tokenizer == "chars" and not are_tokens
    trained_on = ""
    if train_bpe is not None or of_characters:
        trained_on = _trained_on(found, cutting, train_bpe, end_token)
    if tokenizer is None and train_bpe is None:
        return _plan_ready(found, end_token, limit), found
    if of_characters:
        data = _kept(out, trained_on, "chars") or character_file(_characters(found, cutting, end_token))
        spec = Spec("chars", "chars", hashlib.sha256(data).hexdigest())
        if end_token is None and len(found.pieces) == 1 and not cutting.separator and format_of(found.pieces[0].name)[0] == "txt":
            end_token = "none"  # one document
    elif tokenizer is not None:
        _refuse_other_store(tokenizer)
        spec, data = find_tokenizer(tokenizer)
    else:
        data = _kept(out, trained_on, "tokenizers") or _train(found, cutting, train_bpe or 0)
        spec = Spec("tokenizers", f"bpe-{train_bpe}", hashlib.sha256(data).hexdigest())
    engine = load(spec, data)
    options = TokenRecipe(spec, engine.vocab_size, _end(engine, spec, end_token), cutting, trained_on)
    if are_tokens:
        found = first_documents(found, limit, cutting, options.end)
    return _plan(found, options, {spec.file: data} if spec.file else {}), found


def _refuse_other_store(given: str) -> None:
    """Raise PrepError if this is a store that has no file of a tokenizer's."""
    folder = Path(given)
    if not (folder / MANIFEST).is_file() or any((folder / name).is_file() for name in FILES.values()):
        return
    manifest = read_manifest(folder)
    if manifest.section("tokens") is None:
        raise PrepError(f"--tokenizer {given} is a store of {manifest.kind}, which has no tokenizer: give a store of text")
    if manifest.section("tokens").engine not in FILES:
        its = manifest.section("tokens").name
        remedy = f"give --tokenizer {its}" if its else "nobody here knows it"
        raise PrepError(f"--tokenizer {given} is a store without a tokenizer's file: {remedy}")


def _plan(found: TextList, options: TokenRecipe, files: dict[str, bytes]) -> Plan:
    return freeze(options, Labels("none"), tuple(found.pieces), shard_bounds(found.pieces, found.shard_bytes), files)


def _plan_ready(found: TextList, end_token: str | None, limit: int | None) -> Plan:
    """Of tokens without their tokenizer: any id of their dtype is good."""
    if end_token not in (None, "none") and not str(end_token).isdecimal():
        raise ValueError(f"--end-token is {end_token}; of tokens without their tokenizer it must be an id, or none")
    end = None if end_token in (None, "none") else int(end_token or 0)
    dtypes = {ready_dtype(found.root / piece.name) for piece in found.pieces}
    vocab = 1 << 16 if dtypes == {"uint16"} else 1 << 31
    if end is not None and end >= vocab:
        raise ValueError(f"--end-token is {end}, but the tokens' dtype holds ids below {vocab}")
    found = first_documents(found, limit, Cutting(), end)
    return _plan(found, TokenRecipe(Spec("none", "", ""), vocab, end), {})


def _end(engine: Engine, spec: Spec, given: str | None) -> int | None:
    """The id behind each document."""
    if given == "none":
        return None
    if given is None:
        if engine.end is None:
            raise PrepError(f"{spec.name} does not say which token ends a document: give --end-token TOKEN, or --end-token none")
        return engine.end
    number = int(given) if given.isdecimal() else engine.id_of(given)
    if number is None or number >= engine.vocab_size:
        raise PrepError(f"--end-token {given}: {spec.name} has no such token; its vocabulary has {engine.vocab_size}")
    return number


def _trained_on(found: TextList, cutting: Cutting, vocab: int | None, end_token: str | None) -> str:
    """What a tokenizer depends on that is made of the text; vocab None: of its characters."""
    files = [tuple(vars(piece).values()) for piece in found.pieces]
    whole: list[Any] = ["chars", end_token, vars(cutting), files]
    if vocab is not None:
        with needs("tokenizers"):
            import tokenizers
        whole = [vocab, vars(cutting), tokenizers.__version__, files]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _kept(out: Path, trained_on: str, engine: str) -> bytes:
    """The tokenizer that an earlier run made of the same; empty if there is none."""
    for place in (out / MANIFEST, out / WORK / PLAN):
        try:
            options = json.loads(place.read_bytes())["options"]
            data = (out / FILES[engine]).read_bytes()
            if options["trained_on"] == trained_on and options["tokenizer"]["sha256"] == hashlib.sha256(data).hexdigest():
                return data
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return b""


def _train(found: TextList, cutting: Cutting, vocab: int) -> bytes:
    """A byte-level BPE, as GPT-2's is, of all documents that can be read."""
    with needs("tokenizers"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_texts(found, cutting), trainer)
    return tokenizer.to_str(pretty=False).encode()


def _characters(found: TextList, cutting: Cutting, end_token: str | None) -> set[str]:
    """All characters of all documents that can be read, and the one that is to stand behind them."""
    characters = {end_token} if end_token is not None and len(end_token) == 1 and not end_token.isdecimal() else set[str]()
    for text in _texts(found, cutting):
        characters.update(text)
    return characters


def _texts(found: TextList, cutting: Cutting) -> Iterator[str]:
    for piece in found.pieces:
        if piece.problem:
            continue
        try:
            yield from (text for _, text in documents(found.root, piece, cutting) if isinstance(text, str))
        except (CodecError, OSError):  # what can't be read is rejected, by name, when it is tokenized
            continue
