"""How exact `fastdata doctor` is: the gain that each advice predicts, and the gain of following it.

python benchmarks/doctor_accuracy.py [--photos ../shared/data/photos] [--seconds 30] [--rounds 5] [--only NAME] [--out FILE.md]

Each case is a training loop with something to improve. Doctor looks at it once. Then the loop as it was, and as the advice says,
run in turns; each round gives a ratio. A prediction counts as right if it is within 25 % of the median of these. Run this on a
machine that does nothing else: the last column says whether doctor noticed other load.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from prep_inputs import photos
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.bench.harness import Run, interleave, machine, stream, table, write_markdown
from fastdata.diagnosis.advice import Advice
from fastdata.diagnosis.batches import count
from fastdata.diagnosis.diagnosis import Diagnosis
from fastdata.diagnosis.doctor import diagnose
from fastdata.diagnosis.files import Files
from fastdata.diagnosis.subject import subject_of
from fastdata.machine import available_cores
from fastdata.torch_private import end_kept_workers

CROP, BATCH, IMAGES, RIGHT = 224, 32, 1200, 0.25
Step = Callable[[Any], object]


class Case(NamedTuple):
    """A loop, the beginning of the advice that is tested, and the loop that follows it. load: busy programs that it ends."""

    name: str
    before: Callable[[], tuple[Any, Any]]
    advice: str
    after: Callable[[Advice], tuple[Any, Any]]
    load: int = 0


class Parts(Dataset[Any]):
    """Samples that wait, compute in Python, and return floats or bytes."""

    def __init__(self, *, wait: float = 0.0, rounds: int = 0, side: int = 8, dtype: torch.dtype = torch.float32) -> None:
        self.wait, self.rounds, self.side, self.dtype = wait, rounds, side, dtype
        self.data = os.urandom(200_000)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait:
            time.sleep(self.wait)
        for _ in range(self.rounds):
            hashlib.sha256(self.data).digest()
        return torch.full((3, self.side, self.side), index % 7, dtype=self.dtype)


def torchs(workers: int, **parts: Any) -> DataLoader[Any]:
    return DataLoader(Parts(**parts), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def conv(width: int) -> tuple[nn.Module, Callable[[Any, Any], torch.Tensor]]:
    """A small network of convolutions on images, and its losses."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, stride=4), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def losses(model: Any, batch: Any) -> torch.Tensor:
        images = batch[0] if isinstance(batch, tuple | list) else batch
        return model(images.float()).float().logsumexp(1)  # type: ignore[no-any-return]

    return model, losses


def trained(
    model: nn.Module, losses: Callable[[Any, Any], torch.Tensor], *, bf16: bool = False, channels_last: bool = False
) -> Step:
    """A step as a user writes it."""
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            losses(model, batch).sum().backward()
        model.zero_grad(set_to_none=True)

    return step


