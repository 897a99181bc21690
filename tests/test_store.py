"""The store: its bytes, hostile and damaged ones, readers of shards, verify, export and the contact sheet."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from fastdata.codecs.pixels import decode_record
from fastdata.errors import FormatError, StoreError
from fastdata.report.drawing import draw_sheet
from fastdata.store.export import export
from fastdata.store.manifest import read_manifest
from fastdata.store.reader import ShardReader
from fastdata.store.store import Store, verify
from fastdata.store.writer import ShardWriter
from stores import script, several
from support import MAIN, run, shards, signed, tree

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/data/golden.fds"
PAGE = 4096


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of the golden store, to be harmed."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden.fds"))


# ---------------------------------------------------------------------------------------------------------- golden bytes


@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != PAGE, reason="LMDB takes the machine's page size")
def test_today_s_code_writes_the_golden_bytes(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools/make_golden.py"))["make"](tmp_path / "golden.fds")
    found, golden = tree(tmp_path / "golden.fds"), tree(GOLDEN)
    manifests = [(t.pop("manifest.json") or b"").decode() for t in (found, golden)]
    assert found == golden
    versions = re.compile(r'"fingerprint": "[^"]*"|"libraries": \{[^}]*\}')  # these depend on those of libraries
    assert versions.sub("", manifests[0]) == versions.sub("", manifests[1])


def test_the_golden_store_opens_and_is_whole() -> None:
    store = Store(GOLDEN)
    assert list(verify(GOLDEN)) == []
    assert (len(store), store.manifest.version, store.manifest.labels.names) == (20, "1.0", ("ant hill", "zebra"))
    assert [(r["name"], r["reason"]) for r in store.rejects()] == [("zebra/empty.png", "empty"), ("zebra/text.jpg", "not-an-image")]
    assert "zebra/new\nline-02.ppm" in store.names() and "zebra/b\udcff-04.ppm" in store.names()


# ------------------------------------------------------------------------------------------------------ hostile manifests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "damaged"),
        (b"[]", "damaged"),
        (b"null", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"format": "other", "version": "1.0"}', 'not "fastdata"'),
        (b'{"format": "fastdata", "version": "2.0"}', "format version 2.0, but this fastdata reads 1.0: prepare the store again"),
        (b'{"format": "fastdata", "version": "1.0"}', "damaged.*missing required field `kind`"),
    ],
)
def test_manifests_that_are_none(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(FormatError, match=message):
        Store(tmp_path)
    assert len(list(verify(tmp_path))) == 1


BOXES = {"name": "b", "type": "float32", "shape": [4], "many": True, "geometry": "xyxy"}  # a list of boxes, as a manifest has it
BOXES |= {"group": None, "names": [], "ids": [], "tokens": None}
CONTRADICTIONS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("labels", "kind"), "colour", "Invalid enum value 'colour'"),
    (("variants",), [], "the numbers of samples do not fit together"),
    (("num_samples",), 21, "the numbers of samples do not fit together"),
    (("shard_samples", 0), -1, r"Expected `int` >= 0 - at `\$.shard_samples\[0\]`"),
    (("shard_samples", 0), 1.5, r"Expected `int`, got `float` - at `\$.shard_samples\[0\]`"),
    (("files", "rejects.jsonl"), None, "it does not list rejects.jsonl"),
    (("files", "32/index.npy"), None, "it does not list 32/index.npy"),
    (("files", "../x"), {"bytes": 1, "xxh3_128": ""}, "'../x' is no file of a store"),
    (("libraries",), None, "missing required field `libraries`"),
    (("variants", 0, "shards"), [], r"must list \d shards, and as many record counts"),
    (("variants", 0, "records"), [], r"must list \d shards, and as many record counts"),
    (("variants", 0, "form", "codec"), "webp", "which this fastdata cannot read; use a newer fastdata"),
    (("variants", 0, "form", "bits"), 8, "unknown field `bits`"),
    (("variants", 0, "name"), "mask-9", "which this fastdata cannot read"),
    (("kind",), "sounds", "the store holds sounds, which this fastdata cannot read"),
    *(
        (("variants", 0, "name"), name, "damaged")
        for name in ("../x", "/etc", ".", "", "work", "a/b", "32\0", "32\n", "x" * 5000, 32)
    ),
    (("columns",), [{**BOXES, "geometry": None}], "it does not list columns/b.values.npy"),
    (("columns",), [{**BOXES, "type": "int64"}], "cannot have the geometry xyxy"),
    (("columns",), [BOXES], "there is no column source_size"),
    (("columns",), [{**BOXES, "name": "../b"}], "a column cannot be called"),
    (("sections", "sounds"), 1, "sections must be masks; found: "),
    (("sections", "masks"), {"names": [], "pixels": {"": 3}}, "Expected `str` matching regex"),
]


@pytest.mark.parametrize(("way", "value", "message"), CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(way: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    """value: what stands there instead; None: nothing."""
    at = body = json.loads((GOLDEN / "manifest.json").read_bytes())
    for key in way[:-1]:
        at = at[key]
    if value is None:
        del at[way[-1]]
    else:
        at[way[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(FormatError, match=message):
        read_manifest(tmp_path)


def test_sizes_of_a_store() -> None:
    assert Store(several()).variant(image="depth").image == "depth" and Store(several()).variant(image="photo").image == ""
    with pytest.raises(StoreError, match="has no size 7; it has the images' own"):
        Store(several()).variant(7)
    with pytest.raises(StoreError, match="has no size 7; it has 64, 32"):
        Store(GOLDEN).variant(7)
    with pytest.raises(StoreError, match="has no masks; prepare it with --masks FOLDER"):
        Store(GOLDEN).variant(mask=True)
    assert Store(GOLDEN).variant().size == 64


# -------------------------------------------------------------------------------------------------------- ShardReader


def _reader(path: Path) -> tuple[ShardReader, list[bytes]]:
    """A reader of the golden store, and its records as LMDB has them."""
    store, records = Store(path), list[bytes]()
    for file in sorted((path / "64").glob("*.mdb")):
        with lmdb.open(str(file), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            records += [bytes(value) for _, value in txn.cursor()]
    return store.reader(store.variant(64)), records


def _all(reader: ShardReader) -> list[bytes]:
    return [bytes(reader.get(k)) for k in range(len(reader))]


def test_indices_outside_are_index_errors() -> None:
    reader, expected = _reader(GOLDEN)
    for index in (-1, -20, 20, 10**9):
        with pytest.raises(IndexError, match="0 to 19"):
            reader.get(index)
    assert _all(reader) == expected


@pytest.mark.slow
@pytest.mark.parametrize("opened", [True, False])
def test_readers_work_after_a_fork_and_pickled(opened: bool) -> None:
    """A child reads, its own child too, and the parent goes on reading."""
    reader, expected = _reader(GOLDEN)
    if opened:
        assert _all(reader) == expected
        assert _shards_open(GOLDEN)
    pid = os.fork()
    if pid == 0:
        good = _all(reader) == expected
        inner = os.fork()
        if inner == 0:
            os._exit(0 if _all(reader) == expected else 1)
        good = good and os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 0 and _all(reader) == expected
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert _all(reader) == expected and len(pickle.dumps(reader)) < 2000
    assert _all(pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(reader))))) == expected


def _shards_open(store: Path) -> bool:
    """Whether this process has a shard of the store open."""
    gc.collect()  # readers of tests before may still wait for it
    return any(store in Path(os.path.realpath(descriptor)).parents for descriptor in Path("/proc/self/fd").iterdir())


COMMIT = 32 << 20


def test_a_shard_has_the_same_bytes_across_several_commits(tmp_path: Path) -> None:
    """Commits come at amounts of bytes, not at times."""
    sums = []
    for k in range(2):
        writer = ShardWriter(tmp_path / f"{k}.mdb")
        for size in (COMMIT - 1, 1, COMMIT - 1, 1, 1):
            writer.append(bytes(size))
        sums.append(writer.finish()[0])
        assert not _shards_open(tmp_path)
    assert sums[0] == sums[1] and len(list(tmp_path.iterdir())) == 2
    with lmdb.open(str(tmp_path / "0.mdb"), subdir=False, readonly=True, lock=False) as env:
        assert env.info()["last_txnid"] == 3


def test_a_shard_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.mdb"
    path.mkdir()
    with pytest.raises(StoreError, match=f"cannot write {path}: .*"):
        ShardWriter(path)
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}/gone/s.mdb: there is no folder {tmp_path}/gone: make it"):
        ShardWriter(tmp_path / "gone" / "s.mdb")


MANY = """
import json, resource, sys
from pathlib import Path
from support import written

