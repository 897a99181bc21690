"""What `fastdata-prep` can be asked for of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastdata.options import option
from fastdata.sources.options import StrPath

__all__ = ["TokenOptions"]


@dataclass(frozen=True)
class TokenOptions:
    """Text"""

    tokenizer: StrPath | None = option(
        "SOURCE is text, and this its tokenizer. A tokenizer.json of Hugging Face's, a SentencePiece .model, a name of tiktoken's, "
        "a store whose tokenizer to use, bytes, or chars: each character of the text has an id.",
        type="path",
        metavar="NAME_OR_FILE",
        common=True,
    )
    train_bpe: int | None = option(
        "SOURCE is text: train a BPE of this many tokens on it.", type="int", metavar="VOCAB", common=True
    )
    end_token: str | None = option(
        "What follows each document: a token, its id, or none. Default: what the tokenizer says.", metavar="TOKEN"
    )
    split_lines: bool = option("Each line of a .txt file is a document; else the whole file is one.", False)
    split_on: str | None = option("What stands between the documents of a .txt file.", metavar="TEXT")
    field: str = option("Of .jsonl and .parquet: what holds the text.", "text")

    def __post_init__(self) -> None:
        if (self.split_lines and self.split_on is not None) or self.split_on == "":
            raise ValueError("give --split-lines, or --split-on with some text, or neither")

    @property
    def cutting(self) -> Any:
        """How files are cut into documents, a `fastdata.text.documents.Cutting`."""
        from fastdata.text.documents import Cutting

        return Cutting("\n" if self.split_lines else self.split_on or "", self.field)
