"""Stores that are damaged, replaced or lie: they give the samples that were written, or an error that says what to do."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import fastdata
import stores
from fastdata import ArrayDataset, FormatError, LMDBDataset, Loader, MaskDataset, RAMDataset, StoreError, TokenDataset
from fastdata.store.shards import ShardReader, ShardWriter
from fastdata.store.store import Store
from harm import PAGE, READERS, run_harms
from support import MAIN, encode, run, shards, signed, write_pictures

MAKERS: dict[str, Callable[[], Path]] = {
    "images": stores.store,
    "checked": lambda: stores.store("jpeg"),
    "in memory": lambda: stores.store("jpeg"),
    "masks": stores.masked,
    "tokens": stores.tokens,
    "tokens in memory": stores.tokens,
    "arrays": stores.masked_arrays,
}
EXACT = ("checked", "in memory")  # each record is compared with its checksum


def _copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "o.fds"))


def _flip(file: Path, at: int, bits: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.with_suffix(".new").write_bytes(data)
    file.with_suffix(".new").replace(file)


# ---------------------------------------------------------------------------------------------- any bit of any file


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_any_bit_flipped_and_any_file_cut_gives_the_samples_or_an_error(kind: str, tmp_path: Path) -> None:
    """Other values come only from the records of a shard without checks, and from the manifest, which nothing has a checksum of."""
    for seed in range(2):
        outcomes = run_harms(kind, MAKERS[kind](), tmp_path, seed=seed, count=80)
        allowed = {"same", "FormatError", "StoreError"}
        for outcome in outcomes:
            unchecked = outcome.file == "manifest.json" or (outcome.file.endswith(".mdb") and kind not in EXACT)
            assert outcome.found in allowed | ({"other"} if unchecked else set()), outcome
        assert {"same", "FormatError"} <= {outcome.found for outcome in outcomes}


def _nodes(file: Path) -> list[tuple[int, int]]:
    """Where the node of each record of a shard lies, and the page of its value, or 0 if it lies in the node."""
    data, found = file.read_bytes(), []
    for page in range(0, len(data), PAGE):
        number, kind, lower = struct.unpack_from("<Q2xHH", data, page)
        if (number, kind) != (page // PAGE, 2):
            continue
        for place in struct.unpack_from(f"<{(lower - 16) // 2}H", data, page + 16):
            flags, keys = struct.unpack_from("<HH", data, page + place + 4)
            found.append((page + place, struct.unpack_from("<Q", data, page + place + 8 + keys)[0] if flags & 1 else 0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_no_bit_of_a_node_or_of_a_page_s_header_leads_elsewhere(kind: str, tmp_path: Path) -> None:
    """Bits of the first node, and of the headers of the pages on the way to its record, one after another."""
    out = _copy(MAKERS[kind](), tmp_path)
    store = Store(out, kind=None)
    variant = store.manifest.variants[-1]
    file = store.shard(variant, 0)
    whole, lengths = store.reader(variant), store.kind.record_bytes(store, variant)
    expected = [bytes(whole.get(k)) for k in range(min(len(whole), 4))]
    original = file.read_bytes()
    node, value = min(_nodes(file), key=lambda found: original[found[0] + 8 : found[0] + 16])
    leaf = node // PAGE * PAGE
    read = {*range(leaf, leaf + 18), *range(node, node + 24), *range(PAGE, PAGE + 160)}
    read |= {*range(value * PAGE, value * PAGE + 16)} if value else set()
    wrong = set()
    for at in sorted(read):
        for bit in (0, 3, 6, 7):
            _flip(file, at, 1 << bit)
            reader = ShardReader([file], [len(whole)], [len(original)], lengths)
            with suppress(FormatError):
                if [bytes(reader.get(k)) for k in range(len(expected))] != expected:
                    wrong.add(at)
            _flip(file, at, 1 << bit)
    assert wrong <= set(range(node + 16, node + 24)), "only of the value, or of the number of its page"


# ------------------------------------------------------------------------------------------------- what killed the process


@pytest.fixture
def rgb(tmp_path: Path) -> Path:
    """A store of one shard, in which each record has pages of its own. Its first leaf is page 2."""
    write_pictures(tmp_path / "in", 12)
    return fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec="rgb", workers=1).out


def test_a_wrong_size_of_a_record_is_an_error_of_the_dataset_and_of_the_commands(rgb: Path, tmp_path: Path) -> None:
    """LMDB returned a gigabyte beyond the end of the file, which ended the process with SIGBUS."""
    (file,) = shards(rgb)
    node, value = min(_nodes(file))
    assert value
    _flip(file, node + 3, 0x40)
    failed = [k for k in range(12) if _fails(rgb, k)]
    assert len(failed) == 1
    for command in (("export", rgb, tmp_path / "out"), ("info", rgb, "--sheet", tmp_path / "s.png"), ("verify", rgb)):
        found = run(*MAIN, *command)
        assert found.returncode == 1 and "is damaged" in found.stderr + found.stdout, (command, found)
    assert run(*MAIN, "verify", "--quick", rgb).returncode == 0, "it reads no records"


def _fails(store: Path, index: int) -> bool:
    try:
        LMDBDataset(store)[index]
    except FormatError as error:
        assert "shard-00000.mdb is damaged" in str(error) and f"fastdata verify {store}" in str(error)  # noqa: PT017
        return True
    return False


@pytest.mark.parametrize("kind", ["tokens", "images", "arrays"])
def test_a_page_of_another_kind_is_an_error(kind: str, tmp_path: Path) -> None:
    """The kind of page 2, a leaf: LMDB ended the process with SIGABRT."""
    out = _copy(MAKERS[kind](), tmp_path)
    for file in shards(out):
        for page in range(0, file.stat().st_size, PAGE):
            data = file.read_bytes()
            if struct.unpack_from("<Q2xH", data, page) == (page // PAGE, 4):  # the first of the pages of a value
                _flip(file, page + 10, 2)
                break
        else:
            _flip(file, 10, 2)
    with pytest.raises(FormatError, match="is damaged"):
        READERS[kind](out)


def test_the_reader_finds_what_lmdb_finds(tmp_path: Path) -> None:
    """Trees of several depths and any sizes of values, also written in another order and by several transactions."""
    rng = np.random.default_rng(0)
    kinds = (
        [0],
        [1] * 3000,
        [5000],
        rng.integers(0, 9000, 900).tolist(),
        [2030, 2031, 2032, 2033, 4080, 4081] * 20,
        [17] * 40_000,
    )
    for number, sizes in enumerate(kinds):
        records = [rng.bytes(size) for size in sizes]
        paths = [tmp_path / f"{number}-{name}.mdb" for name in ("ours", "shuffled")]
        writer = ShardWriter(paths[0])
        for record in records:
            writer.append(record)
        writer.finish()
        with lmdb.open(str(paths[1]), subdir=False, map_size=1 << 30, lock=False, lib_version=0) as env:
            for part in np.array_split(rng.permutation(len(records)), 3):
                with env.begin(write=True) as txn:
                    for k in part.tolist():
                        txn.put(k.to_bytes(8, "big"), b"another" if len(records) < 1000 else records[k])
                        txn.put(k.to_bytes(8, "big"), records[k])
        for path in paths:
            reader = ShardReader([path], [len(records)], [path.stat().st_size])
            assert [bytes(reader.get(k)) for k in range(len(records))] == records, path


# ------------------------------------------------------------------------------------------------------- tables that lie


def _edited(store: Path, tmp_path: Path, edit: Callable[[Any], None]) -> Path:
    """A copy of a store whose table of samples was changed, with a checksum that fits."""
    out = _copy(store, tmp_path)
    samples = np.load(out / "samples.npy")
    edit(samples)
    np.save(out / "samples.npy", samples)
    with pytest.raises(FormatError, match=r"samples.npy is not what was written: its checksum differs"):
        Store(out, kind=None)
    return signed(out)


@pytest.mark.parametrize(
    ("field", "at", "value"),
    [
        ("shape", (2, 1), 1_600_000_000),
        ("shape", (2, 0), 1),
        ("shape", (0, 5), 1),
        ("shape", (13, 2), 0),
        ("first", (3,), 0),
        ("first", (0,), 1),
        ("first", (13,), (1 << 64) - 1),
        ("array/bytes", (1,), 1 << 60),
        ("mask-array/bytes", (1,), 0),
    ],
)
def test_shapes_that_do_not_fit_their_chunks_are_refused(field: str, at: tuple[int, ...], value: int, tmp_path: Path) -> None:
    """A side of 1.6 billion was a MemoryError or an export of 5.7 TB, a wrong `first` another sample."""

    def edit(samples: Any) -> None:
        samples[field][at] = value

    out = _edited(stores.masked_arrays(), tmp_path, edit)
    for make in (ArrayDataset, RAMDataset):
        with pytest.raises(FormatError, match=r"samples.npy has shapes that do not fit the chunks of the store; copy it again"):
            make(out)
    found = run(*MAIN, "export", out, tmp_path / "out", seconds=60)
    assert found.returncode == 1 and "do not fit" in found.stderr and not (tmp_path / "out").exists()


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
        READERS[kind](out)


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npz(array: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


class Code:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda samples: b"samples", "is damaged"),
        (lambda samples: _npy(samples)[:-1], "is damaged"),
        (_npz, "is damaged"),
        (lambda samples: _npy(np.array([Code()] * 42, object)), "is damaged.*Python objects"),
        (lambda samples: _npy(np.zeros(42, "<i4")), r"holds \(42,\) int32, the manifest says 42 x"),
        (lambda samples: _npy(samples[1:]), r"holds \(41,\) .* the manifest says 42 x"),
        (lambda samples: _npy(samples[:, None]), r"holds \(42, 1\) .* the manifest says 42 x"),
    ],
)
def test_a_table_that_is_another_is_refused(made: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is right."""
    out = _copy(stores.store(), tmp_path)
    (out / "samples.npy").write_bytes(made(np.load(out / "samples.npy")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=f"samples.npy {message}"):
        Store(signed(out))
    assert not (tmp_path / "ran").exists()


LINE = b'"a"\n'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("names.txt", LINE * 41, "has 41 names, the manifest says 42"),
        ("names.txt", LINE * 41 + b"7\n", "is damaged: a line is not a str"),
        ("names.txt", LINE * 41 + b"a\n", "is damaged: Expecting value"),
        ("rejects.jsonl", b"[]\n", "is damaged: a line is not a dict"),
        ("rejects.jsonl", b'{"source": 1, "name": "a", "reason": "b"}\n', "is damaged: a line lacks one of source, name, reason"),
        ("rejects.jsonl", b'{"source": 1, "name": "a", "reason": "b", "detail": 2}\n', "is damaged: a line lacks one of"),
    ],
)
def test_lines_that_are_others_are_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    """Their checksum is right; if it is not, that is said."""
    out = _copy(stores.store(), tmp_path)
    (out / name).write_bytes(data)
    with pytest.raises(FormatError, match=rf"{name} has {len(data)} bytes, the manifest says \d+"):
        Store(out)
    store = Store(signed(out, name))
    read = {"names.txt": store.names, "rejects.jsonl": store.rejects}[name]
    with pytest.raises(FormatError, match=f"{name} {message}"):
        read()
    (out / name).write_bytes(data[:-1] + b" ")
    with pytest.raises(FormatError, match=f"{name} is not what was written: its checksum differs"):
        read()


