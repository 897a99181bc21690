"""What limits a run, and the first thing to change: told when it is news, and only where it can help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastdata import CenterCrop, LMDBDataset, RAMDataset, RandomResizedCrop, Resize, prep
from fastdata.loader.stats import Stats
from fastdata.monitor.bottleneck import Bottleneck, untried
from support import write_pictures


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of 300 x 400 in stores of three codecs."""
    root = tmp_path_factory.mktemp("advice")
    write_pictures(root / "images", 4, height=300, width=400)
    for codec in ("jpeg", "png", "rgb"):
        prep(root / "images", root / f"{codec}.fds", codec=codec)
    return root


def spent(dataset: Any, *, workers: int = 1, **times: float) -> str:
    """The advice where so many seconds of 5 went into each part of the work, and there are two cores."""
    before = Stats(work_s=700.0, read_s=100.0, decode_s=200.0, resize_s=300.0)
    after = {name: getattr(before, name) + times.get(name, 0.0) for name in ("read_s", "decode_s", "resize_s")}
    return Stats(dataset, workers=workers, cores=2, work_s=705.0, **after).advice(before)


def test_advice_is_about_what_takes_longest(stores: Path) -> None:
    small = LMDBDataset(stores / "jpeg.fds", crop=RandomResizedCrop(64))
    assert spent(small, read_s=3.0, decode_s=1.0, resize_s=0.5) == "RAMDataset, which keeps the bytes in memory"
    assert spent(small, decode_s=3.0, read_s=1.0) == (
        "a smaller --size of the store, --codec rgb (no decoding, but more room), or more workers"
    )
    assert spent(small, resize_s=3.0, decode_s=1.5) == "antialias=False, a smaller --size of the store, or more workers"
    whole = LMDBDataset(stores / "jpeg.fds", crop=Resize(64))  # of any aspect
    assert spent(whole, resize_s=3.0, workers=2) == "antialias=False or a smaller --size of the store"
    assert spent(small, decode_s=1.0, resize_s=1.0) == "more workers"  # a transform of the user's
    assert spent([]) == "more workers"  # a dataset that is not fastdata's


def test_there_is_no_advice_that_can_not_help(stores: Path) -> None:
    crop = RandomResizedCrop(280)
    assert spent(LMDBDataset(stores / "jpeg.fds", crop=crop), decode_s=3.0, workers=2) == (
        "--codec rgb (no decoding, but more room)"
    )
    assert spent(LMDBDataset(stores / "rgb.fds", crop=crop), decode_s=3.0, workers=2) == ""
    assert spent(RAMDataset(stores / "jpeg.fds", crop=crop), read_s=3.0) == ""
    assert spent(LMDBDataset(stores / "jpeg.fds", crop=RandomResizedCrop(280, antialias=False)), resize_s=3.0, workers=2) == ""
    assert spent(LMDBDataset(stores / "jpeg.fds", crop=CenterCrop(280)), resize_s=3.0, workers=2) == ""
    assert spent([], workers=2) == ""


class Advises:
    """A loader's counts, with a loader's advice."""

    def stats(self) -> Advises:
        return self

    def advice(self, before: Any) -> str:
        return "more workers"


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (0.0, "The model is the bottleneck: a perfect loader would bring 1.00 x. compile=True may be quicker."),
        (0.08, "A perfect loader would bring 1.09 x: try more workers."),
        (0.6, "The loader is the bottleneck: a perfect one would bring 2.50 x: try more workers."),
    ],
)
def test_the_words(wait: float, said: str) -> None:
    limit = Bottleneck("compile=True may be quicker")
    limit.begin(Advises())
    assert limit.end(wait) == said
    assert limit.end(wait) == ""


@pytest.mark.parametrize(
    ("model", "device", "precision", "channels_last", "compiled", "first"),
    [
        (nn.Conv2d(3, 4, 3), "cuda", "fp32", False, False, "precision"),
        (nn.Conv2d(3, 4, 3), "cuda", "bf16", False, False, "channels_last"),
        (nn.Linear(3, 4), "cuda", "bf16", False, True, "A larger batch"),  # no convolution has a use for channels_last
        (nn.Conv2d(3, 4, 3), "cuda", "bf16", True, True, "A larger batch"),
        (nn.Linear(3, 4), "cpu", "fp32", False, True, ""),
    ],
)
def test_the_first_switch_to_try(model, device, precision, channels_last, compiled, first):
    text = untried(model, torch.device(device), precision=precision, channels_last=channels_last, compile=compiled)
    assert text.startswith(first) and bool(text) == bool(first)
