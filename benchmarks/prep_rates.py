"""How fast fastdata-prep is, beside bare processes that do the same cv2 work and store nothing, and beside a plain LMDB writer.

    python benchmarks/prep_rates.py                 about ten minutes on 2 cores
    python benchmarks/prep_rates.py --images 1000 --mosaics 0
    python benchmarks/prep_rates.py --quick         the same steps on few images: does it work?

Each contestant is a program of its own, measured from its start to its end, with everything that it stores on disk. Contestants
take turns; ratios are formed within a round, and medians over the rounds are reported.
"""

from __future__ import annotations

import argparse
import compileall
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from prep_inputs import mosaics, photos, repeated
from prep_peers import QUALITY, encode
from recording import machine, write_json, write_markdown

import fastdata
from fastdata.bench.harness import Run, interleave, summarize, table
from fastdata.images.dataset import LMDBDataset
from fastdata.types import Array

HERE = Path(__file__).resolve().parent
PSNR_DB = 30.0  # what the contestants' images must agree to
PREP = "from fastdata.entry import prep_main; prep_main()"


@dataclass
class Job:
    """One program, measured once a round. sizes: those that fastdata-prep makes; for the others, the one size."""

    images: list[str]
    out: Path
    command: list[str]
    sizes: tuple[int, ...]

    def measure(self, _: float) -> Run:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        os.sync()  # what others have written goes to disk now, not while this one is measured
        started = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        taken, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(self.command)}\nexit code {process.returncode}")
        return Run(len(self.images), taken, usage.ru_utime + usage.ru_stime)


def prep_job(images: list[str], out: Path, workers: int, sizes: tuple[int, ...]) -> Job:
    options = [*(f"--size={size}" for size in sizes), f"--quality={QUALITY}", f"--workers={workers}"]
    return Job(images, out, [sys.executable, "-c", PREP, str(Path(images[0]).parent.parent), str(out / "s.fds"), *options], sizes)


def peer_job(name: str, images: list[str], out: Path, workers: int, size: int) -> Job:
    listing = out.with_suffix(".txt")
    listing.write_text("\n".join(images))
    command = [sys.executable, str(HERE / "prep_peers.py"), name, str(listing), str(size), str(workers), str(out / "plain.mdb")]
    return Job(images, out, command, (size,))


BARE, PLAIN, ONE, THREE = "bare processes", "LMDB writer loop", "fastdata-prep", "fastdata-prep, three sizes"
SMALL, MEDIUM, LARGE = "photos to 256", "photos to 512", "12 megapixels to 512"
TARGETS = (  # what is asked of fastdata-prep: what, over what, on what, at least
    (ONE, BARE, SMALL, 0.85),
    (ONE, PLAIN, SMALL, 1.0),
    (ONE, BARE, LARGE, 2.0),
    (THREE, ONE, MEDIUM, 1 / 1.6),
    (THREE, ONE, LARGE, 1 / 1.6),
)


def jobs(args: argparse.Namespace, work: Path) -> dict[tuple[str, str], Job]:
    """Every contestant, by (what it works on, its name)."""
    files = photos(args.photos, work / "originals")
    small = repeated(files, args.images, work / "photos")
    found = {
        (SMALL, BARE): peer_job("bare", small, work / "a", args.workers, 256),
        (SMALL, PLAIN): peer_job("lmdb", small, work / "b", args.workers, 256),
        (SMALL, ONE): prep_job(small, work / "c", args.workers, (256,)),
    }
    if args.mosaics:
        large = repeated(mosaics(files, min(args.mosaics, 12), work / "mosaics"), args.mosaics, work / "large")
        found |= {
            (MEDIUM, ONE): prep_job(small, work / "d", args.workers, (512,)),
            (MEDIUM, THREE): prep_job(small, work / "e", args.workers, (512, 256, 128)),
            (LARGE, BARE): peer_job("bare", large, work / "f", args.workers, 512),
            (LARGE, ONE): prep_job(large, work / "g", args.workers, (512,)),
            (LARGE, THREE): prep_job(large, work / "h", args.workers, (512, 256, 128)),
        }
    return found


