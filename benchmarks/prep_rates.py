"""How fast fastdata-prep is, beside bare processes that do the same cv2 work and store nothing, and beside plain writers.

    python benchmarks/prep_rates.py                 about 15 minutes on 2 cores
    python benchmarks/prep_rates.py --quick         the same steps on few images: does it work?
    python benchmarks/prep_rates.py --startup --images 1000     photos to 256 only, from the start of each program

Contestants take turns; ratios are formed within a round, and medians over the rounds are reported.

Start-up is left out in the same way for all. Every contestant is a program of its own that says how many images are done, once a
second. The clock starts at the first such line with a twentieth of the images done, when all workers are at work, and stops when
the program has ended, with everything that it stores on disk. Only the images after that line count. (Running N and 2N images and
taking the difference would double the noise; a run in which start-up is below 2 % would take minutes a round.)
CPU time is that of the whole program, start-up included, spread over all its images.

MDSWriter takes part with --mds-python, the Python of an environment of its own; it would bring several gigabytes into this one:

    python -m venv mds-env && mds-env/bin/pip install mosaicml-streaming opencv-python-headless
    python benchmarks/prep_rates.py --mds-python mds-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from prep_inputs import mosaics, photos, repeated
from prep_peers import QUALITY, bare
from recording import machine, write_json, write_markdown

HERE = Path(__file__).resolve().parent
LEAD = 0.05  # share of the images before the clock starts
PSNR_DB = 30.0  # what the contestants' images must agree to

Array = np.ndarray[Any, np.dtype[Any]]
Key = tuple[str, str]  # what is worked on, and by whom


# Measuring


class Job:
    """One program, measured once a round.

    Attributes:
        out: what it makes; removed before each run.
        late: runs that were too short for start-up to be left out.
        startup: do not leave it out.
        pss: bytes of all its processes together, half-way, in each run.
    """

    def __init__(self, images: list[str], out: Path, command: list[str]) -> None:
        self.images, self.out, self.command = images, out, command
        self.bytes = sum(Path(p).stat().st_size for p in images)
        self.late, self.startup = 0, False
        self.pss: list[int] = []

    def measure(self, _: float) -> Any:
        from fastdata.bench.harness import Run, tree_pss

        shutil.rmtree(self.out, ignore_errors=True)
        os.sync()  # what others have written goes to disk now, not while this one is measured
        own, count = tree_pss() or 0, len(self.images)
        first, said, half = (0, time.perf_counter()), list[str](), False
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            now = time.perf_counter()
            found = re.search(r'^{"done": (\d+)|(\d+)/\d+ \[', line)
            if found is None:
                said.append(line)
                continue
            done = int(found[1] or found[2])
            if not self.startup and not first[0] and LEAD * count <= done < count / 2:
                first = done, now
            if not half and count / 2 <= done < count:
                half = True
                self.pss.append((tree_pss() or 0) - own)
        _, status, usage = os.wait4(process.pid, 0)
        taken, process.returncode = time.perf_counter() - first[1], os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode:
            sys.exit(f"{' '.join(self.command)}\n{''.join(said)}exit code {process.returncode}")
        self.late += not first[0]
        part = (count - first[0]) / count
        return Run(count - first[0], taken, (usage.ru_utime + usage.ru_stime) * part)


def prep_job(images: list[str], out: Path, sizes: Iterable[int], workers: int) -> Job:
    source = Path(images[0]).parent.parent
    code = f"prep(sys.argv[1], sys.argv[2], size={[*sizes]}, quality={QUALITY}, workers={workers}, progress=True)"
    begin = "import sys; from fastdata import prep; from fastdata.prepare import tasks; tasks.LINE_S = 1.0"
    return Job(images, out, [sys.executable, "-c", f"{begin}; {code}", str(source), str(out)])


def play_job(name: str, images: list[str], out: Path, size: int, workers: int, python: str = sys.executable) -> Job:
    listing = out.parent / f"{out.name}.txt"
    listing.write_text("\n".join(images))
    return Job(images, out, [python, str(HERE / "prep_peers.py"), name, str(listing), str(size), str(workers), str(out)])


# Checks, outside the timed region


def check(name: str, job: Job, sizes: tuple[int, ...]) -> None:
    """What a contestant left on disk: how many records, their sizes, their pixels beside the bare processes' ones."""
    probes = job.images[:: max(1, len(job.images) // 20)]
    if "fastdata-prep" in name:
        records = _store_records(job, probes, sizes)
    elif "LMDB" in name:
        records = _lmdb_records(job, probes, sizes[0])
    elif "MDS" in name:
        shards = json.loads((job.out / "index.json").read_text())["shards"]
        _expect(sum(shard["samples"] for shard in shards) == len(job.images), f"{name}: records are missing")
        return
    else:
        return  # it stores nothing; what it makes is what the others are compared with
    for path, size, pixels in records:
        want = cv2.imdecode(np.frombuffer(bare(path, size), np.uint8), cv2.IMREAD_COLOR_RGB)
        assert want is not None
        _expect(pixels.shape == want.shape, f"{name}: {path} at {size} has {pixels.shape}, {want.shape} was expected")
        error = float(np.mean((pixels.astype(np.float64) - want) ** 2))
        _expect(10 * math.log10(255**2 / max(error, 1e-9)) > PSNR_DB, f"{name}: {path} at {size} has other pixels")


def _store_records(job: Job, probes: list[str], sizes: tuple[int, ...]) -> Iterator[tuple[str, int, Array]]:
    from fastdata.images.stored import LMDBDataset

    for size in sizes:
        dataset = LMDBDataset(job.out, size=size)
        _expect(len(dataset) == len(job.images), f"{job.out}: {len(dataset)} records, {len(job.images)} were expected")
        place = {dataset.name(k): k for k in range(len(dataset))}
        root = Path(job.images[0]).parent.parent
        for path in probes:
            yield path, size, dataset[place[str(Path(path).relative_to(root))]][0].permute(1, 2, 0).numpy()


def _lmdb_records(job: Job, probes: list[str], size: int) -> Iterator[tuple[str, int, Array]]:
    import lmdb

    with lmdb.open(str(job.out / "plain.mdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        _expect(env.stat()["entries"] == len(job.images), f"{job.out}: records are missing")
        for path in probes:
            pixels = cv2.imdecode(np.frombuffer(txn.get(path.encode()) or b"", np.uint8), cv2.IMREAD_COLOR_RGB)
            assert pixels is not None
            yield path, size, pixels


def _expect(fine: bool, problem: str) -> None:
    if not fine:
        sys.exit(f"WRONG OUTPUT {problem}")


# The run

SMALL, MEDIUM, LARGE = "photos to 256", "12 megapixels of 2.5 MB to 512", "12 megapixels of 5 MB to 512"
PHOTOS = "photos to 512"
BARE, PLAIN, MDS, PREP, PREP3 = "bare processes", "LMDB writer loop", "MDSWriter", "fastdata-prep", "fastdata-prep, 512 + 256 + 128"


def jobs(args: argparse.Namespace, work: Path) -> dict[Key, Job]:
    """Every contestant, by (what it works on, its name)."""
    files = photos(args.photos, work / "originals")
    small = repeated(files, args.images, work / "photos")
    print(f"{len(small)} photos, {sum(Path(p).stat().st_size for p in small) / len(small) / 1e3:.0f} kB on average", flush=True)
    found: dict[Key, Job] = {}

    def add(group: str, images: list[str], size: int, names: Iterable[str]) -> None:
        for name in names:
            out = work / f"out-{len(found):02d}"
            if name in (PREP, PREP3):
                job = prep_job(images, out, (512, 256, 128) if name == PREP3 else (size,), args.workers)
            else:
                play = {BARE: "bare", PLAIN: "lmdb", MDS: "mds"}[name]
                job = play_job(play, images, out, size, args.workers, args.mds_python if name == MDS else sys.executable)
            found[group, name] = job

    add(SMALL, small, 256, [BARE, PLAIN, *([MDS] if args.mds_python else []), PREP])
    if args.startup:
        for job in found.values():
            job.startup = True
        return found
    add(PHOTOS, small, 512, [PREP, PREP3])
    for group, megabytes, names in ((MEDIUM, 2.5, [BARE, PREP, PREP3]), (LARGE, 5.0, [BARE, PREP])):
        made = mosaics(files, min(args.mosaics, 2 if args.quick else 12), megabytes, work / f"mosaics-{megabytes}")
        sizes = [p.stat().st_size / 1e6 for p in made]
        print(f"{args.mosaics} mosaics of {min(sizes):.2f} to {max(sizes):.2f} MB", flush=True)
        add(group, repeated(made, args.mosaics, work / f"large-{megabytes}"), 512, names)
    return found


TARGETS = (  # what is asked of fastdata-prep: what, over what, on what, at least
    (PREP, BARE, SMALL, 0.9),
    (PREP, PLAIN, SMALL, 1.0),
    (PREP, MDS, SMALL, 1.0),
    (PREP, BARE, MEDIUM, 2.5),
    (PREP, BARE, LARGE, 2.0),
    (PREP3, PREP, MEDIUM, 1 / 1.6),
    (PREP3, PREP, PHOTOS, 1 / 1.6),
)


def report(runs: dict[Key, list[Any]], all_jobs: dict[Key, Job]) -> tuple[dict[str, Any], list[str]]:
    """The result as plain values, and as lines of Markdown."""
    from fastdata.bench.harness import summarize, table

    results, ratios, lines = [], [], list[str]()
    for group in dict.fromkeys(group for group, _ in runs):
        mine = {name: done for (other, name), done in runs.items() if other == group}
        rows = summarize(mine, reference=next(iter(mine)))
        for row in rows:
            job = all_jobs[group, row["name"]]
            mb_per_s = row["images_per_s"]["median"] * job.bytes / len(job.images) / 1e6
            row |= {"group": group, "mb_per_s": mb_per_s, "pss_bytes": max(job.pss, default=None), "startup_included": job.late > 0}
        results += rows
        lines += ["", f"## {group}", "", *table(HEADERS, [_cells(row) for row in rows])]
    for name, over, group, least in TARGETS:
        if (group, over) in runs:
            pairs = {"over": runs[group, over], "this": runs[group, name]}
            ratio = summarize(pairs, reference="over")[1]["ratio"]
            short = any(all_jobs[group, which].late for which in (name, over))
            met = None if short else ratio["median"] >= least
            ratios.append({"name": name, "over": over, "group": group, **ratio, "target": least, "met": met})
    lines += ["", "## ratios of images/s within a round", "", *table(RATIO_HEADERS, [_ratio_cells(row) for row in ratios])]
    return {"results": results, "ratios": ratios}, lines


HEADERS = ["", "images/s", "least - greatest", "MB/s in", "CPU s/1000", "memory, MB"]
RATIO_HEADERS = ["", "median", "least - greatest", "target", ""]


def _cells(row: dict[str, Any]) -> list[str]:
    rate, memory = row["images_per_s"], row["pss_bytes"]
    return [
        row["name"] + " (with start-up)" * row["startup_included"],
        f"{rate['median']:,.1f}",
        f"{rate['min']:,.1f} - {rate['max']:,.1f}",
        f"{row['mb_per_s']:.1f}",
        f"{row['cpu_ms_per_image']:.2f}",
        f"{memory / 1e6:.0f}" if memory else "?",
    ]


def _ratio_cells(row: dict[str, Any]) -> list[str]:
    what = f"{row['name']} / {row['over']}, {row['group']}"
    met = {True: "met", False: "MISSED", None: "too short a run to tell"}[row["met"]]
    return [what, f"{row['median']:.2f}", f"{row['min']:.2f} - {row['max']:.2f}", f"{row['target']:.2f}", met]


def main() -> None:
    args = arguments()
    from fastdata.bench.harness import interleave

    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # an installed package has its bytecode
    with tempfile.TemporaryDirectory(prefix="prep-rates-", dir=args.work) as folder:
        work = Path(folder)
        all_jobs = jobs(args, work)
        if not args.mds_python:
            print("MDSWriter is left out; to have it, see --help", flush=True)
        print(f"{args.rounds} rounds of {len(all_jobs)} programs", flush=True)
        # No warm-up round: each run is a fresh program, and the inputs were just written, so they are in memory.
        runs = interleave({key: job.measure for key, job in all_jobs.items()}, seconds=0, repeats=args.rounds, warmup=0)
        for (group, name), job in all_jobs.items():
            check(f"{name}, {group}", job, (512, 256, 128) if name == PREP3 else (256,) if group == SMALL else (512,))
        result, lines = report(runs, all_jobs)
        print("\n".join(lines))
        found = machine()
        found["command"] = f"python benchmarks/{found['command']}"
        settings = {name: getattr(args, name) for name in ("images", "mosaics", "rounds", "workers")}
        out = args.out or (work if args.quick else HERE / "results")
        stem = out / f"prep-{'startup-' if args.startup else ''}{datetime.now(timezone.utc):%Y%m%d}"
        write_json(f"{stem}.json", {"machine": found, "settings": settings, **result})
        write_markdown(f"{stem}.md", "Rates of fastdata-prep", lines, found | settings)
        print(f"\nthe same in {stem}.json and .md" if args.out or not args.quick else "\na smoke test: nothing is kept")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--photos", type=Path, default=HERE.parents[1] / "shared/data/photos", help="folder of JPEG photos to repeat"
    )
    parser.add_argument("--images", type=int, help="photos of a run (4000)")
    parser.add_argument("--mosaics", type=int, help="12-megapixel images of a run (320)")
    parser.add_argument("--rounds", type=int, help="rounds that are measured (5)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (all cores)")
    parser.add_argument("--mds-python", help="Python of an environment with mosaicml-streaming and opencv-python-headless")
    parser.add_argument("--work", type=Path, help="folder for a temporary folder of some gigabytes")
    parser.add_argument("--out", type=Path, help="where the results go (benchmarks/results)")
    parser.add_argument("--startup", action="store_true", help="count start-up, for photos to 256 only")
    parser.add_argument("--quick", action="store_true", help="few images, one round: a smoke test; keeps results only with --out")
    args = parser.parse_args()
    for name, full, quick in (("images", 4000, 200), ("mosaics", 320, 8), ("rounds", 5, 1)):
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    return args


if __name__ == "__main__":
    main()
