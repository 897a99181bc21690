"""Stores that are damaged, replaced or lie: they give the samples that were written, or an error that says what to do."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import fastdata
import stores
from fastdata import LMDBDataset, Loader, MaskDataset, RAMDataset
from fastdata.errors import FastDataError, FormatError, StoreError
from fastdata.store.store import Store
from support import encode, run, shards, signed, write_pictures, written

MAKERS: dict[str, Callable[[], Path]] = {"images": stores.store, "tokens": stores.tokens, "arrays": stores.masked_arrays}


def _copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "o.fds"))


def _flip(file: Path, at: int, bits: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.with_suffix(".new").write_bytes(data)
    file.with_suffix(".new").replace(file)


def _read(path: Path) -> None:
    """Read all of a store."""
    store = Store(path, kind=None)
    for lines in (store.names, store.rejects):
        lines()
    dataset = fastdata.open(path, **({"block_size": 16} if store.kind.name == "tokens" else {}))
    for k in range(len(dataset)):
        dataset[k]


# ----------------------------------------------------------------------------------------------------- files of the store


def test_shards_that_changed_places_are_an_error(tmp_path: Path) -> None:
    """Raw pixels of one size."""
    write_pictures(tmp_path / "in", 6, ending=".bmp")
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec="rgb", shard_samples=3, workers=1).out
    one, other = shards(out)
    assert one.stat().st_size == other.stat().st_size
    one.rename(tmp_path / "s")
    other.rename(one)
    (tmp_path / "s").rename(other)
    dataset = LMDBDataset(out)
    for k in range(6):
        with pytest.raises(FormatError, match=rf"shard-0000\d.mdb is damaged: record \d .* run fastdata verify {out}"):
            dataset[k]


def test_the_index_finds_what_lmdb_and_its_tools_find(tmp_path: Path) -> None:
    """In files of several depths, with any sizes of values, written by several transactions."""
    rng = np.random.default_rng(0)
    pages = [2030, 2031, 2032, 2033, 4080, 4081] * 20
    kinds = ([], [0], [0, 1], [1] * 3000, rng.integers(0, 9000, 900).tolist(), pages, [17] * 40_000)
    dump = shutil.which("mdb_dump")
    for number, sizes in enumerate(kinds):
        records, path = [rng.bytes(size) for size in sizes], tmp_path / f"{number}.mdb"
        reader = written(path, records)
        assert [bytes(reader.get(k)) for k in range(len(records))] == records
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            assert list(txn.cursor()) == [(k.to_bytes(8, "big"), record) for k, record in enumerate(records)]
        if dump is not None and sum(sizes) < 1 << 23:
            lines = run(dump, "-n", path).stdout.split("HEADER=END\n")[1].split("DATA=END")[0].split()
            assert [bytes.fromhex(line) for line in lines[1::2]] == records


# ------------------------------------------------------------------------------------------------------- tables that lie


@pytest.mark.parametrize(
    ("kind", "records"),
    [("images", [11, 30]), ("images", [1 << 50]), ("tokens", [2]), ("tokens", [0]), ("arrays", [1])],
)
def test_a_manifest_with_another_number_of_records_is_refused(kind: str, records: list[int], tmp_path: Path) -> None:
    out = _copy(MAKERS[kind](), tmp_path)
    body = json.loads((out / "manifest.json").read_bytes())
    for variant in body["variants"]:
        variant["records"] = (records * len(variant["shards"]))[: len(variant["shards"])]
    (out / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(FormatError, match=r"prepare (it|the store) again"):
        _read(out)


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _set(field: str, at: Any, value: int) -> Callable[[bytes], bytes]:
    """What sets a number in a table."""

    def change(data: bytes) -> bytes:
        table = np.load(io.BytesIO(data))
        table[field][at] = value
        return _npy(table)

    return change


class Code:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


LINE = b'"a"\n'
REJECT = b'{"source": 1, "name": "a", "reason": "b", "detail": 2}\n'
SHAPES = "samples.npy has shapes that do not fit the chunks of the store; copy it again"
INDEX = "leads beyond|other sizes than|do not fit the chunks|is damaged: record 0"
BIG = 1_600_000_000  # a shape that was a MemoryError, or an export of 5.7 TB
LIES: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    *(("arrays", "samples.npy", _set("shape", at, n), SHAPES) for at, n in (((2, 1), BIG), ((2, 0), 1), ((0, 5), 1), ((13, 2), 0))),
    *(("arrays", "samples.npy", _set("first", at, n), SHAPES) for at, n in ((3, 0), (13, (1 << 64) - 1))),  # another sample
    ("images", "samples.npy", lambda _: b"samples", "samples.npy is damaged"),
    ("images", "samples.npy", lambda data: data[:-1], "samples.npy is damaged"),
    ("images", "samples.npy", lambda _: _npy(np.array([Code()] * 42, object)), "is damaged.*Python objects"),
    ("images", "samples.npy", lambda _: _npy(np.zeros(42, "<i4")), r"holds int32 \[42\], but the manifest says \["),
    ("images", "samples.npy", lambda data: _npy(np.load(io.BytesIO(data))[1:]), r"holds .* \[41\], but the manifest .* \[42\]"),
    ("images", "names.txt", lambda _: LINE * 41, "names.txt is damaged: it has 41 lines, but the manifest says 42"),
    ("images", "names.txt", lambda _: LINE * 41 + b"7\n", r"is damaged: Expected `str`, got `int` - at `\$\[41\]`"),
    ("images", "names.txt", lambda _: LINE * 41 + b"a\n", "is damaged: Expecting value"),
    ("images", "rejects.jsonl", lambda _: b"[]\n", "rejects.jsonl is damaged: Expected `object`, got `array`"),
    ("images", "rejects.jsonl", lambda _: REJECT, "is damaged: Expected `str`, got `int`"),
    *(
        (kind, f"{variant}/index.npy", _set(field, 0, value), INDEX)
        for kind, variant in (("images", "96"), ("tokens", "tokens"), ("arrays", "array"))
        for field, value in (("offset", 1 << 40), ("length", (1 << 64) - 1), ("length", 7))
    ),
]


@pytest.mark.parametrize(("kind", "name", "change", "message"), LIES)
def test_a_file_that_lies_is_refused(
    kind: str, name: str, change: Callable[[bytes], bytes], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its checksum or size is wrong, then they are right."""
    out = _copy(MAKERS[kind](), tmp_path)
    data = change((out / name).read_bytes())
    (out / name).write_bytes(data)
    with pytest.raises(
        FormatError, match=rf"{name} (is not what was written: its checksum differs|has {len(data)} bytes, but the man)"
    ):
        _read(out)
    monkeypatch.chdir(tmp_path)
    signed(out, name)
    with pytest.raises(FormatError, match=message):
        _read(out)
    assert not (tmp_path / "ran").exists()
    if not name.endswith(".npy"):  # read when it is asked for
        (out / name).write_bytes(data[:-1] + b" ")
        with pytest.raises(FormatError, match=f"{name} is not what was written: its checksum differs"):
            _read(out)


