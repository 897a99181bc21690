"""python examples/demo.py [--out demo]      (`make demo` installs first, then runs this)

A guided tour, from image files to a trained model, with real images from scikit-learn: 1,797 handwritten digits (8 x 8 pixels)
and two photographs. It takes about a minute and needs no GPU and no network.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import sklearn.datasets
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fastdata


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--at-least", type=float, default=0.97, help="fail unless the accuracy exceeds this")
    parser.add_argument("--copies", type=int, default=200, help="rows in the table for each of the two photographs")
    parser.add_argument("--bench-options", default="--seconds 0.5 --repeats 3", help="options of `fastdata bench`")
    args = parser.parse_args()
    out = args.out

    say("1. Images in the two usual forms: a folder for each class, and a table of path,label")
    write_digits(out / "digits")
    write_photos(out / "photos", out / "photos.csv", args.copies)

    say("2. Prepare them once. For small digits, raw pixels are the best codec; photos become JPEG of the size needed")
    shell("fastdata-prep", out / "digits", out / "digits.fds", "--gray", "--codec", "rgb")
    shell("fastdata-prep", out / "photos.csv", out / "photos.fds", "--size", "256")

    say("3. Check every byte, and look inside")
    shell("fastdata", "verify", out / "digits.fds")
    shell("fastdata", "info", out / "digits.fds", "--sheet", out / "digits.png")
    shell("fastdata", "report", out / "digits.fds", "--out", out / "digits.html")

    say("4. Train a small network on four fifths of the digits, and test it on the rest")
    accuracy = train(out / "digits.fds", args.epochs)
    if accuracy <= args.at_least:
        sys.exit(f"the accuracy is {accuracy:.2%}, but should be above {args.at_least:.0%}: something is wrong")

    say("5. How fast do batches of photos arrive on this machine?")
    shell("fastdata", "bench", out / "photos.fds", *args.bench_options.split())

    say("Done. Look at")
    print(f"{out / 'digits.png'}    the contact sheet: 48 of the digits, each above its label")
    print(f"{out / 'digits.html'}   the report: digits, their classes and their sizes; open it in a browser")
    print(f"{out / 'digits.fds'}/    the store; manifest.json says what is in it and how it was made")


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def shell(command: str, *arguments: object) -> None:
    """Print a command as it is typed, and run it."""
    words = [str(a) for a in arguments]
    print("$", shlex.join([command, *words]), flush=True)
    call = {"fastdata-prep": ["fastdata", "prep"]}.get(command, [command])
    if code := subprocess.run([sys.executable, "-m", *call, *words], check=False).returncode:
        sys.exit(code)


def write_digits(folder: Path) -> None:
    """Write one PNG per digit, in folders 0 to 9. The grey levels of the digits go from 0 to 16, those of a PNG to 255."""
    digits = sklearn.datasets.load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), (image * 255 / 16).round().astype("uint8"))
    print(f"{folder}/: {len(digits.images)} PNG files in {len(digits.target_names)} folders")


def write_photos(folder: Path, table: Path, copies: int) -> None:
    """Write two photographs, and a table that names them many times, to have enough to measure."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("china.jpg", "flower.jpg"):
        shutil.copyfile(Path(sklearn.datasets.__file__).parent / "images" / name, folder / name)
    rows = [f"{folder.name}/china.jpg,temple", f"{folder.name}/flower.jpg,flower"] * copies
    table.write_text("\n".join(["path,label", *rows, ""]))
    print(f"{table}: {len(rows)} rows that name the photographs in {folder}/")


def train(store: Path, epochs: int) -> float:
    """Train, print a line per epoch, and return the accuracy on the held-out digits."""
    torch.manual_seed(0)  # together with the loaders' own seed, this makes every run give the same numbers
    torch.set_num_threads(1)  # more gain nothing for such a small network; the numbers then do not depend on the cores

    # Only training digits are shifted, by up to a pixel.
    train_set, held_out = fastdata.LMDBDataset(store).split(0.8, seed=0, stratify=True)
    train_set = train_set.with_crop(fastdata.RandomCrop(8, padding=1))
    print(f"{len(train_set)} digits to train on, {len(held_out)} held out")

    normalize = fastdata.GPUNormalize(mean=0.305, std=0.376)  # makes floats of uint8 batches, on their device
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    accuracy = 0.0
    with (
        fastdata.Loader(train_set, 32, shuffle=True, seed=0, drop_last=True) as batches,
        fastdata.Loader(held_out, 360) as tests,
    ):
        print("epoch   loss    accuracy   images/s")
        for epoch in range(1, epochs + 1):
            started, losses = time.perf_counter(), []
            for images, targets in batches:
                loss = cross_entropy(model(normalize(images)), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            schedule.step()
            rate = len(losses) * 32 / (time.perf_counter() - started)
            accuracy = evaluate(model, normalize, tests)
            print(f"{epoch:5d}   {torch.stack(losses).mean():.4f}  {accuracy:8.2%}   {rate:8.0f}", flush=True)
    return accuracy


def network() -> nn.Module:
    """A small convolutional network for images of 8 x 8 pixels."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    layers = [*block(1, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 128), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 10))


@torch.no_grad()
def evaluate(model: nn.Module, normalize: nn.Module, tests: fastdata.Loader) -> float:
    """Return the accuracy."""
    model.eval()
    hits = sum(int((model(normalize(images)).argmax(1) == targets).sum()) for images, targets in tests)
    model.train()
    return hits / len(tests.dataset)


if __name__ == "__main__":
    main()
