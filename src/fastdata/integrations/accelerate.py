"""AcceleratedLoader: a Loader that tells Accelerate where its epoch ends, and how many rows its last batch has."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from torch.utils.data import IterableDataset

from fastdata.loader.fetch import as_is
from fastdata.loader.loader import Loader


class AcceleratedLoader:
    """A Loader that Accelerate takes for a DataLoader of its own; `accelerator.prepare` returns it unchanged.

    Accumulated gradients are synchronized at the end of an epoch, `gather_for_metrics` drops repeated rows, `skip_first_batches`
    counts from the beginning of the epoch, and `register_for_checkpointing` keeps the Loader's place.
    """

    end_of_dataloader, sampler, drop_last, batch_size, prefetch_factor = False, None, False, None, None
    collate_fn = staticmethod(as_is)

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        loader._sampling.ranks.blocks = True  # what `gather` returns is then in the dataset's order
        self.set_epoch, self.state_dict, self.load_state_dict = loader.set_epoch, loader.state_dict, loader.load_state_dict

    @property
    def dataset(self) -> Any:
        """The iterable that `skip_first_batches` reads."""
        return _FromTheStart(self)  # made anew, so that nothing refers to itself and `del` ends the workers

    def __len__(self) -> int:
        return len(self.loader)

    def begin(self) -> int:
        """Begin a pass, and return the number of batches of its epoch that were delivered before."""
        begun = self.loader._position.begun  # a pass that was left: the next one begins another epoch
        return 0 if begun else int(self.state_dict()["consumed"]) // self.loader.global_batch_size

    def __iter__(self) -> Iterator[Any]:
        from accelerate.state import GradientState

        gradients = GradientState()
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            for batch in self.loader:
                self.end_of_dataloader = self.state_dict()["consumed"] == 0
                yield batch
        finally:
            gradients._remove_dataloader(self)

    @property
    def remainder(self) -> int:
        """How many of the rows that ranks gather at an epoch's end are real (they come first); 0 with a sampler, as all are."""
        sampled = self.state_dict()["sampler"]
        return 0 if sampled else (self.loader.epoch_stop - 1) % self.loader.global_batch_size + 1


class _FromTheStart(IterableDataset[Any]):
    """The batches of an epoch from the first one, as `skip_first_batches` expects; batches consumed before are None."""

    def __init__(self, loader: AcceleratedLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        yield from repeat(None, self._loader.begin())
        yield from self._loader
