"""One copy per machine: processes that open the same store in memory share it, whoever of them dies, and whenever."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastdata
import stores
from fastdata import LMDBDataset, RAMDataset
from fastdata.errors import StoreError
from fastdata.system import node_memory
from stores import masked, masked_arrays, script, store
from support import Array, memory_of, until


def names(processes: set[int]) -> list[str]:
    """The keys of memory whose names some processes have bound."""
    found = re.findall(r"@(fastdata-\w+)/(\d+)/", Path("/proc/net/unix").read_text())
    return [key for key, process in found if int(process) in processes]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A store whose bytes no other test holds."""
    images = np.random.default_rng().integers(0, 256, (5, 40, 50, 3), np.uint8)
    return fastdata.prep(images, tmp_path / "o.fds", codec="rgb", workers=1).out


RANK = """
import itertools, os, sys, time
from fastdata.system import node_memory

def fill(memory):
    time.sleep(float(sys.argv[2]))
    memory[:] = 7

found = node_memory.once(sys.argv[1], 1 << 20, "u1", fill, "")
for _ in itertools.chain([None], sys.stdin):
    print(found.array.sum(), os.fstat(found._descriptor).st_ino, flush=True)
"""


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments(seed: int) -> None:
    """The first of some ranks dies while it loads, others later: who lives has one memory of right bytes, and nothing is left."""
    key, rng = f"kills {seed} {os.getpid()}", random.Random(seed)
    ranks: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RANK, key, str(seconds)]
        ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return ranks[-1]

    alive = [start(1000), *(start(rng.random()) for _ in range(5))]
    for k in range(8):
        time.sleep(rng.random() * 0.5)
        alive.pop(0 if not k else rng.randrange(len(alive))).kill()
        alive.append(start(rng.random()))
    said = [rank.stdout.readline() for rank in alive if rank.stdout]
    assert said[0].startswith(f"{7 << 20} ") and len({*said}) == 1, said
    assert [rank.communicate("again\n", timeout=60)[0] for rank in alive] == said
    for rank in ranks:
        rank.kill()
        rank.communicate()
    until(lambda: not names({rank.pid for rank in ranks}))
    assert start(0).communicate(timeout=60)[0].split()[0] == str(7 << 20)


def test_a_maker_that_fails_leaves_its_error_to_itself() -> None:
    """And who waits finds out for itself."""
    begun = threading.Event()

    def fill(memory: Array) -> None:
        begun.set()
        time.sleep(0.3)
        raise ValueError("no disk")

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(node_memory.once, "failing", 100, np.uint8, fill, "")
        begun.wait()
        found = node_memory.once("failing", 100, np.uint8, lambda memory: memory.fill(7), "")
    assert str(failing.exception()) == "no disk" and found.array.tolist() == [7] * 100


