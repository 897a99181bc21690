"""Lightning's own tests of restarts, and Fabric's own of loaders, with Loaders.

From Lightning 2.6.5 (Apache-2.0), tests/tests_pytorch and tests/tests_fabric; its code is that of 2.6.6. Each names its source.
"""

from __future__ import annotations

import warnings
from unittest.mock import Mock, call

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.data import has_iterable_dataset, has_len
from lightning.fabric.wrappers import _FabricDataLoader
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.demos import boring_classes
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from own import Numbers, loader


@pytest.fixture(autouse=True)
def boring(monkeypatch):
    """BoringModel makes Loaders: 64 batches of one row."""
    monkeypatch.setattr(boring_classes, "DataLoader", loader)


def trainer(tmp_path, **options):
    chosen = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False, "enable_checkpointing": False}
    return L.Trainer(default_root_dir=tmp_path, accelerator="cpu", devices=1, **{**chosen, **options})


class Accident(Exception):
    pass


class Rows(BoringModel):
    """Keeps the numbers that it was trained on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append([int(part) for part in batch])
        return self.layer(torch.ones(1, 32)).sum()


# loops/test_loops.py: test_fit_loop_save_and_restore_dataloaders
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_checkpoint_keeps_the_place_of_each_loader(tmp_path, count):
    def fit(steps, ckpt_path=None):
        loaders = [loader(Numbers(10), shuffle=True, seed=seed) for seed in range(max(count, 1))]
        saved = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, enable_version_counter=False)
        model = Rows()
        run = trainer(tmp_path, max_steps=steps, limit_val_batches=0, callbacks=saved, enable_checkpointing=True)
        run.fit(model, CombinedLoader(loaders) if count else loaders[0], ckpt_path=ckpt_path)
        run.save_checkpoint(tmp_path / "after.ckpt")
        return model.seen

    straight = fit(14)
    assert fit(2) == straight[:2]
    saved = torch.load(tmp_path / "step=2.ckpt", weights_only=True)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert [state["consumed"] for state in saved] == max(count, 1) * [2]
    assert fit(4, tmp_path / "step=2.ckpt") == straight[2:4]
    assert fit(6, tmp_path / "after.ckpt") == straight[10:12], "Lightning counts an epoch as over when a run has ended within it"
    assert fit(14, tmp_path / "step=4.ckpt") == straight[4:], "across the end of an epoch"


# loops/test_loops.py: test_restart_parity, test_restart_with_val_parity
@pytest.mark.parametrize("options", [{}, {"limit_val_batches": 4, "val_check_interval": 2}], ids=["train", "val"])
def test_a_restart_writes_the_same_checkpoints(tmp_path, options):
    rows = RandomDataset(32, 64)

    def fit(folder, ckpt_path=None):
        torch.manual_seed(1)
        saved = ModelCheckpoint(tmp_path / folder, every_n_train_steps=2, save_top_k=-1)
        run = trainer(tmp_path, limit_train_batches=4, max_epochs=4, callbacks=saved, enable_checkpointing=True, **options)
        run.fit(BoringModel(), loader(rows, shuffle=True), ckpt_path=ckpt_path)

    fit("first")
    fit("second", tmp_path / "first" / "epoch=0-step=2.ckpt")
    for name in ("epoch=0-step=4", "epoch=1-step=6", "epoch=1-step=8", "epoch=3-step=16"):
        one, other = (torch.load(tmp_path / folder / f"{name}.ckpt", weights_only=True) for folder in ("first", "second"))
        assert one["loops"] == other["loops"] and one["lr_schedulers"] == other["lr_schedulers"]
        assert (one["epoch"], one["global_step"]) == (other["epoch"], other["global_step"])
        assert all(torch.equal(weights, other["state_dict"][key]) for key, weights in one["state_dict"].items())


# loops/test_loops.py: test_restart_from_last_parity, test_restart_from_last_with_val_parity
@pytest.mark.parametrize("options", [{}, {"limit_val_batches": 2, "val_check_interval": 2}], ids=["train", "val"])
def test_a_restart_after_the_last_epoch(tmp_path, options):
    def fit(folder, epochs, ckpt_path=None):
        saved = ModelCheckpoint(tmp_path / folder, save_last=True, save_top_k=-1)
        run = trainer(tmp_path, limit_train_batches=2, max_epochs=epochs, callbacks=saved, enable_checkpointing=True, **options)
        run.fit(BoringModel(), loader(RandomDataset(32, 64), shuffle=True), ckpt_path=ckpt_path)
        return torch.load(tmp_path / folder / "last.ckpt", weights_only=True)["loops"]

    straight = fit("straight", 4)
    fit("half", 2)
    assert fit("rest", 4, tmp_path / "half" / "last.ckpt")["fit_loop"] == straight["fit_loop"]


# loops/test_loops.py: test_loop_restart_progress_multiple_dataloaders, test_fit_can_fail_during_validation
@pytest.mark.parametrize("stop", [(1, 1), (2, 2)])
@pytest.mark.parametrize(("loaders", "which"), [(2, 0), (2, 1), (3, 2)])
def test_the_progress_of_several_loaders_at_an_accident(tmp_path, loaders, which, stop):
    class Model(BoringModel):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            if (self.current_epoch, batch_idx, dataloader_idx) == (*stop, which):
                raise Accident
            return super().validation_step(batch, batch_idx)

        def val_dataloader(self):
            return [loader(RandomDataset(32, 64)) for _ in range(loaders)]

    limits = {"max_epochs": 3, "limit_train_batches": 1, "limit_val_batches": 5}
    run = trainer(tmp_path, callbacks=OnExceptionCheckpoint(tmp_path), enable_checkpointing=True, **limits)
    with pytest.raises(Accident):
        run.fit(Model())
    run.fit_loop.load_state_dict(torch.load(tmp_path / "on_exception.ckpt", weights_only=True)["loops"]["fit_loop"])
    done = 5 * which + stop[1]
    counts = {"ready": done + 1, "started": done + 1, "processed": done, "completed": done}
    progress = run.fit_loop.epoch_loop.val_loop.batch_progress.state_dict()
    assert progress == {"total": counts, "current": counts, "is_last_batch": False}


# loops/test_training_epoch_loop.py: test_resume_mid_epoch_warning
@pytest.mark.parametrize("step", [1, 3])
def test_a_resume_within_an_epoch_is_not_warned_of(tmp_path, step):
    saved = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
    options = {"max_epochs": 1, "limit_val_batches": 0}
    trainer(tmp_path, callbacks=saved, enable_checkpointing=True, **options).fit(BoringModel(), loader(RandomDataset(32, 3)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = tmp_path / f"epoch=0-step={step}.ckpt"
        trainer(tmp_path, **options).fit(BoringModel(), loader(RandomDataset(32, 3)), ckpt_path=path)
    assert not any("resuming from a checkpoint that ended before" in str(warning.message) for warning in caught)


# loops/test_loops.py: test_workers_are_shutdown
@pytest.mark.parametrize("fails", [False, True])
def test_workers_outlive_a_fit_and_end_with_the_loader(tmp_path, fails):
    class Fails(Callback):
        def on_train_epoch_end(self, trainer, *_):
            if fails and trainer.current_epoch == 1:
                raise Accident

    run = trainer(tmp_path, limit_train_batches=2, limit_val_batches=2, max_epochs=3, callbacks=Fails())
    with loader(RandomDataset(32, 64), num_workers=1) as train, loader(RandomDataset(32, 64), num_workers=1) as val:
        if fails:
            with pytest.raises(Accident):
                run.fit(BoringModel(), train, val)
        else:
            run.fit(BoringModel(), train, val)
        assert train.epoch == val.epoch == (1 if fails else 2)
        assert len(list(train)) == 64
    assert train._engine is None and val._engine is None


class Told(RandomSampler):
    """A sampler that records what `set_epoch` is told."""

    def __init__(self, rows):
        super().__init__(rows)
        self.set_epoch = Mock()


# loops/test_evaluation_loop.py: test_evaluation_loop_sampler_set_epoch_called
# loops/test_prediction_loop.py: test_prediction_loop_batch_sampler_set_epoch_called
@pytest.mark.parametrize("batches", [False, True])
def test_a_sampler_is_told_each_epoch(tmp_path, batches):
    def made():
        rows = RandomDataset(32, 64)
        sampler = Told(rows)
        if batches:
            return sampler, loader(rows, None, batch_sampler=BatchSampler(sampler, 2, True))
        return sampler, loader(rows, sampler=sampler)

    (train, first), (val, second), (predict, third) = (made() for _ in range(3))
    run = trainer(tmp_path, limit_train_batches=1, limit_val_batches=1, limit_predict_batches=1, max_epochs=2)
    run.fit(BoringModel(), first, second)
    run.predict(BoringModel(), third)
    assert list(dict.fromkeys(map(str, train.set_epoch.mock_calls))) == [str(call(0)), str(call(1))]
    assert list(dict.fromkeys(map(str, val.set_epoch.mock_calls))) == [str(call(0)), str(call(1))]
    assert predict.set_epoch.call_count


# tests_fabric/utilities/test_data.py: test_has_len, test_has_iterable_dataset
def test_fabric_knows_its_length():
    made = loader(RandomDataset(1, 1))
    assert has_len(made) and not has_iterable_dataset(made)


# tests_fabric/test_wrappers.py: test_fabric_dataloader_iterator, test_fabric_dataloader_device_placement
def test_fabric_iterates_and_moves_batches():
    samples = [torch.tensor(0), torch.tensor(1), {"data": torch.tensor(2)}, {"data": torch.tensor(3)}]
    wrapped = _FabricDataLoader(loader(samples, 2), device=torch.device("meta"))
    assert len(wrapped) == 2
    first, second = wrapped
    assert first.device.type == second["data"].device.type == "meta" and first.shape == second["data"].shape == (2,)
    assert [batch.tolist() for batch in _FabricDataLoader(loader(range(5), 2))] == [[0, 1], [2, 3], [4]]


# tests_fabric/test_wrappers.py: test_fabric_dataloader_distributed_sampler_set_epoch
@pytest.mark.parametrize("batches", [False, True])
def test_fabric_tells_a_sampler_the_epoch(batches):
    sampler = DistributedSampler(range(3), num_replicas=2, rank=0)
    expected = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected.append([[k] for k in sampler])
    options = {"batch_sampler": BatchSampler(sampler, 1, False)} if batches else {"batch_size": 1, "sampler": sampler}
    wrapped = _FabricDataLoader(loader(range(3), **{"batch_size": None, **options}))
    assert [[batch.tolist() for batch in wrapped] for _ in range(2)] == expected
