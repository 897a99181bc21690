"""How fast preparing to object storage is, beside preparing to a local disk.

    .venv-scale/bin/python benchmarks/prep_remote.py            about five minutes on 2 cores; nothing else may run meanwhile
    .venv-scale/bin/python benchmarks/prep_remote.py --quick    the same steps on few images: does it work?

Both take turns; ratios are formed within a round, and medians over the rounds are reported. The whole command is timed. The server
is tests/scale/faults.py, a process on this machine, which takes time from the workers that a server elsewhere would not take. So
the CPU time of each side is reported, and the rate that remains when that of the server is taken off, as if it was spread over all
cores. Every store is compared with the first one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prep_inputs import photos, repeated

from fastdata.machine import available_cores

SERVER = Path(__file__).resolve().parent.parent / "tests/scale/faults.py"
TICKS = os.sysconf("SC_CLK_TCK")
ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def cpu_s(pid: int) -> float:
    """Return the CPU time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def prepare(source: Path, out: str, cores: int, endpoint: str) -> tuple[float, float]:
    """Run fastdata-prep; return the seconds that passed, and those of CPU time of all its processes."""
    words = ["--size", "256", "--order", "shuffled", "--workers", str(cores), "--progress", "off"]
    command = [sys.executable, "-m", "fastdata", "prep", str(source), out, *words]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **ENV, "AWS_ENDPOINT_URL": endpoint})
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return time.monotonic() - started, used.ru_utime + used.ru_stime


def shards(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("shard-*.mdb")}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--images", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--chaos", type=float, default=0.0, help="chance of each fault of a request, such as 0.01")
    arguments.add_argument("--photos", type=Path, default=Path("photos"), help="a folder of photos")
    given = arguments.parse_args()
    cores, count = available_cores(), 600 if given.quick else given.images
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repeated(photos(given.photos, root / "photos"), count, root / "in")
        served = root / "served"
        with subprocess.Popen(
            [sys.executable, SERVER, served, str(given.chaos)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            found = measure(root, served / "bucket/o.fds", cores, given.rounds, endpoint, server.pid)
            server.stdin.close()
    report(found, count, cores)


def measure(
    root: Path, remote: Path, cores: int, rounds: int, endpoint: str, server: int
) -> list[tuple[tuple[float, float], tuple[float, float], float]]:
    """Return for each round: seconds and CPU time to a disk, the same to the server, and the CPU time of the server."""
    found = []
    for round_ in range(rounds + 1):
        local = prepare(root / "in", str(root / "o.fds"), cores, endpoint)
        before = cpu_s(server)
        sent = prepare(root / "in", "s3://bucket/o.fds", cores, endpoint)
        serving = cpu_s(server) - before
        assert shards(root / "o.fds") == shards(remote), "the stores differ"
        shutil.rmtree(root / "o.fds")
        shutil.rmtree(remote)
        if round_:  # the first is to warm up
            found.append((local, sent, serving))
    return found


def report(found: list[tuple[tuple[float, float], tuple[float, float], float]], count: int, cores: int) -> None:
    def show(name: str, values: list[float], digits: int = 3) -> None:
        spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
        print(f"{name:64} {statistics.median(values):9.{digits}f} ({spread})")

    print(f"{count} images, {cores} cores, {len(found)} rounds")
    show("to a disk, images/s", [count / wall for (wall, _), _, _ in found], 0)
    show("to the server, images/s", [count / wall for _, (wall, _), _ in found], 0)
    show("ratio of the rates", [local[0] / sent[0] for local, sent, _ in found])
    show("CPU time to a disk, s", [local[1] for local, _, _ in found], 1)
    show("CPU time to the server, s, without the server", [sent[1] for _, sent, _ in found], 1)
    show("CPU time of the server, s", [serving for _, _, serving in found], 1)
    show(
        "ratio of the rates, the server's CPU time taken off",
        [local[0] / (sent[0] - serving / cores) for local, sent, serving in found],
    )
    show("ratio of the CPU times, without the server", [local[1] / sent[1] for local, sent, _ in found])


if __name__ == "__main__":
    main()
