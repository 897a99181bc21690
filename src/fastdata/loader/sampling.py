"""Which samples each rank gets in each batch, as a Loader's arguments say. Ranks may be known only after the Loader is made."""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from fastdata.data.dataset import SlotDataset
from fastdata.errors import warn_user
from fastdata.loader.fetch import Size, sized
from fastdata.loader.order import LaneOrder, RankShard
from fastdata.loader.ranks import SAME_SAMPLES, Ranks
from fastdata.loader.samplers import UserSampler

ORDERS = (None, "full", "interleaved")
LAST_EPOCH = (1 << 32) - 1  # that random numbers can tell apart
PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, list, range)  # ignore ranks
GENERATORS = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
KNOWN_RANK = {"rank", "num_replicas"}  # of a sampler that does not


def whole(name: str, value: Any, least: int = 0, most: float = float("inf")) -> int:
    """Return an argument as an int of Python, which states and checkpoints can hold.

    Raises:
        TypeError, ValueError: it is not a whole number, or out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r:.60}, but must be a whole number") from None
    if not least <= number <= most:
        wanted = f"from {least} to {most}" if most < float("inf") else f"at least {least}"
        raise ValueError(f"{name} is {number}, but must be {wanted}")
    return number


def read_schedule(schedule: Mapping[int, Any] | None, dataset: Any) -> list[tuple[int, Size]]:
    """Check a user's {epoch: stored size, or (stored size, crop)}. Return pairs of an epoch and the size from then on."""
    sizes = {0: Size()}
    for epoch, value in (schedule or {}).items():
        sizes[epoch] = Size(*value) if isinstance(value, tuple | list) and len(value) <= 2 else Size(value)
    numbers = [*sizes, *(n for size in sizes.values() for n in size if n is not None)]
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"schedule is {schedule!r}, but must be {{epoch: size}} or {{epoch: (size, crop)}} with whole numbers")
    for size in sizes.values():
        sized(dataset, size)
    return sorted(sizes.items())


class SampleCounts(NamedTuple):
    """The samples of an epoch, the samples of a global batch, and where the epoch ends. With a batch sampler: batches."""

    num_samples: int
    global_batch_size: int
    epoch_stop: int


