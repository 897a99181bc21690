"""Tokenizers with one interface: Hugging Face's, bytes and characters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from fastdata.errors import CodecError, FastDataError, PrepError, needs
from fastdata.types import Array

FILES = {"tokenizers": "tokenizer.json", "chars": "characters.json"}  # inside a store
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|end|>")  # a tokenizer.json does not name its end token
NO_TOKENIZER = "these tokens came without their tokenizer, so they cannot be turned into text"
PADS = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")


class TokenizerEngine:
    """A loaded tokenizer. By default it adds no special tokens to a text. The base class is for ids without a tokenizer."""

    vocab_size = 1 << 16  # all ids are below it
    end: int | None = None  # the id that it puts after a document, if known
    pad: int | None = None  # the id that fills rows, if known
    unknown: int | None = None  # the id of text that it has no token for

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return the ids of each text, without special tokens."""
        raise PrepError(NO_TOKENIZER)

    def encode_row(self, text: str, length: int | None) -> tuple[Array, bool]:
        """Return the ids of a text, with the special tokens that go around it, and whether they were cut to `length`."""
        (ids,) = self.encode([text])
        return ids[:length], length is not None and len(ids) > length

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. Bytes that are not UTF-8, such as a character cut at either end, become U+FFFD."""
        raise PrepError(NO_TOKENIZER)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or None if there is no such token."""
        return None


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a tokenizer."""

    engine: str  # "tokenizers", "bytes", "chars" or "none"
    name: str  # what the user called it
    sha256: str  # of its file; empty for "bytes"

    @property
    def libraries(self) -> tuple[str, ...]:
        return (self.engine,) if self.engine == "tokenizers" else ()

    @property
    def file(self) -> str:
        """The name of its file in a store; empty if it has none."""
        return FILES.get(self.engine, "")


class _Bytes(TokenizerEngine):
    """One token for each byte of UTF-8, and one for the end."""

    vocab_size = 257
    end = 256

    def encode(self, texts: Sequence[str]) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(k for k in ids if k < 256).decode(errors="replace")


class _Characters(TokenizerEngine):
    """One token for each character of a list."""

    def __init__(self, data: bytes) -> None:
        self._characters = characters_in(data)
        self._codes = np.array([ord(character) for character in self._characters], np.uint32)
        self.vocab_size = len(self._characters)

    def encode(self, texts: Sequence[str]) -> list[Array]:
        return [self._encode(np.frombuffer(text.encode("utf-32-le"), "<u4")) for text in texts]

    def _encode(self, codes: Array) -> Array:
        ids = np.searchsorted(self._codes, codes)
        unknown = codes[(ids == len(self._codes)) | (self._codes[np.minimum(ids, len(self._codes) - 1)] != codes)]
        if len(unknown):
            found = ", ".join(repr(chr(code)) for code in np.unique(unknown)[:8].tolist())
            raise CodecError(f"the {self.vocab_size} characters of the vocabulary lack {found}", "unknown-character")
        return ids.astype(np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._characters[k] for k in ids)

    def id_of(self, token: str) -> int | None:
        return self._characters.index(token) if token in self._characters else None


@contextmanager
def _failing(kind: Callable[[str], FastDataError], message: str) -> Iterator[None]:
    """Turn the package's errors (bare Exceptions, and panics, which are none) into fastdata's."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  see above
        raise kind(f"{message}: {error}") from None


_encoding = partial(_failing, partial(CodecError, reason="unencodable"), "the tokenizer cannot encode this text")


