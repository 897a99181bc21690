"""--overwrite at a URL: at any moment it holds one whole store, the old or the new one, and readers get samples of one of them."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fastdata
from fastdata import LMDBDataset, Loader, PrepError, RAMDataset, RemoteError, StoreError
from fastdata.remote.locate import locate
from fastdata.store.verify import verify
from faults import FaultStore, storing
from support import PREP, encode, kill_group, run, start, tree, until

URL = "s3://bucket/photos.fds"
REPLACED = r"s3://bucket/photos.fds was replaced while this dataset was in use; make the dataset again"
OLD, NEW, COUNT = 10, 200, 12
OPTIONS: dict[str, Any] = {"codec": "rgb", "shard_samples": 3}
COMMAND = ("--codec", "rgb", "--shard-samples", "3", "--overwrite", "--progress", "off")

Objects = dict[str, bytes | None]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


class Pair(NamedTuple):
    """Two sources, whose values are OLD and NEW, and the folder of a bucket with the store of each."""

    old: Path
    new: Path
    old_store: Path
    new_store: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("pair")
    for name, value in (("old", OLD), ("new", NEW)):
        (root / name).mkdir()
        for k in range(COUNT):
            (root / name / f"{value}-{k:02d}.bmp").write_bytes(encode(np.full((24, 24, 3), value, np.uint8), ".bmp"))
    with storing(root / "server") as server:
        storage = {"endpoint": server.url, "access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
        for name in ("old", "new"):
            fastdata.prep(root / name, f"s3://bucket/{name}.fds", storage=storage, workers=1, **OPTIONS)
    bucket = root / "server/bucket"
    return Pair(root / "old", root / "new", bucket / "old.fds", bucket / "new.fds")


class Watched(FaultStore):
    """A server that makes one change of an object at a time.

    Attributes:
        before: called before each change.
        once: called before the first GET of a path that ends with this text.
    """

    def __init__(self, root: Path) -> None:
        self.before: Callable[[], None] | None = None
        self.once: dict[str, Callable[[], None]] = {}
        self._turn, self._reading = threading.Lock(), threading.Lock()
        super().__init__(root)

    def _write(self, verb: str, path: str, asked: dict[str, list[str]], headers: dict[str, str], body: bytes) -> Any:
        with self._turn:
            if verb == "POST" and "delete" in asked:  # a service may delete some of the objects, and then no more
                for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                    self._step()
                    super()._write("DELETE", f"{path.partition('/')[0]}/{key}", {}, {}, b"")
            else:
                self._step()
            return super()._write(verb, path, asked, headers, body)

    def _step(self) -> None:
        if self.before is not None:
            self.before()

    def _answer(self, connection: Any, verb: str, path: str, asked: str | None) -> bool:
        with self._reading:
            for ending in [ending for ending in self.once if verb == "GET" and path.endswith(ending)]:
                self.once.pop(ending)()
        return super()._answer(connection, verb, path, asked)

    @property
    def out(self) -> Path:
        return self.root / "bucket/photos.fds"


@pytest.fixture
def server(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A server of S3 which has the old store, and which the environment names."""
    found = Watched(tmp_path / "server")
    shutil.copytree(pair.old_store, found.out)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    try:
        yield found
    finally:
        found.close()


def objects(folder: Path) -> Objects:
    return {name: data for name, data in tree(folder).items() if data is not None}


def check_replaced(folder: Path, version: int, store: Path) -> None:
    """Assert that below a URL are the objects of a store, in the folder of a version, and its pointer, and nothing else."""
    found = objects(folder)
    named = json.loads(found.pop("manifest.json") or b"")
    assert (named["shards_in"], named["version"], named["files"]) == (f"version-{version}", "2.0", {})
    assert found == {f"version-{version}/{name}": data for name, data in objects(store).items()}


def values(dataset: Any) -> set[int]:
    return {int(value) for k in range(len(dataset)) for value in dataset[k][0].unique()}


def problems(url: str) -> list[str]:
    return list(verify(locate(url, in_memory=True)))


@pytest.mark.slow
def test_who_has_the_old_store_open_gets_its_samples_or_an_error(pair: Pair, server: Watched, tmp_path: Path) -> None:
    """A store in the place of the first, and one in the place of that."""
    read, unread, held = LMDBDataset(URL, cache=tmp_path / "read"), LMDBDataset(URL, cache=tmp_path / "1"), RAMDataset(URL)
    assert unread[0][0].unique().tolist() == [OLD]
    for version, source, store, before in (
        (2, pair.new, pair.new_store, OLD),
        (3, pair.old, pair.old_store, NEW),
        (4, pair.old, pair.old_store, OLD),
    ):
        assert values(read) == {before}
        assert fastdata.prep(source, URL, overwrite=True, workers=1, **OPTIONS).out == URL
        check_replaced(server.out, version, store)
        assert values(read) == values(held) == {before}
        with pytest.raises(RemoteError, match=REPLACED):
            unread[COUNT - 1]
        with pytest.raises(RemoteError, match=REPLACED), Loader(unread, 3, num_workers=1) as loader:
            list(loader)
        read, held = LMDBDataset(URL, cache=tmp_path / "read"), RAMDataset(URL)
        unread = LMDBDataset(URL, cache=tmp_path / str(version))
        assert f" {URL})" in repr(unread) and problems(URL) == []
    assert values(unread) == {OLD}
    web = f"{server.url}/bucket/photos.fds"  # lists nothing
    assert values(LMDBDataset(web, cache=tmp_path / "web")) == values(RAMDataset(web)) == {OLD}


