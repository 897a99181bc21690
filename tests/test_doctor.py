"""fastdata doctor: the limit of rigged cases, what is measured of any loader, and the command."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fastdata
from fastdata import Loader, doctor
from fastdata.bench.doctor import measure_parts
from support import MAIN, encode, picture, run, write_pictures

SECONDS = 2.0  # of a diagnosis: enough for effects of a factor
JPEG = encode(picture(0, 700, 900))


class Rigged(Dataset[Any]):
    """Samples of which one part is slow."""

    def __init__(self, *, wait: float = 0.0, decode: bool = False, rounds: int = 0) -> None:
        self.wait, self.decode, self.rounds = wait, decode, rounds

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait:
            time.sleep(self.wait)  # as a disk or a network does
        if self.decode:
            cv2.imdecode(np.frombuffer(JPEG, np.uint8), cv2.IMREAD_COLOR)
        for _ in range(self.rounds):
            hashlib.sha256(JPEG).digest()
        return torch.zeros(8)


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def rigged(workers: int = 1, **parts: Any) -> DataLoader[Any]:
    return DataLoader(Rigged(**parts), 4, num_workers=workers)


def quick(batch: Any) -> None:
    """A step that takes no time."""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_throttled_reader_is_storage(workers: int) -> None:
    found = doctor(rigged(workers, wait=0.01), quick, seconds=SECONDS)
    assert found.limit == "storage"
    assert 0.008 < found.parts["waiting"] < 0.03  # 0.010, and what a loaded machine adds


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "longest"), [({"decode": True}, "decode"), ({"rounds": 8}, "transform")])
def test_heavy_decoding_and_a_slow_transform_are_the_cpu(parts: dict[str, Any], longest: str) -> None:
    found = doctor(rigged(**parts), quick, seconds=SECONDS)
    assert found.limit == "CPU"
    assert max(found.parts, key=lambda name: found.parts[name]) == longest
    assert found.parts[longest] > 0.7 * (sum(found.parts.values()) - found.parts["waiting"])


def test_a_heavy_model_is_the_model() -> None:
    found = doctor(rigged(), lambda batch: busy(0.05), seconds=SECONDS)
    assert found.limit == "model" and found.step_s is not None and found.together is not None
    assert 4 * found.step_s > 0.045
    assert "limit      model: the step and the copy to the device" in str(found)


def test_parts_are_timed_without_the_parts_inside_them_and_functions_are_put_back() -> None:
    before = cv2.imdecode, cv2.resize

    def make(*_: Any) -> int:
        image = cv2.imdecode(np.frombuffer(JPEG, np.uint8), cv2.IMREAD_COLOR)
        cv2.resize(image, (50, 50))
        busy(0.05)
        time.sleep(0.05)
        return 1

    found = measure_parts(make, 0.01)
    assert (cv2.imdecode, cv2.resize) == before
    assert found["decode"] > 0 and found["resize"] > 0 and found["transform"] == pytest.approx(0.05, rel=0.5)
    assert found["waiting"] == pytest.approx(0.05, rel=0.5)


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([k]) for k in range(10))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "workers"),
    [
        (DataLoader(Counting(), 3), 0),
        (DataLoader(Rigged(), batch_size=None), 0),
        (DataLoader(Rigged(), batch_sampler=[[0, 1], [2, 3]], num_workers=1), 1),
        ([torch.zeros(4, 2)] * 3, 0),
        (Loader(Rigged(), 4, num_workers=1), 1),
    ],
)
def test_any_loader_can_be_measured(loader: Any, workers: int) -> None:
    found = doctor(loader, quick, seconds=0.2)
    assert found.workers == workers and found.limit in ("storage", "CPU", "loader", "model")
    assert found.together is None or found.together > 0
    assert json.loads(found.json())["limit"] == found.limit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 JPEG files of 200 x 300, one of which is none, in two class folders."""
    root = tmp_path_factory.mktemp("doctor") / "in"
    for k, name in enumerate(("ant", "bee")):
        write_pictures(root / name, 20, height=200, width=300, seed=20 * k, ending=".jpg")
    (root / "bee" / "00.jpg").write_bytes(b"no image")
    return root


@pytest.mark.slow
def test_a_folder_of_images(folder: Path) -> None:
    done = run(*MAIN, "doctor", folder, "--crop", 96, "--batch-size", 8, "--seconds", 2, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["samples"], found["batch_size"], found["limit"]) == (40, 8, "CPU")
    assert all(found["parts"][part] > 0 for part in ("read", "decode", "resize", "transform"))
    assert found["prepared"] > 0 and found["gain"] > 0


@pytest.mark.slow
def test_a_store_beside_a_loader_and_a_model_by_name(folder: Path, tmp_path: Path) -> None:
    """The loader waits 40 ms for a batch, and the step takes 20 ms: whatever is prepared, the loop is at most twice as fast."""
    store = fastdata.prep(folder, tmp_path / "x.fds", size=(64, 190), workers=1).out
    (tmp_path / "mine.py").write_text(
        "import time\nfrom torch.utils.data import DataLoader\nfrom test_doctor import Rigged\n"
        "def step():\n    return lambda batch: time.sleep(0.02)\n"
        "def loader():\n    return DataLoader(Rigged(wait=0.01), 4, num_workers=1)\n"
    )
    command = [*MAIN, "doctor", store, "--model", "mine:step", "--crop", 48, "--seconds", 2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = run(*command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    for said in ("limit ", "| decode", "step alone, on one batch", "loader and step together", "<- yours"):
        assert said in done.stdout
    done = run(*command, "--loader", "mine:loader", "--json", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["subject"] == "DataLoader of Rigged" and found["limit"] == "storage"
    assert 0 < found["gain"] <= 1 / (found["step_s"] * found["together"]) + 1e-9


@pytest.mark.slow
def test_every_snippet_of_the_docs_runs(tmp_path: Path) -> None:
    """With a second for each diagnosis."""
    for name in ("cat", "dog"):
        write_pictures(tmp_path / "images" / name, 10, height=90, width=120, ending=".jpg")
    fastdata.prep(tmp_path / "images", tmp_path / "images.fds", size=64, workers=1)
    text = (Path(__file__).parent.parent / "docs" / "measuring.md").read_text()
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(next(block for language, block in blocks if "def loader" in block))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, block in blocks:
        block = block.replace("fastdata doctor ", "fastdata doctor --seconds 1 --crop 48 ").replace("seconds=10", "seconds=1")
        block = block.replace("--crop 48 --loader", "--loader")  # which makes its own crops
        command = ["bash", "-euc", block] if language == "bash" else [sys.executable, "-W", "error", "-c", block]
        done = run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert len(blocks) == 3
