"""Remote stores: the same samples as the local store, whatever the kind, the server and its faults."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fastdata
import stores
from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset
from fastdata.cli import cli
from fastdata.errors import FormatError, RemoteError, StoreError
from fastdata.store.files import sum_of
from fastdata.store.manifest import read_manifest
from faults import FAULTS, LIES, FaultServer, serving
from support import children, downloaders, plain, tree, until, write_pictures

KINDS = {
    "images": (stores.store, {"crop": CenterCrop(24)}),
    "several images": (stores.several, {"crop": CenterCrop(24)}),
    "masks": (stores.masked, {"crop": CenterCrop(24)}),
    "tokens": (stores.tokens, {"block_size": 16}),
    "arrays": (stores.masked_arrays, {"crop": CenterCrop((8, 8, 8))}),
}


def hashes(dataset: Any, **options: Any) -> list[Any]:
    """What a Loader delivers in an epoch; a shuffled one is in the order that remote stores have."""
    if options.get("shuffle") and not dataset.remote:
        options["order"] = "interleaved"
    with Loader(dataset, **{"batch_size": 8, "seed": 3, "num_workers": 2} | options) as loader:
        return [(plain(batch), str(getattr(batch, "ids", ""))) for batch in loader]


Opens = Callable[..., Any]


@pytest.fixture
def remote(server: FaultServer, tmp_path: Path) -> Opens:
    """Opens many.fds of the server, through a cache."""
    return lambda cache="cache", **options: LMDBDataset(f"{server.url}/many.fds", cache=tmp_path / cache, **options)


@pytest.fixture
def local(many: Path) -> LMDBDataset:
    return LMDBDataset(many)


def used(cache: Path) -> int:
    total = 0
    for path in cache.glob("*/*/shard-*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def valid(cache: Path, store: Path) -> int:
    """Check that a cache holds nothing but whole shards of a store; return their number. What is on its way is waited for."""
    until(lambda: not [*cache.glob("*/*/*.tmp")])
    manifest = read_manifest(store)
    sums = {f"{v.name}/shard-{k:05d}.{s.xxh3_128}.mdb": s for v in manifest.variants for k, s in enumerate(v.shards)}
    for path in cache.glob("*/*/shard-*"):
        total = sums[f"{path.parent.name}/{path.name}"]
        assert sum_of(path.read_bytes()) == total
    return len([*cache.glob("*/*/shard-*")])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_through_a_cache_and_in_memory(kind: str, tmp_path: Path) -> None:
    make, options = KINDS[kind]
    url = f"file://{tmp_path}/bucket/x.fds"
    fastdata.publish(make(), url)
    expected = hashes(fastdata.open(make(), **options))
    assert hashes(fastdata.open(url, cache=tmp_path / "cache", **options)) == expected  # cold
    assert hashes(fastdata.open(url, cache=tmp_path / "cache", cache_size="1GB", **options)) == expected  # warm
    assert hashes(RAMDataset(url, cache=tmp_path / "cache", **options)) == expected
    assert hashes(fastdata.open(url, **options)) == expected  # without a cache file:// is the folder


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_the_commands_take_a_url(many: Path, server: FaultServer, tmp_path: Path) -> None:
    url = f"{server.url}/many.fds"
    found, expected = (json.loads(command("info", place, "--json").stdout) for place in (url, server.root / "many.fds"))
    passing = {"path": "", "free_memory": 0}
    assert {**found, **passing} == {**expected, **passing}
    assert command("verify", url).exit_code == 0
    assert command("export", url, tmp_path / "far").exit_code == command("export", many, tmp_path / "near").exit_code
    assert tree(tmp_path / "far") == tree(tmp_path / "near")
    server.always["shard-00002"] = "flip"
    damaged = command("verify", url)
    assert damaged.exit_code == 1 and re.search(r"/shard-00002.mdb was read \d times, and never had the manifest's", damaged.output)


@pytest.mark.scale
@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("kind", KINDS)
def test_s3(kind: str, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options = KINDS[kind]
    url, storage = f"s3://bucket/{kind.replace(' ', '-')}.fds", {"endpoint": moto, "region": "us-east-1"}
    ticks: list[int] = []
    fastdata.publish(make(), url, storage=storage, tick=ticks.append)
    fastdata.publish(make(), url, storage=storage)  # again: all is there
    assert sum(ticks) >= sum(total.bytes for v in read_manifest(make()).variants for total in v.shards)
    dataset = fastdata.open(url, cache=tmp_path / "cache", storage=storage, **options)
    assert url in repr(dataset) and hashes(dataset) == hashes(fastdata.open(make(), **options))
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("FASTDATA_CACHE", str(tmp_path / "other"))
    assert hashes(fastdata.open(url, **options)) == hashes(fastdata.open(make(), **options))
    other = stores.tokens() if kind != "tokens" else stores.arrays()
    with pytest.raises(RemoteError, match=r"s3://bucket/.*.fds holds another store"):
        fastdata.publish(other, url, storage=storage)


@pytest.mark.scale
def test_publish_replaces_no_store_with_other_contents(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/a.fds"
    (tmp_path / "in").mkdir()
    for value in (0, 1):  # files of one size, so both stores have one fingerprint
        np.save(tmp_path / "in/a.npy", np.full((2, 3), value))
        store = fastdata.prep(tmp_path / "in", tmp_path / f"{value}.fds").out
        if value == 0:
            fastdata.publish(store, url)
    with pytest.raises(RemoteError, match="holds another store"):
        fastdata.publish(store, url)


@pytest.fixture
def buckets(many: Path, tmp_path: Path) -> Path:
    """A folder of buckets, with a store and images."""
    write_pictures(tmp_path / "buckets/bucket/photos", 9)
    fastdata.publish(many, f"file://{tmp_path}/buckets/bucket/folder/many.fds")
    return tmp_path / "buckets"


@pytest.mark.scale
def test_google(many: Path, buckets: Path, google: str, tmp_path: Path) -> None:
    """Reading, from an emulator of others. It does not take obstore's writes."""
    storage, url = {"endpoint": google, "anonymous": True}, "gs://bucket/folder/many.fds"
    dataset = LMDBDataset(url, cache=tmp_path / "cache", storage=storage)
    for shuffle in (False, True):
        assert hashes(dataset, shuffle=shuffle) == hashes(LMDBDataset(many), shuffle=shuffle)
    assert command("verify", url, "--storage", f"endpoint={google}", "--storage", "anonymous=true").exit_code == 0
    with pytest.raises(RemoteError, match=r"gs://bucket/none.fds/manifest.json: there is no such object \(404\)"):
        LMDBDataset("gs://bucket/none.fds", cache=tmp_path / "cache", storage=storage)
    made = fastdata.prep("gs://bucket/photos", tmp_path / "far.fds", size=32, storage=storage)
    fastdata.prep(buckets / "bucket/photos", tmp_path / "near.fds", size=32)
    assert made.kept == 9 and tree(tmp_path / "far.fds") == tree(tmp_path / "near.fds")


