"""transformers' own tests of its Trainer's loaders, evaluation and restarts, with Loaders.

From transformers (Apache-2.0), tests/trainer, on its main branch beside 5.23. Each test names its source.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerState, TrainingArguments

from fastdata.integrations.transformers import LoaderMixin
from own import loader


class Regression:
    """y = 2 x + 3, with noise."""

    def __init__(self, length=64):
        draw = np.random.default_rng(42)
        self.x = draw.normal(size=length).astype(np.float32)
        self.y = (2 * self.x + 3 + draw.normal(scale=0.1, size=length)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return {"input_x": self.x[k], "labels": self.y[k]}


class Model(nn.Module):
    def __init__(self, a=0.0, b=0.0, double_output=False):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), nn.Parameter(torch.tensor(b))
        self.double_output = double_output

    def forward(self, input_x, labels):
        y = input_x * self.a + self.b
        loss = nn.functional.mse_loss(y, labels)
        return (loss, y, y) if self.double_output else (loss, y)


class LoaderTrainer(LoaderMixin, Trainer):
    def to_inputs(self, batch):
        return batch


def close(scores, labels):
    return (np.abs(scores - labels) <= 0.25).astype(np.float32).mean().item()


def metrics(predicted):
    return {"accuracy": close(*predicted)}


def trainer(folder, *, model=None, train=None, val=None, compute_metrics=None, preprocess=None, **options):
    chosen = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 0.1, "save_strategy": "no"}
    return LoaderTrainer(
        model or Model(1.5, 2.5),
        TrainingArguments(str(folder), **{**chosen, **options}),
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
    )


# test_trainer_data.py: test_train_and_eval_dataloaders
@pytest.mark.parametrize("drop_last", [False, True])
def test_lengths_of_the_loaders(tmp_path, drop_last):
    train = loader(Regression(66), 16, shuffle=True, drop_last=drop_last)
    val = loader(Regression(74), 32, drop_last=drop_last)
    sizes = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 32}
    made = trainer(tmp_path, train=train, val=val, **sizes)
    assert len(made.get_train_dataloader()) == 66 // 16 + (not drop_last)
    assert len(made.get_eval_dataloader()) == 74 // 32 + (not drop_last)
    assert len(made.get_eval_dataloader(loader(Regression(128), 32))) == 4


# test_trainer_data.py: test_dataloader_without_dataset
def test_a_loader_without_a_dataset(tmp_path):
    class Two:
        def __init__(self, one, other):
            self.loaders = one, other

        def __len__(self):
            return sum(map(len, self.loaders))

        def __iter__(self):
            return itertools.chain.from_iterable(self.loaders)

    class TwoTrainer(LoaderTrainer):
        def get_train_dataloader(self):
            return Two(*(super(TwoTrainer, self).get_train_dataloader() for _ in range(2)))

        def get_eval_dataloader(self, eval_dataset=None):
            return Two(*(super(TwoTrainer, self).get_eval_dataloader(eval_dataset) for _ in range(2)))

    rows = Regression(128)
    args = trainer(tmp_path).args
    made = TwoTrainer(Model(), args, train_dataset=loader(rows, 8, shuffle=True), eval_dataset=loader(rows, 8))
    assert made.train().global_step == 3 * 2 * 16
    assert made.evaluate()["eval_loss"] == pytest.approx(
        np.mean((made.model.a.item() * rows.x + made.model.b.item() - rows.y) ** 2)
    )


# test_trainer_data.py: test_get_eval_dataloader_without_persistent_workers, test_get_eval_dataloader_with_persistent_workers
def test_each_loader_of_evaluation_has_its_dataset(tmp_path):
    loaders = {"first": loader(Regression(), 8), "second": loader(Regression(), 8)}
    made = trainer(tmp_path, val=loaders)
    for name, each in loaders.items():
        assert made.get_eval_dataloader(name).dataset is made.get_eval_dataloader(each).dataset is each.dataset
    assert trainer(tmp_path, val=loaders["first"]).get_eval_dataloader().dataset is loaders["first"].dataset


# test_trainer_evaluation.py: test_evaluate, test_evaluate_with_batch_eval_metrics
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("length", [64, 66])
def test_evaluate(tmp_path, length, batches, shift):
    rows, seen = Regression(length), []

    def by_batch(predicted, compute_result):
        seen.append([part.numpy() for part in predicted])
        return {"accuracy": close(*map(np.concatenate, zip(*seen, strict=True)))} if compute_result else {}

    options = {"compute_metrics": by_batch if batches else metrics, "batch_eval_metrics": batches}
    found = trainer(tmp_path, val=loader(rows, 8), preprocess=lambda scores, labels: scores + shift, **options).evaluate()
    scores = 1.5 * rows.x + 2.5
    assert found["eval_loss"] == pytest.approx(np.mean((scores - rows.y) ** 2), rel=1e-5)
    assert found["eval_accuracy"] == pytest.approx(close(scores + shift, rows.y))


# test_trainer_evaluation.py: test_predict, test_predict_with_batch_eval_metrics
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("length", [64, 66])
def test_predict(tmp_path, length, double):
    rows = Regression(length)
    found = trainer(tmp_path, model=Model(1.5, 2.5, double)).predict(loader(rows, 8))
    for scores in found.predictions if double else [found.predictions]:
        np.testing.assert_allclose(scores, 1.5 * rows.x + 2.5, rtol=1e-5)
    np.testing.assert_array_equal(found.label_ids, rows.y)


# test_trainer_data.py: test_dynamic_shapes
@pytest.mark.parametrize("steps", [None, 2])
def test_batches_of_different_shapes(tmp_path, steps):
    draw = np.random.default_rng(42)
    sizes = draw.integers(1, 20, 8).repeat(8)
    rows = [{"input_x": draw.normal(size=n).astype(np.float32), "labels": draw.normal(size=n).astype(np.float32)} for n in sizes]
    made = trainer(tmp_path, model=Model(2.0, 1.0), val=loader(rows, 8), eval_accumulation_steps=steps)
    assert np.isfinite(made.evaluate()["eval_loss"])
    found = made.predict(loader(rows, 8))
    for row, scores, labels in zip(rows, found.predictions, found.label_ids, strict=True):
        n = len(row["labels"])
        assert np.array_equal(labels[:n], row["labels"]) and np.array_equal(scores[:n], 2 * row["input_x"] + 1)
        assert (labels[n:] == -100).all() and (scores[n:] == -100).all()


# test_trainer.py: test_number_of_steps_in_training, test_training_arguments_are_left_untouched's steps
@pytest.mark.parametrize(("options", "steps"), [({}, 24), ({"num_train_epochs": 1.5}, 12), ({"max_steps": 10}, 10)])
def test_the_number_of_steps(tmp_path, options, steps):
    assert trainer(tmp_path, train=loader(Regression(), 8, shuffle=True), **options).train().global_step == steps


def state_of(made):
    """What a TrainerState says, without the times."""
    state = dataclasses.asdict(made.state)
    times = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}
    state["log_history"] = [{name: value for name, value in log.items() if name not in times} for log in state["log_history"]]
    return state


# test_trainer_checkpointing.py: test_can_resume_training, test_resume_training_with_gradient_accumulation,
# test_resume_training_with_frozen_params
@pytest.mark.parametrize(
    ("accumulate", "rows", "frozen"), [(1, 8, False), (2, 4, False), (1, 4, True)], ids=["plain", "accumulated", "frozen"]
)
def test_resume(tmp_path, accumulate, rows, frozen):
    def fit(checkpoint=None):
        model = Model()
        model.a.requires_grad_(not frozen)
        made = trainer(
            tmp_path,
            model=model,
            train=loader(Regression(128), rows, shuffle=True),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulate,
            save_strategy="steps",
            save_steps=5,
            logging_steps=5,
            learning_rate=0.01,
        )
        made.train(resume_from_checkpoint=checkpoint)
        return model.a.item(), model.b.item(), state_of(made)

    straight = fit()
    assert straight[1] != 0
    for step in (5, 15, 20):
        assert fit(str(tmp_path / f"checkpoint-{step}")) == straight


# test_trainer_checkpointing.py: test_resume_training_with_different_batch_size
def test_resume_with_another_batch_size(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1}
    made = trainer(tmp_path, train=loader(Regression(), 2, shuffle=True), per_device_train_batch_size=2, max_steps=2, **options)
    made.train()
    checkpoint = tmp_path / "checkpoint-1"
    assert TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).train_batch_size == 2
    made = trainer(tmp_path, train=loader(Regression(), 4, shuffle=True), per_device_train_batch_size=4, max_steps=4, **options)
    assert made.train(resume_from_checkpoint=str(checkpoint)).global_step == 4
