"""How fast preparing from object storage is, beside preparing from a local folder: single images, and WebDataset tars.

    .venv-scale/bin/python benchmarks/prep_source.py            about five minutes on 2 cores; nothing else may run meanwhile
    .venv-scale/bin/python benchmarks/prep_source.py --quick    the same steps on few images: does it work?

Both take turns; ratios are formed within a round, and medians over the rounds are reported. The whole command is timed, with its
start. The server is tests/scale/faults.py, a process of Python on this machine, which takes time from the workers that a server
elsewhere would not take. So the CPU time of each side is reported, and the ratio that remains when that of the server is taken off,
as if it was spread over all cores. Every store is compared with the one from the local folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from prep_inputs import photos, repeated

from fastdata.machine import available_cores

SERVER = Path(__file__).resolve().parent.parent / "tests/scale/faults.py"
TICKS = os.sysconf("SC_CLK_TCK")
ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
TARS = 16


class Run(NamedTuple):
    """Seconds that passed, CPU seconds of all processes of the command, and those of the server."""

    wall: float
    own: float
    served: float


def cpu_s(pid: int) -> float:
    """Return the CPU time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def prepare(source: str, out: Path, endpoint: str, server: int) -> Run:
    """Run fastdata-prep."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "fastdata", "prep", source, str(out), "--size", "256", "--progress", "off"]
    env = {**os.environ, **ENV, "AWS_ENDPOINT_URL": endpoint, "FASTDATA_CACHE": str(out.parent / "cache")}
    before, started = cpu_s(server), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return Run(time.monotonic() - started, used.ru_utime + used.ru_stime, cpu_s(server) - before)


def write_tars(images: list[str], folder: Path) -> None:
    """Write the images into tars, with their classes."""
    folder.mkdir()
    for k in range(TARS):
        with tarfile.open(folder / f"{k:03d}.tar", "w", dereference=True) as tar:
            for number, path in enumerate(images[k::TARS]):
                tar.add(path, f"{k:03d}{number:06d}.jpg")


def shards(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("shard-*.mdb")}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--images", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--photos", type=Path, default=Path("photos"), help="a folder of photos")
    given = arguments.parse_args()
    count = 600 if given.quick else given.images
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        bucket = root / "served/bucket"
        bucket.mkdir(parents=True)
        write_tars(repeated(photos(given.photos, root / "photos"), count, bucket / "images"), bucket / "tars")
        command = [sys.executable, str(SERVER), str(bucket.parent)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            for what, source in (("single images", "images"), (f"{TARS} tars", f"tars/{{000..{TARS - 1:03d}}}.tar")):
                found = []
                for round_ in range(given.rounds + 1):
                    local = prepare(f"{bucket}/{source}", root / "local.fds", endpoint, server.pid)
                    remote = prepare(f"s3://bucket/{source}", root / "remote.fds", endpoint, server.pid)
                    if shards(root / "local.fds") != shards(root / "remote.fds"):
                        raise SystemExit("the stores differ")
                    if round_:  # the first is to warm up
                        found.append((local, remote))
                report(what, count, found)
            server.stdin.close()


def report(what: str, count: int, found: list[tuple[Run, Run]]) -> None:
    def show(name: str, values: list[float], digits: int = 3) -> None:
        print(f"{name:64} {statistics.median(values):9.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})")

    cores = available_cores()
    print(f"{what}: {count} images, {cores} cores, {len(found)} rounds")
    show("from the local disk, images/s", [count / local.wall for local, _ in found], 0)
    show("from the server, images/s", [count / remote.wall for _, remote in found], 0)
    show("ratio of the rates", [local.wall / remote.wall for local, remote in found])
    show("CPU time from the local disk, s", [local.own for local, _ in found], 1)
    show("CPU time from the server, s, without the server", [remote.own for _, remote in found], 1)
    show("CPU time of the server, s", [remote.served for _, remote in found], 1)
    show("ratio of the rates, the server's CPU time taken off", [a.wall / (b.wall - b.served / cores) for a, b in found])
    show("ratio of the CPU times, without the server", [a.own / b.own for a, b in found])


if __name__ == "__main__":
    main()
