"""idx files as SOURCE, whole and hostile."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives import all_pixels, equal, problems, run_printed
from fastdata import PrepError, prep
from fastdata.sources.listing import list_sources
from fastdata.store.store import Store
from stores import folder, whole
from support import PREP, Array, run

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx(array: Array) -> bytes:
    """The format as its author describes it."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def mnist(root: Path, split: str = "train", count: int = 20, *, packed: bool = False, seed: int = 0) -> tuple[Path, Array, Array]:
    """A pair of files."""
    root.mkdir(exist_ok=True, parents=True)
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8)
    labels[0] = 9
    for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
        data = idx(array)
        (root / f"{name}.gz" if packed else root / name).write_bytes(gzip.compress(data) if packed else data)
    return root / f"{split}-images-idx3-ubyte{'.gz' * packed}", images, labels


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path: Path, packed: bool) -> None:
    path, images, labels = mnist(tmp_path / "in", packed=packed)
    found = list_sources(path)
    assert [s.label for s in found.sources] == labels.tolist() and found.labels.names == tuple("0123456789")
    assert found.sources[3].name == f"{path.name}/000003" and sum(s.size for s in found.sources) == path.stat().st_size
    equal(all_pixels(path), images)
    made = Store(prep(path, tmp_path / "o.fds", codec="rgb", gray=True, workers=2).out)
    assert made.samples["label"].tolist() == labels.tolist()
    np.testing.assert_array_equal(np.stack(whole(made.path))[..., 0], images)
    assert run(*PREP, path, cwd=tmp_path).returncode == 0
    assert len(Store(tmp_path / "train-images-idx3-ubyte.fds")) == 20


