"""Batches on their way to a GPU: they are copied beside its work, and are whole when a kernel of the consumer's reads them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, cuda

from fastdata.gpu.batch import Batch

__all__ = ["Copier", "Copy", "rebuilt", "together"]

GAP = 64  # bytes: what lies less far behind another tensor travels with that one


class Copy:
    """A batch that is under way, or there.

    Args:
        data: the batch, of tensors on the device.
        blocks: their memory, for streams other than `home` to be noted in.
        home: the stream that the memory belongs to.
        done: of the copy; None: nothing is under way.
    """

    def __init__(self, data: Any, blocks: list[Tensor], home: cuda.Stream | None = None, done: cuda.Event | None = None) -> None:
        self._data, self._blocks, self._home, self._done = data, blocks, home, done

    def take(self) -> Any:
        """The batch, once, for use on the current stream, which waits for the copy. The host does not."""
        if self._done is not None and self._home is not None:
            stream = cuda.current_stream(self._home.device)
            stream.wait_event(self._done)
            if stream != self._home:
                for block in self._blocks:
                    block.record_stream(stream)
            self._blocks.clear()
        data, self._data = self._data, None
        return data


class Copier:
    """Copies batches to a device, on a stream of its own if the device is a GPU.

    A batch is any nest of tuples, lists and mappings, which keep their types and attributes. Tensors of the host are moved, and
    those side by side in one piece of its memory in one copy. Other things that have a `.to` move themselves; the rest stays.

    The memory on the GPU comes from the pool of the stream that is current when a copy starts, the consumer's, and the copy waits
    for what that stream has been given so far: it may read what was in this memory before. So nothing is left in a pool that
    nobody else uses, and the batch is freed and reused in the order of the consumer's stream, like any other tensor.

    Args:
        device: where to; "cuda" is the GPU that is current now.
        pin: what is not page-locked goes through memory of torch's that is; else the host waits for its copies.
    """

    def __init__(self, device: str | torch.device, *, pin: bool = True) -> None:
        self.device, self._pin = torch.device(device), pin
        self._side: cuda.Stream | None = None
        if self.device.type == "cuda":
            self.device = torch.device("cuda", cuda.current_device() if self.device.index is None else self.device.index)
            self._side = cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[cuda.Event, list[Tensor], list[Tensor]]] = deque()

    def start(self, batch: Any) -> Copy:
        """Begin to copy a batch. It must not change until it has arrived; its memory is held until then."""
        self.reclaim()
        if self._side is None:
            return Copy(rebuilt(batch, lambda tensor: tensor.to(self.device), self.device), [])
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):  # it may be used when that mode is over
            return self._start(batch, self._side)

    def _start(self, batch: Any, side: cuda.Stream) -> Copy:
        plain = [tensor for tensor in _tensors(batch) if _is_plain(tensor)]  # held, so that no other has the id of one
        hosts = {id(tensor): self._locked(tensor) for tensor in plain}
        groups = together(hosts.values())
        sources = [_bytes(group) for group in groups]
        blocks = [_room(source, self.device) for source in sources]
        there = {
            id(host): _within(block, host, host.data_ptr() - source.data_ptr())
            for group, source, block in zip(groups, sources, blocks, strict=True)
            for host in group
        }

        lent = [*blocks]

        def moved(tensor: Tensor) -> Tensor:
            if (host := hosts.get(id(tensor))) is not None:
                return there[id(host)]
            made = tensor.to(self.device, non_blocking=True)  # nothing to do if it is there
            if made.layout is torch.strided:
                lent.append(made)
            return made

        data = rebuilt(batch, moved, self.device)
        home, room, done = cuda.current_stream(self.device), cuda.Event(), cuda.Event()  # type: ignore[no-untyped-call]
        room.record(home)
        side.wait_event(room)
        with cuda.stream(side):
            for block, source in zip(blocks, sources, strict=True):
                _send(block, source)
        done.record(side)
        self._under_way.append((done, sources, lent))
        return Copy(data, lent, home, done)

    def _locked(self, tensor: Tensor) -> Tensor:
        """The same without holes, and page-locked."""
        whole = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) == tensor.numel()
        if whole and (tensor.is_pinned() or not self._pin):
            return tensor
        return torch.empty_like(tensor, pin_memory=self._pin).copy_(tensor)

    def reclaim(self, enough: Callable[[], bool] = lambda: True) -> None:
        """Let go of the memory of copies that are done. While there is not `enough`, wait for the oldest (host sync)."""
        while self._under_way and (_done(self._under_way[0][0]) or not enough()):
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def close(self) -> None:
        """Wait (host sync) for all copies, and let go of their memory."""
        self.reclaim(lambda: False)


def together(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of tensors that lie side by side in one piece of memory, in order; none of them has holes."""
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
    """The memory of a group, uint8."""
    start, storage = group[0].data_ptr(), group[0].untyped_storage()
    size = group[-1].data_ptr() + group[-1].nbytes - start
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, start - storage.data_ptr(), (size,), (1,))


def _room(source: Tensor, device: torch.device) -> Tensor:
    """Memory of the current stream."""
    return torch.empty_like(source, device=device)


def _within(block: Tensor, like: Tensor, start: int) -> Tensor:
    """The part of a block from byte `start` on, with the shape and strides of a tensor; no view: it counts its own changes."""
    empty = torch.empty(0, dtype=like.dtype, device=block.device)
    return empty.set_(block.untyped_storage(), start // like.itemsize, like.size(), like.stride())


def _done(event: cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def _send(block: Tensor, source: Tensor) -> None:
    block.copy_(source, non_blocking=True)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is numbers in memory of the host, and nothing more."""
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those of a batch that `rebuilt` changes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Batch) or (not hasattr(value, "to") and isinstance(value, Mapping | tuple | list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


def rebuilt(value: Any, change: Callable[[Tensor], Tensor], device: torch.device) -> Any:
    """The same batch with other tensors; what else can move moves to the device."""
    if isinstance(value, Tensor):
        return _like(value, change(value))
    if isinstance(value, Batch):
        return _like(value, Batch.of((rebuilt(part, change, device) for part in value), value.valid, value.ids, value.position))
    if hasattr(value, "to"):
        return value.to(device, non_blocking=True)
    if isinstance(value, MutableMapping):
        new = copy.copy(value)
        for key in list(value):
            new[key] = rebuilt(value[key], change, device)
        return new
    if isinstance(value, Mapping):
        return {key: rebuilt(part, change, device) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = (rebuilt(part, change, device) for part in value)
        return _like(value, type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts))
    return value


def _like(old: Any, new: Any) -> Any:
    """With the attributes that somebody has given to the old one."""
    if new is not old and hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new