readers = [written(Path(sys.argv[1], f"{k}.mdb"), [b"%d" % k]) for k in range(200)]
hard = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
print(json.dumps([int(bytes(reader.get(0))) for reader in readers]))
"""


def test_more_shards_are_open_than_the_soft_limit_of_open_files_allows(tmp_path: Path) -> None:
    assert script(MANY, tmp_path) == list(range(200))


# ------------------------------------------------------------------------------------------------------------- verify


def test_every_harmed_shard_is_named(store: Path) -> None:
    harmed = [shards(store)[k] for k in (0, 1, 3)]
    harmed[0].write_bytes(bytes(harmed[0].stat().st_size))
    harmed[1].unlink()
    os.truncate(harmed[2], 100)
    for name in ("samples.npy", "names.txt"):
        harmed.append(store / name)
        harmed[-1].write_bytes(harmed[-1].read_bytes()[:-3] + b"abc")
    lines = list(verify(store))
    assert all(any(str(path) in line for line in lines) for path in harmed)
    assert all(any(str(path) in line for path in harmed) for line in lines)
    found = run(*MAIN, "verify", store)
    assert found.returncode == 1 and all(str(path) in found.stdout for path in harmed)


# -------------------------------------------------------------------------------------------------------------- export


HOSTILE = [
    "../../escape",
    "/etc/escape",
    "..",
    "/",
    "",
    ".",
    "a/../../b",
    "a\0b",
    "\ud800",
    "x" * 300,
    "con/../../../c",
    "a//b",
    "~/x",
]


@pytest.mark.parametrize("kind", ["class", "none"])
def test_hostile_names_stay_inside(store: Path, tmp_path: Path, kind: str) -> None:
    body = json.loads((store / "manifest.json").read_bytes())
    (store / "names.txt").write_text("".join(json.dumps(name) + "\n" for name in (HOSTILE * 2)[:20]))
    body["labels"] = {"kind": kind, "names": ["../../up", "/abs"] if kind == "class" else []}
    (store / "manifest.json").write_text(json.dumps(body))
    signed(store, "names.txt")
    inner = tmp_path / "deep/deeper/out"
    before = set(tmp_path.rglob("*"))
    with contextlib.suppress(StoreError):  # a name that is too long for the file system
        export(store, inner)
    outside = {p for p in tmp_path.rglob("*") if inner not in p.parents} - before - {inner, *inner.parents}
    assert not outside
    assert any(p.is_file() for p in inner.rglob("*"))


def test_labels_beyond_the_class_list_do_not_break_export_and_sheet(store: Path, tmp_path: Path) -> None:
    samples = np.load(store / "samples.npy")
    samples["label"][:3] = [7, -5, 1]
    np.save(store / "samples.npy", samples)
    with pytest.raises(FormatError, match="its checksum differs"):
        Store(store)
    signed(store)
    assert export(store, tmp_path / "out") == 20
    assert draw_sheet(store, tmp_path / "s.png") == 20


def test_export_goes_to_an_empty_folder_only(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_bytes(b"mine")
    for place in ("full", "full/x"):
        with pytest.raises(StoreError, match="choose another"):
            export(GOLDEN, tmp_path / place)
    with pytest.raises(StoreError, match="export to"):
        export(GOLDEN, tmp_path / "full/x/y")
    assert tree(tmp_path / "full") == {"x": b"mine"}
    (tmp_path / "empty").mkdir()
    assert export(GOLDEN, tmp_path / "empty") == 20


def test_stored_pixels_are_read_only() -> None:
    """A record is a view of the mapped file: writing to it must fail, not crash."""
    reader = Store(GOLDEN).reader(Store(GOLDEN).variant(32))
    row = Store(GOLDEN).samples[0]
    pixels = decode_record(reader.get(0), Store(GOLDEN).variant(32).form, int(row["32/height"]), int(row["32/width"]))
    with pytest.raises(ValueError, match="read-only"):
        pixels[0, 0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        Store(GOLDEN).samples["label"][0] = 1
