"""Cores and memory, with and without a container's limits."""

from __future__ import annotations

import os

import pytest

from fastdata.system.machine import available_cores, free_memory


def files(root, **contents):
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("quota", "cores"), [("max", 8), ("-1", 8), ("200000", 2), ("150000", 2), ("10000", 1), ("6400000", 8), ("300000", 3)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_cores_under_a_quota(tmp_path, quota, cores, version):
    contents = {"cpu-max": f"{quota} 100000\n"}
    if version == 1:
        contents = {"cpu__cpu-cfs_quota_us": f"{quota}\n", "cpu__cpu-cfs_period_us": "100000\n"}
    assert available_cores(files(tmp_path, **contents)) == cores


def test_cores_without_a_cgroup_are_the_affinity(tmp_path, monkeypatch):
    assert available_cores(tmp_path) == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores(tmp_path) == 1


GIB = 1 << 30


@pytest.fixture
def meminfo(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable:   16777216 kB\nShmem: 5 kB\n")
    return path


STAT = "anon 5\ninactive_file {0}\nactive_file 99\n"
STAT_1 = "cache 7\ninactive_anon 1\ntotal_inactive_file {0}\ntotal_cache 7\n"


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
def test_memory_is_what_machine_and_limit_leave(tmp_path, meminfo, version, limit, used, cache, free):
    names = ("memory-max", "memory-current", "memory-stat")
    if version == 1:
        names = ("memory__memory-limit_in_bytes", "memory__memory-usage_in_bytes", "memory__memory-stat")
        limit = 9223372036854771712 if limit == "max" else limit  # how cgroup 1 says it
    stat = (STAT if version == 2 else STAT_1).format(cache)
    tree = files(tmp_path / "cgroup", **dict(zip(names, (f"{limit}\n", f"{used}\n", stat), strict=True)))
    assert free_memory(meminfo, tree) == free


def test_limits_of_the_group_that_a_process_is_in_count(tmp_path):
    """Slurm and systemd set them below the root of the tree."""
    group = tmp_path / "cgroup" / "slurm" / "job_7" / "step_0"
    group.mkdir(parents=True)
    (group.parent / "cpu.max").write_text("100000 100000\n")
    (group.parent / "memory.max").write_text(f"{1 << 20}\n")
    (group.parent / "memory.current").write_text(f"{1 << 19}\n")
    (group.parent / "memory.stat").write_text("anon 0\ninactive_file 1024\n")
    own = tmp_path / "own"
    own.write_text("0::/slurm/job_7/step_0\n")
    assert available_cores(tmp_path / "cgroup", own) == 1
    assert free_memory(cgroup=tmp_path / "cgroup", own=own) == (1 << 19) + 1024
    own.write_text("0::/elsewhere\n")
    assert free_memory(cgroup=tmp_path / "cgroup", own=own) > 1 << 20