@pytest.mark.parametrize("method", ["none", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_subsets_sums_and_workers(method: str, remote: Opens, local: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        multiprocessing.context._default_context,
        "_actual_context",
        multiprocessing.get_context("spawn" if method == "spawn" else "fork"),
    )
    dataset, workers = remote(), 2 * (method != "none")
    assert bytes(dataset[5][0].numpy()) == bytes(local[5][0].numpy())  # used before the fork
    keep = np.arange(0, 120, 7)
    for make in (lambda d: d.subset(keep), lambda d: d + d.subset(keep), lambda d: d.split(0.3, seed=1)[0]):
        for shuffle in (False, True)[method == "spawn" :]:
            assert hashes(make(dataset), num_workers=workers, shuffle=shuffle) == hashes(
                make(local), num_workers=0, shuffle=shuffle
            )
    assert dataset.remote and not local.remote


RANK = """
import json, sys
import stores
from fastdata import LMDBDataset, Loader
url, cache, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Loader(LMDBDataset(url, cache=cache), 4, num_workers=1, seed=3, shuffle=True, rank=rank, world_size=world) as loader:
    print(json.dumps([ids for batch in loader for ids in batch.ids.tolist()]))
"""


def environment() -> dict[str, str]:
    """That of a process that imports what the tests do."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.slow
def test_eight_ranks_of_a_node_fetch_each_shard_once(many: Path, server: FaultServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANK, server.url + "/many.fds", tmp_path / "cache"]
    ranks = [subprocess.Popen([*command, str(k), "8"], stdout=subprocess.PIPE, text=True, env=environment()) for k in range(8)]
    found = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    assert {k for ids in found for k in ids} == set(range(120))
    shards = {path: n for path, n in server.nbytes.items() if "shard-" in path}
    total = sum(s.bytes for s in read_manifest(many).variants[0].shards)
    assert len(shards) == 24 and sum(shards.values()) == total
    assert valid(tmp_path / "cache", many) == 24


FAULTY = {"faults that pass": ("", tuple(sorted({*FAULTS} - {"stall"})), 0.08), "a manifest": ("manifest.json", ("flip",), 0.3)}
FAULTY |= {lie: ("shard-", (lie,), 0.3) for lie in LIES}


@pytest.mark.parametrize("name", FAULTY)
def test_faults_of_a_server(name: str, many: Path, server: FaultServer, remote: Opens, local: LMDBDataset, tmp_path: Path) -> None:
    """Those that pass, and lengths, ranges and ETags that a server or a proxy gets wrong at times."""
    server.of, server.faults, server.chance = FAULTY[name]
    for turn in range(4 if name == "a manifest" else 1):
        try:
            assert hashes(remote(f"cache{turn}"), shuffle=True, num_workers=2 * (not turn)) == hashes(local, shuffle=True)
        except RemoteError:
            assert name in LIES
        valid(tmp_path / f"cache{turn}", many)
    assert sum(server.made[fault] for fault in server.faults) > (0 if name in LIES else 3 * (not turn))


ERRORS = {
    "403": (RemoteError, r"127.0.0.1:\d+/many.fds/128/shard-00003.mdb: .*(denied|expired)"),
    "404": (RemoteError, r"127.0.0.1:\d+/many.fds/128/shard-00003.mdb: there is no such object \(404\)"),
    "flip": (RemoteError, r"many.fds/128/shard-00003.mdb was read 6 times, and never had the manifest's checksum"),
}


@pytest.mark.parametrize("fault", ERRORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_cannot_be_had_is_named(fault: str, workers: int, server: FaultServer, remote: Opens) -> None:
    error, message = ERRORS[fault]
    dataset = remote()
    server.always = {"shard-00003": fault}
    with pytest.raises(error, match=message):
        hashes(dataset, num_workers=workers)


def test_no_store_no_server_no_cache(server: FaultServer, remote: Opens, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for url, message in {
        server.url + "/none.fds": r"none.fds/manifest.json: .*\(404\); prepare a store there, or publish",
        "http://127.0.0.1:9/x.fds": r"http://127.0.0.1:9/x.fds/manifest.json: no server answers there",
        f"file://{tmp_path}/none.fds": r"file:///.*/none.fds/manifest.json: there is no such object",
    }.items():
        with pytest.raises(RemoteError, match=message):
            LMDBDataset(url, cache=cache)
    with pytest.raises(ValueError, match=r"s3://b/x.fds is read through a cache: give cache=FOLDER"):
        LMDBDataset("s3://b/x.fds")
    with pytest.raises(ValueError, match=r"cache, cache_size and storage go with a URL, such as s3://bucket/photos.fds"):
        LMDBDataset(tmp_path / "x.fds", cache=cache)
    server.always = {"manifest.json": "403"}
    with pytest.raises(RemoteError, match=r"many.fds/manifest.json: .*(denied|expired)"):
        remote()


def test_a_cache_that_is_too_small_is_refused_with_a_size_that_works(
    many: Path, remote: Opens, local: LMDBDataset, tmp_path: Path
) -> None:
    options = {"batch_size": 2, "num_workers": 1}
    with pytest.raises(StoreError, match=r"cache_size is 500000, but .* give cache_size=\d+ or more") as refused:
        hashes(remote(cache_size=500_000), **options)
    least = int(str(refused.value).partition("give cache_size=")[2].split()[0])
    assert least < sum(s.bytes for s in read_manifest(many).variants[0].shards) / 3
    most, found = 0, list[Any]()
    with Loader(remote(cache_size=least), seed=3, **options) as loader:  # the same process fetches
        for batch in loader:
            most = max(most, used(tmp_path / "cache"))
            found.append((plain(batch), str(batch.ids)))
    assert found == hashes(local, **options)
    assert 0 < most <= least + 300_000  # one shard
    with pytest.raises(StoreError, match=r"cache_size is 100, but one shard takes \d+ bytes"):
        remote("other", cache_size=100)[0]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="a namespace of processes needs root")
def test_containers_that_share_only_the_cache_share_its_downloader(server: FaultServer, tmp_path: Path) -> None:
    """They know the folder by different paths, and each other's processes not at all."""
    url, cache, other = f"{server.url}/many.fds", tmp_path / "cache", tmp_path / "mounted"
    dataset = LMDBDataset(url, cache=cache)
    other.symlink_to(cache)
    (process,) = downloaders(cache)
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", RANK, url, other, "0", "1"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert sorted(json.loads(done.stdout)) == [*range(120)], done.stderr
    server.always = {"shard-": "404"}  # all have come, each once
    assert len(dataset[119]) == 2 and downloaders(cache) == [process] and not downloaders(other)


def deleted_bytes() -> int:
    """The blocks of shards without a name that this process's children still map."""
    total = 0
    for pid in children(os.getpid()):
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/map_files").iterdir():
                with suppress(OSError):
                    target = os.readlink(entry)  # noqa: PTH115
                    if "/shard-" in target and target.endswith(" (deleted)"):
                        total += entry.stat().st_blocks * 512
    return total


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="looking at mapped files needs root")
def test_a_small_cache_has_few_blocks_of_evicted_shards(tmp_path: Path) -> None:
    """The cache is a quarter of the store. Workers let go of what was evicted, while the consumer is slow too."""
    images = np.random.default_rng(0).integers(0, 256, (4000, 24, 24, 3), np.uint8)
    out = fastdata.prep(images, tmp_path / "x.fds", codec="rgb", workers=1, shard_samples=10).out
    fastdata.publish(out, f"file://{tmp_path}/served/x.fds")
    total = sum(s.bytes for s in read_manifest(out).variants[0].shards)
    with serving(tmp_path / "served") as server:
        dataset = LMDBDataset(f"{server.url}/x.fds", cache=tmp_path / "cache", cache_size=total // 4)
        most = 0
        with Loader(dataset, 16, seed=5, shuffle=True, num_workers=2) as loader:
            for epoch in range(3):
                for k, batch in enumerate(loader):
                    assert len(batch.ids) and used(tmp_path / "cache") <= total // 4 + 2 * total // 400
                    time.sleep(0.002 * epoch)
                    if k % 5 == 0:
                        most = max(most, deleted_bytes())
    assert most < 0.1 * total / 4, most / total


def flip(path: Path) -> None:
    """A bit of each page, or of the end."""
    data = bytearray(path.read_bytes())
    for at in range(200, len(data), 4096) if path.suffix == ".mdb" else [-9]:
        data[at] ^= 1
    path.write_bytes(data)


SHARD = "shard-00000.*.mdb"
DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a cut": (SHARD, lambda path: os.truncate(path, 4096)),
    "zeros": (SHARD, lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "a folder": (SHARD, lambda path: (path.unlink(), path.mkdir())),
    "another shard": (SHARD, lambda path: shutil.copy(next(path.parent.glob("shard-00001.*")), path)),
    "a pipe": (SHARD, lambda path: (path.unlink(), os.mkfifo(path))),
    "a bit": (SHARD, flip),
    **{name: (name, flip) for name in ("samples.npy", "names.txt", "manifest.json")},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_in_the_cache_is_fetched_again(
    damage: str, many: Path, remote: Opens, local: LMDBDataset, tmp_path: Path
) -> None:
    """Also if its size and its times are right, as after a power failure."""
    remote()[6]
    remote()[0]
    name, harm = DAMAGE[damage]
    (path,) = (tmp_path / "cache").glob(f"*/*/{name}")
    data, times = path.read_bytes(), path.stat()
    harm(path)
    if damage == "a folder":
        with pytest.raises(FormatError, match=r"shard-00000.* is damaged, and fastdata cannot delete it .*: delete it yourself"):
            remote()[0]
        return
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.warns(UserWarning, match=f"{path.name} is not what was written there: it is fetched again"):
        assert remote()[0][0].equal(local[0][0])
    assert path.read_bytes() == data and valid(tmp_path / "cache", many)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mount"), reason="mounting a small disk needs root")
def test_a_full_disk(many: Path, server: FaultServer, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        dataset = LMDBDataset(server.url + "/many.fds", cache=disk / "cache")  # the limit is what the disk has
        assert hashes(dataset, batch_size=2, num_workers=1) == hashes(LMDBDataset(many), batch_size=2, num_workers=1)
        valid(disk / "cache", many)
    finally:
        del dataset
        subprocess.run(["umount", "-l", disk], check=True)


DOCS = Path(__file__).parents[2] / "docs" / "remote.md"


@pytest.mark.scale
def test_the_docs_run(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "ENDPOINT_URL": moto, "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stores.store(), "photos.fds")
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bash", "python"]
    for kind, code in blocks:
        if kind == "bash":
            done = subprocess.run([sys.executable, "-m", *code.split()], capture_output=True, text=True, check=False)
            assert done.returncode == 0 and "s3://bucket/photos.fds" in done.stdout, done.stderr
        else:
            names: dict[str, Any] = {}
            exec(code, names)
            assert len(names["train"]) == len(names["val"]) == 42
            assert len(names["images"]) == 42 % 8


def test_a_forked_child_holds_no_lock_of_its_parent(remote: Opens, tmp_path: Path) -> None:
    dataset = remote()
    dataset[0]
    (path,) = (tmp_path / "cache").glob("*/*/shard-00000.*.mdb")

    def evictable() -> bool:
        with path.open("r+b") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    assert not evictable()  # this process maps it
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    child = context.Process(target=lambda: (ready.set(), end.wait(60)))
    child.start()
    try:
        assert ready.wait(30)
        del dataset
        assert evictable()
    finally:
        end.set()
        child.join()
