"""Tensors that are made on one stream of a GPU and used on others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, cuda

__all__ = ["Home", "numbered"]


def numbered(device: str | torch.device) -> torch.device:
    """Return a device with its number: "cuda" is the GPU that is current now, whichever is current later."""
    device = torch.device(device)
    unnumbered = device.type == "cuda" and device.index is None and cuda.is_available()
    return torch.device("cuda", cuda.current_device()) if unnumbered else device


class Home:
    """The stream on which tensors were made: the one that is current now. On the CPU there is nothing to do.

    Args:
        device: device of the tensors.
        tensors: the tensors.
    """

    def __init__(self, device: torch.device, tensors: Iterable[Tensor]) -> None:
        self._device = device
        self._tensors = list(tensors)
        self._stream = cuda.current_stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            self._made = cuda.Event()  # type: ignore[no-untyped-call]
            self._made.record(self._stream)

    def visit(self) -> None:
        """Let the current stream use the tensors: it waits until they are made, and their memory stays until it is done."""
        if self._stream is None or (stream := cuda.current_stream(self._device)) == self._stream:
            return
        stream.wait_event(self._made)
        for tensor in self._tensors:
            tensor.record_stream(stream)
