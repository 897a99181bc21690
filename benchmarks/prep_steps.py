"""What fastdata-prep spends on an image in one worker, step by step, and on a small PNG beside a plain loop that stores its bytes.

python benchmarks/prep_steps.py [--photos FOLDER] [--images 1000] [--small 6000] [--rounds 5] [--quick]

CPU microseconds an image, the least of the rounds. A step's time is without that of the steps inside it. Photos are prepared to
256; small images are PNGs of 32 x 32, of noise, in their own size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import simplejpeg
import xxhash
from prep_inputs import photos, repeated

from fastdata.images import image_file, jpeg, prepare, shards
from fastdata.prepare import run, worker
from fastdata.prepare.build_plan import build_plan
from fastdata.prepare.folder import claimed
from fastdata.prepare.tasks import lay_plan
from fastdata.store.shards import ShardWriter

HERE = Path(__file__).resolve().parent
STEPS = (  # what holds a function, its name, and the step that it is
    (run.Pool, "_task", "the parent: hand out a shard"),
    (worker, "_make_shard", "the rest of a shard"),
    (ShardWriter, "__init__", "begin an LMDB file"),
    (ShardWriter, "append", "put a record"),
    (ShardWriter, "finish", "commit and checksum a file"),
    (shards, "_try", "the rest of an image"),
    (shards, "read_source", "read the file"),
    (image_file, "_read_header", "read the header"),
    (simplejpeg, "decode_jpeg", "decode a JPEG"),
    (cv2, "imdecode", "decode a PNG"),
    (prepare, "resize", "resize"),
    (cv2, "imencode", "encode"),
    (jpeg, "_with_index", "index of the JPEG"),
    (xxhash, "xxh3_64_intdigest", "checksum of a record"),
    (worker, "publish_shard", "the parent: flush and publish a shard"),
)


@contextmanager
def timed(spent: Counter[str]) -> Iterator[None]:
    """Add the CPU seconds of each step to `spent`, without those of the steps inside it."""
    inside = [0.0]

    def timer(function: Callable[..., Any], step: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            inside.append(0.0)
            started = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                taken = time.thread_time() - started
                spent[step] += taken - inside.pop()
                inside[-1] += taken

        return call

    before = [(where, name, getattr(where, name)) for where, name, _ in STEPS]
    for (where, name, function), (_, _, step) in zip(before, STEPS, strict=True):
        setattr(where, name, timer(function, step))
    try:
        yield
    finally:
        for where, name, function in before:
            setattr(where, name, function)


def prepared(source: Path, out: Path, size: tuple[int, ...] | None) -> int:
    """Make the shards of a store in this process, as a worker and its parent do. Return their number."""
    shutil.rmtree(out, ignore_errors=True)
    with claimed(out):
        work = lay_plan(build_plan(source, out, size=size), False)
        assert work is not None
        status = worker.Progress(np.zeros(1, worker.STATUS))
        with run.Pool(work, workers=1, timeout_s=60) as pool:
            for shard in range(work.plan.num_shards):
                made = worker._make_shard(pool._job, pool._task(shard), status)
                worker.publish_shard(out, made)
        return work.plan.num_shards


def looped(source: Path, out: Path) -> None:
    """The plain loop: list, read, decode to see that it is an image, put the bytes into an LMDB."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    env = lmdb.open(str(out / "plain.mdb"), subdir=False, map_size=1 << 36, sync=False)
    with env.begin(write=True) as txn:
        for folder in sorted(entry.path for entry in os.scandir(source)):
            for path in sorted(entry.path for entry in os.scandir(folder)):
                with open(path, "rb") as file:
                    data = file.read()
                assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None
                txn.put(path.encode(), data)
    env.sync(True)
    env.close()


def small(count: int, out: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(10):
        (out / f"class{k}").mkdir(parents=True)
    for k in range(count):
        (out / f"class{k % 10}" / f"{k:05d}.png").write_bytes(
            cv2.imencode(".png", rng.integers(0, 256, (32, 32, 3), np.uint8))[1].tobytes()
        )


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def report(name: str, source: Path, out: Path, count: int, rounds: int, size: tuple[int, ...] | None) -> None:
    best, made = dict[str, float](), 0
    for _ in range(rounds):
        spent = Counter[str]()
        with timed(spent):
            made = prepared(source, out, size)
        best = {step: min(seconds, best.get(step, seconds)) for step, seconds in spent.items()}
    total = sum(best.values())
    print(f"\n{name}: {count} images in {made} shards, {total / count * 1e6:,.0f} us of CPU an image\n")
    for step, seconds in sorted(best.items(), key=lambda item: -item[1]):
        print(f"| {step} | {seconds / count * 1e6:,.1f} | {seconds / total:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=HERE.parents[1] / "shared/data/photos")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--small", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few images, one round")
    given = parser.parse_args()
    if given.quick:
        given.images, given.small, given.rounds = 100, 300, 1
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repeated(photos(given.photos, root / "originals"), given.images, root / "photos")
        report("photos to 256", root / "photos", root / "out", given.images, given.rounds, (256,))
        small(given.small, root / "small")
        report("PNGs of 32 x 32", root / "small", root / "out", given.small, given.rounds, None)
        ours, loop = (
            min(seconds_of(work) for _ in range(given.rounds))
            for work in (lambda: prepared(root / "small", root / "out", None), lambda: looped(root / "small", root / "plain"))
        )
        print(f"\nPNGs of 32 x 32, us of CPU a file: {ours / given.small * 1e6:,.0f}; a plain loop {loop / given.small * 1e6:,.0f}")


if __name__ == "__main__":
    main()
