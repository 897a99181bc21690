"""transformers' Trainer: with a dataset under its own DataLoader, and with Loaders.

What is looked at follows transformers' own tests/trainer/test_trainer_data.py and test_trainer_checkpointing.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from common import train_loader, val_loader
from fastdata import CenterCrop, LMDBDataset
from fastdata.integrations.transformers import LoaderMixin
from stores import COUNT, store

EPOCHS = 3


class Net(nn.Module):
    """A small network that keeps what it was given to train on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 3))
        self.seen = []

    def forward(self, pixel_values, labels):
        if self.training:
            self.seen.append((labels.tolist(), hash(pixel_values.contiguous().numpy().tobytes())))
        logits = self.layers(pixel_values.float() / 255)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class LoaderTrainer(LoaderMixin, Trainer):
    pass


class StopAt(TrainerCallback):
    """Raises after an update, as an accident would."""

    def __init__(self, update):
        self.update = update

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.update:
            raise RuntimeError("an accident")


def arguments(folder, accumulate=1, **options):
    chosen = {
        "num_train_epochs": EPOCHS,
        "per_device_eval_batch_size": 16,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return TrainingArguments(str(folder), gradient_accumulation_steps=accumulate, **{**chosen, **options})


@pytest.fixture(scope="module")
def expected():
    """What three epochs deliver in a loop by hand."""
    with train_loader(0) as loader:
        batches = [batch for _ in range(EPOCHS) for batch in loader]
    return [(targets.tolist(), hash(images.contiguous().numpy().tobytes())) for images, targets in batches]


def test_loaders_give_the_model_each_row_in_order(tmp_path, expected):
    with train_loader() as train, val_loader(2) as val:
        trainer = LoaderTrainer(Net(), arguments(tmp_path, eval_strategy="epoch"), train_dataset=train, eval_dataset=val)
        done = trainer.train()
        assert trainer.num_examples(trainer.get_train_dataloader()) == COUNT
        scores = trainer.predict(val)
    assert trainer.model.seen == expected and done.global_step == len(expected)
    dataset = LMDBDataset(store(), size=64, crop=CenterCrop(24))
    with torch.no_grad():
        images = torch.stack([dataset[k][0] for k in range(COUNT)])
        logits = trainer.model.layers(images.float() / 255)
    assert scores.label_ids.tolist() == dataset.targets.tolist()
    torch.testing.assert_close(torch.from_numpy(scores.predictions), logits)


def run(folder, accumulate=1, *, stop=None, resume=None, workers=0, **options):
    """Train, and save after each update; stop: raise after this update. Returns the model."""
    args = arguments(folder, accumulate, save_strategy="steps", save_steps=1, **options)
    with train_loader(workers) as train:
        trainer = LoaderTrainer(Net(), args, train_dataset=train, callbacks=[] if stop is None else [StopAt(stop)])
        if stop is None:
            trainer.train(resume_from_checkpoint=resume)
        else:
            with pytest.raises(RuntimeError, match="an accident"):
                trainer.train()
    return trainer.model


@pytest.mark.parametrize(("accumulate", "updates"), [(1, [1, 4, 6, 11]), (4, [1, 2, 3])])
def test_a_resumed_run_goes_on_with_the_next_row_and_ends_with_the_same_bits(tmp_path, expected, accumulate, updates):
    straight = run(tmp_path, accumulate)
    assert straight.seen == expected
    each = -(-6 // accumulate)
    for update in updates:
        folder = tmp_path / str(update)
        run(folder, accumulate, stop=update + 1)
        resumed = run(folder, accumulate, resume=str(folder / f"checkpoint-{update}"), workers=2)
        assert resumed.seen == expected[update // each * 6 + update % each * accumulate :]
        for name, tensor in straight.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("option", [{"train_sampling_strategy": "group_by_length"}, {"dataloader_drop_last": True}])
def test_options_that_a_loader_would_not_follow_are_an_error(tmp_path, option):
    with train_loader() as train, pytest.raises(ValueError, match="the Loader makes the batches"):
        LoaderTrainer(Net(), arguments(tmp_path, **option), train_dataset=train).get_train_dataloader()