class _HuggingFace(TokenizerEngine):
    def __init__(self, name: str, data: bytes) -> None:
        with needs("tokenizers"):
            import tokenizers
        with _failing(PrepError, f"the tokenizer {name} is not a tokenizer.json of Hugging Face's"):
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        padding = self._tokenizer.padding
        self._tokenizer.no_truncation()  # the file may turn truncation on, which would cut documents short
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # what looks like one in a text is text
        model = self._tokenizer.model
        if hasattr(model, "dropout"):
            model.dropout = None  # for training a model: a text would have other tokens each time
        self._ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self._known = frozenset[str]()  # the characters of a BPE that leaves out all others, without a word
        if type(model).__name__ == "BPE" and model.unk_token is None and not model.byte_fallback:
            ends = model.continuing_subword_prefix or "", model.end_of_word_suffix or ""
            known = {token.removeprefix(ends[0]).removesuffix(ends[1]) for token in self._ids}
            alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
            self._known = frozenset(known) if not known.issuperset(alphabet) else self._known
        of_unigram = json.loads(data)["model"].get("unk_id") if type(model).__name__ == "Unigram" else None
        self.unknown = self._ids.get(getattr(model, "unk_token", None) or "", of_unigram)
        self.vocab_size = max(self._ids.values(), default=-1) + 1
        self.end = next((self._ids[name] for name in ENDS if name in self._ids), None)
        self.pad = (
            next((self._ids[name] for name in PADS if name in self._ids), None) if padding is None else int(padding["pad_id"])
        )

    def _check(self, text: str) -> None:
        """Raise a CodecError if the tokenizer would leave characters out."""
        if self._known:
            normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
            normal = text if normalizer is None else normalizer.normalize_str(text)
            parts = [normal] if splitter is None else [part for part, _ in splitter.pre_tokenize_str(normal)]
            if lost := sorted(set().union(*parts) - self._known):
                found = ", ".join(map(repr, lost[:8]))
                raise CodecError(f"the tokenizer has no token for {found}, and none for unknown text", "unknown-character")

    def encode_row(self, text: str, length: int | None) -> tuple[Array, bool]:
        self._check(text)
        with _encoding():
            ids = self._tokenizer.encode(text).ids
            if cut := length is not None and len(ids) > length:
                self._tokenizer.enable_truncation(length)
                ids = self._tokenizer.encode(text).ids
                self._tokenizer.no_truncation()
        return np.array(ids, np.uint32), cut

    def encode(self, texts: Sequence[str]) -> list[Array]:
        for text in texts:
            self._check(text)
        with _encoding():
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token)


def find_tokenizer(name: str, option: str = "--tokenizer") -> tuple[Spec, bytes]:
    """Return the tokenizer of this name, file or store, and the bytes of its file, or raise a PrepError. option: for messages."""
    path = Path(name)
    if name == "bytes":
        return Spec("bytes", "bytes", ""), b""
    if name == "chars":
        raise PrepError(f"{option} chars needs a SOURCE of text; else give a store prepared from text with chars")
    if path.is_dir():
        path = next((path / name for name in FILES.values() if (path / name).is_file()), path)
    if path.is_file():
        data = path.read_bytes()
        engine = "chars" if path.name == FILES["chars"] else "tokenizers"
        return Spec(engine, path.name, hashlib.sha256(data).hexdigest()), data
    raise PrepError(
        f"{option} {name} is neither a Hugging Face tokenizer.json, nor a store of text, nor 'bytes' or 'chars'; for an encoding "
        "of tiktoken's, give the tokenizer.json of a model that uses it"
    )


def character_file(characters: Iterable[str]) -> bytes:
    """Return the file of a tokenizer of characters: its vocabulary in the order of ids, and so of code points."""
    return json.dumps(sorted(set(characters))).encode() + b"\n"


def characters_in(data: bytes) -> list[str]:
    """Return the vocabulary in a file of `character_file`. Raise a PrepError if it is no such file."""
    with suppress(ValueError, TypeError, RecursionError):
        found = json.loads(data)
        if found and found == sorted(set(found)) and all(isinstance(c, str) and len(c) == 1 for c in found):
            return list(found)
    raise PrepError("the tokenizer's file is not the sorted list of characters that --tokenizer chars makes")


def unknown_note(name: str, share: float, of: str = "") -> str:
    """Return a note on the share of tokens that stand for text that a tokenizer has no token for."""
    return f"{100 * share:.3g}% of the tokens{of} are unknown: their text, for which {name} has no token, is lost"


@cache
def load(spec: Spec, data: bytes) -> TokenizerEngine:
    """Load a tokenizer, once in each process. data: the bytes of its file. Raise a PrepError if it is damaged."""
    if spec.engine == "bytes":
        return _Bytes()
    if spec.engine == "chars":
        return _Characters(data)
    return _HuggingFace(spec.name, data) if spec.engine == "tokenizers" else TokenizerEngine()
