"""The guided tour of `make demo`, made short, and the Makefile's own help."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import fastdata
from support import run, run_ranks

ROOT = Path(__file__).parents[1]
BENCH = "--seconds 0.05 --repeats 1 --workers 0 --crop 64 --batch-size 8"
SHORT = ["--copies", "8", "--epochs", "3", "--at-least", "0.8", "--bench-options", BENCH]

IMAGES = "train_images.py"
SMALL = ["--side", "16", "--width", "8", "--batch-size", "8", "--workers", "1", "--device", "cpu"]


def said(script: str, *options: Any, cwd: Path, seconds: float = 300) -> str:
    """What an example prints."""
    done = run(sys.executable, ROOT / "examples" / script, *options, cwd=cwd, seconds=seconds)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tour_makes_what_it_names_and_learns(tmp_path: Path) -> None:
    text = said("demo.py", *SHORT, cwd=tmp_path)
    for words in ("1797 of 1797 images kept", "16 of 16 images kept", "demo/digits.png", "demo/digits.html"):
        assert words in text
    assert cv2.imread(str(tmp_path / "demo/digits.png")).shape[0] > 100
    for store in ("demo/digits.fds", "demo/photos.fds"):
        assert (tmp_path / store / "manifest.json").is_file()
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    subcommands = [f"fastdata {name}" for name in ("verify", "info", "report", "bench")]
    assert [c.split(" demo")[0] for c in commands] == ["fastdata-prep", "fastdata-prep", *subcommands]
    epochs = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+)% +(\d+)$", text, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in epochs] == [1, 2, 3]
    losses, accuracies = [float(e[1]) for e in epochs], [float(e[2]) for e in epochs]
    assert losses == sorted(losses, reverse=True)
    assert accuracies[-1] > 90


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_names_every_target() -> None:
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    done = run("make", "-s", cwd=ROOT)
    assert done.returncode == 0
    assert ["make help", *re.findall(r"^make [\w-]+", done.stdout, re.MULTILINE)] == [f"make {t}" for t in declared[1].split()]


@pytest.mark.slow
def test_segmentation_learns_from_generated_scenes(tmp_path: Path) -> None:
    """Two classes, a bright disc and what is around it: a few epochs suffice to beat calling everything the commonest."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    rng = np.random.default_rng(0)
    for k in range(16):
        mask = cv2.circle(np.zeros((90, 120), np.uint8), (30 + 4 * k, 45), 30, 1, -1)
        noise = rng.integers(0, 60, (90, 120, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"images/{k}.png"), noise + 150 * mask[:, :, None])
        cv2.imwrite(str(tmp_path / f"masks/{k}.png"), mask)
    text = said("train_segmentation.py", "images", "masks", "--epochs", "8", cwd=tmp_path)
    right, plain = (float(share) for share in re.findall(r"([\d.]+)%", text))
    assert right > plain + 5
    assert cv2.imread(str(tmp_path / "segmentation/scenes.png")).shape == (4 * 176, 3 * 240, 3)


@pytest.mark.slow
def test_a_gpt_learns_what_a_bigram_model_can_t(tmp_path: Path) -> None:
    """Each speech is one of four words, spelt twice: which letter follows depends on more than the one before."""
    rng = np.random.default_rng(0)
    words = ["abab", "abba", "baab", "acab"]
    (tmp_path / "text.txt").write_text("\n\n".join(2 * words[k] for k in rng.integers(0, 4, 3000)))
    text = said("train_gpt.py", tmp_path / "text.txt", "--steps", "150", cwd=tmp_path)
    assert "3000 speeches, 27000 tokens" in text
    found = re.search(r"held-out loss ([\d.]+) nats a token after \d+ s; the bigram model's is ([\d.]+)", text)
    assert found is not None and float(found[1]) < float(found[2]) - 0.1


