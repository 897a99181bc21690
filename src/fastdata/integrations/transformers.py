"""LoaderMixin: transformers' Trainer with Loaders where it takes datasets."""

from collections.abc import Iterator
from typing import Any

from fastdata.integrations.accelerate import AcceleratedLoader
from fastdata.loader.loader import Loader


class LoaderMixin:
    """Let the datasets of a Trainer be Loaders: `class ImageTrainer(LoaderMixin, Trainer)`.

    A resumed run goes on with the next batch, and decodes no batch before it.

    Raises:
        ValueError: per_device_train_batch_size or per_device_eval_batch_size, by which losses are weighted, is not the Loader's
            batch size, or an option asks for another order.
    """

    def to_inputs(self, batch: Any) -> dict[str, Any]:
        """Name the parts of a batch as the model's `forward` does."""
        return {"pixel_values": batch[0], "labels": batch[1]}

    def _get_dataloader(self: Any, dataset: Any, *args: Any, is_training: bool = False, **options: Any) -> Any:
        if not isinstance(dataset, Loader):
            return super()._get_dataloader(dataset, *args, is_training=is_training, **options)  # type: ignore[misc]
        stage, rows = "train" if is_training else "eval", dataset.global_batch_size // dataset.part.world_size
        if (asked := getattr(self.args, f"{stage}_batch_size")) != rows:
            raise ValueError(f"per_device_{stage}_batch_size is {asked}, but the Loader has batches of {rows}: make them equal")
        strategy, drops = getattr(self.args, "train_sampling_strategy", "random"), self.args.dataloader_drop_last
        if (is_training and strategy != "random") or (drops and not dataset.drop_last):
            raise ValueError(
                f"train_sampling_strategy is {strategy!r} and dataloader_drop_last {drops}, but the Loader makes the batches: "
                "leave both out; give the Loader drop_last=True or a batch_sampler"
            )
        return (_Training if is_training else _Inputs)(dataset, self)

    def prediction_step(self: Any, *args: Any, **options: Any) -> Any:
        """Run the Trainer's own step. Average its loss over ranks: the Trainer repeats it for each row, and drops surplus rows."""
        loss, *outputs = super().prediction_step(*args, **options)  # type: ignore[misc]
        if loss is not None and isinstance(self.accelerator.gradient_state.active_dataloader, _Inputs):
            loss = self.accelerator.reduce(loss, "mean")
        return loss, *outputs

    def num_examples(self: Any, dataloader: Any) -> Any:
        ours = isinstance(dataloader, AcceleratedLoader)
        return dataloader.loader.num_samples if ours else super().num_examples(dataloader)  # type: ignore[misc]


class _Inputs(AcceleratedLoader):
    def __init__(self, loader: Loader, trainer: Any) -> None:
        super().__init__(loader)
        self._trainer = trainer

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    def __iter__(self) -> Iterator[Any]:
        return map(self._trainer.to_inputs, super().__iter__())


class _Training(_Inputs):
    dataset = AcceleratedLoader.dataset

    def begin(self) -> int:
        """Move the Loader to the trainer's position, which follows from the number of updates, and begin there."""
        accumulate = self._trainer.args.gradient_accumulation_steps
        epoch, updates = divmod(self._trainer.state.global_step, -(-len(self) // accumulate))
        place = {"epoch": epoch, "consumed": updates * accumulate * self.loader.global_batch_size}
        self.load_state_dict({**self.state_dict(), **place})
        return super().begin()
