"""What one rank delivers: found when it is needed, since a launcher may set the ranks up after the Loader is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from fastdata.errors import warn_user
from fastdata.loader.counts import Counts, count_batches
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.ranks import find_part
from fastdata.loader.requests import Requests

__all__ = ["Plan", "Planner"]

PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)  # know nothing of ranks


class Plan(NamedTuple):
    """A rank's part of every global batch, the counts of an epoch, and the requests for its batches."""

    part: Part
    counts: Counts
    requests: Requests


class Planner:
    """Makes the plan of a Loader; see there for the arguments."""

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        global_batch_size: int | None,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Sequence[int]] | None,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        self.batch_size, self.global_batch_size = batch_size, global_batch_size
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._dataset, self._seed, self._drop_last, self._ranks = dataset, seed, drop_last, (rank, world_size)
        self.blocks = False  # whether the ranks get blocks of a global batch; see Part
        self._shuffle = shuffle and not getattr(dataset, "any_order", False)
        if batch_sampler is not None:
            self._check_batch_sampler(shuffle=shuffle)
        elif isinstance(sampler, BatchSampler):
            raise ValueError("sampler is a BatchSampler, which gives lists of indices: pass it as batch_sampler=")
        elif sampler is not None and (shuffle or not hasattr(sampler, "__len__")):
            raise ValueError("sampler decides the order: it needs a len(), and goes without shuffle=True")

    def _check_batch_sampler(self, *, shuffle: bool) -> None:
        given = [name for name in ("sampler", "batch_size", "global_batch_size") if getattr(self, name) is not None]
        given += ["shuffle"] * shuffle + ["drop_last"] * self._drop_last
        if given:
            raise ValueError(f"batch_sampler decides the batches and their order: leave out {', '.join(given)}")
        if not hasattr(self.batch_sampler, "__len__"):
            raise ValueError("batch_sampler needs a len(), the number of batches of an epoch")

    @property
    def any_sampler(self) -> Any:
        """The sampler or the batch sampler."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def plan(self, old: Plan | None) -> Plan:
        """The plan for this process's rank as it is now: the old one, if the rank is the same.

        Raises:
            LoaderError: nothing says which rank this is.
            ValueError: the arguments do not fit so many ranks.
        """
        part = replace(find_part(*self._ranks), blocks=self.blocks)
        if old is not None and old.part == part:
            return old
        counts = count_batches(
            self._dataset,
            self.batch_size,
            self.global_batch_size,
            self.sampler,
            self.batch_sampler,
            part,
            drop_last=self._drop_last,
        )
        self._warn_of_plain_samplers(part)
        order = EpochOrder(counts.num_samples, self._seed, self._shuffle)
        sizes = counts.global_batch_size, counts.epoch_stop
        return Plan(part, counts, Requests(order, part, *sizes, self.sampler, self.batch_sampler))

    def _warn_of_plain_samplers(self, part: Part) -> None:
        sampler = self.sampler
        if type(self.batch_sampler) is BatchSampler:
            sampler = self.batch_sampler.sampler
        if part.world_size > 1 and type(sampler) in PLAIN_SAMPLERS:
            warn_user(
                f"a {type(sampler).__name__} gives each of the {part.world_size} ranks the same samples: use a DistributedSampler, "
                "or leave it out, and the Loader splits the samples"
            )
