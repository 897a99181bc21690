"""The kind of data "tokens", for the packages that serve every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdata.kinds import Modality, StrPath
from fastdata.text.options import TokenOptions

__all__ = ["KIND", "TokenModality"]


class TokenModality(Modality):
    """Text as tokens, or files of tokens."""

    name = "tokens"
    item = "document"
    options = TokenOptions
    named = False
    exports = ("nanogpt",)

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether a tokenizer is given, or the source holds tokens."""
        from fastdata.text.planning import holds_tokens

        return given.get("tokenizer") is not None or given.get("train_bpe") is not None or holds_tokens(source)

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        from fastdata.text.dataset import RAMTokens, TokenDataset

        return RAMTokens if in_memory else TokenDataset


KIND = TokenModality()
