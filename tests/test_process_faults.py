"""Faults of processes and of the operating system: what dies takes its children along, what is missing is named."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata
from fastdata.store.store import Store
from stores import store
from support import PREP, kill_group, members, run, small_shards, start, tree, until, write_pictures

LOADING = """
import multiprocessing, sys
import fastdata

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    dataset = fastdata.RAMDataset(sys.argv[1], crop=fastdata.RandomResizedCrop(32))
    loader = fastdata.Loader(dataset, 4, num_workers=2, shuffle=True)
    while True:
        for k, batch in enumerate(loader):
            if k == 4:
                print("both workers are at work", flush=True)
"""


def _held(pid: int) -> set[tuple[int, int]]:
    """The memory without a name that a process has open, by device and inode."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(path.readlink()).startswith("/memfd:"):
                found.add((path.stat().st_dev, path.stat().st_ino))
        except OSError:
            continue
    return found


def _named(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has mapped, such as semaphores: they have other names there than when they were made."""
    mapped = re.findall(r" (\d+) +/dev/shm/", Path(f"/proc/{pid}/maps").read_text())
    with os.scandir("/dev/shm") as files:
        return {Path(file.path) for file in files if str(file.inode()) in mapped}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number"),
    [("fork", signal.SIGKILL), ("spawn", signal.SIGKILL), ("forkserver", signal.SIGKILL), ("forkserver", signal.SIGHUP)],
)
def test_nothing_is_left_when_the_process_of_a_loader_is_killed(tmp_path: Path, method: str, number: signal.Signals) -> None:
    """Also not a worker that is stopped, as by a debugger or a batch system."""
    script = tmp_path / "loading.py"
    script.write_text(LOADING)
    process = start(sys.executable, script, store(), method, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == b"both workers are at work\n"
            group = members(process.pid)
            assert len(group) >= {"fork": 3, "spawn": 4, "forkserver": 5}[method]
            memory, names = _held(process.pid) - _held(os.getpid()), _named(process.pid)
            workers = [pid for pid in group if pid != process.pid and memory & _held(pid)]
            assert len(workers) == 2
            assert bool(names) == (method != "fork")
            os.kill(workers[0], signal.SIGSTOP)
            os.kill(process.pid, number)
            assert process.wait() == -number
            until(lambda: not members(process.pid), seconds=5)
            assert not [name for name in names if name.exists()]
        finally:
            kill_group(process)


AT_LIMIT = """
import os, resource, sys
import numpy as np
import fastdata

def limit():
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    while True:
        try:
            os.dup(0)
        except OSError:
            return

fastdata.open(sys.argv[1])[0]  # imports what is needed, and closes the shard again
dataset = fastdata.open(sys.argv[1])
limit()
try:
    dataset[0]
except fastdata.errors.FastDataError as error:
    print(type(error).__name__, error)
"""


def test_a_store_that_cannot_be_read_for_want_of_open_files_is_not_called_damaged() -> None:
    done = run(sys.executable, "-c", AT_LIMIT, store())
    assert done.stdout.startswith("StoreError ") and "shard-00000.mdb cannot be read: too many files are open" in done.stdout, done
    assert "ulimit -n" in done.stdout and "verify" not in done.stdout


FEW_FILES = """
import resource, sys
import fastdata
from fastdata import Loader
from support import processes
loader = Loader(fastdata.open(sys.argv[1]), 4, num_workers=8)
resource.setrlimit(resource.RLIMIT_NOFILE, (25, 25))
try:
    next(iter(loader))
except fastdata.errors.LoaderError as error:
    print(error)
import time
end = time.monotonic() + 20
while left := processes():
    assert time.monotonic() < end, left
"""


def test_workers_that_cannot_be_started_for_want_of_open_files_are_an_error_and_leave_none() -> None:
    done = run(sys.executable, "-c", FEW_FILES, store(), env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert done.returncode == 0 and "8 workers cannot be started: too many files are open" in done.stdout, done
    assert "ulimit -n" in done.stdout


def test_a_store_that_is_removed_while_it_is_open(tmp_path: Path) -> None:
    """What is mapped can still be read; what is not says so."""
    write_pictures(tmp_path / "in", 6)
    with small_shards(3):
        out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out
    dataset = fastdata.open(out)
    before = dataset[0][0]
    shutil.rmtree(out)
    assert dataset[0][0].equal(before)
    with pytest.raises(fastdata.errors.StoreError, match=r"shard-00001\.mdb cannot be read: No such file"):
        _ = dataset[5]


NO_FILES = """
import resource, sys
if "fastdata.prepare.worker" in " ".join(sys.orig_argv):
    import fastdata.images.shards as module
    real = module._with_files
    def with_files(*arguments):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return real(*arguments)
    module._with_files = with_files
"""


def test_inputs_are_not_rejected_because_too_many_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "in", 5)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(NO_FILES)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
        failed = run(*PREP, tmp_path / "in", tmp_path / "o.fds", "--workers", "1")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "too many files are open" in failed.stderr and "ulimit -n" in failed.stderr and "same command again" in failed.stderr
    assert not (tmp_path / "o.fds/manifest.json").exists() and not list((tmp_path / "o.fds").rglob("*.tmp"))
    assert run(*PREP, tmp_path / "in", tmp_path / "o.fds", "--workers", "1").returncode == 0
    assert (tmp_path / "o.fds/rejects.jsonl").read_bytes() == b""


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def foreign_names(tmp_path: Path) -> Path:
    """Images with names that are not ASCII, one of them not even UTF-8."""
    folder = tmp_path / "çedilla"
    names = ["a.png", "ü.png", "日本.png", os.fsdecode(b"bad\xff\xe4.png")]
    for path, name in zip(write_pictures(folder, len(names)), names, strict=True):
        path.rename(folder / name)
    return tmp_path


def test_a_store_has_the_same_bytes_under_every_locale(foreign_names: Path) -> None:
    """Names in tables are UTF-8, whatever the locale is."""
    (foreign_names / "labels.csv").write_text("path,label\nçedilla/ü.png,große\nçedilla/日本.png,kleine\n", encoding="utf-8")
    for source in (foreign_names / "çedilla", foreign_names / "labels.csv"):
        made = []
        for k, environment in enumerate(({}, ASCII)):
            out = foreign_names / f"{source.name}-{k}.fds"
            done = run(*PREP, source, out, "--workers", "1", env={**os.environ, **environment})
            assert done.returncode == 0, done.stderr
            made.append(tree(out))
        assert made[0] == made[1]
    names = Store(foreign_names / "çedilla-1.fds").names()
    assert set(names) == {path.name for path in (foreign_names / "çedilla").iterdir()}


FULL = """
import os, signal, subprocess, sys
import torch
import fastdata

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, k):
        return torch.full((1 << 18,), k, dtype=torch.uint8)

signal.alarm(120)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], check=True)
loader = fastdata.Loader(Large(), 8, num_workers=2, collate_fn=torch.stack if sys.argv[1] == "stack" else None)
try:
    for batch in loader:
        pass
except RuntimeError as error:
    print(error)
loader.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("collate", ["default", "stack"])
def test_full_shared_memory_is_an_error(collate: str) -> None:
    """Where batches are moved there by the queue's own thread, they were lost, and the Loader waited for ever."""
    alone = ["unshare", "--mount"]
    if shutil.which("unshare") is None or run(*alone, "mount", "-t", "tmpfs", "none", "/dev/shm").returncode:
        pytest.skip("this user may not mount a file system")
    done = run(*alone, sys.executable, "-c", FULL, collate)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
