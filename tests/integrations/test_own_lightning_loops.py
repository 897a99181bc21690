"""Lightning's own tests of its loops, with Loaders: when validation runs, CombinedLoaders, steps that take an iterator.

From Lightning 2.6.5 (Apache-2.0), tests/tests_pytorch, whose code is that of 2.6.6. Each test names its source.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

import lightning as L
import pytest
import torch
from lightning.pytorch.demos import boring_classes
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher, _PrefetchDataFetcher
from lightning.pytorch.utilities import CombinedLoader

from fastdata import LoaderError
from own import Numbers, loader


@pytest.fixture(autouse=True)
def boring(monkeypatch):
    """BoringModel makes Loaders: 64 batches of one row."""
    monkeypatch.setattr(boring_classes, "DataLoader", loader)


def trainer(tmp_path, **options):
    chosen = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False, "enable_checkpointing": False}
    return L.Trainer(default_root_dir=tmp_path, accelerator="cpu", devices=1, **{**chosen, **options})


class Recorder(BoringModel):
    """Counts the batches of training, and keeps after how many of them validation ran."""

    def __init__(self):
        super().__init__()
        self.batches, self.validated = 0, []

    def training_step(self, batch, batch_idx):
        self.batches += 1
        return super().training_step(batch, batch_idx)

    def on_validation_epoch_start(self):
        if not self.trainer.sanity_checking:
            self.validated.append(self.batches)


# trainer/flags/test_val_check_interval.py: test_val_check_interval
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("parts", [1, 3, 4])
def test_val_check_interval_in_parts(tmp_path, epochs, parts):
    model = Recorder()
    trainer(tmp_path, max_epochs=epochs, val_check_interval=1 / parts, limit_val_batches=1).fit(model)
    assert model.validated == [64 * epoch + 64 // parts * k for epoch in range(epochs) for k in range(1, parts + 1)]
    assert model.batches == 64 * epochs


# trainer/flags/test_val_check_interval.py: test_validation_check_interval_exceed_data_length_correct
@pytest.mark.parametrize("accumulate", [1, 2])
def test_val_check_interval_across_epochs(tmp_path, accumulate):
    model = Recorder()
    run = trainer(
        tmp_path,
        limit_val_batches=1,
        max_steps=12 // accumulate,
        val_check_interval=3,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=accumulate,
    )
    run.fit(model, loader(RandomDataset(32, 4)))
    assert (run.current_epoch, run.global_step) == (3, 12 // accumulate)
    assert model.validated == [3, 6, 9, 12]


# trainer/flags/test_check_val_every_n_epoch.py: test_check_val_every_n_epoch, test_check_val_every_n_epoch_with_max_steps
@pytest.mark.parametrize(("epochs", "validations"), [(1, 0), (4, 2), (5, 2)])
def test_check_val_every_n_epoch(tmp_path, epochs, validations):
    model = Recorder()
    run = trainer(tmp_path, max_steps=2 * epochs, limit_val_batches=2, check_val_every_n_epoch=2, num_sanity_val_steps=0)
    run.fit(model, loader(RandomDataset(32, 2)))
    assert (run.current_epoch, run.global_step) == (epochs, 2 * epochs)
    assert model.validated == [4 * k for k in range(1, validations + 1)]


# loops/test_loops.py: test_validation_during_gradient_accumulation_window
def test_validation_while_gradients_accumulate(tmp_path):
    seen = []

    class Model(BoringModel):
        def on_validation_start(self):
            done = self.trainer.fit_loop.epoch_loop.batch_progress.current.completed
            seen.append((done, all((p.grad is not None) == (done % 3 != 0) for p in self.parameters())))

    limits = {"limit_train_batches": 6, "limit_val_batches": 1, "val_check_interval": 2, "num_sanity_val_steps": 0}
    trainer(tmp_path, accumulate_grad_batches=3, max_epochs=1, **limits).fit(Model())
    assert seen == [(2, True), (4, True), (6, True)]


# trainer/flags/test_overfit_batches.py: test_overfit_basic, test_overfit_batches_same_batch_for_train_and_val
@pytest.mark.parametrize("batches", [1, 2, 0.25, 1.0])
def test_overfit_batches(tmp_path, batches):
    rows = RandomDataset(32, 64)
    seen = {"train": [], "val": []}

    class Model(BoringModel):
        def training_step(self, batch, batch_idx):
            seen["train"].append(batch)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            seen["val"].append(batch)

    run = trainer(tmp_path, max_epochs=2, overfit_batches=batches, num_sanity_val_steps=0)
    run.fit(Model(), loader(rows), loader(rows))
    count = batches if isinstance(batches, int) else int(64 * batches)
    assert run.num_training_batches == count and run.num_val_batches == [count]
    expected = 2 * list(rows.data[:count].unsqueeze(1))
    assert all(len(each) == 2 * count and all(map(torch.equal, each, expected)) for each in seen.values())


# trainer/properties/test_estimated_stepping_batches.py: test_num_stepping_batches_basic, ..._with_max_steps,
# ..._infinite_training, ..._accumulate_gradients
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 2}, 128),
        ({"max_epochs": 1, "accumulate_grad_batches": 2}, 32),
        ({"max_epochs": 1, "accumulate_grad_batches": 3}, 22),
        ({"max_steps": -1, "max_epochs": -1}, float("inf")),
        ({"max_steps": 100, "max_epochs": -1}, 100),
    ],
)
def test_estimated_stepping_batches(tmp_path, options, steps):
    run = trainer(tmp_path, **options)
    model = BoringModel()
    run.strategy.connect(model)
    run._data_connector.attach_data(model)
    assert run.estimated_stepping_batches == steps


class Pair(NamedTuple):
    a: object
    b: object


LENGTHS = (3, 4)  # of 10 rows by 4, and of 20 by 5
COMBINED = {"min_size": 3, "max_size_cycle": 4, "max_size": 4, "sequential": 7}


# utilities/test_combined_loader.py: test_combined_loader_modes_for_dict, ..._for_list, ..._for_namedtuple
@pytest.mark.parametrize("mode", COMBINED)
@pytest.mark.parametrize("kind", [dict, list, Pair], ids=lambda kind: kind.__name__)
def test_combined_loader_modes(kind, mode):
    loaders = [loader(range(10), 4), loader(range(20), 5)]
    made = {dict: lambda a, b: {"a": a, "b": b}, list: lambda a, b: [a, b], Pair: Pair}[kind]
    combined = CombinedLoader(made(*loaders), mode)
    for _ in range(2):  # the second pass is as long as the first
        found = list(combined)
        assert len(combined) == len(found) == COMBINED[mode]
        if mode == "sequential":
            assert [(k, which) for _, k, which in found] == [(k, which) for which in range(2) for k in range(LENGTHS[which])]
            assert torch.equal(torch.cat([batch for batch, _, which in found if which == 1]), torch.arange(20))
            continue
        assert all(type(batch) is kind for batch, _, _ in found)
        parts = [list(batch.values()) if kind is dict else list(batch) for batch, _, _ in found]
        present = [[part is not None for part in each] for each in parts]
        assert present == [[mode != "max_size" or k < length for length in LENGTHS] for k in range(len(found))]
        assert [each[1].tolist() for each in parts] == [list(range(5 * k, 5 * k + 5)) for k in range(len(parts))]


# utilities/test_combined_loader.py: test_combined_loader_sequence_with_map_and_iterable
@pytest.mark.parametrize("lengths", [[4, 6], [5, 5], [6, 4]])
def test_combined_loader_with_another_iterable(lengths):
    combined = CombinedLoader([range(lengths[0]), loader(Numbers(lengths[1]))], mode="max_size_cycle")
    assert sum(1 for _ in combined) == max(lengths)


# utilities/test_combined_loader.py: test_state_dicts, test_load_state_dicts, test_combined_loader_can_be_pickled
def test_combined_loader_keeps_the_states():
    def combined():
        return CombinedLoader({"a": [range(20), loader(Numbers(10), 2, shuffle=True)], "b": [loader(Numbers(20), 3, shuffle=True)]})

    first = combined()
    iterator = iter(first)
    for _ in range(2):
        next(iterator)
    states = first._state_dicts()
    assert [state["consumed"] for state in states] == [4, 6]
    rest = [[batch["a"][1].tolist(), batch["b"][0].tolist()] for batch, _, _ in (next(iterator) for _ in range(3))]
    second = combined()
    second._load_state_dicts(states)
    assert [[batch["a"][1].tolist(), batch["b"][0].tolist()] for batch, _, _ in second] == rest
    with pytest.raises(RuntimeError, match="has 2 stateful loaders, but found 1 states"):
        second._load_state_dicts(states[:1])
    assert len(pickle.loads(pickle.dumps(CombinedLoader([loader(range(4)), [0, 1]]))).flattened) == 2


# loops/test_fetchers.py: test_prefetch_iterator
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("ahead", range(3))
def test_a_fetcher_knows_the_last_batch(several, ahead):
    fetcher = _PrefetchDataFetcher(prefetch_batches=ahead)
    fetcher.setup(CombinedLoader([loader(Numbers(3)), loader(Numbers(3))] if several else loader(Numbers(3))))
    for _ in range(2):
        found = [(fetcher.fetched, [int(part) for part in batch], fetcher.done) for batch, _, _ in fetcher]
        assert found == [(k + 1, (2 if several else 1) * [k], k == 2) for k in range(3)]


# loops/test_fetchers.py: test_done_dataloader_iter, test_done_dataloader_iter_with_limit
@pytest.mark.parametrize(
    ("mode", "lengths", "limit", "fetches", "done"),
    [
        ("min_size", [3], None, 2, False),
        ("min_size", [3], None, 3, True),
        ("min_size", [2, 3], 1, 1, True),
        ("max_size", [2, 3], None, 2, False),
        ("max_size", [2, 3], 100, 3, True),
        ("max_size_cycle", [2, 3], None, 2, False),
        ("max_size_cycle", [2, 3], 100, 3, True),
        ("sequential", [2, 3], 2, 2, False),
        ("sequential", [2, 3], 2, 4, True),
        ("sequential", [2, 3], 100, 5, True),
    ],
)
def test_an_iterator_knows_when_it_is_done(mode, lengths, limit, fetches, done):
    combined = CombinedLoader([loader(Numbers(n)) for n in lengths], mode)
    combined.limits = limit
    fetcher = _DataLoaderIterDataFetcher()
    fetcher.setup(combined)
    iter(fetcher)
    batches = next(fetcher)
    for _ in range(fetches):
        assert not batches.done
        next(batches)
    assert batches.done == fetcher.done == done
    if done:
        with pytest.raises(StopIteration):
            next(batches)


# loops/test_fetchers.py: test_step_methods_with_dataloader_iter
@pytest.mark.parametrize("limit", [None, 2, 100])
def test_steps_that_take_an_iterator(tmp_path, limit):
    seen = {"train": 0, "val": 0, "test": 0, "predict": 0}

    class Model(BoringModel):
        def fetch(self, batches, stage):
            for _ in range(2):
                batch, _, _ = next(batches)
                seen[stage] += 1
            return self.layer(batch).sum()

        def training_step(self, dataloader_iter):
            return self.fetch(dataloader_iter, "train")

        def validation_step(self, dataloader_iter):
            return self.fetch(dataloader_iter, "val")

        def test_step(self, dataloader_iter):
            return self.fetch(dataloader_iter, "test")

        def predict_step(self, dataloader_iter):
            return self.fetch(dataloader_iter, "predict")

    limits = {f"limit_{stage}_batches": limit for stage in seen}
    run = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0, **limits)
    model, data = Model(), loader(RandomDataset(32, 16), 2)
    run.fit(model, loader(RandomDataset(32, 16), 2), data)
    run.test(model, data, verbose=False)
    run.predict(model, data)
    assert seen == dict.fromkeys(seen, min(limit or 8, 8))


# loops/test_evaluation_loop.py: test_evaluation_loop_non_sequential_mode_supprt
@pytest.mark.parametrize(
    ("mode", "expected"),
    [("max_size_cycle", [(0, 0), (1, 1), (2, 0)]), ("min_size", [(0, 0), (1, 1)]), ("max_size", [(0, 0), (1, 1), (2, None)])],
)
def test_evaluation_of_loaders_side_by_side(tmp_path, mode, expected):
    seen = []

    class Model(BoringModel):
        def validation_step(self, batch, batch_idx):
            seen.append(tuple(part if part is None else int(part) for part in batch))

    run = trainer(tmp_path)
    run.validate(Model(), CombinedLoader([loader(Numbers(3)), loader(Numbers(2))], mode), verbose=False)
    assert run.num_val_batches == [3, 2] and seen == expected


# loops/test_fetchers.py: test_step_methods_with_dataloader_iter, which trains and validates with one DataLoader
def test_one_loader_for_training_and_validation_at_once_is_refused(tmp_path):
    data = loader(RandomDataset(32, 16), 2)
    with pytest.raises(LoaderError, match="a loader delivers one pass at a time"):
        trainer(tmp_path, max_epochs=1, val_check_interval=0.5).fit(BoringModel(), data, data)
