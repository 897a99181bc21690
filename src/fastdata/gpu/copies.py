"""Copies of batches to a GPU. They run in parallel to its work, and are complete when the consumer's kernels read them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, cuda

from fastdata.gpu.batch import Batch, MappingBatch, Ragged

BATCHES = (Batch, MappingBatch)
GAP = 64  # bytes: tensors with a smaller gap between them are copied together
T = TypeVar("T")


def numbered(device: str | torch.device) -> torch.device:
    """Return a device with its number: "cuda" is the GPU that is current now."""
    device = torch.device(device)
    unnumbered = device.type == "cuda" and device.index is None and cuda.is_available()
    return torch.device("cuda", cuda.current_device()) if unnumbered else device


class Copy:
    """A batch whose copy runs until `event`; None: it is finished. Its `blocks` of memory belong to the stream `home`."""

    def __init__(self, data: Any, blocks: list[Tensor], home: cuda.Stream | None = None, event: cuda.Event | None = None) -> None:
        self._data = data
        self._blocks = blocks
        self._home = home
        self._event = event

    def take(self) -> Any:
        """Return the batch, once, for use on the current stream, which waits for the copy. The host does not wait."""
        if self._event is not None and self._home is not None:
            stream = cuda.current_stream(self._home.device)
            stream.wait_event(self._event)
            if stream != self._home:
                for block in self._blocks:
                    block.record_stream(stream)
            self._blocks.clear()
        data, self._data = self._data, None
        return data


class Copier:
    """Copies batches to a device, on its own stream if the device is a GPU.

    A batch is any nest of tuples, lists and mappings, which keep their types and attributes. Tensors of the host are copied, those
    next to each other in memory in one copy. Other objects with a `.to` move themselves; the rest stays.

    The GPU memory comes from the pool of the stream that is current when a copy starts, which is the consumer's. The copy waits for
    the work queued on that stream, which may still read what was in this memory before. So a batch is freed and reused in the order
    of the consumer's stream, like any other tensor.

    Args:
        device: the target; "cuda" is the GPU that is current now.
        pin: copy pageable tensors through page-locked memory. Without it, the host waits for such copies.
    """

    def __init__(self, device: str | torch.device, *, pin: bool = True) -> None:
        self.device = numbered(device)
        self._pin = pin
        self._side: cuda.Stream | None = None
        if self.device.type == "cuda":
            self._side = cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[cuda.Event, list[Tensor], list[Tensor]]] = deque()

    def start(self, batch: Any) -> Copy:
        """Start to copy a batch. Its memory stays allocated, and must not change, until the copy is done."""
        self.reclaim()
        if self._side is None:
            return Copy(map_tensors(batch, lambda part: part.to(self.device, non_blocking=True)), [])
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):  # the batch may be used after inference mode ends
            return self._start(batch, self._side)

    def _start(self, batch: Any, side: cuda.Stream) -> Copy:
        plain = [tensor for tensor in _tensors(batch) if _is_plain(tensor)]  # kept, so that no other tensor gets the same id
        hosts = {id(tensor): self._locked(tensor) for tensor in plain}
        groups = group_adjacent(hosts.values())
        sources = [_bytes(group) for group in groups]
        blocks = [_room(source, self.device) for source in sources]
        copies = {
            id(host): _within(block, host, host.data_ptr() - source.data_ptr())
            for group, source, block in zip(groups, sources, blocks, strict=True)
            for host in group
        }
        memory = [*blocks]

        def moved(part: Any) -> Any:
            if (host := hosts.get(id(part))) is not None:
                return copies[id(host)]
            new = part.to(self.device, non_blocking=True)  # nothing to do if it is there
            if isinstance(part, Tensor) and new.layout is torch.strided:
                memory.append(new)
            return new

        data = map_tensors(batch, moved)
        home = cuda.current_stream(self.device)
        free = cuda.Event()  # type: ignore[no-untyped-call]
        event = cuda.Event()  # type: ignore[no-untyped-call]
        free.record(home)
        side.wait_event(free)
        try:
            with cuda.stream(side):
                for block, source in zip(blocks, sources, strict=True):
                    _send(block, source)
        finally:  # also after an error, since copies that were queued before it run
            event.record(side)
            self._under_way.append((event, sources, memory))
        return Copy(data, memory, home, event)

    def _locked(self, tensor: Tensor) -> Tensor:
        """Return the tensor if it has no holes and, with `pin`, is page-locked; otherwise a copy like that."""
        whole = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) == tensor.numel()
        if whole and (tensor.is_pinned() or not self._pin):
            return tensor
        return torch.empty_like(tensor, pin_memory=self._pin).copy_(tensor)

    def reclaim(self, enough: Callable[[], bool] = lambda: True) -> None:
        """Release the memory of finished copies. Until `enough()` is true, wait for the oldest copy (host sync)."""
        while self._under_way and (self._under_way[0][0].query() or not enough()):  # type: ignore[no-untyped-call]
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def close(self) -> None:
        """Wait (host sync) for all copies, and release their memory."""
        self.reclaim(lambda: False)


class CopyQueue(Generic[T]):
    """A queue of up to `depth` items drawn ahead. No item waits for a later one; an error is raised after the items before it."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._drawn: deque[T] = deque()
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._drawn)

    def take(self, draw: Callable[[], T], ready: Callable[[], bool]) -> T:
        """Return the next item, and draw more while they are `ready`. Wait for an item only if none is left."""
        if not self._drawn and self._error is None:
            self._drawn.append(draw())
        try:
            while self._error is None and len(self._drawn) <= self._depth and ready():
                self._drawn.append(draw())
        except Exception as error:  # noqa: BLE001  it belongs to a later item
            self._error = error
        if self._drawn:
            return self._drawn.popleft()
        assert self._error is not None
        try:
            raise self._error
        finally:
            self._error = None

    def clear(self) -> None:
        """Drop all items, and the error that was still to be raised."""
        self._drawn.clear()
        self._error = None


