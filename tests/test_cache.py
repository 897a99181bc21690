"""The cache of remote stores, without object storage: what is kept, what goes, and what survives killed processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import stores
from fastdata.errors import StoreError
from fastdata.remote.cache import Cache, CacheFullError
from fastdata.remote.schedule import Schedules
from fastdata.remote.stores import RemoteStore
from fastdata.remote.url import is_url, parse_bytes
from fastdata.shared_memory import SharedArray


def never(path: Path) -> float:
    return float("inf")


def put(cache: Cache, name: str, size: int, next_use=never, **options) -> Path:
    path = cache.folder / "f" / "v" / f"shard-{name}.mdb"
    with cache.reserved(path, size, next_use, **options) as descriptor:
        if descriptor is not None:
            os.pwrite(descriptor, b"x" * size, 0)
    return path


def names(cache: Cache) -> set[str]:
    return {path.stem.removeprefix("shard-") for path in cache.files()}


def test_it_never_takes_more_than_its_limit_and_what_is_used_last_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", 1000)
    uses = {"a": 30.0, "b": 10.0, "c": 20.0, "d": 5.0}

    def next_use(path: Path) -> float:
        return uses[path.stem.removeprefix("shard-")]

    for name in "abc":
        put(cache, name, 300, next_use)
    assert cache.used() == 900
    put(cache, "d", 300, next_use)
    assert names(cache) == {"b", "c", "d"} and cache.used() == 900
    with pytest.raises(CacheFullError, match=r"cache_size is 1.0 kB"):  # nothing that is used later than in 25 samples is there
        put(cache, "e", 300, next_use, spared=lambda path: next_use(path) <= 25.0)
    assert names(cache) == {"b", "c", "d"}


def test_without_a_schedule_what_was_read_longest_ago_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", 1000)
    for k, name in enumerate("abc"):
        os.utime(put(cache, name, 300), (k, k))
    os.utime(cache.folder / "f" / "v" / "shard-a.mdb", (9, 9))
    put(cache, "d", 300)
    assert names(cache) == {"a", "c", "d"}


def test_what_was_read_before_the_clock_was_set_back_goes_first(tmp_path: Path) -> None:
    """Else it would stay for years, and the room for all that is read now would be what it leaves."""
    cache = Cache(tmp_path / "c", 1000)
    later = time.time() + 1e8
    for name in "ab":
        os.utime(put(cache, name, 300), (later, later))
    for name in "cde":
        put(cache, name, 300)
    assert names(cache) == {"c", "d", "e"}


def test_a_store_that_is_opened_again_is_scheduled_anew() -> None:
    """What a Loader had scheduled before hid the uses that come sooner."""
    clock = SharedArray(3, np.int64)
    schedules, who = Schedules(), clock.__getstate__()[:3]
    opened = [RemoteStore(object(), stores.store()) for _ in range(2)]  # type: ignore[arg-type]
    for store, first in zip(opened, (500, 20), strict=True):
        schedules.extend(0, who, store, "96", [(0, first, first + 10)], restart=True)
        assert schedules.next_use(store.file("96", 0)) == first


def test_a_shard_that_a_reader_maps_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", 700)
    path = put(cache, "a", 300)
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        before = int.from_bytes((cache.folder / "turn").read_bytes(), sys.byteorder)
        put(cache, "b", 300)
        put(cache, "c", 300)
        assert names(cache) == {"a", "c"}
        with pytest.raises(CacheFullError, match="is full: a shard needs 500 B, and readers use all of the"):
            put(cache, "d", 500, wait_s=0.2)
        assert int.from_bytes((cache.folder / "turn").read_bytes(), sys.byteorder) > before  # readers were asked to let go
    put(cache, "d", 500)
    assert names(cache) == {"d"}


@pytest.mark.parametrize("trial", range(5))
def test_many_writers_at_once_keep_the_limit_and_fetch_each_shard_once(trial: int, tmp_path: Path) -> None:
    caches = [Cache(tmp_path / "c", 1500) for _ in range(6)]
    written, most = [], []

    def work(cache: Cache, k: int) -> None:
        for name in range(12):
            path = cache.folder / "f" / "v" / f"shard-{name:02d}.mdb"
            with cache.reserved(path, 100, never) as descriptor:
                if descriptor is not None:
                    written.append(name)
                most.append(cache.used())

    threads = [threading.Thread(target=work, args=(cache, k)) for k, cache in enumerate(caches)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(written) == list(range(12)) and max(most) <= 1500 and names(caches[0]) == {f"{k:02d}" for k in range(12)}


KILLED = """
import os, sys
from pathlib import Path
from fastdata.remote.cache import Cache
cache = Cache(Path(sys.argv[1]))
with cache.reserved(cache.folder / "f" / "v" / "shard-a.mdb", 300, lambda path: 0.0):
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_leaves_is_written_again(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path / "c"], check=False).returncode == -9
    cache = Cache(tmp_path / "c", 400)
    assert [path.name for path in cache.files()] == ["shard-a.mdb.tmp"]
    put(cache, "b", 300)
    assert names(cache) == {"b"}
    put(cache, "a", 300)
    assert names(cache) == {"a"}


