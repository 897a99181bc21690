"""How fast preparing in tasks and on Ray is, beside one run of fastdata-prep with as many workers.

    .venv-scale/bin/python benchmarks/prep_tasks.py            about six minutes on 2 cores; nothing else may run meanwhile
    .venv-scale/bin/python benchmarks/prep_tasks.py --quick    the same steps on few images: does it work?

Contestants take turns; ratios are formed within a round, and medians over the rounds are reported. What is timed is the making of
shards, from a plan that is there to the last one on disk, with the start of the workers. The start of Python, of the cluster and
of Ray's processes is left out: the cluster is up, and has made a store before. Every store is compared with the first one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prep_inputs import photos, repeated

from fastdata import prep_finish, prep_plan, prep_run
from fastdata.machine import available_cores
from fastdata.prepare.folder import claimed
from fastdata.prepare.plan_files import load_plan
from fastdata.prepare.ray_engine import run_on_ray


def one_run(out: Path, cores: int) -> float:
    """Make all shards in one task with a worker for each core."""
    return prep_run(out, task=0, of=1, workers=cores, progress="off").seconds


def tasks(out: Path, cores: int) -> float:
    """Make the shards in as many tasks of one worker, all at the same time, as processes of their own."""
    command = [sys.executable, "-m", "fastdata", "prep", "run", str(out), "--workers", "1", "--progress", "off", "--of", str(cores)]
    running = [subprocess.Popen([*command, "--task", str(k)], stdout=subprocess.PIPE, text=True) for k in range(cores)]
    said = [process.communicate()[0] for process in running]
    return max(float(re.findall(r"([\d.]+) s$", line.strip())[0]) for line in said)


def on_ray(out: Path, cores: int) -> float:
    """Make the shards on Ray, one task for each core at a time."""
    work, started = load_plan(out), time.monotonic()
    with claimed(out, share=True):
        run_on_ray(range(work.plan.num_shards), lambda *sums: None, work=work, workers=cores, timeout_s=60.0, address=None)
    return time.monotonic() - started


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--images", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--photos", type=Path, default=Path("photos"), help="a folder of photos")
    given = arguments.parse_args()
    quick, rounds = given.quick, given.rounds
    import ray

    cores = available_cores()
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="error")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = root / "in"
        repeated(photos(given.photos, root / "photos"), 600 if quick else given.images, source)
        contestants: dict[str, Callable[[Path, int], float]] = {"one run": one_run, "tasks": tasks, "ray": on_ray}
        found: dict[str, list[float]] = {name: [] for name in contestants}
        first: dict[str, bytes] = {}
        count = 0
        for round_ in range(rounds + 1):
            for name, make in contestants.items():
                out = root / "o.fds"
                count = prep_plan(source, out, size=256).inputs
                rate = count / make(out, cores) / cores
                prep_finish(out)
                bytes_of = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")}
                first = first or bytes_of
                assert bytes_of == first, f"{name} made another store"
                shutil.rmtree(out)
                if round_:  # the first is to warm up
                    found[name].append(rate)
        ray.shutdown()
        print(f"{count} images, {cores} cores, {rounds} rounds")
        for name, rates in found.items():
            ratios = [rate / base for rate, base in zip(rates, found["one run"], strict=True)]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(
                f"{name:8} {statistics.median(rates):7.0f} images/s a core, {statistics.median(ratios):.3f} of one run ({spread})"
            )


if __name__ == "__main__":
    main()
