"""Samplers of the user, and the samplers that a Loader shows to other packages."""

from __future__ import annotations

import copy
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Sampler, SequentialSampler

from fastdata.data.random import isolated_global_rngs, occurrences, seeds_for_user_code
from fastdata.errors import LoaderError
from fastdata.types import Array

REPEATS = "num_repeats", "repetitions"  # of DeiT's, timm's and torchvision's samplers, which repeat a sample on several ranks
SAMPLER_STREAM = 1 << 62  # no sample has this number
EPOCHS = "_fastdata_epochs"  # the attribute of a sampler for its _Epochs


@dataclass
class _Epochs:
    """A sampler's last `epoch`, the last one that the program set, and how often it set one. Loaders may share a sampler."""

    last: int = 0
    set: int = 0
    times: int = 0


class UserSampler:
    """Draws each epoch from a user's sampler of indices, or batch sampler of lists of indices, by the Loader's seed.

    among: the number of samples that indices choose from, or None if the dataset interprets its indices.
    """

    def __init__(self, sampler: Any, is_batch_sampler: bool, seed: int, among: int | None) -> None:
        self._sampler = sampler
        self._is_batch_sampler = is_batch_sampler
        self._seed = seed
        self._among = among
        both = sampler, getattr(sampler, "sampler", None)
        self._with_epoch = next(filter(_tells_epoch, both), None)
        repeats = next((one for one in both if any((getattr(one, name, 1) or 1) > 1 for name in REPEATS)), None)
        self._replicas, self._rank = getattr(repeats, "num_replicas", 1), getattr(repeats, "rank", 0)
        self._next_epoch = self._seen = 0
        self._epochs: _Epochs = vars(self if self._with_epoch is None else self._with_epoch).setdefault(EPOCHS, _Epochs())
        self._drawn_epoch: int | None = None
        self._rows = np.empty((2, 0), np.int64)  # what was drawn: indices, and how often each came before in the epoch
        self._bounds: Any = range(1)  # where the rows of each index, or of each batch of a batch sampler, begin
        self.drawn = 0, 0  # how many indices, and their checksum

    def epoch_set(self) -> int | None:
        """Return the epoch that the program (not a Loader) has set on the sampler since the last call, or None."""
        epochs = self._epochs
        epoch: Any = getattr(self._with_epoch, "epoch", None)  # perhaps a number of numpy
        if hasattr(epoch, "__index__") and epoch != epochs.last:
            epochs.last = epochs.set = int(epoch)
            epochs.times += 1
        seen, self._seen = self._seen, epochs.times
        return None if seen == epochs.times else epochs.set

    def begin_pass(self, epoch: int) -> None:
        """Let this pass draw anew. Set the sampler's `epoch` to the next; the program may then change it."""
        self._drawn_epoch = None
        self._next_epoch = epoch + 1
        self._set_epoch(epoch + 1)

    def _set_epoch(self, epoch: int) -> None:
        self._epochs.last = epoch
        if self._with_epoch is not None:
            self._with_epoch.set_epoch(epoch)

    def batches(self, epoch: int, start: int, stop: int, size: int) -> Iterator[Array]:
        """Yield the batches of `size` in [start, stop): indices, and how often each came before in the epoch, int64 [2, n].

        Raises:
            LoaderError: the sampler yields what it should not, or another number than its len() says.
            IndexError: there is no such sample.
        """
        if self._drawn_epoch != epoch:
            self._draw(epoch, stop)
        for first in range(start, stop, size):
            yield self._rows[:, self._bounds[first] : self._bounds[min(first + size, stop)]]

    def _draw(self, epoch: int, count: int) -> None:
        """Draw an epoch of `count` indices or batches."""
        self._set_epoch(epoch)
        with isolated_global_rngs() as reseed:  # a resumed epoch has the same list
            reseed(seeds_for_user_code(self._seed, epoch, [SAMPLER_STREAM])[0])
            lists = [self._indices(each) for each in (self._sampler if self._is_batch_sampler else [self._sampler])]
        self._set_epoch(self._next_epoch)
        drawn = np.concatenate([np.empty(0, np.int64), *lists])
        self.drawn = len(drawn) if self._replicas == 1 else 0, zlib.crc32(drawn.data)
        self._rows = np.stack([drawn, occurrences(drawn) * self._replicas + self._rank])
        self._bounds = range(len(drawn) + 1)
        if self._is_batch_sampler:
            if not all(map(len, lists)):
                raise LoaderError("batch_sampler gave a batch without indices")
            if len(lists) != count:
                raise LoaderError(f"batch_sampler gave {len(lists)} batches, but its len() is {count}")
            self._bounds = np.cumsum([0, *map(len, lists)])
        elif len(drawn) < count:
            raise LoaderError(f"the sampler ended after {len(drawn)} indices, but its len() is {len(self._sampler)}")
        self._drawn_epoch = epoch

    def _indices(self, drawn: Iterable[Any]) -> Array:
        """Return the indices that are drawn. Negative ones count from the end, as in `dataset[-1]`."""
        name = "batch_sampler" if self._is_batch_sampler else "sampler"
        try:
            found = np.fromiter((operator.index(k) for k in drawn), np.int64)
        except TypeError as error:
            expected = "lists of indices" if self._is_batch_sampler else "indices; lists of them go to batch_sampler="
            raise LoaderError(f"{name} must give {expected}: {error}") from error
        if self._among is None:
            return found
        if (wrong := found[(found < -self._among) | (found >= self._among)]).size:
            raise IndexError(f"{name} gave the index {wrong[0]}, but the dataset has {self._among} samples")
        return np.where(found < 0, found + self._among, found)


def _tells_epoch(sampler: Any) -> bool:
    """Return whether a sampler's `set_epoch` sets its attribute `epoch`. Other samplers are left to the program."""
    if not (hasattr(sampler, "set_epoch") and hasattr(sampler, "epoch")):
        return False
    before, probe = sampler.epoch, copy.copy(sampler)
    probe.set_epoch(SAMPLER_STREAM)
    tells: bool = probe.epoch == SAMPLER_STREAM
    probe.set_epoch(before or 0)  # of a sampler inside, which the copy shares
    return tells


class EpochSampler(Sampler[int]):
    """Passes the epoch on to a Loader: Lightning, timm and torch's examples call `loader.sampler.set_epoch(epoch)`."""

    def __init__(self, loader: Any, length: Callable[[], int]) -> None:
        self.set_epoch = loader.set_epoch
        self._length = length

    def __len__(self) -> int:
        return self._length()

    def __iter__(self) -> Iterator[int]:
        raise LoaderError(
            "unlike a DataLoader, a Loader cannot be rebuilt from its sampler: it would lose its crops and position. Resume with "
            "load_state_dict; for accelerate's skip_first_batches, use fastdata.integrations.accelerate.AcceleratedLoader(loader)"
        )


class SequentialEpochSampler(EpochSampler, SequentialSampler):
    """The sampler of a Loader that does not shuffle, which Lightning's overfit_batches checks for."""
