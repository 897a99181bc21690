"""The Loader: batches of compact integers, in an order that depends on (seed, epoch) alone, over torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from fastdata.data.dataset import Fixed, SlotDataset, checksum
from fastdata.errors import LoaderError
from fastdata.gpu.batch_transform import as_transforms
from fastdata.loader.dali import Dali, import_dali
from fastdata.loader.direct import Direct, is_direct
from fastdata.loader.engine import DevicePrefetchEngine, Engine
from fastdata.loader.epoch import LoaderPosition, Stats
from fastdata.loader.order import RankShard
from fastdata.loader.ranks import Ranks, default_workers
from fastdata.loader.requests import Requests
from fastdata.loader.samplers import EpochSampler, SequentialEpochSampler
from fastdata.loader.sampling import Sampling, whole
from fastdata.loader.unwrap import settings, unwrapped
from fastdata.loader.workers import Workers

OF_TORCH: dict[str, tuple[Any, str]] = {  # arguments of its DataLoader: the default, and what to do instead of another value
    "persistent_workers": (False, "workers always stay until close()"),
    "worker_init_fn": (None, "samples are seeded one by one; open files in the dataset, when they are first read"),
    "generator": (None, "give seed="),
    "timeout": (0, "a Loader waits for a batch, and warns after 30 s"),
    "multiprocessing_context": (None, "call torch.multiprocessing.set_start_method first"),
    "pin_memory_device": ("", "give device="),
    "in_order": (True, "batches always come in order"),
}


class Loader(Fixed):
    """Batches of a dataset, made ahead in worker processes.

    Yields a tuple (images, targets): images uint8 or uint16 [B, C, H, W] in channels_last layout; targets int64 [B] or float32
    [B, columns]. The tuple has `.valid`, how many rows are real (at the end of an epoch on several ranks the last row may repeat a
    sample), `.ids`, the dataset's indices of the rows, and `.position`, (epoch, samples consumed by all ranks).
    A dataset with several crops yields a tuple of images; one with several images per sample, a dict. With `fields`, targets are
    as LMDBDataset says; a MaskDataset yields masks [B, H, W], a TokenDataset one tensor [B, block_size + 1]. Other datasets yield
    what torch's default_collate makes of their items. Batches that are tensors or dicts have these attributes, too.

    Workers write images into shared memory. A batch stays unchanged for as long as this process holds it or a view of it (clone it
    before a fork). A consumer that holds more than three batches gets copies. `stats()` reports memory and waiting times.

    Order, crops and flips depend on (seed, epoch, sample), never on workers, ranks or interruptions. As with torch's DataLoader,
    each `iter(loader)` begins a new epoch if the last one has delivered a batch; `load_state_dict`, and `set_epoch` of the Loader
    or of your sampler, override this. The first pass compares the ranks of torch.distributed, so all of them have to begin it,
    unless `split` is False or `rank` is given.

    Args:
        dataset: an LMDBDataset, a RAMDataset, or any map-style torch dataset. torch's Subset and ConcatDataset of fastdata's
            datasets are turned into fastdata's own, which are faster.
        batch_size: samples per batch and rank, as in torch.
        global_batch_size: samples per batch over all ranks, to resume on another number of ranks. If the ranks do not divide it,
            some repeat a sample in each batch, and `batch.valid` says so.
        shuffle: draw a new order each epoch.
        order: "full" shuffles all samples together. "interleaved" uses few shards of the store at a time (docs/loader.md), for
            stores on slow disks and behind a cache. Default: "interleaved" for a store behind a cache, else "full".
        sampler: yields this rank's indices, as any torch Sampler does. If its `set_epoch` sets its `epoch`, the Loader calls
            `set_epoch` for each epoch, or follows a program that does; other samplers are left to the program. The Loader seeds
            the default generators by (seed, epoch), but not the sampler's own. Indices are drawn when a pass begins.
        batch_sampler: yields this rank's batches, lists of indices, as torch's BatchSampler does; otherwise like `sampler`.
        collate_fn: makes a batch of a list of items, for datasets other than fastdata's. Default: torch's default_collate.
        batch_transform: a callable, or a list of callables, applied to each batch on its device, in the consumer's stream, where
            it may use torch's generators. GPUNormalize and Augment get the images, NextToken the tokens, all others the batch.
        num_workers: processes that make batches; 0: this process. Default: one for each core of this machine, divided among its
            ranks. Batches of tokens and tables are always made in this process.
        device: None for CPU tensors; "cuda" for batches on the GPU, copied while it computes, for use on the current stream.
        seed: 0 to 2^64 - 1.
        drop_last: leave out the last, smaller batch.
        prefetch_factor: batches that each worker makes ahead.
        device_prefetch: the most batches that are copied to the device ahead of the consumer.
        pin_memory: whether to page-lock the batches. Default: True if the device is a GPU.
        backend: "torch": worker processes. "dali": NVIDIA DALI decodes JPEGs on the device, with `num_workers` threads; only pixel
            values differ, by at most 2 on average.
        schedule: {epoch: stored size, or (stored size, crop)}: from that epoch on, read this size and crop to this side.
        split: divide the samples among the ranks. False: deliver every sample to this rank, for instance if it alone evaluates.
        rank, world_size: by default looked up at `len` and `iter`: in torch.distributed if that is initialized, else in RANK and
            WORLD_SIZE of the environment, else rank 0 of 1.

    Raises:
        ValueError, TypeError: an argument is wrong.
        MissingExtraError: backend is "dali", and DALI is not installed.
        LoaderError: while iterating, a batch cannot be made, or a worker died; torch.distributed contradicts the environment,
            or WORLD_SIZE is above 1 and the rank is unknown; ranks differ in data, seed, order, epoch or length, or
            samplers drew the same indices.
    """

    FIXED = frozenset(("dataset", "batch_size", "shuffle", "seed", "drop_last", "order", "device", "prefetch_factor"))

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
        batch_transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        num_workers: int | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
        drop_last: bool = False,
        prefetch_factor: int | None = 2,
        device_prefetch: int = 2,
        pin_memory: bool | None = None,
        backend: str = "torch",
        schedule: Mapping[int, Any] | None = None,
        split: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        **of_torch: Any,
    ) -> None:
        for name, value in of_torch.items():
            if name not in OF_TORCH:
                raise TypeError(f"a Loader takes no argument {name!r}")
            default, advice = OF_TORCH[name]
            if value != default:
                raise ValueError(f"{name} is {value!r:.60}, but a Loader takes only torch's default, {default!r}: {advice}")
        if backend not in ("torch", "dali"):
            raise ValueError(f'backend is {backend!r}, but must be "torch" or "dali"')
        self._original = dataset
        self.dataset = dataset = unwrapped(dataset)
        self._settings = settings(dataset), settings(self._original)
        self._direct = is_direct(dataset)
        if collate_fn not in (None, default_collate) and (isinstance(dataset, SlotDataset) or self._direct):
            raise ValueError(
                f"collate_fn is for other datasets: a {type(dataset).__name__} makes whole batches itself. Leave collate_fn out; "
                "give the Loader a batch_transform instead"
            )
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.device = None if device is None else torch.device(device)
        on_gpu = self.device is not None and self.device.type == "cuda"
        if on_gpu and not torch.cuda.is_available():
            raise ValueError(f"device is {device!r}, but torch sees no GPU here: leave device out for CPU tensors")
        self.prefetch_factor = whole("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor, 1)
        self.device_prefetch = whole("device_prefetch", device_prefetch, 1)
        self.pin_memory = on_gpu if pin_memory is None else pin_memory
        self.backend = backend
        self.collate_fn = collate_fn or default_collate
        self._num_workers = None if num_workers is None else whole("num_workers", num_workers)
        ranks = Ranks(split, rank, world_size)
        self._sampling = Sampling(
            dataset, batch_size, global_batch_size, shuffle, order, sampler, batch_sampler, seed, drop_last, schedule, ranks
        )
        self.order = self._sampling.order
        if backend == "dali":
            import_dali(dataset)
        self._position = LoaderPosition(transforms=as_transforms(batch_transform))
        with suppress(LoaderError):  # the rank may become known only later
            self._requests()

    def _requests(self) -> Requests:
        """Return the requests of this rank. Until the first batch, look the ranks up each time: a launcher may set them up late."""
        position = self._position
        if position.requests is None or not position.begun:
            shard = self._sampling.ranks.find()
            if position.requests is None or position.requests.shard != shard:
                requests = Requests(self._sampling, shard)
                self.close()
                position.requests = requests
        found: Requests = position.requests
        return found

    @property
    def part(self) -> RankShard:
        """This loader's rank, and the number of ranks."""
        return self._requests().shard

    @property
    def num_samples(self) -> int:
        """Samples of an epoch over all ranks; with a sampler, on this rank; with a batch sampler, the number of batches."""
        return self._requests().counts.num_samples

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks; with a sampler, on this rank; 1 with a batch sampler, since batches are counted."""
        return self._requests().counts.global_batch_size

    @property
    def epoch_stop(self) -> int:
        """The number of samples that an epoch delivers: `num_samples` unless drop_last is set."""
        return self._requests().counts.epoch_stop

    @property
    def num_workers(self) -> int:
        """Processes that make batches."""
        if self._num_workers is not None:
            return self._num_workers
        return 0 if self._direct else default_workers(self.part, len(self))

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return -(-self.epoch_stop // self.global_batch_size)

    def __repr__(self) -> str:
        return f"Loader({self.dataset!r:.120}, batch_size={self.batch_size}, shuffle={self.shuffle}, epoch={self.epoch})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_position": self._position.copy()}

    @property
    def epoch(self) -> int:
        """The epoch being delivered, or the next one if none is."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Deliver this epoch next, from its beginning; a pass that has delivered batches ends.

        Right after `load_state_dict`, setting the resumed epoch keeps the position in it. Epochs count from 0 to 2^32 - 2.
        """
        epoch = whole("epoch", epoch, 0, 2**32 - 2)  # random numbers of later ones would repeat
        if self._position.begun or epoch != self.epoch:
            self._position.move_to(epoch, 0)

    @property
    def sampler(self) -> EpochSampler:
        """Passes `set_epoch` on, for packages that call it on a DataLoader's sampler. It yields no indices."""
        ordered = not self.shuffle and self._sampling.any_sampler is None
        return (SequentialEpochSampler if ordered else EpochSampler)(self, self._count_samples)

    @property
    def batch_sampler(self) -> EpochSampler:
        """Like `sampler`, but its len() is the number of batches."""
        return EpochSampler(self, self.__len__)

    def _count_samples(self) -> int:
        """Return how many samples an epoch has on this rank, repeated rows included."""
        if self._sampling.batch_sampler is not None:  # as torch's DataLoader says
            return len(self.dataset)
        ranks = 1 if self._sampling.sampler is not None else self.part.world_size
        return -(-self.epoch_stop // ranks)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, from which another process delivers the batch after the last one delivered here."""
        return {**self._saved(self.epoch, self._position.consumed), **self._requests().state()}

    def _saved(self, epoch: int, consumed: int) -> dict[str, int]:
        """Return a position as a state has it: the end of an epoch is the beginning of the next."""
        over = consumed >= self.epoch_stop
        return {"epoch": epoch + over, "consumed": 0 if over else consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken. Workers and ranks may differ in number; the same `global_batch_size` keeps the batches.

        Raises:
            ValueError: seed, shuffle, order, the number of samples or the use of a sampler differ, or a sampler cannot be resumed.
        """
        self._sampling.check_state(state, self.state_dict())
        self._position.move_to(**self._saved(int(state["epoch"]), int(state["consumed"])))

    def stats(self) -> Stats:
        """Return counts of delivered batches and the seconds of each part of the work."""
        engine, stats = self._position.engine, replace(self._position.stats)
        if engine is not None and (slots := engine.slots) is not None:
            stats.slots, stats.slots_in_use, stats.slot_bytes = slots.count, slots.in_use, slots.nbytes
            stats.copies += slots.copies
        return stats

    def __iter__(self) -> Iterator[Any]:
        position = self._position
        self._requests()
        sampler = self._sampling.user_sampler
        if sampler is not None and (epoch := sampler.epoch_set()) is not None:
            self.set_epoch(epoch)
        if position.begun:
            position.end_epoch()
            self._requests()
        if sampler is not None:
            sampler.begin_pass(position.epoch)
            position.in_flight = (-1, 0)  # what was made ahead is of the list before
        if position.engine is not None and not position.engine.alive():
            self.close()  # a worker died since the last batch: start new ones
        position.passes += 1
        return position.deliver(position.passes, self._start, self._outdated)

    def _outdated(self) -> bool:
        """Return whether a transform or view was set since the last call: workers started before that lack it.

        Raises:
            LoaderError: it was set on a dataset inside a Subset or ConcatDataset that was unwrapped.
        """
        if self._direct:
            return False
        before, now = self._settings, (settings(self.dataset), settings(self._original))
        if self.dataset is not self._original and now[1] != before[1]:
            raise LoaderError(
                f"after the Loader was made, you set transform or views of a dataset in a {type(self._original).__name__}: "
                "set it on loader.dataset, or before making the Loader"
            )
        self._settings = now
        return now != before

    def _start(self) -> Engine:
        """Return a new engine, which makes the batches, once the ranks agree."""
        requests = self._requests()
        ranks, sampler = self._sampling.ranks, self._sampling.user_sampler
        if not requests.compared and ranks.comparable:
            requests.rows()  # which draws the sampler's list
            state = {**self.state_dict(), "len": len(self), "dataset": checksum(self.dataset)}
            ranks.compare(state, None if sampler is None else sampler.drawn)
        requests.compared = True
        engine: Engine
        if self._direct:
            engine = Direct(self.dataset, requests, pin=self.pin_memory)
        elif self.backend == "dali":
            engine = Dali(self, requests)
        else:
            engine = Workers(self, requests)
        if self.device is None:
            return engine
        return DevicePrefetchEngine(engine, self.device, self.device_prefetch, pin=self.pin_memory)

    def forever(self) -> Iterator[Any]:
        """Yield the batches of epoch after epoch, without end."""
        while True:
            yield from self

    def close(self) -> None:
        """End the workers. The next pass starts new ones; batches still held keep their memory."""
        self._position.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