@pytest.mark.slow
def test_views_without_labels_teach_an_encoder_what_raw_pixels_do_not_tell(tmp_path: Path) -> None:
    """Discs, squares and crosses of any colour, at any place: no pixel by itself says which it is."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 450), ("test", 150)):
        for k in range(count):
            image, color = rng.integers(0, 90, (32, 32, 3), np.uint8), rng.integers(100, 256, 3).tolist()
            (x, y), kind = rng.integers(10, 22, 2).tolist(), ("disc", "square", "cross")[k % 3]
            if kind == "disc":
                cv2.circle(image, (x, y), 8, color, -1)
            elif kind == "square":
                cv2.rectangle(image, (x - 7, y - 7), (x + 7, y + 7), color, -1)
            else:
                cv2.drawMarker(image, (x, y), color, cv2.MARKER_TILTED_CROSS, 15, 3)
            path = tmp_path / split / kind / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), image)
    text = said("train_ssl.py", "train", "test", "--epochs", "15", "--batch-size", "64", "--width", "16", cwd=tmp_path)
    learnt, _, raw = (float(share) for share in re.findall(r"([\d.]+)%", text.splitlines()[-1]))
    assert learnt > raw + 15


@pytest.mark.slow
def test_a_clip_finds_captions_that_it_was_not_trained_on(tmp_path: Path) -> None:
    text = said("train_clip.py", "--scenes", "1500", "--epochs", "12", cwd=tmp_path, seconds=400)
    assert "1500 of 1500 scenes prepared" in text
    found = [[float(share) for share in pair] for pair in re.findall(r"recall@\d ([\d.]+)%; by chance ([\d.]+)%", text)]
    (first, chance), (five, _) = found
    assert 100 >= five >= first > 20 * chance > 0


@pytest.mark.slow
def test_a_detector_finds_shapes(tmp_path: Path) -> None:
    text = said("train_detection.py", "--scenes", "800", "--epochs", "12", cwd=tmp_path, seconds=400)
    found = re.search(r"mAP ([\d.]+) at an IoU of 0.5, on 160 held-out scenes", text)
    assert found is not None and float(found[1]) > 0.6, text
    assert cv2.imread(str(tmp_path / "detection-demo/scenes.png")).shape == (288, 4 * 288, 3)


@pytest.fixture
def patterns(tmp_path: Path) -> Path:
    """A folder of 42 images: stripes along one of two axes, under noise."""
    rng = np.random.default_rng(0)
    for k in range(42):
        image = rng.integers(0, 120, (16, 16, 3), np.uint8)
        image[(slice(None), slice(0, None, 2)) if k % 2 else slice(0, None, 2)] += 100
        path = tmp_path / "patterns" / ("down", "across")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image)
    return tmp_path / "patterns"


def test_batches_of_a_dataset_on_the_device_are_its_samples(patterns: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples/dataset_on_device.py"))
    dataset = fastdata.LMDBDataset(
        fastdata.prep(patterns, patterns.with_suffix(".fds"), workers=1).out, crop=fastdata.CenterCrop(12)
    )
    images, targets = example["load"](dataset, "cpu")
    assert torch.equal(images, torch.stack([image for image, _ in dataset])) and targets.tolist() == [k for _, k in dataset]
    torch.manual_seed(0)
    passes = [[*example["epoch"](images, targets, 8)] for _ in range(2)]
    assert [len(batch) for batch, _ in passes[0]] == [8, 8, 8, 8, 8, 2]
    orders = []
    for batches in passes:
        found, kinds = (torch.cat(parts) for parts in zip(*batches, strict=True))
        plain, mirrored = ((found[:, None] == each).flatten(2).all(2) for each in (images, images.flip(-1)))
        assert not (plain & mirrored).any() and 0 < plain.sum() < 42
        row, k = (plain | mirrored).nonzero(as_tuple=True)
        assert row.tolist() == [*range(42)] == sorted(k.tolist()) and torch.equal(kinds, targets[k])
        orders.append(k.tolist())
    assert orders[0] != orders[1]


@pytest.mark.slow
def test_a_model_learns_from_a_dataset_on_the_device(patterns: Path) -> None:
    store = fastdata.prep(patterns, patterns.with_suffix(".fds"), workers=1).out
    text = said("dataset_on_device.py", store, cwd=patterns.parent)
    first, *_, last = (float(loss) for loss in re.findall(r"loss ([\d.]+)", text))
    assert last < first / 2


def losses(log: Path) -> list[float]:
    return [record["loss"] for record in map(json.loads, log.read_text().splitlines()) if record["kind"] == "train"]


@pytest.mark.slow
def test_a_resnet_learns(patterns: Path) -> None:
    options = ["--epochs", "6", "--lr", "0.02", "--dir", "run", "--log-every", "1"]
    text = said(IMAGES, patterns, patterns, *SMALL, *options, cwd=patterns.parent)
    assert "42 of 42 images" in text
    found = re.search(r"top1 ([\d.]+)% of 42 images after 30 updates", text)
    assert found is not None and float(found[1]) > 80
    run_folder = patterns.parent / "run"
    assert len(losses(run_folder / "log.jsonl")) == 30
    again = said(IMAGES, patterns, patterns, *SMALL, *options, cwd=patterns.parent)
    assert found[0] in again, "a run that has ended says its result again"


@pytest.mark.slow
def test_two_ranks_give_the_curve_of_one(patterns: Path) -> None:
    """The same images in the same updates; 42 are not a multiple of 8, so that the last update of an epoch is a short one."""
    options = [*SMALL, "--norm", "group", "--epochs", "2", "--log-every", "1", "--clip-norm", "1"]
    for name, ranks, *more in (("one", 1), ("two", 2), ("parts", 2, "--shard")):
        command = [sys.executable, ROOT / "examples" / IMAGES, patterns, *options, *more, "--dir", name]
        assert run_ranks(ranks, *command, cwd=patterns.parent) == 0
    one, *others = (losses(patterns.parent / name / "log.jsonl") for name in ("one", "two", "parts"))
    for other in others:
        assert len(one) == len(other) == 10
        assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(one, other, strict=True)), list(zip(one, other, strict=True))


@pytest.mark.slow
def test_both_data_paths_learn_alike(tmp_path: Path) -> None:
    for k in range(256):
        path = tmp_path / "images" / ("dark", "light")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((32, 32, 3), (20, 200)[k % 2] + k // 8, np.uint8))
    options = ["--epochs", "8", "--seeds", "1", "--picture", tmp_path / "curves.png"]
    text = said("beside_torch.py", tmp_path / "images", tmp_path / "images", *options, cwd=tmp_path)
    assert re.findall(r"seed 0: ([\d.]+)%", text) == ["100.0", "100.0"], text
    assert cv2.imread(str(tmp_path / "curves.png")).shape[0] > 100
