"""Preparing in object storage: the objects are those of a store that was made on a disk and published, whatever dies or fails."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastdata
from fastdata import LMDBDataset, PrepError, RemoteError
from fastdata.prepare.build_plan import build_plan
from fastdata.prepare.tasks import lay_plan
from fastdata.prepare.upload import opened
from fastdata.prepare.worker import Made
from fastdata.remote.bucket import Bucket
from fastdata.store.files import file_sum
from faults import FaultStore, storing
from servers import free_ports
from support import MAIN, PREP, encode, kill_group, run, start, tree
from test_golden_kinds import STORES, write_inputs

Tree = dict[str, bytes | None]
URL = "s3://bucket/photos.fds"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials, and folders for temporary files of its own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultStore]:
    """A server of S3 on a folder, which the environment names."""
    with storing(tmp_path / "server") as found:
        found.stall_s = 6
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        yield found


def objects(server: FaultStore, name: str = "photos.fds") -> Tree:
    """The objects below a URL, and nothing else: the server's folders are no objects."""
    return {path: data for path, data in tree(server.root / "bucket" / name).items() if data is not None}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images of four classes, and one that is cut short."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for k in range(120):
        path = root / f"class{k // 30}/{k:03d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(rng.integers(0, 256, (256, 256, 3), np.uint8), ".png"))
    (root / "class2/cut.png").write_bytes(path.read_bytes()[:9000])
    return root


def published(source: Path, folder: Path, **options: Any) -> Tree:
    """What is in a bucket after preparing to a disk and publishing."""
    fastdata.prep(source, folder / "local.fds", **options)
    with storing(folder / "expected") as server:
        fastdata.publish(folder / "local.fds", URL, storage={"endpoint": server.url})
        return objects(server)


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The objects of `photos` in the size of 128."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        found = published(photos, tmp_path_factory.mktemp("expected"), size=128, order="shuffled", workers=2)
    assert len([name for name in found if name.startswith("128/shard-")]) > 20
    return found


def same(found: Tree, expected: Tree) -> None:
    assert sorted(found) == sorted(expected)
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden")
    write_inputs(root)
    rows = "".join(f"images/ant/{k}.png,{k % 2},{'long ' * k}caption {k}\n" for k in range(5))
    (root / "fields.csv").write_text(f"path,label,caption\n{rows}")
    return root


@pytest.mark.parametrize("name", ["masks", "fields", "chars", "chunks"])
def test_every_kind_has_the_objects_of_a_published_store(name: str, golden: Path, tmp_path: Path, server: FaultStore) -> None:
    source, options = STORES.get(name, ("fields.csv", {"fields": "caption", "root": golden}))
    options = {key: golden / value if key == "masks" else value for key, value in options.items()}
    order = {} if name == "chars" else {"order": "shuffled"}
    options["workers"] = 1
    local = fastdata.prep(golden / source, tmp_path / "local.fds", **options, **order)
    fastdata.publish(local.out, "s3://bucket/local.fds")
    made = fastdata.prep(golden / source, URL, **options)
    same(objects(server), objects(server, "local.fds"))
    again = fastdata.prep(golden / source, URL + "/", **options)
    for summary in (made, again):
        assert summary.out == URL
        for figure in ("inputs", "kept", "rejected", "bytes", "tokens", "kind", "originals"):
            assert getattr(summary, figure) == getattr(local, figure), figure
    assert made.notes == local.notes
    assert again.resumed == again.inputs and made.resumed == 0