# ---------------------------------------------------------------------------------------------- replaced while it is open


def _monochrome(root: Path, value: int) -> None:
    """12 images whose names, sizes and times are the same for any value."""
    for path in write_pictures(root, 12, ending=".bmp"):
        path.write_bytes(encode(np.full((24, 24, 3), value, np.uint8), ".bmp"))
        os.utime(path, ns=(0, 0))


OPTIONS = {"codec": "rgb", "shard_samples": 3, "workers": 1}
REPLACED = "was replaced while this dataset was in use; open the dataset again"


def _values(dataset: Any, indices: Any) -> set[int]:
    return {int(value) for k in indices for value in dataset[k][0].unique()}


def test_a_store_that_is_replaced_gives_no_sample_of_the_other(tmp_path: Path) -> None:
    """Also if both have the same fingerprint: inputs are known by their names and sizes."""
    _monochrome(tmp_path / "in", 0)
    out = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", **OPTIONS).out
    kept = Store(out).manifest
    dataset, unread, reader = LMDBDataset(out), LMDBDataset(out), Store(out).reader(kept.variants[0])
    with Loader(dataset, 3, num_workers=1) as loader:
        passing = iter(loader)
        next(passing)
    assert len(kept.shard_samples) == 4 and _values(dataset, range(5)) == {0}
    pickled = pickle.dumps(dataset), pickle.dumps(reader)
    _monochrome(tmp_path / "in", 255)
    fastdata.prep(tmp_path / "in", out, overwrite=True, **OPTIONS)
    now = Store(out).manifest
    assert now.fingerprint == kept.fingerprint
    assert [s.bytes for s in now.variants[0].shards] == [s.bytes for s in kept.variants[0].shards]
    assert _values(dataset, range(6)) == {0}, "what is open stays open"
    for use in (
        lambda: dataset[6],
        lambda: unread[0],
        lambda: list(Loader(dataset, 3, num_workers=1)),
        lambda: pickle.loads(pickled[0])[0],
        lambda: pickle.loads(pickled[1]).get(11),
    ):
        with pytest.raises(FastDataError, match=f"{REPLACED}|a worker died"):  # a worker that was not forked dies
            use()
    assert _values(LMDBDataset(out), range(12)) == {255}