def test_token_records_of_other_sizes_are_an_error_that_names_the_store(tmp_path: Path) -> None:
    out = _copy(stores.tokens(), tmp_path)
    (file,) = shards(out)
    ((node, _),) = _nodes(file)
    _flip(file, node, 1)  # 1,999 or 2,001 bytes of uint16: it was a ValueError of numpy
    for make in (TokenDataset, RAMDataset):
        with pytest.raises(FormatError, match=rf"{file} is damaged: .*; run fastdata verify {out}"):
            make(out, block_size=8)[0]


# ------------------------------------------------------------------------------------------------------- what is no file


@pytest.mark.parametrize("name", ["manifest.json", "samples.npy", "names.txt", "rejects.jsonl", "32/shard-00000.mdb"])
def test_a_pipe_in_place_of_a_file_is_an_error_at_once(name: str, tmp_path: Path) -> None:
    """Reading it would wait for a writer for ever."""
    out = _copy(stores.square(), tmp_path)
    (out / name).unlink()
    os.mkfifo(out / name)
    for command in ("info", "verify"):
        found = run(*MAIN, command, out, seconds=60)
        assert found.returncode == 1 and name in found.stdout + found.stderr, found
    with pytest.raises(StoreError, match="is not a regular file"):
        LMDBDataset(out)


