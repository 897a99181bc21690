"""CIFAR's python batches as SOURCE, whole, damaged, and with code in them."""

from __future__ import annotations

import pickle
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives import all_pixels, equal, run_printed
from fastdata import PrepError
from fastdata.sources.cifar import load_batch
from fastdata.sources.listing import list_sources
from fastdata.store.store import Store
from stores import folder
from support import PEAK_MEMORY, PREP, Array, run


def batch(count: int = 6, seed: int = 0, key: str = "labels", classes: int = 10) -> tuple[dict[bytes, Any], Array]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = [classes - 1, *rng.integers(0, classes, count - 1).tolist()]
    return {
        b"data": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2).reshape(count, 3072)),
        key.encode(): labels,
        b"filenames": [b"frog_%d.png" % k for k in range(count)],
        b"batch_label": b"training batch",
    }, pixels


def python2(value: dict[bytes, Any]) -> bytes:
    """As Python 2 with an old numpy pickled it, byte by byte: short strings, and the module of then."""

    def text(s: bytes) -> bytes:
        return b"U" + bytes([len(s)]) + s if len(s) < 256 else b"T" + struct.pack("<i", len(s)) + s

    array = value[b"data"]
    out = b"\x80\x02}q\x01("
    out += text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04("
    out += b"K\x01" + b"M" + struct.pack("<H", array.shape[0]) + b"M" + struct.pack("<H", array.shape[1]) + b"\x86"
    out += b"cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    out += b"\x89" + text(array.tobytes()) + b"tb"
    out += text(b"labels") + b"](" + b"".join(b"K" + bytes([k]) for k in value[b"labels"]) + b"e"
    out += text(b"filenames") + b"](" + b"".join(map(text, value[b"filenames"])) + b"e"
    return out + b"u."


def test_cifar_10_as_it_is_distributed(tmp_path: Path) -> None:
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    parts = [batch(seed=k) for k in range(2)]
    for k, (value, _) in enumerate(parts):
        (root / f"data_batch_{k + 1}").write_bytes(python2(value))
        assert pickle.loads((root / f"data_batch_{k + 1}").read_bytes(), encoding="bytes")[b"labels"] == value[b"labels"]
    test, test_pixels = batch(seed=9)
    (root / "test_batch").write_bytes(python2(test))
    names = [f"class {k}" for k in range(10)]
    (root / "batches.meta").write_bytes(pickle.dumps({"label_names": names, "num_cases_per_batch": 6}, 1))
    refused = run(*PREP, "cifar-10-batches-py", cwd=tmp_path)
    assert refused.returncode == 2 and "train and test side by side" in refused.stderr
    run_printed(refused.stderr, tmp_path)
    train = Store(tmp_path / "cifar-10-batches-py-train.fds")
    assert train.manifest.labels.names == tuple(names)
    assert train.samples["label"].tolist() == [k for value, _ in parts for k in value[b"labels"]]
    assert train.names()[7] == "data_batch_2/00001-frog_1.png"
    assert Store(tmp_path / "cifar-10-batches-py-test.fds").samples["label"].tolist() == test[b"labels"]
    equal(all_pixels(str(root / "data_batch_{1..2}")), np.concatenate([pixels for _, pixels in parts]))
    equal(all_pixels(root / "test_batch"), test_pixels)
    (root / "test_batch").unlink()
    assert len(list_sources(root).sources) == 12


def test_cifar_100(tmp_path: Path) -> None:
    value, pixels = batch(key="fine_labels", classes=100)
    value[b"coarse_labels"] = [0] * 6
    (tmp_path / "train").write_bytes(pickle.dumps(value))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"n%d" % k for k in range(100)]}))
    found = list_sources(tmp_path)
    assert [s.label for s in found.sources] == value[b"fine_labels"] and found.labels.names[99] == "n99"
    equal(all_pixels(tmp_path / "train"), pixels)
    (tmp_path / "test").write_bytes(pickle.dumps(value))
    with pytest.raises(PrepError, match=r"train .*-train\.fds\n.*test .*-test.fds --classes"):
        list_sources(tmp_path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_that_python_3_pickled(tmp_path: Path, protocol: int, order: Any) -> None:
    value, pixels = batch()
    value[b"data"] = np.asarray(value[b"data"], order=order)
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(value, protocol))
    equal(all_pixels(path), pixels)
    value[b"labels"] = np.array(value[b"labels"], ">i4")
    path.write_bytes(pickle.dumps(value, protocol))
    assert [s.label for s in list_sources(path).sources] == value[b"labels"].tolist()


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _evil(path: Path) -> list[tuple[str, bytes]]:
    import os

    touch = f"touch {path}"
    good = batch()[0]
    array = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncbuiltins\nlist\nK\x00\x85U\x01b\x87R."
    return [
        (r"(posix|nt)\.system", pickle.dumps({**good, b"x": _Calls(os.system, touch)})),
        (r"builtins\.(eval|exec)", pickle.dumps({**good, b"x": _Calls(eval, f"open({str(path)!r}, 'w')")})),
        (r"os\.system", b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR."),
        (r"builtins\.getattr", pickle.dumps({**good, b"x": _Calls(getattr, "", "join")})),
        (r"numpy\.load", b"\x80\x02cnumpy\nload\nU\x01x\x85R."),
        (r"numpy\.core\.multiarray\.os", b"\x80\x04\x8c\x15numpy.core.multiarray\x8c\x02os\x93."),
        (r"numpy\.ndarray\.__class__", b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."),
        (r"builtins\.list", array),
        ("an array of O", b"\x80\x02cnumpy\ndtype\nU\x01OK\x00K\x01\x87R."),
        ("an array of parts", b"\x80\x02cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNK\x04K\x01K\x3ftb."),
        ("the encoding rot13", b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."),
        ("copyreg|collections", pickle.dumps(OrderedDict(good))),
    ]


@pytest.mark.parametrize("which", range(12))
def test_code_in_a_pickle_is_refused_by_name_and_not_run(tmp_path: Path, which: int) -> None:
    mark = tmp_path / "ran"
    name, data = _evil(mark)[which]
    (tmp_path / "data_batch_1").write_bytes(data)
    with pytest.raises(PrepError, match=rf"data_batch_1 asks for {name}.*was not run"):
        list_sources(tmp_path / "data_batch_1")
    assert not mark.exists()
    if which == 2:
        pickle.loads(data)  # it would have run
        assert mark.exists()


def test_a_class_list_with_code_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch()[0]))
    (tmp_path / "batches.meta").write_bytes(_evil(tmp_path / "ran")[0][1])
    with pytest.raises(PrepError, match=r"batches\.meta asks for"):
        list_sources(tmp_path)
    for wrong in ({}, {b"label_names": 3}, {b"label_names": [1]}):
        (tmp_path / "batches.meta").write_bytes(pickle.dumps(wrong))
        with pytest.raises(PrepError, match=r"batches\.meta has no list of names"):
            list_sources(tmp_path)
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b"]}))
    with pytest.raises(PrepError, match="the label 9 has no name"):
        list_sources(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": np.zeros((6, 3071), np.uint8)}, r"data is uint8 \[6, 3071\], not uint8 \[n, 3072\]"),
        ({b"data": np.zeros((6, 3072), np.int16)}, r"data is int16"),
        ({b"data": b"bytes"}, "data is bytes"),
        ({b"labels": [1] * 5}, "but no list of as many labels"),
        ({b"labels": ["x"] * 6}, "no list of as many labels"),
        ({b"filenames": [1] * 6}, "no list of as many names"),
    ],
)
def test_batches_of_something_else_are_errors(tmp_path: Path, change: dict[bytes, Any], message: str) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps({**batch()[0], **change}))
    with pytest.raises(PrepError, match=message):
        list_sources(tmp_path / "test_batch")


