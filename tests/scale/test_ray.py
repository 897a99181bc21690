"""Preparing on a Ray cluster of three nodes on this machine: what is killed changes no byte, and what cannot work is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import SIZES, Compare
from support import PREP, kill_group, run, start, tables, until

HERE = Path(__file__).parent
pytestmark = pytest.mark.scale
OPTIONS = [word for size in SIZES for word in ("--size", str(size))]
SECONDS = 120


class Ray:
    """The cluster: a head without CPUs, and nodes of one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "ray_cluster.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},  # nodes get fastdata from the driver
        )
        self._alive: list[int] = []
        self.address, self.client = self._answer("address")

    def _answer(self, word: str) -> list[str]:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline().split()[:3]) and line[0] != word:
            pass
        assert line, "the cluster has ended"
        return line[1:]

    def _tell(self, line: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._answer("done")[0])

    def have(self, nodes: int) -> None:
        """Add nodes until there are so many."""
        while len(self._alive) < nodes:
            self._alive.append(self._tell("add"))

    def kill(self) -> None:
        """Kill the newest node."""
        self._tell(f"kill {self._alive.pop()}")

    def processes(self, words: str) -> list[psutil.Process]:
        """The cluster's processes whose command contains these words."""
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                if words in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        left = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        for process in psutil.wait_procs(left, timeout=10)[1]:
            process.kill()


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    cluster = Ray()
    cluster.have(2)
    yield cluster
    cluster.close()


def at(address: str) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": address}


CODE = """
import fastdata, json, sys
made = fastdata.prep(*sys.argv[1:3], engine="ray", **json.loads(sys.argv[3]))
print(made.resumed, made.kept, made.rejected)
"""


def _start(source: Path, out: Path | str, address: str, **options: Any) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-c", CODE, source, out, json.dumps({"size": SIZES, **options}))
    return start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=at(address))


def test_a_node_killed_in_the_middle(ray: Ray, source: Path, tmp_path: Path, compare: Compare) -> None:
    ray.have(3)
    out = tmp_path / "o.fds"
    driver = _start(source, out, ray.address)
    until(lambda: len(tables(out)) >= 5 or driver.poll() is not None, SECONDS)
    ray.kill()
    said, errors = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, errors.decode()
    compare(out)
    assert said.endswith(b"344 {'truncated': 1}\n")


def test_the_driver_killed_and_started_again(ray: Ray, source: Path, tmp_path: Path, compare: Compare) -> None:
    ray.have(2)
    out = tmp_path / "o.fds"
    driver = _start(source, out, ray.address)
    until(lambda: len(tables(out)) >= 5, SECONDS)
    kill_group(driver)
    driver.communicate()
    finished = len(tables(out))
    again = _start(source, out, ray.address)
    said, errors = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, errors.decode()
    assert finished and int(said.splitlines()[-1].split()[0]) > 0  # Ray may print lines of its own before
    compare(out)


@pytest.mark.parametrize("victim", ["ray::", "fastdata.prepare.worker"])
def test_the_writer_of_the_last_shard_killed(victim: str, ray: Ray, source: Path, tmp_path: Path, compare: Compare) -> None:
    ray.have(2)
    out = tmp_path / "o.fds"
    driver = _start(source, out, ray.address)
    until(lambda: (out / "work/plan.json").exists(), SECONDS)
    shards = len(json.loads((out / "work/plan.json").read_bytes())["bounds"]) - 1
    last = until(lambda: [*out.glob(f"work/*-{shards - 1:05d}.*.tmp")], SECONDS)
    killed = [process for process in ray.processes(victim) if "prep_run" in " ".join(process.cmdline()) or victim != "ray::"]
    for process in killed:
        process.kill()
    assert killed and last and not tables(out)[shards - 1 :], "the last shard was being made"
    errors = driver.communicate(timeout=SECONDS)[1]
    assert driver.returncode == 0, errors.decode()
    compare(out)


def test_a_client_of_the_cluster(ray: Ray, source: Path, tmp_path: Path, compare: Compare) -> None:
    ray.have(2)
    driver = _start(source, tmp_path / "o.fds", f"ray://127.0.0.1:{ray.client}")
    errors = driver.communicate(timeout=SECONDS)[1]
    assert driver.returncode == 0, errors.decode()
    compare(tmp_path / "o.fds")


def test_a_disk_that_nodes_do_not_see_is_refused(ray: Ray, source: Path, tmp_path: Path) -> None:
    if run("unshare", "-m", "true").returncode:
        pytest.skip("this user may not mount a disk for one process")
    ray.have(2)
    command = [*PREP, source, tmp_path / "own/o.fds", *OPTIONS, "--engine", "ray"]
    (tmp_path / "own").mkdir()
    script = f'mount -t tmpfs none {tmp_path / "own"} && exec "$@"'
    found = run("unshare", "-m", "bash", "-c", script, "bash", *command, env=at(ray.address))
    assert found.returncode == 2
    assert f"OUT {tmp_path / 'own/o.fds'} has no plan on " in found.stderr and "a disk that all machines share" in found.stderr


def test_no_cluster_there(source: Path, tmp_path: Path) -> None:
    found = run(*PREP, source, tmp_path / "o.fds", *OPTIONS, "--engine", "ray", env=at("127.0.0.1:1"))
    assert found.returncode == 2 and "cannot connect to Ray at RAY_ADDRESS=127.0.0.1:1: " in found.stderr
