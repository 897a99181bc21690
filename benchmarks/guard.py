"""The Loader of the working tree beside that of a pinned revision, work by work: `make bench-guard`.

python benchmarks/guard.py [--pin 720cefc9] [--only "jpeg 256 random"] [--processes 12] [--photos ../shared/data/photos]

Each revision prepares its own stores of the same inputs, since the format may differ. Photos are enlarged before. For each work,
and as often as --processes says, one process of each revision starts; both warm up, then take turns in rounds of half a second. The
ratio is working tree / pin, in samples/s. Exits with 1 if the lower quartile of a work is below 0.97. Needs an idle machine: on two
busy cores, single ratios move by 10 %. Takes 20 to 40 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from prep_inputs import photos

ROOT = Path(__file__).resolve().parents[1]
PIN = "720cefc9"  # the fastest revision so far
FLOOR = 0.97
ROUNDS, ROUND_S = 4, 0.5
JPEG_COUNT = {256: 2048, 512: 1024}  # photos in the page cache, over and over
BATCH, WORKERS = 64, 2


class Work(NamedTuple):
    """What is compared. source: a folder of `make_sources`; options: of prep; dataset: an expression; shape: that of a batch."""

    source: str
    options: dict[str, Any]
    dataset: str
    shape: tuple[int, ...]


IMAGES, CROP = (BATCH, 3, 224, 224), "crop=f.RandomResizedCrop(224)"
JPEG, LMDB = {"size": 256}, f"f.LMDBDataset(store, {CROP})"
WORKS = {
    "jpeg 256 random": Work("photos-256", JPEG, LMDB, IMAGES),
    "jpeg 256 centre": Work("photos-256", JPEG, "f.LMDBDataset(store, crop=f.CenterCrop(224))", IMAGES),
    "jpeg 512 random": Work("photos-512", {"size": 512}, LMDB, IMAGES),
    "raw 256 random": Work("photos-256", {"size": 256, "codec": "rgb"}, LMDB, IMAGES),
    "ram 256 random": Work("photos-256", JPEG, f"f.RAMDataset(store, {CROP})", IMAGES),
    "ten views": Work("photos-256", JPEG, "f.LMDBDataset(store, crop=f.MultiCrop(224, 96))", IMAGES),
    "behind a cache": Work("photos-256", JPEG, f"f.LMDBDataset('file://' + store, cache=store + '.cache', {CROP})", IMAGES),
    "masks": Work("photos-256", JPEG | {"masks": "masks-256"}, f"f.MaskDataset(store, {CROP})", IMAGES),
    "boxes": Work("boxes-256.csv", JPEG | {"fields": ["boxes:xyxy"]}, f"f.LMDBDataset(store, {CROP}, fields='boxes')", IMAGES),
    "tokens": Work("text", {"tokenizer": "bytes"}, "f.TokenDataset(store, 1024)", (BATCH, 1025)),
    "arrays": Work("volumes", {}, "f.ArrayDataset(store, crop=f.RandomCrop(64))", (BATCH, 64, 64, 64)),
}
CHILD = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
src, store, dataset, batch, workers, shape = sys.argv[1:]
sys.path.insert(0, src)
import fastdata as f
assert os.path.realpath(f.__file__).startswith(os.path.realpath(src)), f.__file__
def batches():
    while True:
        for batch in loader:
            while isinstance(batch, (tuple, list)):
                batch = batch[0]
            yield batch
if __name__ == "__main__":
    loader = f.Loader(eval(dataset), batch_size=int(batch), shuffle=True, seed=0, num_workers=int(workers), drop_last=True)
    stream = batches()
    found = list(next(stream).shape)
    assert found == json.loads(shape), found
    print("ready", flush=True)
    for line in sys.stdin:
        todo, total, begin = int(line), 0, time.perf_counter()
        while total < todo:
            total += len(next(stream))
        print(json.dumps(total / (time.perf_counter() - begin)), flush=True)
"""
PREPARE = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import fastdata
if __name__ == "__main__":
    fastdata.prep(sys.argv[2], sys.argv[3], **json.loads(sys.argv[4]))
