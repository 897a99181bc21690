"""Lightning's own tests of its Trainer's loaders, with Loaders: which are called when, and how many batches each hook gets.

From Lightning 2.6.5 (Apache-2.0), tests/tests_pytorch, whose code is that of 2.6.6. Each test names its source.
"""

from __future__ import annotations

from unittest.mock import Mock, call

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos import boring_classes
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, RandomDataset
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fastdata import Loader
from own import loader


@pytest.fixture(autouse=True)
def boring(monkeypatch):
    """BoringModel and BoringDataModule make Loaders: 64 batches of one row."""
    monkeypatch.setattr(boring_classes, "DataLoader", loader)


def trainer(tmp_path, **options):
    chosen = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False, "enable_checkpointing": False}
    return L.Trainer(default_root_dir=tmp_path, accelerator="cpu", devices=1, **{**chosen, **options})


class TwoEach(BoringModel):
    """Two loaders for validation, and two for tests."""

    def val_dataloader(self):
        return [loader(RandomDataset(32, 64)), loader(RandomDataset(32, 64), 8)]

    test_dataloader = val_dataloader

    def validation_step(self, batch, batch_idx, dataloader_idx):
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch, batch_idx, dataloader_idx):
        return super().test_step(batch, batch_idx)


class Counter(Callback):
    """How many epochs and batches of each stage began."""

    def __init__(self):
        self.counts = dict.fromkeys(("train_epoch", "validation_epoch", "test_epoch", "train", "validation", "test"), 0)

    def on_train_epoch_start(self, *_):
        self.counts["train_epoch"] += 1

    def on_validation_epoch_start(self, *_):
        self.counts["validation_epoch"] += 1

    def on_test_epoch_start(self, *_):
        self.counts["test_epoch"] += 1

    def on_train_batch_start(self, *_):
        self.counts["train"] += 1

    def on_validation_batch_start(self, *_):
        self.counts["validation"] += 1

    def on_test_batch_start(self, *_):
        self.counts["test"] += 1


# trainer/test_dataloaders.py: test_fit_train_loader_only, test_fit_val_loader_only
@pytest.mark.parametrize("with_val", [False, True])
def test_fit_with_loaders_alone(tmp_path, with_val):
    model = BoringModel()
    train = model.train_dataloader()
    val = model.val_dataloader() if with_val else None
    model.train_dataloader = model.val_dataloader = model.test_dataloader = model.test_step = None
    if not with_val:
        model.validation_step = None
    counter = Counter()
    trainer(tmp_path, fast_dev_run=True, callbacks=counter).fit(model, train, val)
    assert (counter.counts["train"], counter.counts["validation"]) == (1, int(with_val))


# trainer/test_dataloaders.py: test_dataloader_config_errors_runtime
# trainer/flags/test_val_check_interval.py: test_validation_check_interval_exceed_data_length_wrong
@pytest.mark.parametrize("options", [{"val_check_interval": 10000}, {"limit_train_batches": 10, "val_check_interval": 100}])
def test_a_check_interval_longer_than_the_loader_is_refused(tmp_path, options):
    with pytest.raises(ValueError, match="less than or equal to the number of the training batches"):
        trainer(tmp_path, max_epochs=1, **options).fit(BoringModel())


# trainer/test_dataloaders.py: test_multiple_val_dataloader, test_multiple_eval_dataloader
@pytest.mark.parametrize("ckpt_path", [None, "best", "specific"])
def test_several_loaders_of_evaluation(tmp_path, ckpt_path):
    model = TwoEach()
    run = trainer(tmp_path, max_epochs=1, limit_val_batches=0.3, limit_train_batches=1.0, enable_checkpointing=True)
    run.fit(model)
    assert len(run.val_dataloaders) == 2 and run.num_val_batches == [19, 2]
    path = run.checkpoint_callback.best_model_path if ckpt_path == "specific" else ckpt_path
    run.validate(ckpt_path=path, verbose=False)
    assert len(run.val_dataloaders) == 2
    run.test(ckpt_path=path, verbose=False)
    assert len(run.test_dataloaders) == 2 and run.num_test_batches == [64, 8]