# ---------------------------------------------------------------------------------------------- replaced while it is open


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with files of the same names and sizes, of 30 images 0 and 255."""
    for name, value in (("black", 0), ("white", 255)):
        (tmp_path / name).mkdir()
        for k in range(30):
            (tmp_path / name / f"{k:02d}.bmp").write_bytes(encode(np.full((24, 24, 3), value, np.uint8), ".bmp"))
    return tmp_path / "black", tmp_path / "white"


OPTIONS = {"codec": "rgb", "shard_samples": 3, "workers": 1}
REPLACED = "was replaced while this dataset was in use; make the dataset again"


def _values(dataset: Any, indices: Any) -> set[int]:
    return {int(value) for k in indices for value in dataset[k][0].unique()}


def test_a_store_that_is_replaced_gives_no_sample_of_the_other(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Also if both have the same fingerprint: inputs are known by their names and sizes."""
    out = fastdata.prep(two[0], tmp_path / "o.fds", **OPTIONS).out
    kept = Store(out).manifest
    dataset, unread, reader = LMDBDataset(out), LMDBDataset(out), Store(out).reader(kept.variants[0])
    with Loader(dataset, 3, num_workers=1) as loader:
        passing = iter(loader)
        next(passing)
    assert len(kept.shard_samples) == 10 and _values(dataset, range(5)) == {0}
    pickled = pickle.dumps(dataset), pickle.dumps(reader)
    shutil.move(two[0], tmp_path / "gone")
    shutil.copytree(two[1], two[0])
    for path in two[0].iterdir():
        os.utime(path, ns=(0, 0))
    fastdata.prep(two[0], out, overwrite=True, **OPTIONS)
    now = Store(out).manifest
    assert now.fingerprint == kept.fingerprint
    assert [s.bytes for s in now.variants[0].shards] == [s.bytes for s in kept.variants[0].shards]
    assert _values(dataset, range(6)) == {0}, "what is open stays open"
    for use in (
        lambda: dataset[6],
        lambda: unread[0],
        lambda: list(Loader(dataset, 3, num_workers=1)),
        lambda: pickle.loads(pickled[0])[0],
        lambda: pickle.loads(pickled[1]).get(29),
    ):
        with pytest.raises(StoreError, match=REPLACED):
            use()
    assert _values(LMDBDataset(out), range(30)) == {255}


