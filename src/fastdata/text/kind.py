"""The kind of data "tokens", for the packages that serve every kind; and the options of `fastdata-prep` for text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastdata.kinds import Modality
from fastdata.options import option
from fastdata.sources.options import SizeOptions
from fastdata.types import StrPath

COMPANION = "meta.pkl"  # a file next to tokens


@dataclass(frozen=True)
class TokenOptions(SizeOptions):
    """Text"""

    tokenizer: StrPath | None = option(
        "Tokenizer for a SOURCE of text: a Hugging Face tokenizer.json, a store whose tokenizer is used, "
        "bytes, or chars (each character of the text gets an id).",
        type="path",
        metavar="NAME_OR_FILE",
    )
    train_bpe: int | None = option("Train a BPE of this many tokens on a SOURCE of text.", type="int", metavar="VOCAB")
    end_token: str | None = option(
        "Token after each document: the token, its id, or none. Default: the tokenizer's own.", metavar="TOKEN"
    )
    split_lines: bool = option("Make each line of a .txt file a document. Default: the whole file is one.", False)
    split_on: str | None = option("Separator of the documents in a .txt file.", metavar="TEXT")
    field: str = option("Field of .jsonl files, or column of .parquet files, that holds the text.", "text")

    def __post_init__(self) -> None:
        if (self.split_lines and self.split_on is not None) or self.split_on == "":
            raise ValueError("give --split-lines, or --split-on with some text, or neither")
        if self.split_on and "\\n" in self.split_on:
            raise ValueError("--split-on has a backslash and an n, which are no line end: type --split-on $'\\n\\n' in a shell")


class TokenModality(Modality):
    """Text as tokens, or files of tokens."""

    name = "tokens"
    item = "document"
    options = TokenOptions
    named = False
    exports = ("nanogpt",)
    datasets = "TokenDataset", "RAMTokens"

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether a tokenizer is given, or the source is a .bin file, or a folder of only .bin and nanoGPT's meta.pkl."""
        from fastdata.sources.folder import some_names
        from fastdata.sources.urls import to_path

        if any(given.get(name) is not None for name in ("tokenizer", "train_bpe")):
            return True
        found = False
        for name in some_names(to_path(source)):
            if not name.lower().endswith((".bin", COMPANION)):
                return False
            found = found or name.lower().endswith(".bin")
        return found


KIND = TokenModality()
