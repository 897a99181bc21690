"""SOURCE in object storage: the store has the bytes of that of the same source on a local disk, whatever the faults."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

import corpora
import fastdata
from fastdata.errors import PrepError, RemoteError, StoreError
from fastdata.remote.bucket import Bucket
from fastdata.sources.urls import UrlPath, reading_urls
from faults import ERRORS, FaultServer
from support import encode, picture, run, tree, write_pictures
from test_digests import inputs


@pytest.fixture
def root(s3: FaultServer) -> Path:
    """The folder that is served as a bucket."""
    return s3.root / "bucket"


def classes(root: Path) -> tuple[str, dict[str, Any]]:
    """A folder for each class, and whatever else lies in folders."""
    for name in ("z", "a", "ü b", "B"):
        write_pictures(root / "in" / name, 4, ending=".jpg", seed=len(name))
    (root / "in/a/deep/er").mkdir(parents=True)
    (root / "in/a/deep/er/x.JPG").write_bytes(encode(picture(9, 30, 40)))
    (root / "in/a#1").mkdir()
    (root / "in/a#1/x?y#z%20.jpg").write_bytes(encode(picture(5, 30, 40)))
    (root / "in/a/.hidden.jpg").write_bytes(b"1")
    (root / "in/.cache").mkdir()
    (root / "in/.cache/x.png").write_bytes(b"1")
    (root / "in/a/notes.txt").write_text("other")
    (root / "in/a/cut.jpg").write_bytes(encode(picture(9, 30, 40))[:300])
    (root / "in/a/no_ending").write_bytes(encode(picture(8, 30, 40)))
    (root / "in/stray.png").write_bytes(encode(picture(7, 30, 40), ".png"))
    return "in", {"size": 24}


def text(root: Path) -> tuple[str, dict[str, Any]]:
    texts = corpora.sentences(60)
    (root / "in/deep").mkdir(parents=True)
    (root / "in/a.txt").write_text("\n".join(texts[:20]))
    lines = "\n".join(json.dumps({"text": t}) for t in texts[20:40])
    (root / "in/deep/b.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[40:]}), root / "in/c.parquet", row_group_size=5)
    (root / "in/damaged.jsonl").write_bytes(b"nothing")
    return "in", {"train_bpe": 300, "split_lines": True}


Make = Callable[[Path], tuple[str, dict[str, Any]]]


def known(source: str, **options: Any) -> Make:
    """A source of test_digests."""

    def make(root: Path) -> tuple[str, dict[str, Any]]:
        shutil.copytree(inputs(), root, dirs_exist_ok=True)
        return source, options

    return make


tars, arrow = known("tars/{00000,00001}.tar", fields="caption=txt"), known("images.arrow")
path_table, parquet = known("t.csv", label_column="label", fields="score:float32"), known("images.parquet")
KINDS: dict[str, Make] = {
    "classes": classes,
    "text": text,
    "arrays": known("arrays", masks="array-masks"),
    "arrays of one file": known("npz"),
    "tars": tars,
    "arrow": arrow,
    "path table": path_table,
    "parquet": parquet,
    "masks": known("flat", masks="masks"),
    "yolo": known("flat", yolo="yolo"),
    "coco": known("flat", coco="coco.json"),
    "labels": known("images", labels="beside.csv"),
    "fields": known("described", fields=("caption=txt", "embedding=npy")),
}
PLACES = ("labels", "masks", "coco", "yolo")  # options that name files


def prepared(base: str, source: str, options: dict[str, Any], out: Path) -> Any:
    """Prepare what lies below a folder or a URL."""
    placed = {name: f"{base}/{value}" if name in PLACES else value for name, value in options.items()}
    return fastdata.prep(f"{base}/{source}", out, workers=1, **placed)


def same(one: Path, other: Path) -> None:
    found, wanted = tree(one), tree(other)
    assert [name for name in {*found, *wanted} if found.get(name, b"absent") != wanted.get(name, b"absent")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_is_that_of_the_local_source(kind: str, root: Path, s3: FaultServer, tmp_path: Path) -> None:
    s3.page = 5
    source, options = KINDS[kind](root)
    local = prepared(str(root), source, options, tmp_path / "local.fds")
    remote = prepared("s3://bucket", source, options, tmp_path / "remote.fds")
    same(remote.out, local.out)
    assert (remote.rejected, remote.skipped) == (local.rejected, local.skipped)
    assert [note.replace("s3://bucket", str(root)) for note in remote.notes] == [*local.notes]
    assert not [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.name not in ("CACHEDIR.TAG", "turn", "lock")
    ]


def test_an_object_with_the_name_of_a_folder_only_marks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "list", lambda self, key: iter([("in", 0), ("in/a.png", 3)]))
    for folder, names in (("s3://bucket/in", ["a.png"]), ("s3://bucket", ["in"])):
        with reading_urls({"region": "x"}):
            assert [path.name for path in UrlPath(folder).scan()] == names and UrlPath("s3://bucket/in").is_dir()


def test_one_listing_and_one_request_for_each_image(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    classes(root)
    fastdata.prep("s3://bucket/in", tmp_path / "a.fds", size=24, workers=1)
    used = {path.removeprefix("bucket/"): count for path, count in s3.requests.items()}
    images = {f"in/{name}" for name, value in tree(root / "in").items() if value and "." in name and name.endswith(("jpg", "JPG"))}
    images = {name for name in images if "/." not in name} | {"in/a/no_ending"}
    assert used == {"LIST": 1} | dict.fromkeys(images, 1)  # the stray image has no label, and is not read


def test_tasks_read_the_url_with_their_own_options_and_the_plan_has_no_secrets(
    root: Path, s3: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint and the region are not in the environment, and not in the plan."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    storage = {"endpoint": s3.url, "region": "us-east-1"}
    source, options = tars(root)
    expected = prepared(str(root), source, options, tmp_path / "local.fds").out
    out = fastdata.prep_plan(f"s3://bucket/{source}", tmp_path / "tasks.fds", storage=storage, **options).out
    assert not [data for data in tree(out).values() if data and (b"very-secret" in data or s3.url.encode() in data)]
    for path in (tmp_path / "home", tmp_path / "tmp"):  # what the planning machine has on its disk
        shutil.rmtree(path, ignore_errors=True)
    for task in (1, 0):
        fastdata.prep_run(out, task=task, of=2, workers=1, storage=storage, progress=False)
    fastdata.prep_finish(out)
    same(out, expected)


def test_an_object_that_is_missing_is_a_reject(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    write_pictures(root / "in/k", 6)
    s3.always = {"in/k/03.png": "404"}  # it went away after it was listed
    summary = fastdata.prep("s3://bucket/in", tmp_path / "a.fds", workers=1)
    assert (summary.kept, summary.rejected) == (5, {"missing": 1})


def test_a_server_that_fails_stops_the_run_and_keeps_what_is_finished(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    source, options = tars(root)
    expected = prepared(str(root), source, options, tmp_path / "local.fds").out
    out = fastdata.prep_plan(f"s3://bucket/{source}", tmp_path / "a.fds", **options).out
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    s3.always = {"tars/": "403"}
    with pytest.raises(StoreError, match=r"s3://bucket/tars/.*: the credentials have expired"):
        fastdata.prep_run(out, workers=1, progress=False)
    assert not (out / "manifest.json").exists()
    s3.always = {}
    fastdata.prep_run(out, workers=1, progress=False)
    fastdata.prep_finish(out)
    same(out, expected)


def test_faults_that_pass(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    for k in range(60):
        write_pictures(root / f"in/{k % 2}", 1, seed=k)[0].rename(root / f"in/{k % 2}/x{k}.png")
    expected = fastdata.prep(root / "in", tmp_path / "local.fds", workers=1).out
    s3.faults, s3.chance = ("500", "503", "reset", "cut", "flip"), 0.06
    same(fastdata.prep("s3://bucket/in", tmp_path / "a.fds", workers=1).out, expected)
    s3.faults, s3.chance = ("flip",), 0.1
    same(fastdata.prep("s3://bucket/in", tmp_path / "b.fds", workers=1).out, expected)
    assert s3.made["flip"] > 3 and len(s3.made) > 3


def test_a_tar_is_streamed_and_an_arrow_file_is_copied_once(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    for make, more in ((tars, {}), (arrow, {"shard_samples": 2})):
        source, options = make(root)
        s3.requests.clear()
        prepared("s3://bucket", source, options | more, tmp_path / f"{len(more)}.fds")
        requests = [count for name, count in s3.requests.items() if name.endswith((".tar", ".arrow"))]
        assert requests and max(requests) <= 4


def test_over_https_there_are_no_folders(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    source, options = tars(root)
    expected = prepared(str(root), source, options, tmp_path / "local.fds").out
    base = f"{s3.url}/bucket"
    same(prepared(base, source, options, tmp_path / "a.fds").out, expected)
    with pytest.raises(PrepError, match=r"/bucket/tars does not exist; http:// does not list folders: instead of a folder"):
        fastdata.prep(f"{base}/tars", tmp_path / "b.fds")
    with pytest.raises(PrepError, match=r"1 of 1 paths are absent: http://.*/0\*.tar; http:// does not list folders"):
        fastdata.prep(f"{base}/tars/0*.tar", tmp_path / "b.fds")
    names = [path.name for path in write_pictures(root / "p", 5)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{base}/p/{name},x\n" for name in [*names, "no.png"]))
    summary = fastdata.prep(tmp_path / "list.csv", tmp_path / "c.fds", workers=1)
    assert (summary.kept, summary.rejected) == (5, {"missing": 1})


def test_errors_name_what_is_wrong(root: Path, s3: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(root / "in/train", 2), write_pictures(root / "in/val", 2)
    with pytest.raises(
        PrepError, match=r"s3://bucket/in holds train and val side by side[^\n]*\n  fastdata-prep s3://bucket/in/train in-train.fds"
    ):
        fastdata.prep_plan("s3://bucket/in", tmp_path / "a.fds")
    with pytest.raises(PrepError, match="SOURCE s3://bucket/none does not exist"):
        fastdata.prep("s3://bucket/none", tmp_path / "a.fds")
    s3.always = {"LIST": "403"}
    with pytest.raises(RemoteError, match="s3://bucket/in: the credentials have expired"):
        fastdata.prep("s3://bucket/in", tmp_path / "a.fds")
    with pytest.raises(ValueError, match="ftp://x/y is a URL of an unknown scheme; known schemes are s3"):
        fastdata.prep("ftp://x/y", tmp_path / "a.fds")


@pytest.mark.parametrize("make", [tars, path_table, parquet])
def test_the_right_to_read_named_objects_suffices(
    make: Any, root: Path, s3: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ERRORS, "403", "AccessDenied")
    source, options = make(root)
    expected = prepared(str(root), source, options, tmp_path / "local.fds").out
    s3.always = {"LIST": "403"}
    same(prepared("s3://bucket", source, options, tmp_path / "a.fds").out, expected)
    with pytest.raises(PrepError, match="s3://bucket/none does not exist; perhaps access is denied: check the credentials"):
        fastdata.prep("s3://bucket/none", tmp_path / "b.fds")


def test_this_process_may_fork_workers(root: Path, s3: FaultServer, tmp_path: Path) -> None:
    """A child that uses URLs itself is told to start in another way; it would wait for ever."""
    source, _ = tars(root)
    code = (
        "import os, sys, torch, fastdata\n"
        "out = fastdata.prep(sys.argv[1], 'o.fds', size=16, workers=1, label_column='none').out\n"
        "data = fastdata.open(out, crop=fastdata.CenterCrop(16))\n"
        "loader = torch.utils.data.DataLoader(data, 4, num_workers=2, multiprocessing_context='fork')\n"
        "assert sum(len(batch[0]) for batch in loader) == 12\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        fastdata.prep(sys.argv[1], 'p.fds', workers=1, label_column='none')\n"
        "    except fastdata.errors.RemoteError as error:\n"
        "        os._exit('spawn or forkserver' in str(error))\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1\n"
        "fastdata.prep(sys.argv[1], 'q.fds', size=16, workers=1, label_column='none')\n"
    )
    done = run(sys.executable, "-c", code, f"s3://bucket/{source}", cwd=tmp_path, seconds=60)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "q.fds", tmp_path / "o.fds")