def group_adjacent(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors that are next to each other in one storage, in order. The tensors must have no holes."""
    groups: list[list[Tensor]] = []
    for tensor in sorted(tensors, key=Tensor.data_ptr):
        if groups and _follows(tensor, groups[-1]):
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
    return groups


def _follows(tensor: Tensor, group: list[Tensor]) -> bool:
    if tensor.untyped_storage().data_ptr() != group[0].untyped_storage().data_ptr():
        return False
    gap = tensor.data_ptr() - group[-1].data_ptr() - group[-1].nbytes
    return 0 <= gap < GAP and (tensor.data_ptr() - group[0].data_ptr()) % tensor.itemsize == 0


def _bytes(group: list[Tensor]) -> Tensor:
    """Return the memory of a group as uint8."""
    start = group[0].data_ptr()
    storage = group[0].untyped_storage()
    size = group[-1].data_ptr() + group[-1].nbytes - start
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, start - storage.data_ptr(), (size,), (1,))


def _room(source: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(source, device=device)


def _within(block: Tensor, like: Tensor, start: int) -> Tensor:
    """Return a block's part from byte `start` on with the shape and strides of `like`. It is no view: its version is its own."""
    empty = torch.empty(0, dtype=like.dtype, device=block.device)
    return empty.set_(block.untyped_storage(), start // like.itemsize, like.size(), like.stride())


def _send(block: Tensor, source: Tensor) -> None:
    block.copy_(source, non_blocking=True)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether an object is an ordinary, dense tensor in the host's memory."""
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch that `map_tensors` changes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Ragged):
        yield from _tensors((value.values, value.offsets))
    elif isinstance(value, BATCHES) or (not hasattr(value, "to") and isinstance(value, Mapping | tuple | list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


def map_tensors(value: Any, change: Callable[[Any], Any], *, is_part: Callable[[Any], bool] = lambda part: False) -> Any:
    """Return the batch with `change` applied to its tensors, to other objects with a `.to`, and where `is_part` is true."""

    def again(part: Any) -> Any:
        return map_tensors(part, change, is_part=is_part)

    if isinstance(value, Tensor):
        return _like(value, change(value))
    if is_part(value):
        return change(value)
    if isinstance(value, BATCHES):
        parts = {key: again(part) for key, part in value.items()} if isinstance(value, Mapping) else map(again, value)
        return _like(value, value.like(parts))
    if isinstance(value, Ragged):
        return Ragged(again(value.values), again(value.offsets))
    if hasattr(value, "to"):
        return change(value)
    if isinstance(value, MutableMapping):
        new = copy.copy(value)
        for key in list(value):
            new[key] = again(value[key])
        return new
    if isinstance(value, Mapping):
        return {key: again(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = map(again, value)
        return _like(value, type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts))
    return value


def _like(old: Any, new: Any) -> Any:
    """Return `new` with the attributes that were set on `old`."""
    if new is not old and hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new
