"""The guided tour of `make demo`, made short, and the Makefile's own help."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from support import run

ROOT = Path(__file__).parents[1]
SHORT = ["--copies", "8", "--bench-options", "--seconds 0.05 --repeats 1 --workers 0 --crop 64 --batch-size 8"]


def tour(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, ROOT / "examples" / "demo.py", *SHORT, *options, cwd=folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a short tour, and what it printed."""
    folder = tmp_path_factory.mktemp("tour")
    return folder, tour(folder, "--epochs", "3", "--at-least", "0.8")


def test_the_tour_makes_what_it_names(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = first
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((folder / "demo/digits").rglob("*.png"))) == 1797
    assert "1797 of 1797 images kept" in done.stdout
    assert "16 of 16 images kept" in done.stdout
    for picture in ("demo/digits.png", "demo/bench.png"):
        assert picture in done.stdout.split("Done.")[1]
        assert cv2.imread(str(folder / picture)).shape[0] > 100
    for store in ("demo/digits.fds", "demo/photos.fds"):
        assert (folder / store / "manifest.json").is_file()


def test_the_tour_prints_what_it_runs_and_learns(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = first
    commands = re.findall(r"^\$ (.*)$", done.stdout, re.MULTILINE)
    assert [c.split(" demo")[0] for c in commands] == [
        "fastdata-prep", "fastdata-prep", "fastdata verify", "fastdata info", "fastdata bench",
    ]  # fmt: skip
    epochs = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+)% +(\d+)$", done.stdout, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in epochs] == [1, 2, 3]
    losses, accuracies = [float(e[1]) for e in epochs], [float(e[2]) for e in epochs]
    assert losses == sorted(losses, reverse=True)
    assert accuracies[-1] > 90


def test_it_can_be_run_again_and_fails_when_the_network_learns_too_little(
    first: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = first
    done = tour(folder, "--epochs", "1", "--at-least", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Done." not in done.stdout
    assert done.stdout.count("it was finished already") == 2
    assert re.search(r"the accuracy is [\d.]+%, and should be above 100%", done.stderr)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_names_every_target() -> None:
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    done = run("make", "-s", cwd=ROOT)
    assert done.returncode == 0
    assert ["make help", *re.findall(r"^make [\w-]+", done.stdout, re.MULTILINE)] == [f"make {t}" for t in declared[1].split()]


def test_segmentation_learns_from_generated_scenes(tmp_path: Path) -> None:
    """Two classes, a bright disc and what is around it: a few epochs suffice to beat calling everything the commonest."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    rng = np.random.default_rng(0)
    for k in range(24):
        mask = cv2.circle(np.zeros((90, 120), np.uint8), (30 + 3 * k, 45), 30, 1, -1)
        noise = rng.integers(0, 60, (90, 120, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"images/{k}.png"), noise + 150 * mask[:, :, None])
        cv2.imwrite(str(tmp_path / f"masks/{k}.png"), mask)
    done = run(
        sys.executable,
        ROOT / "examples/train_segmentation.py",
        tmp_path / "images",
        tmp_path / "masks",
        "--epochs",
        "8",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    right, plain = (float(share) for share in re.findall(r"([\d.]+)%", done.stdout))
    assert right > plain + 5
    assert cv2.imread(str(tmp_path / "segmentation/scenes.png")).shape == (4 * 176, 3 * 240, 3)


def test_a_gpt_learns_what_a_bigram_model_can_t(tmp_path: Path) -> None:
    """Each speech is one of four words, spelt twice: which letter follows depends on more than the one before."""
    rng = np.random.default_rng(0)
    words = ["abab", "abba", "baab", "acab"]
    (tmp_path / "text.txt").write_text("\n\n".join(2 * words[k] for k in rng.integers(0, 4, 3000)))
    script = ROOT / "examples/train_gpt.py"
    done = run(sys.executable, script, tmp_path / "text.txt", "--steps", "150", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3000 speeches, 27000 tokens" in done.stdout
    found = re.search(r"held-out loss ([\d.]+) nats a token after \d+ s; the bigram model's is ([\d.]+)", done.stdout)
    assert found is not None and float(found[1]) < float(found[2]) - 0.1
