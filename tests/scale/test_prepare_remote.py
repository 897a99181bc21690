"""Preparing in object storage: the objects are those of a store that was made on a disk and published, whatever dies or fails."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fastdata
import stores
from fastdata import LMDBDataset
from fastdata.errors import PrepError, RemoteError
from faults import FaultServer
from support import MAIN, PREP, encode, run, tree
from test_golden_kinds import STORES, write_inputs

Tree = dict[str, bytes | None]
URL = "s3://bucket/photos.fds"


@pytest.fixture(autouse=True)
def _temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def objects(s3: FaultServer, name: str = "photos.fds") -> Tree:
    """The objects below a URL, and nothing else: the server's folders are no objects."""
    return files(s3.root / "bucket" / name)


def files(folder: Path) -> Tree:
    return {path: data for path, data in tree(folder).items() if data is not None}


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


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The files of `photos` in the size of 128."""
    out = tmp_path_factory.mktemp("expected") / "local.fds"
    found = files(fastdata.prep(photos, out, size=128, shard_samples=6, order="shuffled", workers=2).out)
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


@pytest.mark.parametrize("name", ["masks", "fields", "chars"])
def test_every_kind_has_the_objects_of_a_published_store(name: str, golden: Path, tmp_path: Path, s3: FaultServer) -> None:
    source, options = STORES.get(name, ("fields.csv", {"fields": "caption", "root": golden}))
    options = {key: golden / value if key == "masks" else value for key, value in options.items()}
    order = {} if name == "chars" else {"order": "shuffled"}
    options["workers"] = 1
    local = fastdata.prep(golden / source, tmp_path / "local.fds", **options, **order)
    fastdata.publish(local.out, "s3://bucket/local.fds")
    made = fastdata.prep(golden / source, URL, **options)
    same(objects(s3), objects(s3, "local.fds"))
    again = fastdata.prep(golden / source, URL + "/", **options)
    for summary in (made, again):
        assert summary.out == URL
        for figure in ("inputs", "kept", "rejected", "bytes", "tokens", "kind", "originals"):
            assert getattr(summary, figure) == getattr(local, figure), figure
    assert again.resumed == again.inputs and made.resumed == 0


@pytest.mark.scale
@pytest.mark.usefixtures("credentials")
def test_the_command_and_what_it_made(
    photos: Path, expected: Tree, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--storage", f"endpoint={moto}", "--storage", "region=us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    found = run(*PREP, photos, "s3://bucket/command.fds", "--size", 128)
    assert found.returncode == 0, found.stderr
    assert "s3://bucket/command.fds: 120 of 121 images kept, 1 rejected (truncated 1), listed in rejects.jsonl" in found.stdout
    assert list(tmp_path.glob("fastdata-*")) == []
    storage = {"endpoint": moto, "region": "us-east-1"}
    dataset = LMDBDataset("s3://bucket/command.fds", cache=tmp_path / "cache", storage=storage)
    local = fastdata.prep(photos, tmp_path / "local.fds", size=128, order="shuffled").out
    assert len(dataset) == 120 and all(np.array_equal(dataset[k][0], LMDBDataset(local)[k][0]) for k in range(0, 120, 7))
    info = run(*MAIN, "info", "s3://bucket/command.fds", *options)
    assert info.returncode == 0, info.stderr
    assert "s3://bucket/command.fds: 120 images" in info.stdout and re.search(r"order\s+shuffled", info.stdout), info.stdout
    again = run(*PREP, photos, "s3://bucket/command.fds", "--size", 128)
    assert again.returncode == 0 and "already finished" in again.stdout
    assert run(*MAIN, "publish", local, "s3://bucket/command.fds", *options).returncode == 0  # whose bytes are there


def test_writes_that_fail(photos: Path, expected: Tree, tmp_path: Path, s3: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose answers are lost, and the parts of a shard of 20 MB."""
    monkeypatch.setattr("faults.WRITE_FAULTS", ("500", "reset", "cut", "flip", "twice"))
    s3.write_chance = 0.08
    fastdata.prep(photos, URL, size=128, shard_samples=6, workers=2)
    same(objects(s3), expected)
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for k in range(3):
        np.save(tmp_path / f"in/{k}.npy", rng.integers(0, 2**16, (1800, 1850, 1), np.uint16))
    large = fastdata.prep(tmp_path / "in", tmp_path / "large.fds", order="shuffled", chunk=512, limit=3)
    fastdata.prep(tmp_path / "in", "s3://bucket/large.fds", chunk=512, limit=3)
    same(objects(s3, "large.fds"), files(large.out))
    assert all(s3.made[f"{fault} of a write"] for fault in ("cut", "twice"))