def test_a_shard_that_changes_its_size_while_its_store_is_open_is_an_error(tmp_path: Path) -> None:
    """By a whole page, which the reader does not need."""
    out = _copy(stores.store(), tmp_path)
    dataset = LMDBDataset(out)
    for file in shards(out):
        os.truncate(file, file.stat().st_size + 4096)
    for use in (lambda: dataset[0], lambda: Store(out)):
        with pytest.raises(FormatError, match=r"shard-00000.mdb has \d+ bytes, but the manifest says \d+: it was cut short"):
            use()
    for file in shards(out):
        file.unlink()
    with pytest.raises(StoreError, match=r"shard-00000.mdb cannot be read: No such file or directory; copy the whole store again"):
        Store(out)


def test_columns_of_a_store_that_was_replaced_are_not_read(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 3)
    (tmp_path / "in" / "t.csv").write_text("path,score\n" + "".join(f"{k:02d}.png,{k / 2}\n" for k in range(3)))
    out = fastdata.prep(tmp_path / "in" / "t.csv", tmp_path / "o.fds", fields="score:float32", label_column="none", workers=1).out
    read, unread = LMDBDataset(out), LMDBDataset(out)
    assert read.columns["score"].tolist() == [0, 0.5, 1]
    (out / "manifest.json").write_bytes((out / "manifest.json").read_bytes() + b"\n")
    assert read.columns["score"].tolist() == [0, 0.5, 1], "what is open stays open"
    with pytest.raises(StoreError, match=REPLACED):
        unread.columns["score"]


# ------------------------------------------------------------------------------------------------------- checks of records


@pytest.mark.parametrize("make", [LMDBDataset, MaskDataset])
def test_a_changed_pixel_is_an_error_when_its_record_is_first_read(make: Any, tmp_path: Path) -> None:
    made, folder = (stores.masked(), "mask-full") if make is MaskDataset else (stores.store(), "96")
    out = _copy(made, tmp_path)
    file = next(file for file in shards(out) if file.parent.name == folder)
    store = Store(out)
    variant = next(v for v in store.manifest.variants if v.name == file.parent.name)
    record = bytes(store.reader(variant).get(1))
    _flip(file, file.read_bytes().index(record) + len(record) // 2, 1)
    checked, whole = make(out), make(made)
    for dataset in (checked, pickle.loads(pickle.dumps(checked)), checked.subset([1, 0])):
        index = 1 if len(dataset) > 2 else 0
        for _ in range(2):
            with pytest.raises(FormatError, match=rf"{file} is damaged: record 1 is not what .* run fastdata verify {out}"):
                dataset[index]
        assert np.array_equal(dataset[1 - index][0], whole[0][0])
    with pytest.raises(FormatError, match="record 1 is not"), Loader(checked.subset([0, 2, 1]), 1, num_workers=1) as loader:
        list(loader)
    with pytest.raises(FormatError, match="record 1 is not"):
        RAMDataset(out, shared=False)
