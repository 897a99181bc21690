"""Runs scripts of Accelerate's own tests, as the package ships them, with AcceleratedLoaders where they make DataLoaders.

python own_ranks.py SCRIPT FOLDER, under torchrun or alone. One is transformers' tests/trainer/distributed/scripts/eval_ddp.py.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from accelerate.state import AcceleratorState
from accelerate.test_utils.scripts import test_distributed_data_loop, test_script, test_sync
from torch import nn
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler
from transformers import Trainer, TrainingArguments

from fastdata import Loader
from fastdata.integrations.accelerate import AcceleratedLoader
from fastdata.integrations.transformers import LoaderMixin
from own import accelerated, loader

SCRIPT, FOLDER = sys.argv[1:]


def sync() -> None:
    """Accumulation of gradients, its end with the epoch, and a loop within another: all of test_sync.py."""
    test_sync.DataLoader = accelerated
    test_sync.main()


def metrics() -> None:
    """external_deps/test_metrics.py without the parts that need a GPU, and the packages that only these use."""
    for name in ("datasets", "evaluate"):
        sys.modules.setdefault(name, ModuleType(name)).load_dataset = None  # type: ignore[attr-defined]
    from accelerate.test_utils.scripts.external_deps import test_metrics

    test_metrics.DataLoader = accelerated
    for rows in (99, 512):
        test_metrics.test_torch_metrics(Accelerator(), rows)
    test_metrics.test_gather_for_metrics_drop_last()


def loops() -> None:
    """test_distributed_data_loop.py: every row once, equal batches, a state within an epoch, save_state."""
    script = test_distributed_data_loop
    script.DataLoader = accelerated
    script.test_default_ensures_even_batch_sizes()
    script.test_pickle_accelerator()
    accelerator = script.create_accelerator()
    dataset = script.DummyDataset()
    rank, ranks = accelerator.process_index, accelerator.num_processes
    shards = BatchSamplerShard(BatchSampler(RandomSampler(dataset), 4, False), ranks, rank)
    for options in (
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "sampler": DistributedSampler(dataset, ranks, rank)},
        {"batch_size": None, "batch_sampler": shards},
    ):
        with loader(dataset, num_workers=2, **options) as made:
            script.test_data_loader(AcceleratedLoader(made), accelerator)
    script._test_stateful_dataloader_resume(accelerator, iterable=False)

    def registered(accelerator: Accelerator, *_: Any, **__: Any) -> AcceleratedLoader:
        made = accelerated(torch.utils.data.TensorDataset(torch.arange(64)), 4, shuffle=True)
        accelerator.register_for_checkpointing(made)
        return made

    script.create_dataloader = registered
    script.tempfile = SimpleNamespace(TemporaryDirectory=lambda: nullcontext(FOLDER))  # one for all ranks
    script._test_stateful_dataloader_save_state_resume(accelerator, iterable=False)


def training() -> None:
    """test_script.py: training on several ranks ends with the weights of one rank that has the whole batches."""
    ranks = Accelerator().num_processes
    alone = False

    def made(dataset: Any, *_: Any) -> Any:
        place = {"rank": 0, "world_size": 1} if alone else {}
        return AcceleratedLoader(Loader(dataset, global_batch_size=8 * ranks, shuffle=True, num_workers=0, **place))

    def by_one(*args: Any) -> Any:
        nonlocal alone
        alone = True
        try:
            return mock_training(*args)
        finally:
            alone = False

    mock_training = test_script.mock_training
    test_script.generate_baseline_dataloader, test_script.mock_training = made, by_one
    test_script.training_check()
    AcceleratorState._reset_state()


def order() -> None:
    """test_script.py: what the ranks gather is the dataset, in order; a set epoch comes again."""
    test_script.DataLoader = accelerated
    test_script.prepare_data_loader = lambda made, *args, **options: made
    Accelerator()
    test_script.dl_preparation_check()
    test_script.check_seedable_sampler()


class Numbered(nn.Module):
    """Returns its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(120, 80)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(0.0), input_ids


class LoaderTrainer(LoaderMixin, Trainer):
    def to_inputs(self, batch: Any) -> dict[str, Any]:
        return {"input_ids": batch, "labels": batch}


def predictions() -> None:
    """eval_ddp.py of transformers: predictions and labels of all ranks are in the dataset's order."""
    args = TrainingArguments(FOLDER, use_cpu=True, report_to=[], per_device_eval_batch_size=8)
    for length in (49, 7):
        for steps in (None, 2):
            args.eval_accumulation_steps = steps
            found = LoaderTrainer(Numbered(), args).predict(loader(torch.arange(length), 8))
            assert found.predictions.tolist() == found.label_ids.tolist() == list(range(length)), found


if __name__ == "__main__":
    globals()[SCRIPT]()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