def inodes(dataset: Any) -> set[int]:
    """Which files of this process's memory hold the samples of a dataset."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:fastdata-" in line]
    address = memory_of(dataset).ctypes.data
    ranges = [(*(int(edge, 16) for edge in line[0].split("-")), int(line[4])) for line in lines]
    return {inode for low, high, inode in ranges if low <= address < high}


KINDS: dict[str, Any] = {
    "images": (lambda: store("jpeg"), {}, {}),
    "decoded": (lambda: store("jpeg"), {"decoded": True}, {"hflip": 0.5}),
    "masks": (masked, {}, {"ignore_index": 9}),
    "tokens": (stores.tokens, {"block_size": 8, "mode": "sequential"}, {"block_size": 9}),
    "arrays": (masked_arrays, {}, {"flips": 1.0}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_of_one_store_share_and_give_what_a_copy_gives(kind: str) -> None:
    path, options, others = KINDS[kind]
    first, second = RAMDataset(path(), **options), RAMDataset(path(), **{**options, **others})
    alone = RAMDataset(path(), shared=False, **options)
    assert inodes(first) and inodes(first) == inodes(second)
    assert not inodes(alone), "it has memory of no name"
    for k in (0, -1):
        one, two = first[k], alone[k]
        assert str(one) == str(two)
    assert not memory_of(first).flags.writeable


def test_other_bytes_are_other_memory() -> None:
    for one, two in (({"size": 96}, {"size": 64}), ({}, {"decoded": True}), ({}, {"max_bytes": 100_000})):
        first, second = (RAMDataset(store("jpeg"), **options) for options in (one, two))
        assert not inodes(first) & inodes(second)


def test_who_attaches_needs_no_free_memory(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = RAMDataset(copy)
    monkeypatch.setattr("fastdata.system.node_memory.free_memory", lambda: 0)
    assert inodes(RAMDataset(copy)) == inodes(held)
    with pytest.raises(StoreError, match="are free"):
        RAMDataset(copy, shared=False)
    del held
    gc.collect()
    with pytest.raises(StoreError, match="are free"):
        RAMDataset(copy)


def test_nothing_is_left_when_the_last_dataset_goes(copy: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(names({os.getpid()})), len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    first, second = RAMDataset(copy), RAMDataset(copy)
    assert held()[0] == before[0] + 2
    del first
    assert held()[0] == before[0] + 1 and torch.equal(second[0][0], LMDBDataset(copy)[0][0])
    del second
    assert held() == before


def test_nobody_can_change_what_all_share(copy: Path) -> None:
    dataset = RAMDataset(copy)
    with pytest.raises(ValueError, match="read-only"):
        memory_of(dataset)[0] = 1
    ((inode,),) = [inodes(dataset)]
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if entry.stat().st_ino == inode and "memfd:fastdata-" in str(entry.readlink()):
                descriptor = os.open(entry, os.O_RDWR)  # the permission of the file alone
                for change, what in ((os.write, b"x"), (os.ftruncate, 1)):
                    with pytest.raises(PermissionError):
                        change(descriptor, what)
                os.close(descriptor)


def test_a_name_that_leads_to_other_memory_is_not_believed(copy: Path) -> None:
    """Anyone may bind a name that says that process so-and-so has the memory."""
    held = RAMDataset(copy)
    key = names({os.getpid()})[-1]
    del held
    gc.collect()
    other = os.memfd_create("fastdata-other", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, 8 * 6 + 5 * 40 * 50 * 3)  # as large, and finished
    fcntl.fcntl(other, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two, socket.socket(socket.AF_UNIX) as three:
        one.bind(f"\0{key}/{os.getpid()}/{other}/{os.fstat(other).st_ino}/1000001")
        two.bind(f"\0{key}/{os.getpid()}/{reader}/{os.fstat(reader).st_ino}/1000002")  # to open it would block
        three.bind(f"\0{key}/1/0/1/1000003")
        dataset = RAMDataset(copy)
    assert torch.equal(dataset[0][0], LMDBDataset(copy)[0][0])
    for descriptor in (other, reader, writer):
        os.close(descriptor)


IN_A_NAMESPACE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(int(sys.argv[1], 16)) == 0
if (pid := os.fork()) == 0:  # the first process of a new namespace of processes
    from fastdata.system import node_memory
    found = node_memory.once("where", 4096, "u1", lambda memory: memory.fill(2), "")
    again = node_memory.once("where", 4096, "u1", lambda memory: memory.fill(3), "")
    print(json.dumps([int(found.array[0]), int(again.array[0])]), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make namespaces")
@pytest.mark.parametrize(("what", "flag"), [("network", "0x40000000"), ("processes", "0x20000000")])
def test_containers_have_copies_of_their_own(what: str, flag: str) -> None:
    mine = node_memory.once("where", 4096, np.uint8, lambda memory: memory.fill(1), "")
    first, second = script(IN_A_NAMESPACE, flag)
    assert first == 2 and second in (2, 3) and mine.array[0] == 1


def test_a_fork_while_the_memory_is_filled_holds_neither_lock_nor_memory() -> None:
    """The child would keep both after its parent's death, and a mapping of the child's for writing would forbid the seal."""
    children: list[int] = []

    def fill(memory: Array) -> None:
        memory[:] = 5
        child = os.fork()
        if child == 0:
            time.sleep(100)
            os._exit(0)
        children.append(child)

    try:
        found = node_memory.once("forked", 8192, np.uint8, fill, "")
        again = node_memory.once("forked", 8192, np.uint8, fill, "")
        assert found.array[0] == again.array[0] == 5 and len(children) == 1
        del found, again
        gc.collect()
        with ThreadPoolExecutor(1) as pool:
            new = pool.submit(node_memory.once, "forked", 8192, np.uint8, lambda memory: memory.fill(6), "")
            assert new.result(5).array[0] == 6, "the child has the lock"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