"""


class Contestant:
    """A process with the Loader of a revision, which delivers samples when asked."""

    def __init__(self, src: Path, store: Path, work: Work) -> None:
        arguments = [str(src), str(store), work.dataset, str(BATCH), str(WORKERS), json.dumps(work.shape)]
        command = [sys.executable, "-c", CHILD, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.src = src

    def answer(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            sys.exit(f"{self.src}: the loader ended; its traceback is above")
        return line

    def rate(self, samples: int) -> float:
        """Return samples/s over `samples` of them."""
        assert self._process.stdin
        print(samples, file=self._process.stdin, flush=True)
        return float(self.answer())

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def checkout(revision: str, folder: Path) -> Any:
    """Yield the folder `src` of a revision."""
    tree = folder / "pin"
    added = subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-f", tree, revision], capture_output=True, text=True)
    if added.returncode:
        sys.exit(f"--pin {revision} is not in this clone ({added.stderr.strip()}): git fetch --unshallow brings all revisions")
    try:
        yield tree / "src"
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], capture_output=True)


def make_sources(folder: Path, photo_folder: Path) -> None:
    """Write photos-256/, masks-256/, boxes-256.csv, photos-512/, text/ and volumes/."""
    files = photos(photo_folder, folder / "unique")
    (folder / "masks-256/all").mkdir(parents=True)
    boxes = ["path,label,boxes"]
    for size, count in JPEG_COUNT.items():
        out = folder / f"photos-{size}" / "all"
        out.mkdir(parents=True)
        for k in range(min(count, len(files))):
            image: Any = cv2.imread(str(files[k]))
            scale = max(1.0, (size + 1) / min(image.shape[:2]))
            image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
            data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
            mask = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) // 32)[1].tobytes()
            for copy in range(k, count, len(files)):
                (out / f"{copy:06d}.jpg").write_bytes(data)
                if size == 256:
                    (folder / f"masks-256/all/{copy:06d}.png").write_bytes(mask)
                    boxes.append(f'photos-256/all/{copy:06d}.jpg,a,"{[[20, 30, 120, 150], [60.5, 80, 200, 200]]}"')
    (folder / "boxes-256.csv").write_text("\n".join(boxes))
    rng = np.random.default_rng(0)
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_bytes(rng.integers(32, 127, 50_000_000, np.uint8).tobytes())
    (folder / "volumes").mkdir()
    for k in range(256):
        np.save(folder / "volumes" / f"{k:03d}.npy", rng.integers(0, 4096, (80, 80, 80), np.uint16))


def compare(name: str, sources: list[Path], folder: Path, processes: int) -> list[float]:
    """Return the ratio of each pair of processes: the last of `sources` over the first."""
    work = WORKS[name]
    stores = [folder / f"{work.source}-{work.options.get('codec', '')}-{'masks' in work.options}-{k}.fds" for k in range(2)]
    for src, store in zip(sources, stores, strict=True):
        if not store.exists():
            arguments = [str(src), work.source, str(store), json.dumps(work.options)]
            subprocess.run([sys.executable, "-c", PREPARE, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    ratios = []
    for number in range(processes):
        pair = [Contestant(src, store, work) for src, store in zip(sources, stores, strict=True)]
        for contestant in pair:
            contestant.answer()
        warm = [statistics.mean(contestant.rate(samples) for samples in (BATCH, 16 * BATCH)) for contestant in pair]
        samples = max(BATCH, int(min(warm) * ROUND_S))
        rates: list[list[float]] = [[], []]
        for r in range(ROUNDS):
            for k in ((0, 1), (1, 0))[(r + number) % 2]:
                rates[k].append(pair[k].rate(samples))
        for contestant in pair:
            contestant.close()
        before, now = map(statistics.median, rates)
        ratios.append(now / before)
        print(f"  {before:10,.0f} {now:10,.0f} samples/s   {now / before:.3f}", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pin", default=PIN, help="a revision that git knows")
    parser.add_argument("--only", action="append", choices=WORKS, help="may be repeated")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--photos", type=Path, default=ROOT.parent / "shared/data/photos")
    options = parser.parse_args()
    rows, slow = [], []
    with tempfile.TemporaryDirectory() as name, checkout(options.pin, Path(name)) as pinned:
        folder = Path(name)
        make_sources(folder, options.photos)
        for work in options.only or WORKS:
            print(work, flush=True)
            ratios = compare(work, [pinned, ROOT / "src"], folder, options.processes)
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            rows.append(f"| {work} | {middle:.3f} | {low:.3f} to {high:.3f} |")
            if low < FLOOR:
                slow.append(f"{work}: the lower quartile is {low:.3f}, below {FLOOR}")
    print(f"\n| {WORKERS} workers, {options.processes} pairs of processes | working tree / {options.pin} | quartiles |")
    print("|---|--:|--:|", *rows, sep="\n")
    sys.exit("\n".join(slow) or 0)


if __name__ == "__main__":
    main()
