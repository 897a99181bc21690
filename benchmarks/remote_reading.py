"""What it costs to read a store from object storage: cold, warm, with a small cache or faults, the first batch, eight ranks.

    python benchmarks/remote_reading.py --images 20000

The server is tests/scale/faults.py on this machine, so its CPU time counts too. Run it on a quiet machine: on one with two cores,
the server, the downloader and two workers share them. With `--workers 1`, a core is left for the first two, as on larger machines.
Ratios come from the same round; medians over the rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "scale"))

import cv2
import numpy as np
from prep_inputs import repeated

import fastdata
from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.errors import StoreError
from fastdata.store.manifest import read_manifest
from faults import FaultServer, serving

DOWNLOADER_S = 3.0  # in which a downloader notices that its Loader is gone

PLAIN = """
import json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import from_url
url, sizes, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
store = from_url(url, client_options={"allow_http": True})
STEP = 16 << 20
def get(each):
    path, start, size = each
    part = obstore.get_range(store, path, start=start, length=min(STEP, size - start))
    if out:
        with open(os.path.join(out, path.replace("/", "-")), "ab") as file:
            file.write(part)
    return len(part)
started = time.perf_counter()
with ThreadPoolExecutor(4 if out else 16) as pool:
    parts = [(path, start, size) for path, size in sizes.items() for start in range(0, size, STEP)]
    total = sum(pool.map(get, parts))
print(total / (time.perf_counter() - started))
"""

RANK = """
import sys
from fastdata import LMDBDataset, Loader, RandomResizedCrop
url, cache, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Loader(LMDBDataset(url, cache=cache, crop=RandomResizedCrop(128)), 16, num_workers=1, rank=rank, world_size=8) as loader:
    for _ in loader:
        pass
"""


def make(folder: Path, images: int) -> Path:
    """Prepare a store of noise with soft edges, which compresses as photos do. A thousand images are drawn, and repeated."""
    (folder / "drawn").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k in range(min(images, 1000)):
        small = rng.integers(0, 256, (60, 80, 3), np.uint8)
        image = cv2.resize(small, (640, 480), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / "drawn" / f"{k:05d}.jpg"), cv2.add(image, rng.integers(0, 24, image.shape, np.uint8)))
    repeated(sorted((folder / "drawn").iterdir()), images, folder / "in")
    return fastdata.prep(folder / "in", folder / "photos.fds", size=384, progress=False).out


def read(path: str | Path, workers: int = 2, epochs: int = 1, **options: object) -> tuple[float, float]:
    """Return images/s of the last epoch, and the seconds from the opening to the first batch."""
    started = time.perf_counter()
    dataset = LMDBDataset(path, crop=RandomResizedCrop(224), **options)
    first = 0.0
    with Loader(dataset, 32, shuffle=True, order="interleaved", num_workers=workers) as loader:
        for _ in range(epochs):
            count, began = 0, time.perf_counter() if first else started
            for batch in loader:
                first = first or time.perf_counter() - started
                count += len(batch.ids)
    return count / (time.perf_counter() - began), first


def least_cache(url: str, folder: Path) -> int:
    """Return the smallest cache_size that a shuffled pass accepts, from the error that names it."""
    try:
        read(url, cache=folder, cache_size="20MB")
    except StoreError as error:
        return int(re.findall(r"give cache_size=(\d+)", str(error))[0])
    raise SystemExit("a cache of 20 MB was accepted: take more images")


def plain(url: str, sizes: dict[str, int], out: Path | str = "") -> subprocess.Popen[str]:
    """Download shards with obstore alone, and write them to files in a folder, if one is given. It prints bytes/s."""
    return subprocess.Popen([sys.executable, "-c", PLAIN, url, json.dumps(sizes), str(out)], stdout=subprocess.PIPE, text=True)


def sizes_of(store: Path) -> dict[str, int]:
    (variant,) = read_manifest(store).variants
    return {f"{variant.name}/shard-{k:05d}.mdb": total.bytes for k, total in enumerate(variant.shards)}


def beside_download(store: Path, workers: int, url: str, sizes: dict[str, int], folder: Path) -> float:
    """Return images/s of the store on this machine, while some of its shards are downloaded into files."""
    with temporary(folder):
        folder.mkdir()
        with plain(url, sizes, folder) as beside:
            speed, _ = read(store, workers)
            beside.communicate()
    return speed


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Yield a folder, and remove it, so that nothing is written to it while something else is measured."""
    yield folder
    time.sleep(DOWNLOADER_S)
    shutil.rmtree(folder)


def shard_bytes(server: FaultServer) -> int:
    return sum(size for path, size in server.nbytes.items() if "shard-" in path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of the Loader")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="write the results there too")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        results = measure(folder, given.images, given.rounds, given.workers)
    finally:
        shutil.rmtree(folder)
    for name, value in results.items():
        print(f"{name:70} {value:.3f}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(folder: Path, images: int, rounds: int, workers: int) -> dict[str, float]:
    store = make(folder, images)
    fastdata.publish(store, f"file://{folder}/served/photos.fds")
    sizes = sizes_of(store)
    total = sum(sizes.values())
    per_image = total / images
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with serving(folder / "served") as server:
        url = f"{server.url}/photos.fds"
        for k in range(rounds):
            speed = float(plain(url, sizes).communicate()[0])
            local, _ = read(store, workers)
            with temporary(folder / f"cache{k}") as cache:
                cold, _ = read(url, workers, cache=cache)
                warm, _ = read(url, workers, cache=cache)
            again, _ = read(store, workers)
            limit = beside_download(store, workers, url, sizes, folder / "plain")
            note("plain download, MB/s", speed / 1e6)
            note("local, images/s", local)
            note("cold / min(plain download, local)", cold / min(speed / per_image, local))
            note("cold / local beside a plain download to files", cold / limit)
            note("warm / local", warm / statistics.mean((local, again)))
            server.delay_s = 0.02
            with temporary(folder / f"delayed{k}") as cache:
                note("first batch, cold, 20 ms a request, s", read(url, workers, cache=cache)[1])
            server.delay_s = 0.0
        least = least_cache(url, folder / "least")
        note("least cache / store, bytes", least / total)
        for k in range(rounds):
            with temporary(folder / f"all{k}") as cache:
                everything, _ = read(url, workers, epochs=2, cache=cache)
            server.nbytes.clear()
            with temporary(folder / f"least{k}") as cache:
                some, _ = read(url, workers, epochs=2, cache=cache, cache_size=least)
            again = (shard_bytes(server) - total) / total  # the first epoch fetches every shard once
            note("second epoch, least cache: fetched / store", again)
            fetched = dict(list(sizes.items())[: round(again * len(sizes))])
            limit = beside_download(store, workers, url, fetched, folder / "plain")
            note("second epoch, least cache / all in cache", some / everything)
            note("second epoch, least cache / local beside a plain download of as much", some / limit)
            with temporary(folder / f"sound{k}") as cache:
                sound, _ = read(url, workers, cache=cache)
            server.chance = 0.01  # of each kind of fault
            with temporary(folder / f"faulty{k}") as cache:
                faulty, _ = read(url, workers, cache=cache)
            server.chance = 0.0
            note("cold, 1 % of each fault / without faults", faulty / sound)
        note("faults", sum(server.made.values()))
        server.nbytes.clear()
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, url, str(folder / "ranks"), str(rank)]) for rank in range(8)]
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a rank failed")
        note("8 ranks, bytes of shards / store", shard_bytes(server) / total)
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
