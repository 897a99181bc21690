"""What one rank delivers. It is determined late, since a launcher may set the ranks up after the Loader is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from fastdata.errors import warn_user
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.ranks import find_part
from fastdata.loader.requests import Requests

__all__ = ["Plan", "Planner"]

PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)  # ignore ranks


class Counts(NamedTuple):
    """The samples of an epoch, the samples of a global batch, and where the epoch ends."""

    num_samples: int
    global_batch_size: int
    epoch_stop: int


class Plan(NamedTuple):
    """A rank's part of every global batch, the counts of an epoch, and the requests for its batches."""

    part: Part
    counts: Counts
    requests: Requests


class Planner:
    """Makes the plan of a Loader, whose arguments it takes.

    Raises:
        TypeError: `dataset` is not a map-style dataset.
        ValueError: the samplers exclude other arguments, or lack a length.
    """

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
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, str | bytes):
            raise TypeError(f"a Loader takes datasets with len() and [index], such as LMDBDataset(path); got {dataset!r:.80}")
        self.batch_size = batch_size
        self.global_batch_size = global_batch_size
        self.sampler: Any = sampler
        self.batch_sampler: Any = batch_sampler
        self._dataset = dataset
        self._seed = seed
        self._drop_last = drop_last
        self._ranks = rank, world_size
        self.blocks = False  # whether ranks take blocks of a global batch: see Part
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
            ValueError: the arguments do not fit the number of ranks, or make no batch.
        """
        part = replace(find_part(*self._ranks), blocks=self.blocks)
        if old is not None and old.part == part:
            return old
        counts = self._counts(part)
        self._warn_of_plain_samplers(part)
        order = EpochOrder(counts.num_samples, self._seed, self._shuffle)
        requests = Requests(order, part, counts.global_batch_size, counts.epoch_stop, self.sampler, self.batch_sampler)
        requests.announce(self._dataset)
        return Plan(part, counts, requests)

    def _counts(self, part: Part) -> Counts:
        """Return the counts; with a sampler, for this rank alone; with a batch sampler, in batches."""
        if self.batch_sampler is not None:
            if len(self.batch_sampler) == 0:
                raise ValueError("batch_sampler has no batches")
            return Counts(len(self.batch_sampler), 1, len(self.batch_sampler))
        if self.batch_size is not None and self.global_batch_size is None:
            name, size, ranks = "batch_size", self.batch_size, 1
        elif self.global_batch_size is not None and self.batch_size is None:
            name, size, ranks = "global_batch_size", self.global_batch_size, part.world_size
        else:
            raise ValueError("give batch_size (per rank) or global_batch_size (over all ranks), one of them")
        if size < 1 or size % ranks:
            allowed = "positive" if ranks == 1 else f"a positive multiple of the {ranks} ranks"
            raise ValueError(f"{name} is {size}, but must be {allowed}")
        per_rank = size // ranks
        total = per_rank if self.sampler is not None else per_rank * part.world_size
        num_samples = len(self._dataset if self.sampler is None else self.sampler)
        stop = num_samples - num_samples % total if self._drop_last else num_samples
        if stop == 0:
            raise ValueError(f"the dataset has {num_samples} samples, fewer than one batch of {total}")
        return Counts(num_samples, total, stop)

    def _warn_of_plain_samplers(self, part: Part) -> None:
        sampler = self.batch_sampler.sampler if type(self.batch_sampler) is BatchSampler else self.sampler
        if part.world_size > 1 and type(sampler) in PLAIN_SAMPLERS:
            warn_user(
                f"a {type(sampler).__name__} gives each of the {part.world_size} ranks the same samples: use a DistributedSampler, "
                "or leave it out, and the Loader splits the samples"
            )

    def check_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Raise a ValueError if a loader whose state is `own` cannot continue from `state`."""
        if missing := sorted(set(own) - set(state)):
            raise ValueError(f"this is not the state of a Loader: it has no {', '.join(missing)}")
        for name in ("seed", "shuffle", "num_samples", "sampler"):
            if state[name] != own[name]:
                raise ValueError(f"the state was taken with {name} {state[name]}, this loader has {own[name]}: make them equal")
        samplers = (self.any_sampler, getattr(self.any_sampler, "sampler", None))
        generator = any(getattr(one, "generator", None) is not None and not hasattr(one, "set_epoch") for one in samplers)
        if generator and (state["epoch"] or state["consumed"]):
            raise ValueError(
                "the sampler has a generator of its own, whose state was not saved: leave generator out, and the Loader seeds it"
            )
