"""The number of samples and batches of an epoch, and whether a saved state fits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastdata.loader.order import Part

__all__ = ["Counts", "check_state", "count_batches"]


class Counts(NamedTuple):
    """The samples of an epoch, the samples of a global batch, and where the epoch ends."""

    num_samples: int
    global_batch_size: int
    epoch_stop: int


def count_batches(
    dataset: Any,
    batch_size: int | None,
    global_batch_size: int | None,
    sampler: Any,
    batch_sampler: Any,
    part: Part,
    *,
    drop_last: bool,
) -> Counts:
    """Return the counts of a Loader with these arguments; with a sampler, for this rank alone; with a batch sampler, in batches.

    Raises:
        ValueError: the arguments make no batch.
        TypeError: `dataset` is not a map-style dataset.
    """
    mapped = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not mapped or isinstance(dataset, str | bytes):
        raise TypeError(f"a Loader takes datasets with len() and [index], such as LMDBDataset(path); got {dataset!r:.80}")
    if batch_sampler is not None:
        if len(batch_sampler) == 0:
            raise ValueError("batch_sampler has no batches")
        return Counts(len(batch_sampler), 1, len(batch_sampler))
    world = 1 if sampler is not None else part.world_size
    if (batch_size is None) == (global_batch_size is None):
        raise ValueError("give batch_size (per rank) or global_batch_size (over all ranks), one of them")
    total = global_batch_size if batch_size is None else batch_size * world
    assert total is not None
    ranks = 1 if batch_size is not None else part.world_size
    if total < 1 or total % ranks:
        name = "global_batch_size" if batch_size is None else "batch_size"
        raise ValueError(f"{name} is {total}, but must be a positive multiple of the {ranks} ranks")
    if sampler is not None:
        total //= ranks
    num_samples = len(sampler if sampler is not None else dataset)
    stop = num_samples - num_samples % total if drop_last else num_samples
    if stop == 0:
        raise ValueError(f"the dataset has {num_samples} samples, fewer than one batch of {total}")
    return Counts(num_samples, total, stop)


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any], sampler: Any) -> None:
    """Raise a ValueError if a loader whose own state is `mine` cannot continue from `state`."""
    if missing := sorted(set(mine) - set(state)):
        raise ValueError(f"this is not the state of a Loader: it has no {', '.join(missing)}")
    for name in ("seed", "shuffle", "num_samples", "sampler"):
        if state[name] != mine[name]:
            raise ValueError(f"the state was taken with {name} {state[name]}, this loader has {mine[name]}: make them equal")
    inner = (sampler, getattr(sampler, "sampler", None))
    own = any(getattr(part, "generator", None) is not None and not hasattr(part, "set_epoch") for part in inner)
    if own and (state["epoch"] or state["consumed"]):
        raise ValueError(
            "the sampler has a generator of its own, whose state was not saved: leave generator out, and the Loader seeds it"
        )