# trainer/dynamic_args/test_multiple_eval_dataloaders.py: test_multiple_eval_dataloaders_seq
@pytest.mark.parametrize("kind", [tuple, list])
def test_each_of_several_loaders_keeps_its_number(tmp_path, kind):
    sums = []

    class Model(BoringModel):
        def val_dataloader(self):
            return kind(loader(torch.full((64, 1), float(number)), 11) for number in range(2))

        def validation_step(self, batch, batch_idx, dataloader_idx):
            sums.append((dataloader_idx, batch.sum().item()))

    trainer(tmp_path, limit_train_batches=2, limit_val_batches=2, max_epochs=1, num_sanity_val_steps=0).fit(Model())
    assert sums == [(0, 0.0), (0, 0.0), (1, 11.0), (1, 11.0)]


# trainer/test_dataloaders.py: test_train_dataloader_passed_to_fit, test_dataloaders_passed_to_fn, test_mixing_of_dataloader_options
@pytest.mark.parametrize("count", [1, 2])
def test_loaders_that_are_passed_are_those_that_are_used(tmp_path, count):
    train = loader(RandomDataset(32, 64))
    model = BoringModel() if count == 1 else TwoEach()
    evaluated = loader(RandomDataset(32, 64)) if count == 1 else [loader(RandomDataset(32, 64)) for _ in range(count)]
    run = trainer(tmp_path, max_epochs=1, limit_val_batches=0.1, limit_train_batches=0.2)
    run.fit(model, train, evaluated)
    assert run.train_dataloader == train and run.num_training_batches == 12
    assert run.val_dataloaders == evaluated and run.num_val_batches == count * [6]
    run.test(model, evaluated)
    assert run.test_dataloaders == evaluated
    run.validate(model, evaluated)
    assert run.val_dataloaders == evaluated


# trainer/test_dataloaders.py: test_dataloaders_with_limit_train_batches, test_dataloaders_with_limit_val_batches,
# test_datasets_dataloaders_with_limit_num_batches
@pytest.mark.parametrize("limited", ["train", "val", "all"])
def test_limits_in_batches(tmp_path, limited):
    counter, epochs = Counter(), 2
    stages = ("train", "val", "test") if limited == "all" else (limited,)
    limits = {f"limit_{stage}_batches": 10 for stage in stages}
    run = trainer(tmp_path, max_epochs=epochs, num_sanity_val_steps=0, callbacks=counter, **limits)
    dataset = RandomDataset(32, 128)
    run.fit(BoringModel(), loader(dataset, 8), loader(dataset, 8))
    run.test(BoringModel(), loader(dataset, 8), verbose=False)
    train, val, test = (10 if stage in stages else 16 for stage in ("train", "val", "test"))
    assert (run.num_training_batches, run.num_val_batches, run.num_test_batches) == (train, [val], [test])
    counts = {"train_epoch": 2, "validation_epoch": 2, "test_epoch": 1}
    assert counter.counts == {**counts, "train": 2 * train, "validation": 2 * val, "test": test}


# trainer/test_dataloaders.py: test_dataloaders_with_limit_percent_batches
@pytest.mark.parametrize(("train", "val", "test"), [(1.0, 1.0, 1.0), (0.2, 0.4, 0.4)])
def test_limits_in_parts(tmp_path, train, val, test):
    limits = {"limit_train_batches": train, "limit_val_batches": val, "limit_test_batches": test}
    run = trainer(tmp_path, max_epochs=1, **limits)
    run.fit(TwoEach())
    assert run.num_training_batches == int(64 * train)
    assert run.num_val_batches == [int(64 * val), int(8 * val)]
    run.test(TwoEach(), verbose=False)
    assert run.num_test_batches == [int(64 * test), int(8 * test)]