@pytest.mark.parametrize("seen", [True, False])
def test_a_store_that_is_being_replaced_is_none(seen: bool, two: tuple[Path, Path], tmp_path: Path) -> None:
    """Between the first shard of the new store and its manifest, nothing is read from it."""
    out = fastdata.prep(two[0], tmp_path / "o.fds", **OPTIONS).out
    new = fastdata.prep(two[1], tmp_path / "n.fds", **OPTIONS).out
    dataset = LMDBDataset(out)
    if seen:
        assert _values(dataset, [0]) == {0}
    (out / "manifest.json").unlink()
    for old, file in zip(shards(out), shards(new), strict=True):
        shutil.copyfile(file, old.with_suffix(".new"))
        old.with_suffix(".new").replace(old)
    with pytest.raises(StoreError, match=REPLACED):
        dataset[29]
    with pytest.raises(StoreError, match="has no manifest"):
        LMDBDataset(out)


def test_a_shard_that_changes_its_size_while_its_store_is_open_is_an_error(tmp_path: Path) -> None:
    """By a whole page, which the reader does not need."""
    out = _copy(stores.store(), tmp_path)
    dataset = LMDBDataset(out)
    for file in shards(out):
        os.truncate(file, file.stat().st_size + PAGE)
    for use in (lambda: dataset[0], lambda: Store(out)):
        with pytest.raises(FormatError, match=r"shard-00000.mdb has \d+ bytes, the manifest says \d+: it was cut short or changed"):
            use()
    for file in shards(out):
        file.unlink()
    with pytest.raises(StoreError, match=r"shard-00000.mdb cannot be read: No such file or directory; copy the whole store again"):
        Store(out)


