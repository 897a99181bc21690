"""The samplers of a Loader, for packages that call `set_epoch` on a DataLoader's sampler or ask whether it shuffles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import Sampler, SequentialSampler

from fastdata.errors import LoaderError

__all__ = ["EpochSampler", "SequentialEpochSampler"]


class EpochSampler(Sampler[int]):
    """Passes the epoch on to a Loader, which computes the order itself.

    Lightning, timm and torch's examples call `loader.sampler.set_epoch(epoch)` when an epoch begins.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        self.set_epoch = set_epoch

    def __iter__(self) -> Iterator[int]:
        raise LoaderError(
            "a Loader cannot be rebuilt from its sampler, as a DataLoader can: it would lose its crops and position. Resume it "
            "with load_state_dict; for accelerate's skip_first_batches make it a fastdata.integrations.accelerate.AcceleratedLoader"
        )


class SequentialEpochSampler(EpochSampler, SequentialSampler):
    """The sampler of a Loader that does not shuffle, which Lightning's overfit_batches checks for."""