# trainer/test_dataloaders.py: test_dataloaders_with_limit_num_batches
@pytest.mark.parametrize("test_batches", [3, 1e50])
def test_limits_above_a_loaders_length(tmp_path, test_batches):
    counter = Counter()
    limits = {"limit_train_batches": 1, "limit_val_batches": 2, "limit_test_batches": test_batches}
    run = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0, callbacks=counter, **limits)
    run.fit(TwoEach())
    run.test(TwoEach(), verbose=False)
    assert (run.num_training_batches, run.num_val_batches) == (1, [2, 2])
    assert run.num_test_batches == ([3, 3] if test_batches == 3 else [64, 8])
    assert (counter.counts["validation"], counter.counts["test"]) == (4, sum(run.num_test_batches))


# trainer/test_dataloaders.py: test_dataloaders_with_fast_dev_run
@pytest.mark.parametrize("batches", [True, 3])
def test_fast_dev_run(tmp_path, batches):
    run = trainer(tmp_path, max_epochs=2, fast_dev_run=batches)
    run.fit(TwoEach())
    assert (run.num_training_batches, run.num_val_batches) == (int(batches), 2 * [int(batches)])
    run.test(TwoEach(), verbose=False)
    assert run.num_test_batches == 2 * [int(batches)]


# trainer/connectors/test_data_connector.py: test_error_raised_with_float_limited_eval_batches,
# test_error_raised_with_insufficient_float_limit_train_dataloader
@pytest.mark.parametrize("stage", ["train", "val"])
def test_a_part_that_makes_no_batch_is_refused(tmp_path, stage):
    run = trainer(tmp_path, max_epochs=1, **{f"limit_{stage}_batches": 1 / 66})
    with pytest.raises(MisconfigurationException, match=f"Please increase the `limit_{stage}_batches`"):
        run.fit(BoringModel())


# trainer/test_dataloaders.py: test_fit_multiple_train_loaders
@pytest.mark.parametrize(("mode", "batches"), [("min_size", 16), ("max_size_cycle", 64), ("max_size", 64)])
def test_nested_loaders_of_training(tmp_path, mode, batches):
    seen = []

    class Model(BoringModel):
        def train_dataloader(self):
            sizes = {"a_b": (64, 16), "c_d_e": (16, 16, 16)}
            return CombinedLoader({name: [loader(RandomDataset(32, n)) for n in each] for name, each in sizes.items()}, mode)

        def training_step(self, batch, batch_idx):
            assert [len(batch["a_b"]), len(batch["c_d_e"])] == [2, 3]
            seen.append([part is not None for part in batch["c_d_e"]])
            return super().training_step(batch["a_b"][0], batch_idx)

    run = trainer(tmp_path, max_epochs=1)
    run.fit(Model())
    assert run.num_training_batches == len(seen) == batches
    assert seen == [3 * [mode != "max_size" or k < 16] for k in range(batches)]


# trainer/test_dataloaders.py: test_dataloaders_load_only_once, test_dataloaders_load_only_once_no_sanity_check
@pytest.mark.parametrize("sanity", [0, 2])
def test_loaders_are_asked_for_once(tmp_path, sanity):
    model, tracker = BoringModel(), Mock()
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        wrapped = Mock(wraps=getattr(model, name))
        setattr(model, name, wrapped)
        tracker.attach_mock(wrapped, name)
    limits = {"limit_train_batches": 0.3, "limit_val_batches": 0.3}
    trainer(tmp_path, max_epochs=3, num_sanity_val_steps=sanity, **limits).fit(model)
    calls = [call.train_dataloader(), call.val_dataloader()]
    assert tracker.mock_calls == (calls[::-1] if sanity else calls)


