"""The cache of remote stores, without object storage: what is kept, what goes, and what survives killed processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastdata.errors import StoreError
from fastdata.remote.bucket import is_url, local_path, parse_bytes
from fastdata.remote.cache import RemoteFile, ShardCache, map_number
from fastdata.remote.downloader import Downloader, ReadSchedule


def never(path: Path) -> float:
    return float("inf")


def cache_of(folder: Path, limit: int | None = None) -> ShardCache:
    cache = ShardCache(folder)
    cache.limit = limit
    return cache


def shard(name: str, size: int) -> RemoteFile:
    return RemoteFile("", f"f/v/shard-{name}.mdb", size, "")


def put(cache: ShardCache, name: str, size: int, next_use=never, use: float = -1.0) -> bool:
    file = shard(name, size)
    descriptor = cache.begin(file, next_use, use)
    if descriptor is None:
        return False
    cache.fill(file, descriptor, lambda opened: os.pwrite(opened, b"x" * size, 0))
    return True


def names(cache: ShardCache) -> set[str]:
    return {path.name.removeprefix("shard-").removesuffix(".mdb") for path in cache.folder.glob("*/*/shard-*")}


def test_it_never_takes_more_than_its_limit_and_what_is_used_last_goes(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "c", 1000)
    uses = {"a": 30.0, "b": 10.0, "c": 20.0, "d": 5.0}

    def next_use(path: Path) -> float:
        return uses[path.stem.removeprefix("shard-")]

    for name in "abc":
        assert put(cache, name, 300, next_use)
    assert put(cache, "d", 300, next_use)
    assert names(cache) == {"b", "c", "d"}
    assert not put(cache, "e", 300, next_use, use=25.0)  # nothing that is used later is there
    assert names(cache) == {"b", "c", "d"}
    with pytest.raises(StoreError, match="cache_size is 1000, but one shard takes 1001 bytes"):
        put(cache, "f", 1001, next_use)


def test_without_a_schedule_what_was_read_longest_ago_goes(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "c", 1000)
    for name, read in zip("abc", (7, 9, 8), strict=True):
        put(cache, name, 300)
        path = cache.folder / "f" / "v" / f"shard-{name}.mdb"
        os.utime(path, (read, path.stat().st_mtime))
    put(cache, "d", 300)
    assert names(cache) == {"b", "c", "d"}
    put(cache, "e", 300)
    assert names(cache) == {"b", "d", "e"}


def test_a_shard_that_another_downloader_writes_is_left_to_it(tmp_path: Path) -> None:
    caches = [cache_of(tmp_path / "c", 700) for _ in range(2)]
    file = shard("a", 400)
    descriptor = caches[0].begin(file, never)
    assert descriptor is not None
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            caches[1].begin(file, never)
        assert not put(caches[1], "b", 400)  # its bytes count from the beginning
        caches[1].sweep()
    caches[0].fill(file, descriptor, lambda opened: None)
    with pytest.raises(FileExistsError):
        caches[1].begin(file, never)
    assert names(caches[1]) == {"a"}


KILLED = """
import os, sys
from pathlib import Path
from fastdata.remote.cache import RemoteFile, ShardCache
cache = ShardCache(Path(sys.argv[1]))
cache.begin(RemoteFile("", "f/v/shard-a.mdb", 300, ""), lambda path: 0.0)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_downloader_leaves_is_swept(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path / "c"], check=False).returncode == -9
    cache = cache_of(tmp_path / "c", 400)
    assert names(cache) == {"a.mdb.tmp"}
    cache.sweep()
    assert names(cache) == set()


@pytest.mark.parametrize("name", ["evictions", "lock", "f/v/shard-a.mdb.tmp"])
def test_a_link_in_a_cache_leads_nowhere(name: str, tmp_path: Path) -> None:
    cache, outside = cache_of(tmp_path / "c", 400), tmp_path / "thesis.tex"
    outside.write_text("x")
    (cache.folder / name).unlink(missing_ok=True)
    (cache.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (cache.folder / name).symlink_to(outside)
    with pytest.raises((StoreError, OSError), match=r"symbolic links|cannot be used"):
        put(cache_of(tmp_path / "c", 400), "a", 300)
    assert outside.read_text() == "x"


def test_nothing_is_deleted_in_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"holds other files \(thesis.tex\): give an empty or a new folder"):
        ShardCache(tmp_path)
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    ShardCache(tmp_path / "volume")
    cache = cache_of(tmp_path / "c", 100)
    put(cache, "a", 90)
    (cache.folder / "CACHEDIR.TAG").unlink()
    with pytest.raises(StoreError, match="is no cache any more"):
        put(cache, "b", 90)
    assert names(cache) == {"a"} and (tmp_path / "thesis.tex").read_text() == "x"


def test_the_next_use_is_that_of_the_loader_that_comes_to_it_first(tmp_path: Path) -> None:
    downloader, (a, b) = Downloader(cache_of(tmp_path / "c"), tmp_path), (tmp_path / "a", tmp_path / "b")
    for name, now, uses in (("x", 100, {a: [(0, 50), (300, 310)], b: [(90, 120)]}), ("y", 0, {a: [(20, 30)]})):
        (tmp_path / name).write_bytes(np.int64(now).tobytes())
        known = {path: (None, None, stretches) for path, stretches in uses.items()}
        downloader._schedules[name] = ReadSchedule((0, 0), map_number(tmp_path / name), known)
    assert [downloader._next_use(path) for path in (a, b, tmp_path)] == [20.0, 0.0, float("inf")]
    assert [path for path, _, _ in downloader._uses()] == [a, b]
    del downloader._schedules["y"]
    assert downloader._next_use(a) == 200.0
    a.write_text("is there")
    assert [path for path, _, _ in downloader._uses()] == [b]


def test_sizes_and_urls() -> None:
    given = ["200GB", "1.5 MiB", 700, "3kb", "2 TB"]
    assert [parse_bytes(size, "cache_size") for size in given] == [200 * 10**9, 3 * 2**19, 700, 3000, 2 * 10**12]
    with pytest.raises(ValueError, match="cache_size is '12 cats', but must be a number of bytes, such as 500000000"):
        parse_bytes("12 cats", "cache_size")
    assert local_path("file:///a%2525b/c%20d.fds") == Path("/a%25b/c d.fds")
    assert is_url("s3://b/x") and is_url("file:///x") and not is_url("a/b") and not is_url(Path("/x"))
    with pytest.raises(ValueError, match="unknown scheme; known schemes are s3"):
        is_url("ftp://host/x")
