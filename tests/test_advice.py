"""What a Loader's counts say about the first thing to change, and how a run tells it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastdata import LMDBDataset, Loader, RandomResizedCrop, Trainer, prep
from fastdata.loader.stats import Stats
from support import write_pictures


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ({"work_s": 5.0, "read_s": 3.0, "decode_s": 1.0, "resize_s": 0.5}, "RAMDataset, which keeps the bytes in memory"),
        (
            {"work_s": 5.0, "decode_s": 3.0, "read_s": 1.0},
            "a smaller --size of the store, a codec without decoding (rgb), or more workers",
        ),
        ({"work_s": 5.0, "resize_s": 3.0, "decode_s": 1.5}, "antialias=False, or a smaller --size of the store"),
        ({"work_s": 5.0, "decode_s": 1.0, "resize_s": 1.0}, "more workers"),  # a transform of the user's
        ({"work_s": 5.0}, "more workers"),  # a dataset that is not fastdata's
        ({}, "more workers"),
    ],
)
def test_it_is_about_what_takes_longest_since_then(spent: dict[str, float], said: str) -> None:
    before = Stats(work_s=700.0, read_s=100.0, decode_s=200.0, resize_s=300.0)
    after = Stats(**{name: getattr(before, name) + spent.get(name, 0.0) for name in ("work_s", "read_s", "decode_s", "resize_s")})
    assert after.advice(before) == said


def test_it_is_about_a_real_loader(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 4, height=600, width=800)
    prep(tmp_path / "images", tmp_path / "a.fds", codec="png")
    with Loader(LMDBDataset(tmp_path / "a.fds", crop=RandomResizedCrop(16)), 4, num_workers=1) as loader:
        before = loader.stats()
        next(iter(loader))
        assert loader.stats().advice(before).startswith("a smaller --size")  # PNG is decoded whole, for 16 pixels


class Slow(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> torch.Tensor:
        time.sleep(0.05)
        return torch.zeros(2)


def test_a_run_that_waits_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    trainer = Trainer(model, lambda model, x: (model(x).sum(), len(x)), torch.optim.SGD(model.parameters(), 0.1))
    with Loader(Slow(), 2, num_workers=0) as loader:
        trainer.fit(loader, epochs=1)
    assert "The loader is the bottleneck: try more workers." in capsys.readouterr().out
