"""Prefetcher: what a Loader does on the way to the device, for the batches of any other loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fastdata.gpu.copies import Copier, Copy
from fastdata.gpu.lookahead import Ahead
from fastdata.torch_private import arrived

__all__ = ["Prefetcher", "places", "set_epoch"]


def places(loader: Any) -> tuple[Any, ...]:
    """The loader, and what of it may have an epoch or a random generator too."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, or else its sampler or batch sampler, which epoch comes next. One without epochs hears nothing."""
    for place in places(loader):
        if hasattr(place, "set_epoch"):
            place.set_epoch(epoch)
            return


class Prefetcher:
    """The batches of any loader on a device, copied ahead of the consumer and beside its work.

        for images, targets in Prefetcher(DataLoader(dataset, 256, num_workers=8, pin_memory=True), "cuda"):

    A batch is any nest of tuples, lists and mappings of tensors; types and attributes stay, and what is no tensor. Other things
    with a `.to` are moved by it. The copies run on a stream of their own; the stream that is current when a batch is handed out
    waits for its copy, the host does not. The tensors are like any that are made on that stream: keep them, change them, free
    them. Whoever uses them on a further stream calls `record_stream`, as torch asks for of all tensors.

    Page-lock the batches in the loader (`pin_memory=True`), where it can be done in another thread; what is not is copied through
    page-locked memory here.

    Of a torch DataLoader with workers, only batches that are made are fetched ahead, so that none waits for a later one; without
    workers there are none. From other loaders `depth` batches are drawn ahead, and what they draw from random generators with them.

    An error of the loader is raised when the batches before it are handed out. A pass is over when `load_state_dict` is called:
    what it has fetched ahead belongs to another place of the run. All other attributes are the loader's own, and may be ahead.

    A loader that writes each batch into the memory of the one before can't be read ahead: let it make new tensors.

    Args:
        loader: any iterable of batches. A Loader of fastdata does the same by itself: `Loader(..., device="cuda")`.
        device: "cuda", or another.
        depth: the most batches on their way, or there, ahead of the consumer.

    Raises:
        ValueError: depth is below 1, or there is no such GPU.
    """

    def __init__(self, loader: Any, device: str | torch.device, *, depth: int = 2) -> None:
        self.loader, self.device, self.depth = loader, torch.device(device), depth
        if depth < 1:
            raise ValueError(f"depth is {depth}, but must be at least 1")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device is {device!r}, but torch sees no GPU here")
        self._copier: Copier | None = None
        self._state: Any = None  # of the loader, right behind the batch that was handed out last; None: as it is now
        self._pass: object = None  # the one that handed out the last batch; None: it is over

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """One pass over the loader."""
        self._state = None
        return self._deliver(iter(self.loader))

    def _deliver(self, batches: Iterator[Any]) -> Iterator[Any]:
        ahead, this_pass = Ahead[tuple[Copy, Any]](self.depth), object()
        self._pass = this_pass
        copier = self._copier = self._copier or Copier(self.device)

        def draw() -> tuple[Copy, Any]:
            return copier.start(next(batches)), self.loader.state_dict() if self._stateful else None

        try:
            while True:
                try:
                    copy, state = ahead.take(draw, lambda: arrived(batches) is not False)
                except StopIteration:
                    if self._pass is this_pass:
                        self._state = None
                    return
                self._pass, self._state = this_pass, state
                yield copy.take()
                if self._stateful and self._pass is not this_pass:
                    raise RuntimeError(
                        "this pass was left when another began, or by load_state_dict: a Prefetcher over a loader with a state "
                        "delivers one pass at a time"
                    )
        finally:
            ahead.clear()
            copier.close()

    @property
    def _stateful(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, or else its sampler or batch sampler, which epoch comes next. One without epochs hears nothing."""
        set_epoch(self.loader, epoch)
        self._state = self._pass = None

    def _state_dict(self) -> Any:
        """The loader's state when it had made the batch that was handed out last, not those that were fetched ahead."""
        return self.loader.state_dict() if self._state is None else self._state

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)
        self._state = self._pass = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):
            raise AttributeError(f"a Prefetcher has no attribute {name!r}")
        found = getattr(self.loader, name)
        own = {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict} if self._stateful else {}
        return own.get(name, found)
