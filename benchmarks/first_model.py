"""A new user's clock: minutes from one's own files to the first trained model, step by step, each in a clean process.

    python benchmarks/first_model.py [--images FOLDER] [--size 256] [--epochs 3] [--quick]

FOLDER has one folder of images for each class; without it, images are drawn. The routes are those that README names: class
folders, a flat folder whose names tell the class, a CSV, and folders that are symbolic links. Imports, the start of workers
and everything else that a user waits for is in the time.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.bench.harness import machine, table

PREP = [sys.executable, "-c", "from fastdata.cli import prep_main; prep_main()"]
COLORS = {"red": (60, 60, 190), "green": (60, 170, 60), "blue": (190, 80, 60)}  # BGR
ENDINGS = (".jpg", ".jpeg", ".png", ".webp")

# What the user writes. It prints what it has reached, and when, as seconds since the epoch of Unix.
TRAIN = """\
import json, sys, time

def reached(**what):
    print(json.dumps(what | {"at": time.time()}), flush=True)

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Loader, RandomResizedCrop, Trainer
from fastdata.optim import cosine

def main(store, side, epochs):
    train, val = LMDBDataset(store, crop=RandomResizedCrop(side), hflip=0.5).split(0.8, seed=0, stratify=True)
    batches = Loader(train, min(64, len(train)), shuffle=True)
    others = Loader(val.with_crop(CenterCrop(side)), min(64, len(val)))
    classes = len(train.classes)
    model = nn.Sequential(
        GPUNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes),
    )
    reached(step="first batch", shape=list(next(iter(batches))[0].shape))
    trainer = Trainer(
        model,
        lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="none"),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        scheduler=cosine(),
        metrics={"top1": lambda scores, batch: ((scores.argmax(1) == batch[1]).sum(), len(batch[1]))},
        progress=False,
    )
    trainer.fit(batches, epochs=epochs)
    reached(step="trained", classes=classes, samples=len(train), held_out=len(val), **trainer.evaluate(others))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""


def drawn(folder: Path, count: int, side: int) -> Path:
    """`count` JPEG files in three class folders; the class is the tint."""
    for k in range(count):
        rng, name = np.random.default_rng(k), list(COLORS)[k % len(COLORS)]
        noise = cv2.resize(rng.integers(-50, 50, (8, 8, 3)).astype(np.float32), (side + side // 4, side))
        path = folder / name / f"{k:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(path), np.clip(np.array(COLORS[name]) + noise, 0, 255).astype(np.uint8)):
            raise OSError(f"cannot write {path}")
    return folder


def files(images: Path) -> list[Path]:
    return sorted(path for path in images.rglob("*") if path.suffix.lower() in ENDINGS)


def class_folders(images: Path, home: Path) -> list[str]:
    shutil.copytree(images, home / "images")
    return ["images/"]


def flat_folder(images: Path, home: Path) -> list[str]:
    (home / "flat").mkdir()
    names = sorted({path.parent.name for path in files(images)})
    for k, path in enumerate(files(images)):
        shutil.copy(path, home / "flat" / f"{names.index(path.parent.name):03d}-{k}{path.suffix}")
    return ["flat/", "--label-from", "^([0-9]+)-"]


def csv_file(images: Path, home: Path) -> list[str]:
    shutil.copytree(images, home / "photos")
    with (home / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["path", "label"])
        writer.writerows([path.relative_to(images).as_posix(), path.parent.name] for path in files(images))
    return ["labels.csv", "--root", "photos/"]


def symbolic_links(images: Path, home: Path) -> list[str]:
    (home / "linked").mkdir()
    for folder in sorted(path for path in images.iterdir() if path.is_dir()):
        (home / "linked" / folder.name).symlink_to(folder.resolve(), target_is_directory=True)
    (home / "data").symlink_to("linked", target_is_directory=True)
    return ["data/"]


ROUTES: dict[str, Callable[[Path, Path], list[str]]] = {
    "class folders, as in README": class_folders,
    "a flat folder": flat_folder,
    "a CSV": csv_file,
    "symbolic links": symbolic_links,
}


def call(command: list[str], home: Path) -> str:
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def clocked(route: str, images: Path, home: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Go one route. Seconds count from the first command on; the files lie there before."""
    home.mkdir()
    source = ROUTES[route](images, home)
    (home / "train.py").write_text(TRAIN)
    arguments = [*source, "first.fds", "--size", str(given.size)]
    started = time.time()
    call([*PREP, *arguments], home)
    prepared = time.time()
    side, epochs = str(given.size * 7 // 8), str(given.epochs)
    first, last = (json.loads(line) for line in call([sys.executable, "train.py", "first.fds", side, epochs], home).splitlines())
    if last["samples"] + last["held_out"] != len(files(images)):
        raise SystemExit(f"{route}: the store has {last['samples'] + last['held_out']} of {len(files(images))} images")
    return {
        "route": route,
        "command": shlex.join(["fastdata-prep", *arguments]),
        "classes": last["classes"],
        "prepare_s": prepared - started,
        "first_batch_s": first["at"] - prepared,
        "train_s": last["at"] - first["at"],
        "minutes": (last["at"] - started) / 60,
        "top1": last["top1"],
    }


def lines(rows: list[dict[str, Any]], given: argparse.Namespace) -> list[str]:
    """The result as a Markdown table."""
    times = ["prepare, s", "first batch, s", f"train {given.epochs} epochs, s", "minutes in all"]
    cells = [
        [
            row["route"],
            *(f"{row[name]:.1f}" for name in ("prepare_s", "first_batch_s", "train_s")),
            f"{row['minutes']:.2f}",
            f"{row['classes']}",
            f"{row['top1']:.2f}",
            f"`{row['command']}`",
        ]
        for row in rows
    ]
    return table(["route", *times, "classes", "top1", "command"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="class folders; default: images that are drawn")
    parser.add_argument("--size", type=int, default=256, help="short side in the store")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="60 small images: does every route work?")
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    given = parser.parse_args()
    if given.quick:
        given.size = 32
    with tempfile.TemporaryDirectory() as work:
        count, side = (60, 48) if given.quick else (1200, 400)
        images = given.images or drawn(Path(work) / "drawn", count, side)
        rows = []
        for number, route in enumerate(ROUTES):
            rows.append(clocked(route, images.resolve(), Path(work) / f"route-{number}", given))
            print(f"{route}: {rows[-1]['minutes']:.2f} minutes", file=sys.stderr, flush=True)
    print("\n".join(lines(rows, given)))
    print(f"\n{len(files(images)) if given.images else count} images. {machine()['cores']} cores, {machine()['cpu']}.")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
