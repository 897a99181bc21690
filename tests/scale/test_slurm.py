"""Preparing on Slurm, with slurmctld and two slurmd on this machine: the printed script, and a node killed in the middle."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import SIZES, Compare
from faults import storing
from support import PREP, run, tables, until

pytestmark = pytest.mark.scale
OPTIONS = [word for size in SIZES for word in ("--size", str(size))]
SECONDS = 150
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdTimeout=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """munged, slurmctld and two slurmd, all of them children of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool.n1", "spool.n2"):
            (folder / name).mkdir()
        ports = [_free_port() for _ in range(4)]
        self._conf = folder / "slurm.conf"
        self._conf.write_text(CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=folder, ports=ports))
        self.environment = {**os.environ, "SLURM_CONF": str(self._conf)}
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        where = [f"--{name}={folder}/munge.{end}" for name, end in (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"))]
        where += [f"--{name}={folder}/munge.{end}" for name, end in (("log-file", "log"), ("seed-file", "seed"))]
        self._all = [self._start("munged", "--foreground", "--force", *where)]
        until((folder / "munge.socket").exists)
        self._all.append(self._start("slurmctld", "-D", "-f", self._conf))
        self.nodes = [self._start("slurmd", "-D", "-N", name, "-f", self._conf) for name in ("n1", "n2")]
        self._all += self.nodes
        until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", 60)

    def _start(self, *command: object) -> subprocess.Popen[bytes]:
        with (self.folder / "out.log").open("ab") as log:
            return subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=self.environment)

    def ask(self, *command: str) -> str:
        return run(*command, env=self.environment).stdout

    def jobs(self) -> str:
        """The state of the jobs that have not ended."""
        return self.ask("squeue", "-h", "-o", "%i %T %R")

    def kill_node(self, number: int) -> None:
        """Kill a node and all that runs on it, as if its power was cut."""
        node = psutil.Process(self.nodes[number].pid)
        steps = [p for p in psutil.process_iter(["cmdline"]) if "slurmstepd" in " ".join(p.info["cmdline"] or ())]
        mine = [p for p in steps if f"n{number + 1}" in p.environ().get("SLURMD_NODENAME", "") or node in p.parents()]
        doomed = [node, *node.children(recursive=True)]
        for step in mine or steps:
            if any(child.environ().get("SLURMD_NODENAME") == f"n{number + 1}" for child in step.children(recursive=True)):
                doomed += [step, *step.children(recursive=True)]
        for process in doomed:
            process.kill()
        self.nodes[number].wait()
        self.ask("scontrol", "update", f"nodename=n{number + 1}", "state=down", "reason=killed")

    def close(self) -> None:
        self.ask("scancel", "-u", "root")
        for process in reversed(self._all):
            process.send_signal(signal.SIGTERM)
        for process in self._all:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed: tests/scale/install_servers.sh needs root and Debian")
    if os.geteuid():
        pytest.skip("slurmd needs root")
    folder = tmp_path_factory.mktemp("slurm")
    for parent in (folder, *list(folder.parents)[:2]):
        parent.chmod(0o755)
    cluster = Slurm(folder)
    yield cluster
    cluster.close()


def _submit(slurm: Slurm, source: Path, out: Path | str, *more: str) -> list[str]:
    """Prepare on Slurm, and return the numbers of both jobs."""
    log = f"--output={slurm.folder}/%j-%a.log"
    command = (*PREP, source, out, *OPTIONS, "--engine", "slurm", "--tasks", "6", "--sbatch", log, *more)
    made = run(*command, env=slurm.environment)
    assert made.returncode == 0, made.stderr
    said = made.stdout if "--submit" in more else run("bash", "-c", made.stdout, env=slurm.environment).stdout
    return re.findall(r"\d+", said)


def _wait(slurm: Slurm, out: Path) -> None:
    """Wait until the store is finished."""
    end = time.monotonic() + SECONDS
    while not (out / "manifest.json").exists():
        logs = "".join(path.read_text() for path in slurm.folder.glob("*.log"))
        jobs = slurm.jobs()
        assert jobs or (out / "manifest.json").exists(), logs[-6000:]
        assert time.monotonic() < end, f"{jobs}\n{logs[-6000:]}"
        for line in jobs.splitlines():
            if "BeginTime" in line:  # Slurm holds back for two minutes what it puts into the queue again
                slurm.ask("scontrol", "update", f"jobid={line.split()[0]}", "starttime=now")
        time.sleep(0.5)
    until(lambda: not slurm.jobs(), 60)


def test_the_printed_script(slurm: Slurm, source: Path, tmp_path: Path, compare: Compare) -> None:
    out = tmp_path / "o.fds"
    assert len(_submit(slurm, source, out)) == 1, "sbatch says the number of the last job"
    _wait(slurm, out)
    compare(out)


def test_a_node_killed_in_the_middle(slurm: Slurm, source: Path, tmp_path: Path, compare: Compare) -> None:
    out = tmp_path / "o.fds"
    _submit(slurm, source, out, "--submit")
    until(lambda: len(tables(out)) >= 3, SECONDS)
    slurm.kill_node(1)
    finished = len(tables(out))
    _wait(slurm, out)
    assert 3 <= finished
    compare(out)


def test_nodes_that_share_no_disk(
    slurm: Slurm, source: Path, tmp_path: Path, compare_objects: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT is in object storage. Credentials are in the environment, which sbatch hands on."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    monkeypatch.setattr(slurm, "environment", slurm.environment | keys)
    with storing(tmp_path) as server:
        _submit(slurm, source, "s3://bucket/o.fds", "--order", "listed", "--storage", f"endpoint={server.url}")
        _wait(slurm, tmp_path / "bucket/o.fds")
        compare_objects(tmp_path / "bucket/o.fds")