def test_columns_of_a_store_that_was_replaced_are_not_read(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 3)
    (tmp_path / "in" / "t.csv").write_text("path,score\n" + "".join(f"{k:02d}.png,{k / 2}\n" for k in range(3)))
    out = fastdata.prep(tmp_path / "in" / "t.csv", tmp_path / "o.fds", fields="score", label_column="none", workers=1).out
    read, unread = LMDBDataset(out), LMDBDataset(out)
    assert read.columns["score"].tolist() == [0, 0.5, 1]
    (out / "manifest.json").write_bytes((out / "manifest.json").read_bytes() + b"\n")
    assert read.columns["score"].tolist() == [0, 0.5, 1], "what is open stays open"
    with pytest.raises(StoreError, match=REPLACED):
        unread.columns["score"]


# ------------------------------------------------------------------------------------------------------- check="first"


@pytest.mark.parametrize("make", [LMDBDataset, MaskDataset])
def test_a_changed_pixel_is_an_error_when_its_record_is_first_read(make: Any, tmp_path: Path) -> None:
    made, folder, part = (stores.masked(), "mask-full", 1) if make is MaskDataset else (stores.store(), "96", 0)
    out = _copy(made, tmp_path)
    file = next(file for file in shards(out) if file.parent.name == folder)
    store = Store(out)
    variant = next(v for v in store.manifest.variants if v.name == file.parent.name)
    record = bytes(store.reader(variant).get(1))
    _flip(file, file.read_bytes().index(record) + len(record) // 2, 1)
    unchecked, checked = make(out), make(out, check="first")
    assert not np.array_equal(unchecked[1][part], make(made)[1][part])
    for dataset in (checked, pickle.loads(pickle.dumps(checked)), checked.subset([1, 0])):
        index = 1 if len(dataset) > 2 else 0
        for _ in range(2):
            with pytest.raises(FormatError, match=rf"sample 1 of {out} is not what was written: .* run fastdata verify {out}"):
                dataset[index]
        assert np.array_equal(dataset[1 - index][0], unchecked[0][0])
    with pytest.raises(FormatError, match="sample 1 of"), Loader(checked.subset([0, 2, 1]), 1, num_workers=1) as loader:
        list(loader)
    with pytest.raises(FormatError, match="sample 1 of"):
        RAMDataset(out, check="first", shared=False)


def test_check_takes_what_can_be_checked() -> None:
    with pytest.raises(ValueError, match="check is 'always', but must be 'first' or None"):
        LMDBDataset(stores.store(), check="always")
    with pytest.raises(ValueError, match="records of tokens have no checksums: use fastdata verify"):
        Store(stores.tokens(), kind=None, check="first")
    with pytest.raises(TypeError, match="check is not an argument"):
        RAMDataset(stores.arrays(), check="first")
    with pytest.raises(ValueError, match="image files have no checksums"):
        RAMDataset([], check="first")