def check(name: str, job: Job) -> None:
    """Compare what a contestant left on disk with what the bare processes make: how many records, their sizes, their pixels."""
    if name == BARE:
        return
    probes = job.images[:: max(1, len(job.images) // 20)]
    for path, size, pixels in _plain_records(job, probes) if name == PLAIN else _store_records(job, probes):
        want = cv2.imdecode(np.frombuffer(encode(path, size), np.uint8), cv2.IMREAD_COLOR_RGB)
        assert want is not None
        _expect(pixels.shape == want.shape, f"{name}: {path} at {size} has {pixels.shape}, {want.shape} was expected")
        error = float(np.mean((pixels.astype(np.float64) - want) ** 2))
        _expect(10 * math.log10(255**2 / max(error, 1e-9)) > PSNR_DB, f"{name}: {path} at {size} has other pixels")


def _store_records(job: Job, probes: list[str]) -> Iterator[tuple[str, int, Array]]:
    root = Path(job.images[0]).parent.parent
    for size in job.sizes:
        dataset = LMDBDataset(job.out / "s.fds", size=size)
        _expect(len(dataset) == len(job.images), f"{job.out}: {len(dataset)} records, {len(job.images)} were expected")
        rows = {dataset.name(k): k for k in range(len(dataset))}
        for path in probes:
            yield path, size, dataset[rows[str(Path(path).relative_to(root))]][0].permute(1, 2, 0).numpy()


def _plain_records(job: Job, probes: list[str]) -> Iterator[tuple[str, int, Array]]:
    import lmdb

    with lmdb.open(str(job.out / "plain.mdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        _expect(env.stat()["entries"] == len(job.images), f"{job.out}: records are missing")
        for path in probes:
            pixels = cv2.imdecode(np.frombuffer(txn.get(path.encode()) or b"", np.uint8), cv2.IMREAD_COLOR_RGB)
            assert pixels is not None
            yield path, job.sizes[0], pixels


def _expect(fine: bool, problem: str) -> None:
    if not fine:
        sys.exit(f"WRONG OUTPUT {problem}")


def report(runs: dict[tuple[str, str], list[Run]]) -> tuple[dict[str, Any], list[str]]:
    """The result as plain values, and as lines of Markdown."""
    results, lines = [], list[str]()
    for group in dict.fromkeys(group for group, _ in runs):
        mine = {name: done for (other, name), done in runs.items() if other == group}
        rows = summarize(mine, reference=next(iter(mine)))
        results += [row | {"group": group} for row in rows]
        lines += ["", f"## {group}", "", *table(["", "images/s", "least - greatest", "CPU s/1000"], [_cells(row) for row in rows])]
    ratios = []
    for name, over, group, least in TARGETS:
        if (group, over) in runs:
            ratio = summarize({"over": runs[group, over], "this": runs[group, name]}, reference="over")[1]["ratio"]
            ratios.append({"what": f"{name} / {over}, {group}", **ratio, "target": least})
    headers = ["", "median", "least - greatest", "target", ""]
    lines += ["", "## ratios of images/s within a round", "", *table(headers, [_ratio_cells(row) for row in ratios])]
    return {"results": results, "ratios": ratios}, lines


def _cells(row: dict[str, Any]) -> list[str]:
    rate = row["images_per_s"]
    return [row["name"], f"{rate['median']:,.1f}", f"{rate['min']:,.1f} - {rate['max']:,.1f}", f"{row['cpu_ms_per_image']:.2f}"]


def _ratio_cells(row: dict[str, Any]) -> Sequence[str]:
    met = "met" if row["median"] >= row["target"] else "MISSED"
    return [row["what"], f"{row['median']:.2f}", f"{row['min']:.2f} - {row['max']:.2f}", f"{row['target']:.2f}", met]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=HERE.parents[1] / "shared/data/photos", help="folder of JPEG photos")
    parser.add_argument("--images", type=int, default=4000, help="photos of a run")
    parser.add_argument("--mosaics", type=int, default=320, help="12-megapixel images of a run; 0: photos to 256 only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (all cores)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="few images, one round: a smoke test, whose results are not kept")
    args = parser.parse_args()
    if args.quick:
        args.images, args.mosaics, args.rounds = 200, 8, 1
    compileall.compile_dir(
        Path(fastdata.__file__).parent, quiet=1
    )  # as pip does: a command that compiles itself starts 0.2 s later
    with tempfile.TemporaryDirectory(prefix="prep-rates-") as folder:
        all_jobs = jobs(args, Path(folder))
        # No warm-up round: each run is a fresh program, and the inputs were just written, so they are in memory.
        runs = interleave({key: job.measure for key, job in all_jobs.items()}, seconds=0, repeats=args.rounds, warmup=0)
        for (_, name), job in all_jobs.items():
            check(name, job)
    result, lines = report(runs)
    print("\n".join(lines))
    if not args.quick:
        found = machine()
        found["command"] = f"python benchmarks/{found['command']}"
        settings = {name: getattr(args, name) for name in ("images", "mosaics", "rounds", "workers")}
        stem = args.out / f"prep-{datetime.now(timezone.utc):%Y%m%d}"
        write_json(f"{stem}.json", {"machine": found, "settings": settings, **result})
        write_markdown(f"{stem}.md", "Rates of fastdata-prep", lines, found | settings)


if __name__ == "__main__":
    main()
