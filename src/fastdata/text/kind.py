"""The kind of data "tokens", for the packages that serve every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastdata.kinds import Modality, Planned, StrPath
from fastdata.text.options import TokenOptions

__all__ = ["KIND", "TokenModality"]


class TokenModality(Modality):
    """Text as tokens, or files of tokens."""

    name = "tokens"
    says = "text or tokens"
    item = "document"
    options = TokenOptions
    labels = ("none",)
    named = False
    variants = "tokens"
    extra_files = "tokenizer.json", "characters.json"
    exports = ("nanogpt",)
    untyped = "trained-on", "vocab-size"
    hint = "; for text, give --tokenizer or --train-bpe"

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether a tokenizer is given, or the source holds tokens."""
        from fastdata.text.planning import holds_tokens

        return given.get("tokenizer") is not None or given.get("train_bpe") is not None or holds_tokens(source)

    def plan(self, source: StrPath, out: Path, options: TokenOptions, limit: int | None) -> Planned:
        """List the text and decide how to tokenize it."""
        from fastdata.text.planning import plan_text

        return plan_text(source, out, options, limit)

    def typed(self, options: dict[str, Any]) -> dict[str, Any]:
        typed = dict[str, Any]()
        for key, value in options.items():
            if key == "cutting" and isinstance(value, dict):
                typed |= _cutting(value.get("separator", ""), value.get("field", "text"))
            elif key == "tokenizer" and isinstance(value, dict):
                typed |= _tokenizer(value, trained=bool(options.get("trained_on")))
            else:
                typed["end-token" if key == "end" else key.replace("_", "-")] = value
        return typed

    def differences(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        """Yield a line if a tokenizer's name means other contents now."""
        before, after = (options.get("tokenizer") for options in (old, new))
        if before and after and before != after and before["name"] == after["name"] and "tokenizer" in self.typed(new):
            yield f"  --tokenizer {after['name']}, now with other contents"

    def alike(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all but what the tokenizer was called, and what it was trained on."""
        tokenizer = {key: value for key, value in options["tokenizer"].items() if key != "name"}
        return {key: value for key, value in options.items() if key != "trained_on"} | {"tokenizer": tokenizer}

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        from fastdata.text.dataset import RAMTokens, TokenDataset

        return RAMTokens if in_memory else TokenDataset


def _cutting(separator: str, field: str) -> dict[str, Any]:
    cut = {"split-lines": True} if separator == "\n" else {"split-on": separator} if separator else {}
    return {**cut, "field": field}


def _tokenizer(spec: dict[str, Any], *, trained: bool) -> dict[str, Any]:
    if trained and spec["engine"] == "tokenizers":
        return {"train-bpe": int(spec["name"].removeprefix("bpe-"))}
    return {"tokenizer": spec["name"]} if spec["name"] else {}


KIND = TokenModality()