@pytest.mark.slow
def test_at_any_step_there_is_one_whole_store_and_the_same_command_ends_alike(pair: Pair, server: Watched, tmp_path: Path) -> None:
    """A copy of the bucket before a change is what a process leaves that is killed there."""
    early, states = LMDBDataset(URL, cache=tmp_path / "early"), list[str]()

    def look() -> None:
        with suppress(StoreError):
            assert early[len(states) % COUNT][0].unique().tolist() == [OLD]
        states.append(f"state-{len(states)}")
        shutil.copytree(server.out, server.root / states[-1] / "photos.fds")

    server.before = look
    fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
    server.before = None
    check_replaced(server.out, 2, pair.new_store)
    urls = [f"s3://{state}/photos.fds" for state in states]
    seen = [values(LMDBDataset(url, cache=tmp_path / "cache")) for url in urls]
    assert [problems(url) for url in urls] == [[]] * len(urls)
    switch = seen.index({NEW})
    assert switch > 10 and len(seen) - switch > 10 and seen == [{OLD}] * switch + [{NEW}] * (len(seen) - switch)
    fastdata.prep_finish(urls[switch - 1])  # all but the pointer is there
    killed = sorted({*range(0, len(urls), 7), switch, len(urls) - 1} - {switch - 1})
    for k in killed:
        fastdata.prep(pair.new, urls[k], overwrite=True, workers=1, **OPTIONS)
    for k in (switch - 1, *killed):
        check_replaced(server.root / states[k] / "photos.fds", 2, pair.new_store)


@pytest.mark.slow
def test_what_completes_a_replacement_that_was_killed_after_the_switch(pair: Pair, server: Watched) -> None:
    """`finish`, or the command without --overwrite; one with other inputs replaces the store in its turn."""
    states = list[Path]()

    def look() -> None:
        if b"version-2" in (server.out / "manifest.json").read_bytes():
            states.append(Path(shutil.copytree(server.out, server.root / f"state-{len(states)}" / "photos.fds")))

    server.before = look
    fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
    server.before = None
    middle = states[: len(states) // 2][-3:]
    fastdata.prep_finish(f"s3://{middle[0].parent.name}/photos.fds")
    check_replaced(middle[0], 2, pair.new_store)
    fastdata.prep(pair.new, f"s3://{middle[1].parent.name}/photos.fds", workers=1, **OPTIONS)
    check_replaced(middle[1], 2, pair.new_store)
    fastdata.prep(pair.old, f"s3://{middle[2].parent.name}/photos.fds", overwrite=True, workers=1, **OPTIONS)
    check_replaced(middle[2], 3, pair.old_store)


@pytest.mark.slow
def test_kill_9_at_random_moments(pair: Pair, server: Watched, tmp_path: Path) -> None:
    rng, kills = random.Random(5), 0
    server.delay_s = 0.02
    for turn in range(8):
        process = start(*PREP, pair.new, URL, *COMMAND, "--workers", "2")
        time.sleep(rng.uniform(0.6, 2.4))
        kills += process.poll() is None
        kill_group(process)
        assert values(LMDBDataset(URL, cache=tmp_path / str(turn))) in ({OLD}, {NEW}) and problems(URL) == []
    again = run(*PREP, pair.new, URL, *COMMAND, "--workers", "2")
    assert again.returncode == 0 and kills > 1, again.stderr
    version = int(json.loads((server.out / "manifest.json").read_bytes())["shards_in"].removeprefix("version-"))
    check_replaced(server.out, version, pair.new_store)


@pytest.mark.slow
def test_in_tasks_with_another_plan_in_between(pair: Pair, server: Watched) -> None:
    assert not fastdata.prep_plan(pair.new, URL, overwrite=True, codec="rgb", shard_samples=2).finished
    fastdata.prep_run(URL, task=0, of=2, workers=1, progress="off")
    assert not fastdata.prep_plan(pair.new, URL, overwrite=True, **OPTIONS).finished
    assert fastdata.prep_run(URL, task=0, of=2, workers=1, progress="off").made == 2
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds lacks 2 of 4 shards"):
        fastdata.prep_finish(URL)
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds was made, or begun, with other options"):
        fastdata.prep(pair.new, URL, workers=1, **OPTIONS)
    old = objects(pair.old_store)
    assert {name: data for name, data in objects(server.out).items() if not name.startswith("version-2/")} == old
    kept = {path.name: path.stat().st_mtime_ns for path in (server.out / "version-2/full").iterdir()}
    assert len(kept) == 2
    fastdata.prep_plan(pair.new, URL, overwrite=True, **OPTIONS)
    assert fastdata.prep_run(URL, workers=1, progress="off").made == 2
    assert fastdata.prep_finish(URL).kept == COUNT
    check_replaced(server.out, 2, pair.new_store)
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (server.out / "version-2/full").iterdir()}.items()
    assert fastdata.prep_finish(URL).kept == COUNT and fastdata.prep_run(URL, progress="off").made == 0
    assert fastdata.prep_plan(pair.new, URL, **OPTIONS).finished
    check_replaced(server.out, 2, pair.new_store)


