"""Inputs and targets from rows of tokens."""

from __future__ import annotations

import torch

NONE = {torch.uint16: 0xFFFF, torch.uint32: 0xFFFFFFFF}


class NextToken(torch.nn.Module):
    """Makes inputs and targets from a TokenDataset's batch, on the batch's device.

    tokens [B, T + 1], uint16 or uint32 -> (inputs, targets), both int64 [B, T]: the target of each token is the next one.

    Where there is no token (the largest number of the dtype), the input is 0 and the target is `ignore_index`, which torch's
    cross_entropy ignores. With document numbers, from `documents="mask"`, the first token of a document is never the target of
    another document's last token.

    Args:
        ignore_index: the target where there is none.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, tokens: torch.Tensor, documents: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if tokens.dtype not in NONE or tokens.ndim != 2:
            raise TypeError(f"NextToken takes uint16 or uint32 tokens [B, T + 1]; got {tokens.dtype} {list(tokens.shape)}")
        ids = tokens.to(torch.int64)
        none = ids == NONE[tokens.dtype]
        inputs = ids[:, :-1].masked_fill(none[:, :-1], 0)  # contiguous, as a slice of the filled would not be
        targets = ids[:, 1:].masked_fill(none[:, 1:], self.ignore_index)
        if documents is not None:
            numbers = documents.to(torch.int32)
            targets = targets.masked_fill(numbers[:, 1:] != numbers[:, :-1], self.ignore_index)
        return inputs, targets

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}"