def test_a_number_of_an_object_takes_no_memory(tmp_path: Path) -> None:
    """Python's unpickler makes a table of 16 bytes for each number up to the largest."""
    data = python2(batch()[0])
    assert data[3:5] == b"q\x01"
    path = tmp_path / "data_batch_1"
    path.write_bytes(data[:3] + b"r\xff\xff\xff\x0f" + data[5:])
    code = f"{PEAK_MEMORY}\nimport sys, pathlib\nfrom fastdata.sources.cifar import load_batch\n"
    code += "try: load_batch(pathlib.Path(sys.argv[1]))\nexcept Exception as error: print(error, peak_memory() < 1 << 30)"
    done = run(sys.executable, "-c", code, path)
    assert done.stdout.endswith("damaged: ValueError: it has no object of the number 268435455 True\n"), done


def test_damaged_batches_are_errors(tmp_path: Path) -> None:
    data = python2(batch(2)[0])
    for wrong in (b"", b"no pickle", data[: len(data) // 2], data[:40] + b"\xff" + data[41:], pickle.dumps([1])):
        (tmp_path / "test_batch").write_bytes(wrong)
        with pytest.raises(PrepError, match=r"test_batch (is not a CIFAR batch|asks for)"):
            load_batch(tmp_path / "test_batch")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_an_error_or_harmless(data: st.DataObject) -> None:
    good = python2(batch(1)[0])
    place, byte = data.draw(st.integers(0, 250)), data.draw(st.integers(0, 255))
    path = folder() / "test_batch"
    place = place if place < 150 else len(good) - (place - 149)
    path.write_bytes(good[:place] + bytes([byte]) + good[place + 1 :])
    try:
        found = load_batch(path)
    except PrepError:
        return
    assert found.pixels.shape[1:] == (3, 32, 32) and len(found.labels) == len(found.pixels)