def test_a_file_url_is_the_folder_that_it_names(photos: Path, tmp_path: Path) -> None:
    made = fastdata.prep(photos, f"file://{tmp_path}/a#2.fds", size=64, limit=20, workers=1)
    fastdata.prep(photos, tmp_path / "b.fds", size=64, limit=20, workers=1)
    assert made.out == tmp_path / "a#2.fds" and tree(made.out) == tree(tmp_path / "b.fds")


def test_another_run_continues_and_another_plan_is_refused(photos: Path, expected: Tree, s3: FaultServer, tmp_path: Path) -> None:
    s3.always = {"shard-00003": "403"}
    with pytest.raises(RemoteError, match=r"s3://bucket/photos.fds/\S*shard-00003\S*: the credentials have expired: renew them"):
        fastdata.prep(photos, URL, size=128, shard_samples=6, workers=1)
    s3.always = {}
    begun = objects(s3)
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds was made, or begun, with other options"):
        fastdata.prep(photos, URL, size=64)
    assert objects(s3) == begun and begun and "manifest.json" not in begun
    assert fastdata.prep(photos, URL, size=128, shard_samples=6, workers=2).resumed > 0
    same(objects(s3), expected)
    with pytest.raises(PrepError, match=r"s3://bucket/photos.fds was made with other options"):
        fastdata.prep(photos, URL, size=64)
    assert fastdata.prep(photos, URL, size=128, shard_samples=6).resumed == 121
    same(objects(s3), expected)
    assert list(tmp_path.glob("fastdata-*/*")) == []


def test_wrong_arguments(photos: Path, s3: FaultServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^overwrite replaces stores on disk, but OUT is s3://bucket/photos.fds: give a folder"):
        fastdata.prep(photos, URL, overwrite=True)
    for refused in (
        lambda: fastdata.prep_plan(photos, URL),
        lambda: fastdata.prep_run(URL),
        lambda: fastdata.prep_finish(URL),
        lambda: fastdata.prep(photos, URL, engine="ray"),
    ):
        with pytest.raises(PrepError, match=r"OUT is s3://bucket/photos.fds, but .* on a disk: give a folder, then"):
            refused()
    with pytest.raises(ValueError, match=r"OUT https://example.com/x.fds can only be read: give a URL such as s3://"):
        fastdata.prep(photos, "https://example.com/x.fds")
    with pytest.raises(ValueError, match=r"OUT s3:/bucket/x.fds is a path, in which // became /: give the URL as a str"):
        fastdata.prep(photos, Path("s3://bucket/x.fds"))
    assert not objects(s3) and not s3.writes
    (s3.root / "bucket/other").mkdir()
    (s3.root / "bucket/other/notes.txt").write_text("mine")
    with pytest.raises(PrepError, match=r"OUT s3://bucket/other is not a store, but holds notes.txt; choose another URL"):
        fastdata.prep(photos, "s3://bucket/other", size=64)
    assert objects(s3, "other") == {"notes.txt": b"mine"}
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/0.png").write_bytes(b"no image")
    with pytest.raises(PrepError, match=r"0\.png"):
        fastdata.prep(tmp_path / "bad", URL)
    assert objects(s3) == {} and list(tmp_path.glob("fastdata-*/*")) == []


def test_keys_are_text(photos: Path, s3: FaultServer, tmp_path: Path) -> None:
    """A store whose name differs only by what would be a fragment or a query of a URL is another one."""
    fastdata.prep(photos, "s3://bucket/a", size=64, limit=9, workers=1)
    before = objects(s3, "a")
    for name in ("a#2", "a?2", "a#2?x%20"):
        fastdata.prep(photos, f"s3://bucket/{name}", size=32, limit=9, workers=1)
        assert "manifest.json" in objects(s3, name) and objects(s3, "a") == before
        assert len(fastdata.RAMDataset(f"s3://bucket/{name}", cache=tmp_path / "cache")) == 9
    fastdata.publish(stores.store(), "s3://bucket/published#1/a?b.fds")
    same(objects(s3, "published#1/a?b.fds"), files(stores.store()))