def test_a_file_of_any_name_is_kept(tmp_path: Path) -> None:
    """An object whose own name is that of a temporary file was waited for without an end."""
    cache = Cache(tmp_path / "c", kept="*/*/*")
    path = cache.folder / "aa" / "bb" / "photos.tmp"
    with cache.reserved(path, 5, never) as descriptor:
        assert descriptor is not None
        os.pwrite(descriptor, b"12345", 0)
    with cache.reserved(path, 5, never) as descriptor:
        assert descriptor is None
    assert path.read_bytes() == b"12345" and cache.files() == [path]


@pytest.mark.parametrize("name", ["turn", "lock", "f/v/shard-a.mdb.tmp"])
def test_a_link_in_a_cache_leads_nowhere(name: str, tmp_path: Path) -> None:
    cache, outside = Cache(tmp_path / "c", 400), tmp_path / "thesis.tex"
    outside.write_text("x")
    (cache.folder / name).unlink(missing_ok=True)
    (cache.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (cache.folder / name).symlink_to(outside)
    with pytest.raises((StoreError, OSError), match=r"symbolic links|cannot be used"):
        put(Cache(tmp_path / "c", 400), "a", 300)
    assert outside.read_text() == "x"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    with pytest.raises(RuntimeError), cache.reserved(cache.folder / "f" / "v" / "shard-a.mdb", 10, never):
        raise RuntimeError
    assert cache.files() == []


def test_nothing_is_deleted_in_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"holds other files \(thesis.tex\): give an empty or a new folder"):
        Cache(tmp_path)
    cache = Cache(tmp_path / "c", 100)
    put(cache, "a", 90)
    (cache.folder / "CACHEDIR.TAG").unlink()
    with pytest.raises(StoreError, match="is no cache any more"):
        put(cache, "b", 90)
    assert names(cache) == {"a"} and (tmp_path / "thesis.tex").read_text() == "x"


def test_sizes_and_urls() -> None:
    given = ["200GB", "1.5 MiB", 700, "3kb", "2 TB"]
    assert [parse_bytes(size, "cache_size") for size in given] == [200 * 10**9, 3 * 2**19, 700, 3000, 2 * 10**12]
    with pytest.raises(ValueError, match="cache_size is '12 cats', but must be bytes, as 500000000, or have a unit"):
        parse_bytes("12 cats", "cache_size")
    assert is_url("s3://b/x") and is_url("file:///x") and not is_url("a/b") and not is_url(Path("/x"))
    with pytest.raises(ValueError, match="unknown scheme; known are s3"):
        is_url("ftp://host/x")