# trainer/test_dataloaders.py: test_dataloaders_load_every_n_epochs_infrequent_val
@pytest.mark.parametrize(
    ("every", "reload", "trains", "vals"), [(3, 2, [0, 2, 4], [2]), (2, 2, [0, 2, 4], [1, 3]), (1, 1, range(5), range(5))]
)
@pytest.mark.parametrize("sanity", [0, 1])
def test_loaders_that_are_reloaded(tmp_path, sanity, every, reload, trains, vals):
    asked = {"train": [], "val": [], "sanity": []}

    class Model(BoringModel):
        def train_dataloader(self):
            asked["train"].append(self.current_epoch)
            return super().train_dataloader()

        def val_dataloader(self):
            asked["sanity" if self.trainer.sanity_checking else "val"].append(self.current_epoch)
            return super().val_dataloader()

    trainer(
        tmp_path,
        limit_train_batches=1,
        limit_val_batches=1,
        check_val_every_n_epoch=every,
        reload_dataloaders_every_n_epochs=reload,
        max_epochs=5,
        num_sanity_val_steps=sanity,
    ).fit(Model())
    expected = [k for k in vals if k or not sanity or every > 1 or reload > 1]
    assert asked == {"train": list(trains), "val": expected, "sanity": sanity * [0]}


# trainer/test_dataloaders.py: test_dataloaders_reset_and_attach
def test_each_call_has_its_own_loaders(tmp_path):
    loaders = [loader(RandomDataset(32, 64)) for _ in range(4)]
    model = BoringModel()
    run = trainer(tmp_path, max_steps=1, limit_val_batches=1, limit_test_batches=1, limit_predict_batches=1)
    for train, val in (loaders[:2], loaders[2:]):
        run.fit(model, train, val)
        assert run.train_dataloader is train and run.val_dataloaders is val
        run.fit_loop.epoch_loop.max_steps += 1
    for each in loaders[:2]:
        run.validate(model, each, verbose=False)
        assert run.val_dataloaders is each
        run.test(model, each, verbose=False)
        assert run.test_dataloaders is each
        run.predict(model, each)
        assert run.predict_dataloaders is each


# trainer/test_dataloaders.py: test_correct_dataloader_idx_in_hooks
@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle"])
def test_the_hooks_of_a_transfer_know_which_loader_it_is(tmp_path, mode):
    seen = {"train": [], "test": []}

    class Model(TwoEach):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            seen["train" if self.trainer.training else "test"].append(dataloader_idx)
            return batch

        def training_step(self, batch, batch_idx):
            return super().training_step(batch["a"], batch_idx)

        def train_dataloader(self):
            return CombinedLoader({name: loader(RandomDataset(32, 64)) for name in "ab"}, mode)

        val_dataloader = None

        def predict_dataloader(self):
            return [loader(RandomDataset(32, 64)) for _ in range(2)]

    model = Model()
    run = trainer(tmp_path, fast_dev_run=5)
    run.fit(model)
    run.test(model, verbose=False)
    assert seen == {"train": 5 * [0], "test": 5 * [0] + 5 * [1]}
    assert [len(each) for each in run.predict(model)] == [5, 5]


# trainer/test_dataloaders.py: test_request_dataloader
def test_a_loader_within_an_object_of_ones_own(tmp_path):
    class Wrapped:
        def __init__(self):
            self.loader = loader(RandomDataset(32, 64))

        def __iter__(self):
            return iter(self.loader)

    run = trainer(tmp_path, limit_train_batches=2, limit_val_batches=2, max_epochs=2)
    run.fit(BoringModel(), train := Wrapped(), val := Wrapped())
    assert run.train_dataloader is train and run.val_dataloaders is val and run.global_step == 4
    assert train.loader.epoch == 1


# core/test_datamodules.py: test_train_loop_only, test_train_val_loop_only, test_dm_checkpoint_save_and_load and others
def test_a_datamodule_of_loaders(tmp_path):
    counter = Counter()
    run = trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, callbacks=counter)
    module = BoringDataModule()
    run.fit(BoringModel(), datamodule=module)
    assert isinstance(run.train_dataloader, Loader)
    run.test(BoringModel(), datamodule=module, verbose=False)
    counts = {"train_epoch": 2, "validation_epoch": 2, "test_epoch": 1, "train": 128, "validation": 128, "test": 64}
    assert counter.counts == counts
