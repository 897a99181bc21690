"""LMDB as SOURCE: one file a key; and how SOURCE may be typed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from archives import all_pixels, equal, png, problems, write_tar
from fastdata import PrepError, prep
from fastdata.prepare.estimate import estimate
from fastdata.sources import lmdb_source
from fastdata.sources.archive import release
from fastdata.sources.catalog import read_source
from fastdata.sources.listing import list_sources
from fastdata.sources.patterns import expand, locate
from fastdata.store.store import Store
from stores import store, whole


def write(path: Path, entries: dict[bytes, bytes], **options: Any) -> Path:
    """A database as py-lmdb writes it: a folder, or a file with subdir=False."""
    with lmdb.open(os.fsencode(path), map_size=1 << 26, **options) as env, env.begin(write=True) as txn:
        for key, value in entries.items():
            txn.put(key, value)
    return path


def test_one_file_a_key(tmp_path: Path) -> None:
    keys = [b"a/b", "é".encode(), b"\xff\x00key", b"image-000000001"]
    entries = {key: png(k)[1] for k, key in enumerate(keys)}
    others = {b"num-samples": b"4", b"label-000000001": b"text", b"label-000000002": b"", b"__keys__": b"x", b"length": b"4"}
    path = write(tmp_path / "x.lmdb", {**entries, **others})
    (path / "meta_info.txt").write_text("a/b.png (9,12,3) 1\n")
    found = list_sources(path)
    assert [s.name.encode("utf-8", "surrogateescape") for s in found.sources] == sorted(keys)
    assert found.skipped == {"num-samples": 1, "label-*": 2, "__keys__": 1, "length": 1} and found.labels.kind == "none"
    for source in found.sources:
        assert read_source(found.root, source) == entries[source.name.encode("utf-8", "surrogateescape")]
    release()
    summary = prep(path, tmp_path / "o.fds", workers=1)
    assert summary.kept == 4 and Store(summary.out).names() == [s.name for s in found.sources]
    (tmp_path / "l.csv").write_text("name,x\na/b,0.5\nimage-000000001,1\n")
    labelled = Store(prep(path, tmp_path / "l.fds", labels=tmp_path / "l.csv", workers=1).out)
    assert sorted(labelled.samples["label"].tolist()) == [[0.5], [1]]


@pytest.mark.slow
def test_hostile_databases(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lmdb", {b"%d" % k: png(k)[1] * 20 for k in range(50)}, subdir=False)
    good = path.read_bytes()
    for wrong, message_ in (
        (good[: len(good) // 2], "bytes of .* are there: it was cut short"),
        (good[:8192], "it was cut short"),
        (good[:5000], "."),
        (good[:100], "."),
        (b"", "."),
        (b"no database" * 5000, "."),
    ):
        path.write_bytes(wrong)
        with pytest.raises(PrepError, match=rf"cannot read .*x\.lmdb: .*{message_}"):
            list_sources(path)
    path.write_bytes(good)
    assert problems(list_sources(path)) == [""] * 50


def test_a_database_that_is_open_already_can_be_prepared(tmp_path: Path) -> None:
    """py-lmdb opens a file once in a process; all that reads here are other processes."""
    path = write(tmp_path / "x", {b"0": png(0)[1]})
    with lmdb.open(os.fsencode(path)):
        assert prep(path, tmp_path / "o.fds", workers=1).kept == 1


@pytest.mark.slow
def test_damaged_pages_are_an_error_or_rejects_and_never_a_crash(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lmdb", {b"%03d" % k: png(k)[1] * 9 for k in range(60)}, subdir=False)
    good, errors = path.read_bytes(), 0
    pages = [k for k in range(2, len(good) // 4096) if good[4096 * k + 10] in (1, 2)]  # branches and leaves
    for seed in range(12):
        damaged, rng = bytearray(good), np.random.default_rng(seed)
        start = 4096 * pages[seed % len(pages)] + (16 if seed % 2 else 0)
        damaged[start : start + 64] = rng.bytes(64)
        path.write_bytes(damaged)
        try:
            list_sources(path)
        except PrepError:
            errors += 1
    assert errors


def test_a_database_that_crashes_its_reader_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.lmdb", {b"0": png(0)[1]}, subdir=False)
    crash = """import os; print('["a", 1]', flush=True); os.kill(os.getpid(), 11)"""
    for code, end in ((crash, "SIGSEGV"), ("print(1 / 0)", "ended early")):
        monkeypatch.setattr(lmdb_source, "WALK", code)
        with pytest.raises(PrepError, match=rf"cannot read .*x\.lmdb: .*{end}"):
            list_sources(path)


def test_an_estimate_leaves_nothing_open(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {b"%d" % k: png(k)[1] for k in range(3)})
    for _ in range(2):
        assert estimate(path, tmp_path / "o.fds").rejected == {}
        lmdb.open(os.fsencode(path)).close()  # it would refuse a second time
    assert prep(path, tmp_path / "o.fds", workers=1).kept == 3


def test_our_own_shards_are_refused_with_a_pointer(tmp_path: Path) -> None:
    made = store()
    for path in made.glob("*/shard-00000.mdb"):
        with pytest.raises(PrepError, match=r"is part of the store .*fastdata export"):
            list_sources(path)


def test_several_databases_are_refused(tmp_path: Path) -> None:
    for k in range(2):
        write(tmp_path / f"{k}.lmdb", {b"0": png(0)[1]})
    with pytest.raises(PrepError, match=r"SOURCE is 2 LMDB files, .*0\.lmdb and others"):
        list_sources(str(tmp_path / "*.lmdb"))


# SOURCE as it is typed


def test_braces_and_wildcards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-08", "a-09", "a-10", "a-11", "b-8", "b-9", "b-10", "[x]", "{0..1}"):
        Path(f"{name}.tar").touch()
    for text, names in {
        "a-{08..11}.tar": ["a-08", "a-09", "a-10", "a-11"],
        "a-{10..09}.tar": ["a-10", "a-09"],
        "b-{8..10}.tar": ["b-8", "b-9", "b-10"],
        "{b-9,a-1?,[x]}.tar": ["b-9", "a-10", "a-11", "[x]"],
        "{a,b}-{9..10,10}.tar": [],
        "{a,b}-1*.tar": ["a-10", "a-11", "b-10"],
        "a-*.tar": ["a-08", "a-09", "a-10", "a-11"],
        "[x].tar": ["[x]"],
        "{0..1}.tar": ["{0..1}"],
        "nothing": [],
    }.items():
        if text == "{a,b}-{9..10,10}.tar":
            with pytest.raises(PrepError, match=r"2 of 4 are not there: a-9\.\.10\.tar, b-9\.\.10\.tar"):
                expand(text)
            continue
        assert [str(p) for p in expand(text)] == [f"{name}.tar" for name in names], text
    for text in ("{0..9999999}.tar", "{0..999}{0..999}{0..999}.tar"):
        with pytest.raises(PrepError, match="expands to more than 1000000 files"):
            expand(text)


def test_where_names_begin_and_what_the_store_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/in").mkdir(parents=True)
    Path("data/x.h5").touch()
    for source, root, name in [
        ("data", "data", "data"),
        ("data/x.h5", "data", "x"),
        ("data/x.h5::train/images", "data", "x-train-images"),
        ("data/part-{00..09}.tar", "data", "part"),
        ("data/*.parquet", "data", "data"),
        ("data/{in,out}/x-*.tar", "data", "data"),
        ("*.tar", ".", tmp_path.name),
        ("data/in/mnist-images-idx3-ubyte.gz", "data/in", "mnist-images-idx3-ubyte"),
    ]:
        assert locate(source) == (Path(root), name), source


def test_archives_of_several_folders(tmp_path: Path) -> None:
    for k, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "x.tar", [("0.png", png(k)[1])])
    found = list_sources(str(tmp_path / "{a,b}" / "x.tar"))
    assert [s.name for s in found.sources] == ["a/x.tar/0.png", "b/x.tar/0.png"]
    equal(all_pixels(str(tmp_path / "{a,b}" / "x.tar")), [png(0)[0], png(1)[0]])


def test_a_folder_of_images_with_an_archive_in_it_stays_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "in.tar", [("0.png", png(0)[1])])
    (tmp_path / "1.png").write_bytes(png(1)[1])
    found = list_sources(tmp_path)
    assert [s.name for s in found.sources] == ["1.png"] and found.skipped == {".tar": 1}


def test_classes_of_another_store_number_an_archive(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [m for k in range(3) for m in ((f"{k}.png", png(k)[1]), (f"{k}.cls", b"xyz"[k : k + 1]))])
    write_tar(tmp_path / "b.tar", [("0.png", png(0)[1]), ("0.cls", b"z")])
    train = prep(tmp_path / "a.tar", tmp_path / "a.fds", workers=1).out
    made = Store(prep(tmp_path / "b.tar", tmp_path / "b.fds", classes=train, codec="rgb", workers=1).out)
    assert made.samples["label"].tolist() == [2]
    equal(whole(made.path), [png(0)[0]])
