"""The Loader: batches of compact integers, in an order that depends on (seed, epoch) alone, over torch's DataLoader."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch

from fastdata.data.dataset import Fixed
from fastdata.errors import LoaderError
from fastdata.gpu.batch import Batch
from fastdata.loader.dali import Dali, check_dali
from fastdata.loader.device_prefetch import Feed
from fastdata.loader.direct import Direct, is_direct
from fastdata.loader.engine import Engine
from fastdata.loader.order import Part
from fastdata.loader.plan import Plan, Planner, whole
from fastdata.loader.ranks import default_workers
from fastdata.loader.requests import Requests
from fastdata.loader.sampler import EpochSampler, SequentialEpochSampler
from fastdata.loader.sizes import Sizes
from fastdata.loader.stats import Stats
from fastdata.loader.unwrap import WatchedDataset
from fastdata.loader.workers import Workers, start_server, why_died

__all__ = ["Loader"]


FIXED = "dataset", "batch_size", "shuffle", "seed", "drop_last", "order", "device", "prefetch_factor"


class Loader(Fixed, fixed=FIXED):
    """Batches of a dataset, made ahead in worker processes.

    Yields a tuple (images, targets): images uint8 or uint16 [B, C, H, W] in channels_last layout; targets int64 [B] or float32
    [B, columns]. It carries `.valid`, the number of real rows (at the end of an epoch over several ranks the last row may repeat a
    sample), `.ids`, the dataset's indices of the rows, and `.position`, (epoch, samples consumed by all ranks).
    A dataset with several crops yields a tuple of images, one for each view; of several images a sample, a dict of them. With
    `fields`, targets are what LMDBDataset says. A MaskDataset yields masks [B, H, W] as targets. A TokenDataset yields one tensor
    [B, block_size + 1] with these attributes. Other datasets yield what torch's default_collate makes of their items; a dict has no
    attributes.

    Workers write images into shared memory. A batch stays unchanged for as long as this process holds it or a view of it (clone it
    before a fork). A consumer that holds more than three batches gets copies. `stats()` reports this memory, and who is waiting.

    The order, the crops and the flips depend on (seed, epoch, sample), never on the number of workers or ranks, nor on an
    interruption. As with torch's DataLoader, each `iter(loader)` begins a new epoch if the last one has delivered a batch, even if
    that pass was not finished; `set_epoch` and `load_state_dict` override this.

    Args:
        dataset: an LMDBDataset, a RAMDataset, or any map-style torch dataset. torch's Subset and ConcatDataset of fastdata's
            datasets are turned into fastdata's own, which are faster.
        batch_size: samples per batch and rank, as in torch.
        global_batch_size: samples per batch over all ranks, instead of `batch_size`, to resume on another number of ranks. If they
            do not divide it, some ranks repeat a sample in each batch, and `batch.valid` says so.
        shuffle: draw a new order each epoch.
        order: "full" shuffles all samples together. "lanes" uses few shards of the store at a time (docs/loader.md), for stores on
            slow disks and behind a cache. None: "lanes" for a store behind a cache, else "full".
        sampler: yields this rank's indices, as any torch Sampler. The Loader calls its `set_epoch`, if any, and seeds torch's
            default generator by (seed, epoch) for it; a generator of its own is left alone. Its list is drawn when a pass begins.
        batch_sampler: yields this rank's batches, lists of indices, as torch's BatchSampler or a sampler that groups by length;
            excludes batch_size. Epochs and random numbers are as with `sampler`.
        collate_fn: makes a batch of a list of items, for other datasets than fastdata's; None: torch's default_collate.
        num_workers: processes that make batches; 0: make them in this process; None: one for each core, shared with the other ranks
            of this machine. Batches of tokens are always made in this process.
        device: None for CPU tensors; "cuda" for batches on the GPU, copied while it computes and ready for the stream that is
            current when they are delivered. Their lifetime is that of any tensor of that stream.
        seed: 0 to 2^64 - 1.
        drop_last: leave out the last, smaller batch.
        prefetch_factor: batches that each worker makes ahead.
        device_prefetch: the most batches that are copied to the device ahead of the consumer; none is waited for.
        pin_memory: page-lock the batches; None: if the device is a GPU.
        backend: "torch": worker processes. "dali": NVIDIA DALI decodes JPEGs on the device, with `num_workers` threads; order,
            boxes and states are the same, pixels differ by a code or two.
        schedule: {epoch: stored size, or (stored size, crop)}: from that epoch on, read this stored size and crop to this side;
            None: the dataset's own.
        rank, world_size: None: found at `len` and `iter`, from torch.distributed if it is initialized, else from the environment
            (RANK and WORLD_SIZE, or Lightning's NODE_RANK and LOCAL_RANK), else 0 of 1.

    Raises:
        ValueError: an argument is wrong.
        MissingExtraError: backend is "dali", and DALI is not installed.
        LoaderError: while iterating, a batch cannot be made, or a worker died; torch.distributed contradicts the environment,
            or WORLD_SIZE is above 1 and nothing says which rank this is.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        shuffle: bool = False,
        order: str | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
        drop_last: bool = False,
        prefetch_factor: int = 2,
        device_prefetch: int = 2,
        pin_memory: bool | None = None,
        backend: str = "torch",
        schedule: Mapping[int, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if device_prefetch < 1:
            raise ValueError(f"device_prefetch is {device_prefetch}, but must be at least 1")
        if (num_workers or 0) < 0 or prefetch_factor < 1:
            raise ValueError(f"num_workers is {num_workers} and prefetch_factor {prefetch_factor}, but must be at least 0 and 1")
        self._watched = WatchedDataset(dataset, collate_fn)
        self.dataset = dataset = self._watched.dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.device = None if device is None else torch.device(device)
        if self.device and self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device is {device!r}, but torch sees no GPU here: leave device out for CPU tensors")
        self.prefetch_factor = prefetch_factor
        self.device_prefetch = device_prefetch
        self.pin_memory = bool(self.device and self.device.type == "cuda") if pin_memory is None else pin_memory
        self._collate_fn = collate_fn
        self._num_workers = num_workers
        self._planner = Planner(
            dataset,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            seed=seed,
            shuffle=shuffle,
            order=order,
            drop_last=drop_last,
            sizes=Sizes.of(schedule).check(dataset),
            rank=rank,
            world_size=world_size,
        )
        self.order = self._planner.order
        if backend not in ("torch", "dali"):
            raise ValueError(f'backend is {backend!r}, but must be "torch" or "dali"')
        if backend == "dali":
            check_dali(dataset)
        self.backend = backend
        self._epoch, self._consumed, self._pass = 0, 0, 0
        self._begun = False  # whether a batch was delivered since the position was set
        self._stats = Stats()
        self._engine: Engine | None = None
        self._plan: Plan | None = None
        with suppress(LoaderError):  # the rank may become known only later
            self._planned()
        if num_workers != 0 and backend != "dali" and not is_direct(dataset):
            start_server()
        self._in_flight = self._position()  # of the batch that the workers make next

    def _planned(self) -> Plan:
        """Return what this rank delivers. Until the first batch, look the ranks up each time: a launcher may set them up late."""
        if self._plan is None or not self._begun:
            plan = self._planner.plan(self._plan)
            if plan is not self._plan:
                self.close()
                self._plan = plan
        return self._plan

    @property
    def part(self) -> Part:
        """This loader's rank, and the number of ranks."""
        return self._planned().part

    @property
    def num_samples(self) -> int:
        """Samples of an epoch over all ranks; with a sampler, on this rank; with a batch sampler, the number of batches."""
        return self._planned().counts.num_samples

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks; with a sampler, on this rank; 1 with a batch sampler, which counts in batches."""
        return self._planned().counts.global_batch_size

    @property
    def epoch_stop(self) -> int:
        """How many of `num_samples` an epoch delivers: all of them unless drop_last is set."""
        return self._planned().counts.epoch_stop

    @property
    def num_workers(self) -> int:
        """Processes that make batches."""
        if self._num_workers is not None:
            return self._num_workers
        return 0 if is_direct(self.dataset) else default_workers(self.part, len(self))

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return -(-self.epoch_stop // self.global_batch_size)

    def __repr__(self) -> str:
        sizes = {"batch_size": self.batch_size, "global_batch_size": self._planner.global_batch_size}
        arguments = [f"{name}={size}" for name, size in sizes.items() if size is not None] or ["batch_sampler"]
        arguments += [name for name in ("shuffle", "drop_last") if getattr(self, name)]
        arguments += [f"device={self.device}"] * (self.device is not None) + [f"epoch={self._epoch}"]
        return f"Loader({self.dataset!r:.120}, {', '.join(arguments)})"

    def __getstate__(self) -> dict[str, Any]:
        if self._engine is not None:
            raise TypeError("a running Loader has workers, which cannot be pickled: pickle its state_dict(), or close() it first")
        own = {"_plan": None, "_watched": copy.copy(self._watched), "_stats": replace(self._stats)}  # nothing that a pass changes
        return {**self.__dict__, **own}

    @property
    def epoch(self) -> int:
        """The epoch being delivered, or the next one if none is."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Deliver this epoch next, from its beginning; a pass that has delivered batches ends.

        Right after `load_state_dict`, setting the resumed epoch keeps the position in it. Epochs count from 0 to 2^32 - 2.
        """
        epoch = whole("epoch", epoch)
        if not 0 <= epoch < 2**32 - 1:
            raise ValueError(f"epoch is {epoch}, but must be from 0 to {2**32 - 2}: random numbers would repeat")
        if self._begun or epoch != self._epoch:
            self._move_to(epoch, 0)

    @property
    def sampler(self) -> EpochSampler:
        """Passes `set_epoch` on, for packages that call it on a DataLoader's sampler. It yields no indices."""
        ordered = not self.shuffle and self._planner.any_sampler is None
        return (SequentialEpochSampler if ordered else EpochSampler)(self.set_epoch)

    batch_sampler = sampler

    def _move_to(self, epoch: int, consumed: int) -> None:
        """Set the next batch. A pass that has delivered batches ends; one that has not begins there."""
        self._epoch, self._consumed = epoch, consumed
        self._pass += self._begun
        self._begun = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position, from which another process delivers the batch after the last one delivered here."""
        epoch, consumed = self._epoch, self._consumed
        if consumed >= self.epoch_stop:
            epoch, consumed = epoch + 1, 0
        return {"epoch": epoch, "consumed": consumed, **self._planner.state(self._planned())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken. The numbers of workers and ranks may differ; what determines the order may not. The
        batches over all ranks stay the same if `global_batch_size` does.

        Raises:
            ValueError: seed, shuffle, order, the number of samples or the use of a sampler differ, or a sampler cannot be resumed.
        """
        self._planner.check_state(state, self.state_dict())
        epoch, consumed = int(state["epoch"]), int(state["consumed"])
        if consumed >= self.epoch_stop:  # another batch size with drop_last may leave nothing of the epoch
            epoch, consumed = epoch + 1, 0
        self._move_to(epoch, consumed)

    def stats(self) -> Stats:
        """Return what was delivered so far, and where the time went."""
        slots = self._engine and self._engine.slots
        stats = replace(self._stats)
        if slots:
            stats.slots, stats.slots_in_use, stats.slot_bytes = slots.count, slots.in_use, slots.nbytes
            stats.copies += slots.copies
        return stats

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self._next_epoch()
        self._planned()
        self._pass += 1
        if self._engine is not None and not self._engine.alive():
            self.close()  # a worker died since the last batch: start new ones
        return self._deliver(self._pass)

    def _deliver(self, this_pass: int) -> Iterator[Any]:
        if self._planner.any_sampler is not None:
            self._in_flight = (-1, 0)  # the sampler may have changed between passes: draw its list again
        direct = is_direct(self.dataset)
        stop = self.epoch_stop
        while self._has_next(this_pass, stop):
            if not direct and self._watched.changed():
                self.close()  # the workers have the old transform; the next batch needs the new one
            if self._engine is None or self._in_flight != self._position():
                self._requests.restart(*self._position())  # batches in flight are dropped
            yield self._receive()  # bind it to no name here: dropping the batch must free it
        self._next_epoch()

    def _next_epoch(self) -> None:
        if self._consumed >= self.epoch_stop:  # the next epoch's first batches are in flight
            self._in_flight = (self._epoch + 1, 0)
        self._epoch, self._consumed = self._epoch + 1, 0
        self._begun = False

    def _has_next(self, this_pass: int, stop: int) -> bool:
        if this_pass != self._pass:
            raise LoaderError(
                "this pass ended when another one began, or by set_epoch or load_state_dict: a loader delivers one pass at a time"
            )
        return self._consumed < stop

    @property
    def _requests(self) -> Requests:
        return (self._plan or self._planned()).requests

    def _position(self) -> tuple[int, int]:
        return self._epoch, self._consumed

    def _receive(self) -> Any:
        started = time.perf_counter()
        try:
            if self._engine is None:
                self._engine = self._start()
                _running.add(self)
                if self.device is not None:
                    self._engine = Feed(self._engine, self.device, self.device_prefetch, pin=self.pin_memory)
            reply, data = self._engine.receive(self._requests.generation)
        except BaseException as error:
            died = self._engine is not None and self._engine.died(error)
            self.close()  # the next pass starts new workers
            if died:
                position = f"epoch {self._epoch}, batch {self._consumed // self.global_batch_size}"
                raise LoaderError(f"{position}: a worker died: {error}; {why_died()}") from error
            raise
        self._stats.add(reply, time.perf_counter() - started)
        request = reply.request
        self._consumed = request.stop
        self._begun = True
        self._in_flight = self._position()
        rows = request.valid, request.indices, (request.epoch, request.stop)
        if type(data) in (tuple, list):
            return Batch.of(data, *rows)
        if type(data) is torch.Tensor:
            data.valid, data.ids, data.position = rows  # type: ignore[attr-defined]
        return data

    def _start(self) -> Engine:
        if is_direct(self.dataset):
            return Direct(self.dataset, self._requests, pin=self.pin_memory)
        counts = self._requests.rows(), self.num_workers, self.prefetch_factor
        options: dict[str, Any] = {"pin_memory": self.pin_memory, "device": self.device}
        if self.backend == "dali":
            return Dali(self.dataset, self._requests, *counts, **options)
        options["ahead"] = 0 if self.device is None else self.device_prefetch
        options["collate"] = self._collate_fn
        return Workers.start(self.dataset, self._requests, *counts, **options)

    def close(self) -> None:
        """End the workers. The next pass starts new ones; batches still held keep their memory."""
        if self._engine is not None:
            self._engine.close()
            if self._engine.slots is not None:
                self._stats.copies += self._engine.slots.copies
        self._detach()

    def _detach(self) -> Engine | None:
        """Forget the engine and return it; the next batch starts another."""
        engine, self._engine = self._engine, None
        if self._plan is not None:
            self._plan.requests.end()
        return engine

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_running = WeakSet[Loader]()  # those that have started an engine
_parents_engines = list[Engine | None]()  # kept in a forked child: freeing them would end the parent's workers


def _after_fork() -> None:
    """Let the loaders of a forked child start engines of their own: the workers of those that it has answer the parent."""
    _parents_engines.extend([loader._detach() for loader in list(_running)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