def cases(root: Path, files: list[Path], cores: int) -> list[Case]:
    folder = root / "images"
    folder.mkdir()
    for k in range(IMAGES):
        os.link(files[k % len(files)], folder / f"{k:05d}.jpg")
    store = fastdata.prep(folder, root / "store.fds", size=(256, 512), workers=cores).out
    model, losses = conv(32)
    small, small_losses = conv(2)

    def files_loader(workers: int) -> DataLoader[Any]:
        found = Files(folder, CROP, BATCH, workers).loader
        return DataLoader(found.dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    def ours(**options: Any) -> Loader:
        crop = options.pop("crop", RandomResizedCrop(CROP))
        return Loader(LMDBDataset(store, crop=crop, hflip=0.5, **options), BATCH, shuffle=True, num_workers=cores)

    def prepared(advice: Advice) -> Loader:
        """Type the command of the advice, for another output."""
        words = shlex.split(advice.paste.splitlines()[0])
        out = root / f"{abs(hash(advice.paste))}.fds"
        subprocess.run(
            [sys.executable, "-m", "fastdata", "prep", str(folder), str(out), *words[3:]], check=True, capture_output=True
        )
        return Loader(LMDBDataset(out, crop=RandomResizedCrop(CROP), hflip=0.5), BATCH, shuffle=True, num_workers=cores)

    def workers_of(advice: Advice) -> int:
        return int(advice.title.partition("num_workers=")[2].split()[0])

    return [
        Case("workers for files", lambda: (files_loader(0), None), "num_workers=", lambda a: (files_loader(workers_of(a)), None)),
        Case("a store in place of files", lambda: (files_loader(cores), None), "prepare", lambda a: (prepared(a), None)),
        Case(
            "a store, with a model",
            lambda: (files_loader(cores), (small, small_losses)),
            "prepare",
            lambda a: (prepared(a), trained(small, small_losses)),
        ),
        Case("a smaller stored size", lambda: (ours(), None), "read the stored size", lambda a: (ours(size=256), None)),
        Case(
            "no antialiasing",
            lambda: (ours(size=512), None),
            "resize without antialiasing",
            lambda a: (ours(size=512, crop=RandomResizedCrop(CROP, antialias=False)), None),
        ),
        Case("another codec", lambda: (ours(size=256), None), "prepare", lambda a: (prepared(a), None)),
        Case(
            "workers that wait",
            lambda: (torchs(1, wait=0.004), None),
            "num_workers=",
            lambda a: (torchs(workers_of(a), wait=0.004), None),
        ),
        Case(
            "bytes in memory",
            lambda: (torchs(cores, wait=0.004, rounds=2), None),
            "keep the bytes",
            lambda a: (torchs(cores, rounds=2), None),
        ),
        Case("a transform that goes", lambda: (torchs(cores, rounds=4), None), "do the transform", lambda a: (torchs(cores), None)),
        Case(
            "uint8 in place of float32",
            lambda: (torchs(cores, side=CROP, rounds=1), None),
            "send uint8",
            lambda a: (torchs(cores, side=CROP, rounds=1, dtype=torch.uint8), None),
        ),
        Case(
            "bfloat16",
            lambda: (torchs(1, side=64), conv(64)),
            "compute in bfloat16",
            lambda a: (torchs(1, side=64), trained(*conv(64), bf16=True)),
        ),
        Case(
            "channels last",
            lambda: (torchs(1, side=64), (model, losses)),
            "store the weights",
            lambda a: (torchs(1, side=64), trained(*conv(32), channels_last=True)),
        ),
        Case(
            "the end of other load",
            lambda: (files_loader(cores), None),
            "end other programs",
            lambda a: (files_loader(cores), None),
            cores,
        ),
    ]


class Looping:
    """A loop that keeps its workers over all rounds. load: programs that are busy while it runs."""

    def __init__(self, loader: Any, step: Any, load: int) -> None:
        self._loader, self._load = loader, load
        step = trained(*step) if isinstance(step, tuple) else step
        self._batches = self._stepped(step)

    def _stepped(self, step: Step | None) -> Iterator[int]:
        while True:
            for batch in self._loader:
                if step is not None:
                    step(batch)
                yield count(batch)

    def measure(self, seconds: float) -> Run:
        with burning(self._load):
            return stream(self._batches, 3 * max(self._loader.num_workers, 1), seconds)

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]
        if isinstance(self._loader, Loader):
            self._loader.close()
        elif self._loader.num_workers:
            end_kept_workers(self._loader)


@contextmanager
def burning(number: int) -> Iterator[None]:
    """Keep cores busy with programs that are not descendants of this one."""
    pids = list[int]()
    if number:
        command = f"for k in $(seq {number}); do '{sys.executable}' -c 'while True: pass' >/dev/null 2>&1 & echo $!; done"
        pids = [int(pid) for pid in subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True).stdout.split()]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, 9)


def _row(case: Case, seconds: float, rounds: int) -> tuple[list[str], bool | None]:
    loader, step = case.before()
    with burning(case.load):
        time.sleep(0.5 * bool(case.load))
        found: Diagnosis = diagnose(subject_of(loader), step, seconds=seconds)
    advice = next((one for one in found.advice if one.title.startswith(case.advice) and one.gain), None)
    if advice is None or advice.gain is None:
        return [case.name, found.verdict, "no such advice", "", "", "", found.sure], None
    contestants = {"before": Looping(loader, step, case.load), "after": Looping(*case.after(advice), 0)}
    try:
        runs = interleave({name: one.measure for name, one in contestants.items()}, seconds=max(seconds / 10, 0.3), repeats=rounds)
    finally:
        for one in contestants.values():
            one.close()
    rates = {name: [run.images / run.seconds for run in done] for name, done in runs.items()}
    gains = [after / before for before, after in zip(rates["before"], rates["after"], strict=True)]
    applied = median(gains)
    off = advice.gain / applied - 1
    cells = [f"{advice.gain:.2f}", f"{applied:.2f} ({min(gains):.2f} - {max(gains):.2f})", f"{off:+.0%}"]
    return [case.name, found.verdict, advice.title.partition(" (")[0], *cells, found.sure], abs(off) <= RIGHT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path("../shared/data/photos"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each diagnosis")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, right = list[list[str]](), list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        files = photos(options.photos, Path(folder) / "photos")
        for case in cases(Path(folder), files, available_cores()):
            if options.only not in case.name:
                continue
            row, fine = _row(case, options.seconds, options.rounds)
            print(*row, sep=" | ", flush=True)
            rows.append(row)
            right += [] if fine is None else [fine]
    headers = ["case", "verdict", "advice", "predicted gain", "gain (min - max)", "off by", "doctor is"]
    lines = [*table(headers, rows), "", f"{sum(right)} of {len(right)} predictions are within {RIGHT:.0%} of the gain."]
    print("", *lines, sep="\n")
    if options.out:
        write_markdown(options.out, "Predictions of fastdata doctor", lines, machine())


if __name__ == "__main__":
    main()
