"""What one rank delivers. It is determined late, since a launcher may set the ranks up after the Loader is made."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from fastdata.data.dataset import SlotDataset
from fastdata.errors import warn_user
from fastdata.loader.lanes import LaneOrder
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.ranks import find_part
from fastdata.loader.requests import Requests
from fastdata.loader.sizes import Sizes

__all__ = ["Plan", "Planner", "whole"]

ORDERS = ("full", "lanes")
LAST_EPOCH = (1 << 32) - 1  # that random numbers can tell apart
PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)  # ignore ranks


class Counts(NamedTuple):
    """The samples of an epoch, the samples of a global batch, and where the epoch ends."""

    num_samples: int
    global_batch_size: int
    epoch_stop: int


class Plan(NamedTuple):
    """A rank's part of every global batch, the counts of an epoch, the order of the samples, and the requests for its batches."""

    part: Part
    counts: Counts
    order: EpochOrder | LaneOrder
    requests: Requests


def whole(name: str, value: Any) -> int:
    """Return an argument as a number of Python, which states and checkpoints hold. Raises TypeError if it is not a whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r:.60}, but must be a whole number") from None


class Planner:
    """Makes the plan of a Loader, whose arguments it takes.

    Raises:
        TypeError: `dataset` is not a map-style dataset, or the seed or a size is not a whole number.
        ValueError: the seed or the order is wrong, or the samplers exclude other arguments, or lack a length.
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
        order: str | None,
        drop_last: bool,
        sizes: Sizes,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, str | bytes):
            raise TypeError(f"a Loader takes datasets with len() and [index], such as LMDBDataset(path); got {dataset!r:.80}")
        seed = whole("seed", seed)
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed is {seed}, but must be from 0 to 2^64 - 1")
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size)
        self.global_batch_size = None if global_batch_size is None else whole("global_batch_size", global_batch_size)
        self.sampler: Any = sampler
        self.batch_sampler: Any = batch_sampler
        self._dataset = dataset
        self._seed = seed
        self._drop_last = drop_last
        self._sizes = sizes
        self._ranks = rank, world_size
        self.blocks = False  # whether ranks take blocks of a global batch: see Part
        self._shuffle_given = shuffle
        self._shuffle = shuffle and not getattr(dataset, "any_order", False)
        self.order = self._choose_order(order)
        self._lanes: LaneOrder | None = None
        if batch_sampler is not None:
            self._check_batch_sampler(shuffle=shuffle)
        elif isinstance(sampler, BatchSampler):
            raise ValueError("sampler is a BatchSampler, which yields lists of indices: pass it as batch_sampler=")
        elif sampler is not None and (shuffle or not hasattr(sampler, "__len__")):
            raise ValueError("sampler decides the order: it needs a len(), and shuffle=True must be left out")

    def _choose_order(self, order: str | None) -> str:
        """Return the order of a shuffled epoch, "full" or "lanes"."""
        if order is None:
            return "lanes" if self._shuffle and getattr(self._dataset, "remote", False) else "full"
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}, but must be one of {', '.join(ORDERS)}")
        if self.any_sampler is not None:
            raise ValueError(f"order is {order!r}, but a sampler decides the order: leave one of them out")
        if order == "lanes" and not self._shuffle_given:
            raise ValueError("order is 'lanes', a way to shuffle, but shuffle is False: give shuffle=True, or leave order out")
        return order

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
        if self.order == "lanes" and self._lanes is None:
            self._lanes = LaneOrder.of(self._dataset, self._seed)
        order = self._lanes or EpochOrder(counts.num_samples, self._seed, self._shuffle)
        own = isinstance(self._dataset, SlotDataset) or hasattr(self._dataset, "locate")  # others give their indices a meaning
        among = len(self._dataset) if own and self.any_sampler is not None else None
        batches = counts.global_batch_size, counts.epoch_stop, self._sizes
        requests = Requests(order, part, *batches, self.sampler, self.batch_sampler, among)
        requests.announce(self._dataset)
        return Plan(part, counts, order, requests)

    def _counts(self, part: Part) -> Counts:
        """Return the counts; with a sampler, for this rank alone; with a batch sampler, in batches."""
        if self.batch_sampler is not None:
            if len(self.batch_sampler) == 0:
                raise ValueError("batch_sampler has no batches")
            return Counts(len(self.batch_sampler), 1, len(self.batch_sampler))
        if self.global_batch_size is not None and self.batch_size is None:
            total = self._share(self.global_batch_size, part)
        elif self.batch_size is None or self.global_batch_size is not None:
            raise ValueError("give batch_size (per rank) or global_batch_size (over all ranks), one of them")
        elif self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, but must be positive")
        else:
            total = self.batch_size * (1 if self.sampler is not None else part.world_size)
        num_samples = len(self._dataset if self.sampler is None else self.sampler)
        stop = num_samples - num_samples % total if self._drop_last else num_samples
        if stop == 0:
            raise ValueError(f"the dataset has {num_samples} samples, fewer than one batch of {total}")
        return Counts(num_samples, total, stop)

    def _share(self, size: int, part: Part) -> int:
        """Return the samples of a global batch; with a sampler, this rank's.

        Raises:
            ValueError: the ranks cannot share it.
        """
        ranks = part.world_size
        if self.sampler is not None or part.blocks:  # a sampler, and what Accelerate gathers, has equal parts
            if size < 1 or size % ranks:
                raise ValueError(f"global_batch_size is {size}, but must be a positive multiple of the {ranks} ranks")
            return size // ranks if self.sampler is not None else size
        if size < ranks:
            raise ValueError(f"global_batch_size is {size}, but must be at least {ranks}, one sample for each rank")
        if size % ranks and part.rank == 0:
            warn_user(
                f"global_batch_size is {size}, which {ranks} ranks do not divide evenly: each gets batches of {-(-size // ranks)}, "
                "and some repeat a sample in each. fastdata's Trainer leaves repeated rows out; a loop of your own uses the first "
                "batch.valid rows, and weighs the ranks by that number"
            )
        return size

    def _warn_of_plain_samplers(self, part: Part) -> None:
        sampler = self.batch_sampler.sampler if type(self.batch_sampler) is BatchSampler else self.sampler
        if part.world_size > 1 and type(sampler) in PLAIN_SAMPLERS:
            warn_user(
                f"a {type(sampler).__name__} gives each of the {part.world_size} ranks the same samples: use a DistributedSampler, "
                "or leave it out, and the Loader splits the samples"
            )

    def state(self, plan: Plan) -> dict[str, Any]:
        """Return what a state says of the order and the batches."""
        return {
            "seed": self._seed,
            "shuffle": self._shuffle_given,
            "order": self.order,
            **(plan.order.state if isinstance(plan.order, LaneOrder) else {}),
            "num_samples": plan.counts.num_samples,
            "global_batch_size": plan.counts.global_batch_size,
            "ranks": plan.part.world_size,
            "sampler": "batch_sampler" if self.batch_sampler is not None else self.sampler is not None,
        }

    def check_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Check that a loader whose state is `own` can continue from `state`. Warn if its batches will be others.

        Raises:
            ValueError: it cannot.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict takes what a Loader's state_dict returned, found {state!r:.60}")
        if missing := sorted(set(own) - set(state) - {"lanes", "shards"}):
            raise ValueError(f"this is not the state of a Loader: it has no {', '.join(missing)}")
        for name in ("seed", "shuffle", "order", "num_samples", "sampler", "lanes"):
            if state.get(name) != own.get(name):
                raise ValueError(
                    f"the state was taken with {name} {state.get(name)}, this loader has {own.get(name)}: make them equal"
                )
        for name, most in (("epoch", LAST_EPOCH), ("consumed", own["num_samples"])):
            whole = hasattr(state[name], "__index__") and not isinstance(state[name], bool)
            if not whole or not 0 <= state[name] <= most:
                raise ValueError(f"the state has {name} {state[name]!r:.40}, which is not a whole number from 0 to {most}")
        if state.get("shards") != own.get("shards"):
            raise ValueError(
                "the state was taken with other shards, so their samples come in another order: use the same store, and the same "
                "part of it, or begin anew"
            )
        if state["ranks"] != own["ranks"] and state["sampler"] and state["consumed"]:
            raise ValueError(
                f"the state was taken in the middle of an epoch with {state['ranks']} ranks, this loader has {own['ranks']}: a "
                "sampler gives each rank a list of its own, so continue with as many ranks, or leave the sampler out"
            )
        if state["global_batch_size"] != own["global_batch_size"] and not state["sampler"]:
            warn_user(
                f"the state was taken with {state['global_batch_size']} samples in a batch over all ranks, this loader has "
                f"{own['global_batch_size']}: give global_batch_size={state['global_batch_size']} to continue with the same batches"
            )
        samplers = (self.any_sampler, getattr(self.any_sampler, "sampler", None))
        generator = any(getattr(one, "generator", None) is not None and not hasattr(one, "set_epoch") for one in samplers)
        if generator and (state["epoch"] or state["consumed"]):
            raise ValueError(
                "the sampler has a generator of its own, whose state was not saved: leave generator out, and the Loader seeds it"
            )
