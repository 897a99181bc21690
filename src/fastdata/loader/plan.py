"""What one rank delivers. It is worked out when needed: a launcher may set the ranks up after the Loader is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from fastdata.errors import warn_user
from fastdata.loader.counts import Counts, count_batches
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.ranks import find_part
from fastdata.loader.requests import Requests

__all__ = ["Plan", "Planner"]

PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)  # ignore ranks


class Plan(NamedTuple):
    """A rank's part of every global batch, the counts of an epoch, and the requests for its batches."""

    part: Part
    counts: Counts
    requests: Requests


class Planner:
    """Makes the plan of a Loader, whose arguments it takes."""

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
        self.batch_size = batch_size
        self.global_batch_size = global_batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self._dataset = dataset
        self._seed = seed
        self._drop_last = drop_last
        self._ranks = rank, world_size
        self._shuffle = shuffle and not getattr(dataset, "any_order", False)
        if batch_sampler is not None:
            self._check_batch_sampler(shuffle=shuffle)
        elif isinstance(sampler, BatchSampler):
            raise ValueError("sampler is a BatchSampler, which yields lists of indices: pass it as batch_sampler=")
        elif sampler is not None and (shuffle or not hasattr(sampler, "__len__")):
            raise ValueError("sampler decides the order: it needs a len(), and shuffle=True must be left out")

    def _check_batch_sampler(self, *, shuffle: bool) -> None:
        excluded = [name for name in ("sampler", "batch_size", "global_batch_size") if getattr(self, name) is not None]
        excluded += ["shuffle"] * shuffle + ["drop_last"] * self._drop_last
        if excluded:
            raise ValueError(f"batch_sampler decides the batches and their order: leave out {', '.join(excluded)}")
        if not hasattr(self.batch_sampler, "__len__"):
            raise ValueError("batch_sampler needs a len(), the number of batches of an epoch")

    @property
    def any_sampler(self) -> Any:
        """The sampler or the batch sampler, if any."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def plan(self, old: Plan | None) -> Plan:
        """Return the plan for this process's current rank: the old plan if the rank is the same.

        Raises:
            LoaderError: nothing says which rank this is.
            ValueError: the arguments do not fit the number of ranks.
        """
        part = find_part(*self._ranks)
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
        requests = Requests(order, part, counts.global_batch_size, counts.epoch_stop, self.sampler, self.batch_sampler)
        return Plan(part, counts, requests)

    def _warn_of_plain_samplers(self, part: Part) -> None:
        sampler = self.batch_sampler.sampler if type(self.batch_sampler) is BatchSampler else self.sampler
        if part.world_size > 1 and type(sampler) in PLAIN_SAMPLERS:
            warn_user(
                f"a {type(sampler).__name__} gives each of the {part.world_size} ranks the same samples: use a DistributedSampler, "
                "or leave it out, and the Loader splits the samples"
            )