def test_packed_files_can_be_read_in_any_order_and_with_any_number_of_workers(tmp_path: Path) -> None:
    path, images, labels = mnist(tmp_path / "in", count=300, packed=True)
    stores = [prep(path, tmp_path / f"{w}.fds", codec="png", gray=True, workers=w).out for w in (1, 3)]
    assert (stores[0] / "manifest.json").read_bytes() == (stores[1] / "manifest.json").read_bytes()
    some = Store(prep(path, tmp_path / "some.fds", codec="rgb", gray=True, limit=7, workers=2).out)
    chosen = [k * 300 // 7 for k in range(7)]
    np.testing.assert_array_equal(np.stack(whole(some.path))[..., 0], images[chosen])
    assert some.samples["label"].tolist() == labels[chosen].tolist()


@pytest.mark.parametrize("shape", [(5, 4, 7), (3, 4, 7, 3), (3, 4, 7, 1)])
def test_colours_and_files_without_labels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    (tmp_path / "kuzu.images-idx3-ubyte").write_bytes(idx(images))
    found = list_sources(tmp_path / "kuzu.images-idx3-ubyte")
    assert found.labels.kind == "none"
    equal(all_pixels(tmp_path / "kuzu.images-idx3-ubyte"), images[..., 0] if shape[3:] == (1,) else images)


@pytest.mark.parametrize("between", [("-", "-"), ("-", "."), (".", "-")])
def test_labels_are_found_however_the_file_was_renamed(tmp_path: Path, between: tuple[str, str]) -> None:
    _, images, labels = mnist(tmp_path)
    a, b = between
    (tmp_path / f"t10k-images{a}idx3{b}ubyte").write_bytes(idx(images))
    (tmp_path / f"t10k-labels{a}idx1{b}ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    assert [s.label for s in list_sources(tmp_path / f"t10k-images{a}idx3{b}ubyte").sources] == labels.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_train_and_test_side_by_side_are_refused_with_commands_that_work(tmp_path: Path, packed: bool) -> None:
    for split, seed in (("t10k", 1), ("train", 2)):
        mnist(tmp_path / "my mnist", split, packed=packed, seed=seed)
    refused = run(*PREP, "my mnist", cwd=tmp_path)
    assert refused.returncode == 2 and "train and t10k side by side" in refused.stderr
    run_printed(refused.stderr, tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.fds")) == ["my mnist-t10k.fds", "my mnist-train.fds"]
    assert {Store(p).manifest.labels.names for p in tmp_path.glob("*.fds")} == {tuple("0123456789")}


def test_a_folder_with_one_split_and_both_forms_of_it(tmp_path: Path) -> None:
    _, images, _ = mnist(tmp_path)
    mnist(tmp_path, packed=True)
    assert list_sources(tmp_path).sources[0].name == "train-images-idx3-ubyte/000000"
    equal(all_pixels(tmp_path), images)


GOOD = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an idx file: it begins with nothing"),
        (b"\0\0\x08", "is not an idx file: it begins with 00 00 08"),
        (b"\0\0\x07\x03" + idx(GOOD)[4:], "is not an idx file: it begins with 00 00 07 03"),
        (b"\0\x01\x08\x03" + idx(GOOD)[4:], "is not an idx file"),
        (b"\0\0\x08\xff" + idx(GOOD)[4:], "is not an idx file"),
        (idx(GOOD)[:-1], r"says 3 x 4 x 5 = 60 bytes, but 59 follow: it was cut short"),
        (idx(GOOD) + b"\0", "but 61 follow"),
        (idx(GOOD)[:10], "cut short"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "but 0 follow"),
        (idx(GOOD[0, 0]), "holds 1 dimensions, 5; .*give the file of the images"),
        (idx(GOOD[0]), "holds 2 dimensions, 4 x 5; images are"),
        (idx(np.zeros((2, 3, 4, 2), np.uint8)), "holds 4 dimensions"),
        (idx(GOOD.astype(np.float32)), "holds float32; only uint8 is read"),
    ],
)
def test_wrong_idx_files_are_errors(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(PrepError, match=message):
        list_sources(path)
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(data))
    with pytest.raises(PrepError, match=message):
        list_sources(packed)


def test_wrong_packing_and_wrong_labels_are_errors(tmp_path: Path) -> None:
    path, images, labels = mnist(tmp_path, packed=True)
    data = path.read_bytes()
    for wrong, message in (
        (data[:-400], "EOFError"),
        (b"no gzip", "not a gzip|Not a gzip"),
        (data[:200] + b"\xff" * 50 + data[250:], ""),
    ):
        path.write_bytes(wrong)
        with pytest.raises(PrepError, match=f"cannot read .*{message}"):
            list_sources(path)
    path.write_bytes(data)
    beside = tmp_path / "train-labels-idx1-ubyte.gz"
    for wrong, message in (
        (idx(labels[:-1]), "holds 19 labels.* 20 images"),
        (idx(images), "do not match"),
        (idx(labels)[:-1], "cut short"),
    ):
        beside.write_bytes(gzip.compress(wrong))
        with pytest.raises(PrepError, match=message):
            list_sources(path)


def test_a_file_cut_short_after_it_was_listed(tmp_path: Path) -> None:
    for packed in (False, True):
        path, _, _ = mnist(tmp_path, packed=packed)
        found, data = list_sources(path), path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        reasons = problems(found)
        assert reasons[0] == "" and reasons[-1] == "truncated"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 4))
def test_any_bytes_are_an_error_or_what_they_say(tail: bytes, count: int, dimensions: int) -> None:
    path = folder() / "x-images-idx3-ubyte"
    path.write_bytes(struct.pack(">BBBB", 0, 0, 8, dimensions) + struct.pack(f">{dimensions}I", *[count] * dimensions) + tail)
    try:
        found = list_sources(path)
    except PrepError:
        assert dimensions < 3 or len(tail) != count**dimensions or count == 0 or (dimensions == 4 and count == 2)
    else:
        wanted = np.frombuffer(tail, np.uint8).reshape([count] * dimensions)
        equal(all_pixels(path), wanted[..., 0] if dimensions == 4 and count == 1 else wanted)
        assert len(found.sources) == count