@dataclass
class Sampling:
    """The arguments of a Loader that decide its batches. Raises ValueError and TypeError for wrong ones."""

    dataset: Any
    batch_size: int | None
    global_batch_size: int | None
    shuffle: bool
    order: str | None
    sampler: Any
    batch_sampler: Any
    seed: int
    drop_last: bool
    schedule: Mapping[int, Any] | None
    ranks: Ranks

    def __post_init__(self) -> None:
        dataset = self.dataset
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, str | bytes):
            raise TypeError(f"a Loader takes datasets with len() and [index], such as LMDBDataset(path); got {dataset!r:.80}")
        self.seed = whole("seed", self.seed, 0, (1 << 64) - 1)
        for name in ("batch_size", "global_batch_size"):
            if (size := getattr(self, name)) is not None:
                setattr(self, name, whole(name, size, 1))
        self.any_sampler = self.sampler if self.batch_sampler is None else self.batch_sampler
        self._check_order()
        self.sizes = read_schedule(self.schedule, dataset)
        self.shuffled = self.shuffle and not getattr(dataset, "any_order", False)
        if self.order is None:
            self.order = "interleaved" if self.shuffled and getattr(dataset, "remote", False) else "full"
        self.lanes = LaneOrder.of(dataset, self.seed) if self.order == "interleaved" else None
        self.user_sampler = None
        if self.any_sampler is not None:
            own = isinstance(dataset, SlotDataset) or hasattr(dataset, "locate")  # others give their indices a meaning
            self.user_sampler = UserSampler(
                self.any_sampler, self.batch_sampler is not None, self.seed, len(dataset) if own else None
            )

    def _check_order(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}, but must be one of {', '.join(map(repr, ORDERS))}")
        if self.order == "interleaved" and not self.shuffle:
            raise ValueError("order is 'interleaved', a way to shuffle, but shuffle is False: give shuffle=True")
        if self.any_sampler is None:
            return
        excluded = ["shuffle", "order"]
        if self.batch_sampler is not None:
            excluded += ["sampler", "batch_size", "global_batch_size", "drop_last"]
        if given := [name for name in excluded if getattr(self, name) not in (None, False)]:
            raise ValueError(f"a sampler decides the order, and a batch_sampler also decides batches: leave out {', '.join(given)}")
        if hasattr(self.sampler, "__getitem__") and np.asarray(next(iter(self.sampler), 0)).dtype == bool:
            raise ValueError("sampler is a mask of booleans, not indices: give the Loader dataset.subset(mask)")
        if not hasattr(self.any_sampler, "__len__"):
            raise ValueError("a sampler or batch_sampler needs a len(), the number of its indices or batches")

    def count(self, shard: RankShard) -> SampleCounts:
        """Count the samples; with a sampler, only this rank's; with a batch sampler, its batches.

        Raises:
            ValueError: the arguments do not fit the number of ranks.
        """
        ranks, sampler = shard.world_size, self.sampler
        listed = self.batch_sampler.sampler if type(self.batch_sampler) is BatchSampler else sampler
        unseen = ranks > 1 and not self.ranks.comparable
        if unseen and isinstance(listed, PLAIN_SAMPLERS) and not KNOWN_RANK & {*dir(listed)}:
            warn_user(f"a {type(listed).__name__} {SAME_SAMPLES.format(ranks)}")
        if self.batch_sampler is not None:
            if len(self.batch_sampler) == 0:
                raise ValueError("batch_sampler has no batches")
            return SampleCounts(len(self.batch_sampler), 1, len(self.batch_sampler))
        if (self.batch_size is None) == (self.global_batch_size is None):
            raise ValueError("give either batch_size (per rank) or global_batch_size (over all ranks)")
        total = self.global_batch_size or (self.batch_size or 0) * ranks
        if total < ranks:
            raise ValueError(f"global_batch_size is {total}, but must be at least {ranks}, one sample for each rank")
        if total % ranks and (sampler is not None or shard.blocks):  # a sampler, and what Accelerate gathers, has equal parts
            raise ValueError(f"global_batch_size is {total}, but must be a multiple of {ranks}, the number of ranks")
        if total % ranks and shard.rank == 0:
            warn_user(
                f"global_batch_size is {total}, not a multiple of {ranks} ranks: each gets batches of {-(-total // ranks)}, "
                "where some ranks repeat a sample. fastdata's Trainer leaves repeated rows out; in your own loop, use the rows "
                "[:batch.valid] only, and weight the loss of each rank by batch.valid"
            )
        if sampler is not None:
            total //= ranks
        num_samples = len(self.dataset if sampler is None else sampler)
        stop = num_samples - num_samples % total if self.drop_last else num_samples
        if stop == 0:
            raise ValueError(f"the dataset or sampler has {num_samples} samples, fewer than one batch of {total}")
        return SampleCounts(num_samples, total, stop)

    def check_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Raise a TypeError or a ValueError unless a loader whose state is `own` can continue from `state`."""
        if missing := sorted(set(own) - set(state) - {"lanes", "shards"}):
            raise ValueError(f"this is not the state of a Loader: it has no {', '.join(missing)}")
        for name in ("seed", "shuffle", "order", "num_samples", "sampler", "lanes", "shards"):
            if state.get(name) != own.get(name):
                raise ValueError(
                    f"the state was taken with {name} {state.get(name)}, and this loader has {own.get(name)}: make them equal "
                    "(shards is a checksum of the shards' sizes)"
                )
        whole("epoch", state["epoch"], 0, LAST_EPOCH)
        whole("consumed", state["consumed"], 0, own["num_samples"])
        if state["ranks"] != own["ranks"] and state["sampler"] and state["consumed"]:
            raise ValueError(
                f"the state was taken in the middle of an epoch with {state['ranks']} ranks, but this loader has {own['ranks']}: "
                "a sampler gives each rank its own list, so continue with the same number of ranks"
            )
        if state["global_batch_size"] != own["global_batch_size"] and not state["sampler"]:
            warn_user(
                f"the state was taken with {state['global_batch_size']} samples in a batch over all ranks, but this loader "
                f"has {own['global_batch_size']}: give global_batch_size={state['global_batch_size']} to keep the same batches"
            )
        samplers = [one for one in (self.any_sampler, getattr(self.any_sampler, "sampler", None)) if not hasattr(one, "set_epoch")]
        owned = [value for one in samplers for value in getattr(one, "__dict__", {}).values() if isinstance(value, GENERATORS)]
        if owned and (state["epoch"] or state["consumed"]):
            raise ValueError(
                "the state lacks the sampler's own generator: let the sampler use the global generators, which the Loader seeds"
            )