@pytest.mark.scale
@pytest.mark.usefixtures("credentials")
def test_the_command_and_what_it_made(
    photos: Path, expected: Tree, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--storage", f"endpoint={s3}", "--storage", "region=us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    found = run(*PREP, photos, "s3://bucket/command.fds", "--size", 128)
    assert found.returncode == 0, found.stderr
    assert "s3://bucket/command.fds: 120 of 121 images kept, 1 rejected (truncated 1), listed in rejects.jsonl" in found.stdout
    assert list(tmp_path.glob("fastdata-*")) == []
    storage = {"endpoint": s3, "region": "us-east-1"}
    dataset = LMDBDataset("s3://bucket/command.fds", cache=tmp_path / "cache", storage=storage)
    local = fastdata.prep(photos, tmp_path / "local.fds", size=128, order="shuffled").out
    assert len(dataset) == 120 and all(np.array_equal(dataset[k][0], LMDBDataset(local)[k][0]) for k in range(0, 120, 7))
    info = run(*MAIN, "info", "s3://bucket/command.fds", *options)
    assert info.returncode == 0, info.stderr
    assert "s3://bucket/command.fds: 120 images" in info.stdout and re.search(r"order\s+shuffled", info.stdout), info.stdout
    again = run(*PREP, photos, "s3://bucket/command.fds", "--size", 128)
    assert again.returncode == 0 and "already finished" in again.stdout
    assert run(*MAIN, "publish", local, "s3://bucket/command.fds", *options).returncode == 0  # whose bytes are there


def test_a_file_url_is_the_folder_that_it_names(photos: Path, tmp_path: Path) -> None:
    made = fastdata.prep(photos, f"file://{tmp_path}/a.fds", size=64, limit=20, workers=1)
    fastdata.prep(photos, tmp_path / "b.fds", size=64, limit=20, workers=1)
    assert made.out == tmp_path / "a.fds" and tree(tmp_path / "a.fds") == tree(tmp_path / "b.fds")
    fastdata.prep_plan(photos, f"file://{tmp_path}/c.fds", size=64, limit=20)
    fastdata.prep_run(f"file://{tmp_path}/c.fds", progress=False)
    fastdata.prep_finish(f"file://{tmp_path}/c.fds")
    assert tree(tmp_path / "c.fds") == tree(tmp_path / "b.fds")


@pytest.mark.slow
def test_tasks_on_machines_that_share_no_disk(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path) -> None:
    """Each has a folder for temporary files of its own, and nothing else."""

    def on(machine: str) -> dict[str, Any]:
        (tmp_path / machine).mkdir(exist_ok=True)
        return {"env": {**os.environ, "TMPDIR": str(tmp_path / machine)}, "cwd": tmp_path / machine}

    planned = run(*PREP, "plan", photos, URL, "--size", 128, **on("head"))
    assert planned.returncode == 0 and f"{URL}: planned 121 inputs in " in planned.stdout, planned.stderr
    early = run(*PREP, "finish", URL, **on("head"))
    assert early.returncode == 2 and re.search(rf"{URL} lacks \d+ of \d+ shards, the first 0: run the lost", early.stderr)
    quick = ("--workers", "1")
    tasks = [start(*PREP, "run", URL, "--task", str(k), "--of", "2", *quick, stderr=subprocess.PIPE, **on(f"m{k}")) for k in (0, 1)]
    for task in tasks:
        assert b"rror" not in task.communicate(timeout=180)[1] and task.returncode == 0
    listed = server.requests.copy()
    shards = [path for path in listed if "shard-" in path and path.endswith(".mdb")]
    assert not shards, "no shard is read"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    finishes = [start(*PREP, "finish", URL, **pipes, **on("head")) for _ in range(3)]
    for finish in finishes:
        said, errors = finish.communicate(timeout=180)
        assert finish.returncode == 0 and b"120 of 121 images kept" in said, errors
    same(objects(server), expected)
    assert not [path for path in server.requests if path.endswith(".mdb")]
    for command in (("run", URL), ("finish", URL), ("plan", photos, URL, "--size", "128")):
        late = run(*PREP, *command, **on("late"))
        assert late.returncode == 0, f"whoever comes too late is done: {late.stderr}"
    same(objects(server), expected)
    assert [path for folder in ("head", "m0", "m1", "late") for path in (tmp_path / folder).iterdir()] == []


@pytest.mark.slow
def test_kill_9_at_random_moments(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path) -> None:
    rng, kills = random.Random(3), 0
    server.delay_s = 0.01
    command = (*PREP, photos, URL, "--size", "128", "--workers", "2")
    for _ in range(8):
        process = start(*command)
        time.sleep(rng.uniform(0.5, 1.8))
        if process.poll() is not None:
            break
        kill_group(process)
        kills += 1
    assert run(*command).returncode == 0
    assert kills > 1
    same(objects(server), expected)


@pytest.mark.scale
def test_google(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of obstore's client for Google. No checksum goes with its writes, so only TLS would notice flipped bits."""
    monkeypatch.setattr("faults.WRITE_FAULTS", ("500", "503", "reset", "cut", "twice"))
    server.chance = server.write_chance = 0.05
    url, storage = "gs://bucket/photos.fds", {"endpoint": server.url, "bearer_token": "test"}
    assert fastdata.prep(photos, url, size=128, workers=2, storage=storage).kept == 120
    same(objects(server), expected)
    assert sum(count for fault, count in server.made.items() if fault) > 5
    server.chance = server.write_chance = 0
    monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
    assert fastdata.prep(photos, url, size=128).resumed == 121
    with pytest.raises(PrepError, match=r"gs://bucket/photos.fds was made, or begun, with other options"):
        fastdata.prep(photos, url, size=64)
    verified = run(*MAIN, "verify", url)
    assert verified.returncode == 0, verified.stderr
    local = fastdata.prep(photos, tmp_path / "local.fds", size=64, order="shuffled").out
    fastdata.publish(local, "gs://bucket/published.fds")
    fastdata.prep(photos, "gs://bucket/small.fds", size=64, workers=2)
    same(objects(server, "small.fds"), objects(server, "published.fds"))
    dataset = LMDBDataset("gs://bucket/small.fds", cache=tmp_path / "cache")
    assert len(dataset) == 120 and all(np.array_equal(dataset[k][0], LMDBDataset(local)[k][0]) for k in range(0, 120, 7))


def test_keys_are_text(photos: Path, server: FaultStore, tmp_path: Path) -> None:
    """A store whose name differs only by what would be a fragment or a query of a URL is another one."""
    local = fastdata.prep(photos, "s3://bucket/a", size=64, limit=9, workers=1)
    before = objects(server, "a")
    for name in ("a#2", "a?2", "a#2?x%20"):
        out = fastdata.prep(photos, f"s3://bucket/{name}", size=32, limit=9, workers=1)
        assert out.out == f"s3://bucket/{name}" and out.kept == local.kept
        assert "manifest.json" in objects(server, name) and objects(server, "a") == before
        assert len(fastdata.RAMDataset(f"s3://bucket/{name}", cache=tmp_path / "cache")) == 9
    made = fastdata.prep(photos, f"file://{tmp_path}/a#2", size=32, limit=9, workers=1).out
    assert made == tmp_path / "a#2"
    fastdata.publish(made, "s3://bucket/published#1/a?b.fds")
    assert objects(server, "published#1/a?b.fds").keys() == {name for name, data in tree(made).items() if data is not None}


def test_writes_whose_answers_are_lost(photos: Path, expected: Tree, server: FaultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.WRITE_FAULTS", ("cut", "twice"))
    server.write_chance = 0.3
    fastdata.prep(photos, URL, size=128, workers=2)
    assert server.made["cut of a write"] > 0 and server.made["twice of a write"] > 0
    same(objects(server), expected)
    server.always = dict.fromkeys(("plan.json", "manifest.json"), "twice")
    assert fastdata.prep(photos, "s3://bucket/few.fds", size=64, limit=9, workers=1).kept == 9


def test_bits_that_flip_in_plan_and_tables(photos: Path, expected: Tree, server: FaultStore) -> None:
    fastdata.prep_plan(photos, URL, size=128)
    server.faults, server.chance, server.of = ("flip",), 0.2, "/work/"
    fastdata.prep_run(URL, workers=2, progress=False)
    made = {path.name: path.stat().st_mtime_ns for path in (server.root / "bucket/photos.fds/128").iterdir()}
    fastdata.prep_finish(URL)
    assert server.made["flip"] > 2
    same(objects(server), expected)
    assert {path.name: path.stat().st_mtime_ns for path in (server.root / "bucket/photos.fds/128").glob("*.mdb")} == made


def test_large_objects_that_fail(tmp_path: Path, server: FaultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of 20 MB."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for k in range(3):
        np.save(tmp_path / f"in/{k}.npy", rng.integers(0, 2**16, (1800, 1850, 1), np.uint16))
    expected = published(tmp_path / "in", tmp_path / "disk", order="shuffled", chunk=512, limit=3)
    monkeypatch.setattr("faults.WRITE_FAULTS", ("500", "reset", "cut", "flip", "twice"))
    server.write_chance = 0.08
    fastdata.prep(tmp_path / "in", URL, chunk=512, limit=3)
    assert sum(server.made.values()) > server.made[""]
    same(objects(server), expected)


@pytest.mark.slow
def test_shards_wait_for_the_network_in_bounded_numbers(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path) -> None:
    server.delay_s = 0.25
    most, end = [0], threading.Event()

    def watch() -> None:
        while not end.wait(0.005):
            most[0] = max(most[0], len([*tmp_path.glob("fastdata-*/work/128-*.tmp")]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        fastdata.prep(photos, URL, size=128, workers=2)
    finally:
        end.set()
        watcher.join()
    assert 2 <= most[0] <= 8
    same(objects(server), expected)


def test_what_lost_tries_left_is_replaced_and_what_others_finished_is_kept(
    photos: Path, expected: Tree, server: FaultStore, tmp_path: Path
) -> None:
    fastdata.prep_plan(photos, URL, size=128)
    root = server.root / "bucket/photos.fds"
    (root / "128").mkdir()
    (root / "128/shard-00000.mdb").write_bytes(b"of a try that ended otherwise")
    (root / "samples.npy").write_bytes(b"of a finish that was lost")
    fastdata.prep_run(URL, task=1, of=2, workers=1, progress=False)
    before = {path: path.stat().st_mtime_ns for path in root.glob("128/*.mdb")}
    summary = fastdata.prep(photos, URL, size=128, workers=2)
    assert summary.resumed > 50
    assert all(path.stat().st_mtime_ns == when for path, when in before.items() if path.name != "shard-00000.mdb")
    same(objects(server), expected)


def test_other_plans_overwriting_and_foreign_objects(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path) -> None:
    fastdata.prep_plan(photos, URL, size=64)
    fastdata.prep_run(URL, task=0, of=9, workers=1, progress=False)
    with pytest.raises(PrepError, match=r"(?s)s3://bucket/photos.fds was made, or begun, with other options.*size 64, now 128"):
        fastdata.prep(photos, URL, size=128)
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds was made, or begun.*\n  order shuffled, now "):
        fastdata.prep(photos, URL, size=64, order="listed")
    shutil.rmtree(server.root / "bucket/photos.fds")
    fastdata.prep(photos, URL, size=128, workers=2)
    same(objects(server), expected)
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds was made, or begun"):
        fastdata.prep(photos, URL, size=64)
    (server.root / "bucket/other").mkdir()
    (server.root / "bucket/other/notes.txt").write_text("mine")
    with pytest.raises(PrepError, match=r"OUT s3://bucket/other is not a store, but holds notes.txt; choose another URL"):
        fastdata.prep_plan(photos, "s3://bucket/other", size=64)
    assert objects(server, "other") == {"notes.txt": b"mine"}
    with pytest.raises(PrepError, match=r"OUT s3://bucket/none.fds has no plan; make a plan with fastdata-prep plan SOURCE s3://"):
        fastdata.prep_run("s3://bucket/none.fds")
    with pytest.raises(PrepError, match=r"OUT s3://bucket/none.fds has no plan"):
        fastdata.prep_finish("s3://bucket/none.fds")


def test_a_plan_that_comes_late_leaves_another_one_alone(photos: Path, expected: Tree, server: FaultStore, tmp_path: Path) -> None:
    with opened(URL, None) as late:  # it has seen that nothing is there
        fastdata.prep_plan(photos, URL, size=128)
        fastdata.prep_run(URL, task=0, of=2, workers=1, progress=False)
        before = objects(server)
        with pytest.raises(PrepError, match=r"the plan at s3://bucket/photos.fds is not that of this fastdata-prep any more"):
            lay_plan(build_plan(photos, URL, late, size=64), overwrite=False)
        assert objects(server) == before
        fastdata.prep(photos, URL, size=128, workers=2)
        with pytest.raises(PrepError, match=r"the plan at s3://bucket/photos.fds is not that of this fastdata-prep any more"):
            lay_plan(build_plan(photos, URL, late, size=64), overwrite=False)
        same(objects(server), expected)


@pytest.mark.slow
def test_of_two_plans_at_the_same_time_one_makes_the_store(photos: Path, server: FaultStore, tmp_path: Path) -> None:
    sizes = {size: published(photos, tmp_path / str(size), size=size, order="shuffled") for size in (64, 96)}
    for turn in range(3):
        server.delay_s = 0.03 * turn  # other moments in which they meet
        commands = {size: (*PREP, photos, f"s3://bucket/{turn}.fds", "--size", str(size), "--workers", "1") for size in sizes}
        racers = {size: start(*command, stderr=subprocess.PIPE) for size, command in commands.items()}
        texts = {size: racer.communicate()[1].decode() for size, racer in racers.items()}
        codes = {size: racer.returncode for size, racer in racers.items()}
        assert sorted(codes.values()) == [0, 2], texts
        (winner,) = (size for size in codes if codes[size] == 0)
        refusal = next(texts[size] for size in codes if size != winner)
        assert re.search(r"is not that of this fastdata-prep any more|was made, or begun, with other options", refusal), refusal
        same(objects(server, f"{turn}.fds"), sizes[winner])


def test_errors_of_the_server_are_named(photos: Path, server: FaultStore, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"s3://nowhere/x.fds/work/plan.json: there is no such bucket"):
        fastdata.prep(photos, "s3://nowhere/x.fds", size=64)
    server.always = {"manifest.json": "403"}
    with pytest.raises(RemoteError, match=r"s3://bucket/photos.fds/manifest.json: the credentials have expired: renew them"):
        fastdata.prep(photos, URL, size=64)
    server.always = {"shard-00003": "403"}
    with pytest.raises(RemoteError, match=r"s3://bucket/photos.fds/\S*shard-00003\S*: the credentials have expired: renew them"):
        fastdata.prep(photos, URL, size=64, workers=1)
    server.always = {}
    assert fastdata.prep(photos, URL, size=64, workers=2).resumed > 0
    with pytest.raises(RemoteError, match=r"no server answers there"):
        fastdata.prep(photos, URL, storage={"endpoint": f"http://127.0.0.1:{free_ports(1)[0]}"})


def test_wrong_arguments(photos: Path, server: FaultStore, tmp_path: Path) -> None:
    for prepare in (fastdata.prep, fastdata.prep_plan):
        with pytest.raises(ValueError, match=r"^overwrite replaces a store on a disk, but OUT s3://bucket/photos.fds is in object"):
            prepare(photos, URL, overwrite=True)
    assert objects(server) == {}
    with pytest.raises(ValueError, match=r"OUT https://example.com/x.fds can only be read: give a URL such as s3://"):
        fastdata.prep(photos, "https://example.com/x.fds")
    with pytest.raises(ValueError, match=r"OUT s3:/bucket/x.fds is a path, in which // became /: give a URL as text"):
        fastdata.prep(photos, Path("s3://bucket/x.fds"))
    found = run(*MAIN, "info", URL, "--storage", "endpoint")
    assert found.returncode == 2 and "--storage is 'endpoint', but must be KEY=VALUE" in found.stderr, found.stderr
    assert not objects(server) and not server.writes


def test_what_cannot_be_shuffled_is_listed(tmp_path: Path, server: FaultStore) -> None:
    images = [encode(np.full((8, 8, 3), k, np.uint8), ".png") for k in range(9)]
    pq.write_table(pa.table({"image": images}), tmp_path / "images.parquet")
    made = fastdata.prep(tmp_path / "images.parquet", URL)
    assert any(note.startswith("order: as listed, since ") and "unpacked in large pieces" in note for note in made.notes)
    with pytest.raises(PrepError, match=r"order is shuffled, but .* is unpacked in large pieces"):
        fastdata.prep(tmp_path / "images.parquet", "s3://bucket/other.fds", order="shuffled")


def test_a_shard_that_two_processes_make_with_different_bytes(photos: Path, server: FaultStore, tmp_path: Path) -> None:
    """Such as one that found an input to hang. Whose table comes first has made it, and its bytes stay."""
    root, plan = server.root / "bucket/photos.fds", fastdata.prep_plan(photos, URL, size=128)
    for data in (b"ours", b"theirs"):
        with opened(URL, None) as upload:
            assert upload is not None
            path = tmp_path / "128.tmp"
            path.write_bytes(data)
            total = file_sum(path)
            table = {"fingerprint": plan.fingerprint, "files": {"128": [total.bytes, total.xxh3_128]}}
            upload.publish(Made(7, {"128": (path, total)}, json.dumps(table).encode()))
        assert (root / "128/shard-00007.mdb").read_bytes() == b"ours"
        assert json.loads((root / "work/shard-00007.json").read_bytes())["files"]["128"][0] == 4
    assert list(tmp_path.glob("fastdata-*")) == []


@pytest.mark.scale
def test_azure(photos: Path, azurite: dict[str, str], tmp_path: Path) -> None:
    url = "az://bucket/photos.fds"
    fastdata.prep_plan(photos, url, size=64, limit=20, storage=azurite)
    fastdata.prep_run(url, task=0, of=2, workers=1, storage=azurite, progress=False)
    with pytest.raises(PrepError, match=r"az://bucket/photos.fds was made, or begun, with other options"):
        fastdata.prep(photos, url, size=128, limit=20, storage=azurite)
    url = "az://bucket/large.fds"
    assert fastdata.prep(photos, url, size=128, limit=20, storage=azurite, workers=1).kept == 19
    dataset = LMDBDataset(url, cache=tmp_path / "cache", storage=azurite)
    local = LMDBDataset(fastdata.prep(photos, tmp_path / "local.fds", size=128, limit=20, order="shuffled", workers=1).out)
    assert len(dataset) == 19 and all(np.array_equal(dataset[k][0], local[k][0]) for k in range(19))
    assert not [name for name, _ in Bucket(url, azurite).list() if name.startswith(("work", "64"))]