@pytest.mark.slow
def test_what_fails_leaves_the_old_store_as_it_was(pair: Pair, server: Watched, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/0.png").write_bytes(b"no image")
    with pytest.raises(PrepError, match=r"0\.png"):
        fastdata.prep(tmp_path / "broken", URL, overwrite=True, workers=1, **OPTIONS)
    assert objects(server.out) == objects(pair.old_store)
    server.always = {"version-2/manifest.json": "403"}
    with pytest.raises(RemoteError, match=r"s3://bucket/photos.fds/version-2/manifest.json: the credentials have expired"):
        fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
    server.always = {}
    assert problems(URL) == []
    assert fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS).resumed == COUNT
    check_replaced(server.out, 2, pair.new_store)


@pytest.mark.parametrize(
    "name", ["photos.fds/samples.npy", "photos.fds/names.txt", "version-2/manifest.json", "version-2/samples.npy"]
)
def test_who_opens_a_store_while_it_is_replaced_gets_the_other(name: str, pair: Pair, server: Watched, tmp_path: Path) -> None:
    """The whole replacement happens between the manifest and one of the objects that it names."""
    source, value, version = pair.new, NEW, 2
    if name.startswith("version-2"):
        fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
        source, value, version = pair.old, OLD, 3
    copy = server.root / "copy"
    shutil.copytree(server.out, copy / "photos.fds")
    fastdata.prep(source, "s3://copy/photos.fds", overwrite=True, workers=1, **OPTIONS)

    def swap() -> None:
        shutil.rmtree(server.out)
        (copy / "photos.fds").rename(server.out)

    server.once[name] = swap
    dataset = LMDBDataset(URL, cache=tmp_path / "cache")
    assert not server.once and values(dataset) == {value}
    check_replaced(server.out, version, pair.new_store if value == NEW else pair.old_store)


@pytest.mark.slow
def test_readers_that_open_it_all_the_time(pair: Pair, server: Watched, tmp_path: Path) -> None:
    found, errors, end, seen = list[set[int]](), set[str](), threading.Event(), 0

    def read() -> None:
        while not end.is_set():
            try:
                found.append(values(RAMDataset(URL)))
            except RemoteError as error:  # opened before, and read after
                errors.add(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for source in (pair.new, pair.old, pair.new):
            until(lambda: len(found) > seen, 60)  # noqa: B023
            seen = len(found)
            fastdata.prep(source, URL, overwrite=True, workers=1, **OPTIONS)
    finally:
        end.set()
        reader.join()
    check_replaced(server.out, 4, pair.new_store)
    assert {frozenset(one) for one in found} == {frozenset({OLD}), frozenset({NEW})}
    assert errors <= {REPLACED}


@pytest.mark.slow
def test_a_copy_of_a_store_that_grew_is_replaced_with_all_its_versions(pair: Pair, server: Watched, tmp_path: Path) -> None:
    grown = fastdata.prep(pair.old, tmp_path / "grown.fds", workers=1, **OPTIONS).out
    fastdata.append(pair.new, grown, workers=1)
    fastdata.append(pair.old, grown, workers=1, limit=4)
    assert (grown / "version-3/manifest.json").exists()
    shutil.rmtree(server.out)
    shutil.copytree(grown, server.out)
    with pytest.raises(RemoteError, match="a copy of a store that has grown"):
        RAMDataset(URL)
    fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
    check_replaced(server.out, 2, pair.new_store)
    assert values(RAMDataset(URL)) == {NEW}


def test_a_replaced_store_as_a_folder_and_published(pair: Pair, server: Watched, tmp_path: Path) -> None:
    fastdata.prep(pair.new, URL, overwrite=True, workers=1, **OPTIONS)
    with pytest.raises(RemoteError, match=r"s3://bucket/photos.fds holds another store"):
        fastdata.publish(pair.old_store, URL)
    (server.out / "version-2/samples.npy").unlink()
    fastdata.publish(pair.new_store, URL)
    check_replaced(server.out, 2, pair.new_store)
    local = Path(shutil.copytree(server.out, tmp_path / "copy.fds"))
    assert values(LMDBDataset(local)) == {NEW} and list(verify(local)) == []
    assert values(LMDBDataset(f"file://{local}", cache=tmp_path / "cache")) == {NEW}
    fastdata.publish(local, "s3://bucket/other.fds")
    assert objects(server.root / "bucket/other.fds") == objects(pair.new_store)
