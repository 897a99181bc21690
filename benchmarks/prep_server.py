"""What benchmarks of preparing with object storage share: a server on this machine, and commands whose time is taken."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Run", "Served", "serving", "shards", "show"]

SERVER = Path(__file__).resolve().parent.parent / "tests/scale/faults.py"
TICKS = os.sysconf("SC_CLK_TCK")
ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class Run(NamedTuple):
    """Seconds that passed, CPU seconds of all processes of the command, and those of the server."""

    wall: float
    own: float
    served: float


class Served(NamedTuple):
    """A server of a folder."""

    process: int
    endpoint: str

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def prepare(self, source: Any, out: Any, *options: Any, **env: str) -> Run:
        """Run fastdata-prep to 256 pixels."""
        words = [source, out, "--size", "256", "--progress", "off", *options]
        command = [sys.executable, "-m", "fastdata", "prep", *map(str, words)]
        before, started = self.cpu_s(), time.monotonic()
        whole = {**os.environ, **ENV, "AWS_ENDPOINT_URL": self.endpoint, **env}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=whole)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} ended with status {status}")
        return Run(time.monotonic() - started, used.ru_utime + used.ru_stime, self.cpu_s() - before)


@contextmanager
def serving(folder: Path, chaos: float = 0.0) -> Iterator[Served]:
    """Serve a folder of buckets as S3. chaos: the chance of each fault of a request."""
    command = [sys.executable, str(SERVER), str(folder), str(chaos)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield Served(server.pid, f"http://127.0.0.1:{server.stdout.readline().strip()}")
        server.stdin.close()


def shards(out: Path) -> dict[str, bytes]:
    """Return the bytes of the shards of a store."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("shard-*.mdb")}


def show(name: str, values: list[float], digits: int = 3) -> None:
    """Print a median, and the spread."""
    print(f"{name:64} {statistics.median(values):9.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})")
