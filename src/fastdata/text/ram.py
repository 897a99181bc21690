"""Tokens in memory."""

from __future__ import annotations

from fastdata.data.ram import RAMDataset, StrPath
from fastdata.store.store import Store
from fastdata.text.dataset import TokenDataset
from fastdata.text.memory import TokenMemory

__all__ = ["RAMTokens"]


class RAMTokens(RAMDataset, TokenDataset):
    """Tokens in memory; see RAMDataset."""

    def __init__(
        self, source: StrPath, *, block_size: int, mode: str = "random", documents: str = "join", max_bytes: int | None = None
    ) -> None:
        super().__init__(source, block_size, mode=mode, documents=documents)
        self._memory = TokenMemory(Store(source, "tokens"), in_memory=True, max_bytes=max_bytes)
