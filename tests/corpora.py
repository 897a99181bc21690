"""Text that several test files tokenize, and stores of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fastdata
from fastdata.store.store import Store
from stores import folder
from support import Array

WORDS = "the of and a café in that was naïve to 東京 for his with as her 🦊 on at by not from but which all were she".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    """Documents of 1 to 40 words, some of them not ASCII."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 41))) for _ in range(count)]


@cache
def lines(count: int = 500) -> Path:
    """A .txt file with a document in each line."""
    path = folder() / "lines.txt"
    path.write_text("".join(text + "\n" for text in sentences(count)))
    return path


@cache
def store(count: int = 500) -> Path:
    """The bytes of `lines()`, an end behind each."""
    return fastdata.prep(lines(count), folder() / "lines.fds", tokenizer="bytes", split_lines=True, workers=1).out


def tokens(path: Path) -> Array:
    """All tokens of a store, read from its records without the datasets."""
    opened = Store(path, "tokens")
    variant = opened.manifest.variants[0]
    reader = opened.reader(variant)
    return np.concatenate([np.frombuffer(bytes(reader.get(k)), variant.form.dtype) for k in range(len(reader))])


def documents(path: Path) -> list[Array]:
    """The tokens of each document, the end included."""
    samples = Store(path, "tokens").samples
    return np.split(tokens(path), samples["start"][1:])


def as_bytes(texts: list[str], end: int = 256) -> Array:
    """What the built-in tokenizer makes of documents, by numpy."""
    return np.concatenate([np.append(np.frombuffer(text.encode(), np.uint8).astype(np.uint16), end) for text in texts])


def jsonl(path: Path, texts: list[Any], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": k, field: text}) + "\n" for k, text in enumerate(texts)))
    return path


def byte_level(texts: list[str], vocab: int, special: list[str], **model: Any) -> Any:
    """A byte-level BPE, trained by its library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(**model))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    return made


@cache
def tokenizer() -> Path:
    """A tokenizer.json, trained on other sentences; it cuts short and pads, as files may say."""
    made = byte_level(sentences(300, seed=9), 400, ["<|endoftext|>"])
    made.enable_truncation(8)
    made.enable_padding(length=8)
    path = folder() / "tokenizer.json"
    made.save(str(path))
    return path
