"""Prefetcher: copies the batches of any loader to a device ahead of the consumer, as a Loader does itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fastdata.gpu.copies import Copier, Copy, CopyQueue
from fastdata.system.torch_private import arrived


def loader_parts(loader: Any) -> tuple[Any, ...]:
    """Return the loader and its parts that may have an epoch or a random generator."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the next epoch of a loader, or else of its sampler or batch sampler. A loader without `set_epoch` is left alone."""
    for place in loader_parts(loader):
        if hasattr(place, "set_epoch"):
            place.set_epoch(epoch)
            return


class Prefetcher:
    """Yields the batches of any loader on a device, copied ahead of the consumer and in parallel to its work.

        for images, targets in Prefetcher(DataLoader(dataset, 256, num_workers=8, pin_memory=True), "cuda"):

    A batch is any nest of tuples, lists and mappings of tensors, which keep their types and attributes; other objects with a `.to`
    are moved by that method. The stream that is current when a batch is returned waits for its copy; the host does not.

    From a torch DataLoader with workers, only finished batches are fetched ahead, so that no batch waits for a later one; without
    workers, none are. From other loaders, `depth` batches are drawn ahead, random numbers included; each has to be made
    of new tensors. Other attributes of a Prefetcher are the loader's, and may be ahead; so it has no `state_dict`.

    Args:
        loader: any iterable of batches. A fastdata Loader does the same by itself: `Loader(..., device="cuda")`.
        device: "cuda", or another device.
        depth: the most batches that are copied ahead of the consumer.
    """

    def __init__(self, loader: Any, device: str | torch.device, *, depth: int = 2) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.depth = depth
        if depth < 1:
            raise ValueError(f"depth is {depth}, but must be at least 1")
        self._copier: Copier | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._deliver(iter(self.loader))

    def _deliver(self, batches: Iterator[Any]) -> Iterator[Any]:
        ahead = CopyQueue[Copy](self.depth)
        copier = self._copier = self._copier or Copier(self.device)
        try:
            while True:
                try:
                    copy = ahead.take(lambda: copier.start(next(batches)), lambda: arrived(batches) is not False)
                except StopIteration:
                    return
                yield copy.take()
        finally:
            ahead.clear()
            copier.close()

    def set_epoch(self, epoch: int) -> None:
        set_epoch(self.loader, epoch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self) or name in ("state_dict", "load_state_dict"):
            raise AttributeError(f"a Prefetcher has no attribute {name!r}")
        return getattr(self.loader, name)
