"""Cores and memory, with and without a container's limits."""

from __future__ import annotations

import os

import pytest

from fastdata.system.machine import available_cores, free_memory

CGROUP = "sys/fs/cgroup"


def write(root, contents):
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("quota", "cores"), [("max", 8), ("-1", 8), ("200000", 2), ("150000", 2), ("10000", 1), ("6400000", 8), ("300000", 3)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_cores_under_a_quota(tmp_path, quota, cores, version):
    assert available_cores(tmp_path) == 8, "the affinity"
    old = {f"{CGROUP}/cpu/cpu.cfs_quota_us": quota, f"{CGROUP}/cpu/cpu.cfs_period_us": 100000}
    assert available_cores(write(tmp_path, old if version == 1 else {f"{CGROUP}/cpu.max": f"{quota} 100000"})) == cores


GIB = 1 << 30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable:   16777216 kB\nShmem: 5 kB"
STAT = "anon 5\ninactive_file {0}\nactive_file 99"
STAT_1 = "cache 7\ninactive_anon 1\ntotal_inactive_file {0}\ntotal_cache 7"


@pytest.mark.parametrize(
    ("limit", "used", "cache", "free"),
    [
        ("max", 5 * GIB, 0, 16 * GIB),
        (4 * GIB, 1 * GIB, 0, 3 * GIB),
        (4 * GIB, 3 * GIB, 2 * GIB, 3 * GIB),  # cached files make room
        (4 * GIB, 5 * GIB, 0, 0),
        (64 * GIB, 5 * GIB, 0, 16 * GIB),  # more than the machine has
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_machine_and_limit_leave(tmp_path, version, limit, used, cache, free):
    contents = {"memory.max": limit, "memory.current": used, "memory.stat": STAT.format(cache)}
    if version == 1:
        limit = 9223372036854771712 if limit == "max" else limit  # how cgroup 1 says it
        contents = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": STAT_1.format(cache)}
        contents = {f"memory/memory.{name}": value for name, value in contents.items()}
    write(tmp_path, {f"{CGROUP}/{name}": value for name, value in contents.items()} | {"proc/meminfo": MEMINFO})
    assert free_memory(tmp_path) == free


def test_limits_of_the_group_that_a_process_is_in_count(tmp_path):
    """Slurm and systemd set them below the root of the tree."""
    limits = {"cpu.max": "100000 100000", "memory.max": 1 << 20, "memory.current": 1 << 19, "memory.stat": STAT.format(1024)}
    write(tmp_path, {f"{CGROUP}/slurm/job_7/{name}": value for name, value in limits.items()} | {"proc/meminfo": MEMINFO})
    write(tmp_path, {"proc/self/cgroup": "0::/slurm/job_7/step_0"})
    assert (available_cores(tmp_path), free_memory(tmp_path)) == (1, (1 << 19) + 1024)
    write(tmp_path, {"proc/self/cgroup": "0::/elsewhere"})
    assert (available_cores(tmp_path), free_memory(tmp_path)) == (8, 16 * GIB)
