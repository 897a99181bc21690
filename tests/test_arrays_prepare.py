"""Preparing arrays: what files hold, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import from_dtype

import fastdata
from fastdata import ArrayDataset
from fastdata.arrays.files import check_values
from fastdata.errors import PrepError
from fastdata.prepare.build_plan import choose_kind
from fastdata.store.columns import NUMBERS
from fastdata.store.export import export
from fastdata.store.store import Store
from support import Array, encode, picture, shards, tree
from test_arrays import noise, save


def rejects(out: Path) -> dict[str, str]:
    return {r["name"]: r["reason"] for r in map(json.loads, (out / "rejects.jsonl").read_text().splitlines())}


def packed(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def header(shape: str, descr: str = "<u2") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text) + 1) + text + b"\n"


# What is refused


@pytest.mark.slow
def test_hostile_files_are_rejects(tmp_path):
    root, good = tmp_path / "in", noise((8, 9, 10), "uint16")
    data = packed(good)
    files = {
        "empty.npy": (b"", "undecodable"),
        "cut.npy": (data[:-1], "undecodable"),
        "longer.npy": (data + b"x", "trailing"),
        "text.npy": (b"1 2 3\n", "undecodable"),
        "pickle.npy": (packed(np.array([{"a": 1}], object)), "undecodable"),
        "negative.npy": (header("(-1, 4, 4)"), "undecodable"),
        "huge.npy": (header("(4294967296, 4294967296, 4294967296)"), "undecodable"),
        "large.npy": (header("(70000, 70000, 1)") + bytes(100), "undecodable"),
        "strings.npy": (packed(np.array([["a", "b"]])), "dtype"),
        "complex.npy": (packed(np.zeros((8, 9, 10), complex)), "dtype"),
        "nothing.npy": (packed(np.zeros((4, 0, 4), np.uint16)), "empty"),
        "flat.npy": (packed(good[0]), "axes"),
        "negatives.npy": (packed(good.astype(np.int32) - 40_000), "range"),
        "halves.npy": (packed(good / 2), "range"),
        "nan.npy": (packed(np.full((2, 2, 2), np.nan)), "range"),
        "broken.npz": (b"PK\x03\x04" + bytes(60), "undecodable"),
        "none.npz": (b"PK\x05\x06" + bytes(18), "undecodable"),
        "file.gz": (b"\x1f\x8b", "unsupported"),
    }
    wanted = {name: reason for name, (_, reason) in files.items()} | {"link.npy": "broken-link"}
    save(root, {"a": good, "b": good.astype(np.int64), "c": good.astype(np.float32), "d": np.asfortranarray(good)})
    for name, (content, _) in files.items():
        (root / name).write_bytes(content)
    (root / "link.npy").symlink_to("gone.npy")
    done = fastdata.prep(root, tmp_path / "o.fds", workers=2)
    assert rejects(done.out) == wanted
    assert done.kept == 4 and done.inputs == 4 + len(wanted)
    for found, _ in ArrayDataset(done.out):
        np.testing.assert_array_equal(found.numpy(), good)
    for line in (done.out / "rejects.jsonl").read_text().splitlines():
        assert str(tmp_path) not in line


def test_masks_that_do_not_fit_are_rejects(tmp_path):
    good = noise((8, 9, 10), "float32")
    save(tmp_path / "in", dict.fromkeys("fine small wide negative halves cut alone many".split(), good))
    masks = {"fine": good > 0, "small": (good > 0)[1:], "wide": np.full(good.shape, 256), "negative": np.full(good.shape, -1)}
    save(tmp_path / "m", {**masks, "halves": np.full(good.shape, 0.5), "stray": good > 0})
    (tmp_path / "m/cut.npy").write_bytes(packed(good > 0)[:-1])
    np.savez(tmp_path / "m/many.npz", a=good > 0, b=good > 1)
    done = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", masks=tmp_path / "m", workers=1)
    assert rejects(done.out) == {
        "small.npy": "mask-size",
        "wide.npy": "mask-range",
        "negative.npy": "mask-range",
        "halves.npy": "mask-range",
        "cut.npy": "mask-undecodable",
        "alone.npy": "missing-field",
        "many.npy": "mask-several-arrays",
    }
    assert done.kept == 1 and "mask: 1 file without an input: stray.npy" in done.notes
    np.testing.assert_array_equal(ArrayDataset(done.out)[0][1].numpy(), good > 0)
    wide = fastdata.prep(tmp_path / "in", tmp_path / "w.fds", masks=tmp_path / "m", mask_bits=16, workers=1)
    assert "wide.npy" not in rejects(wide.out) and ArrayDataset(wide.out).ignore_index == 65535


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["bool", "uint64", *NUMBERS]), st.sampled_from(NUMBERS), st.booleans(), st.data())
def test_values_are_never_changed_silently(source: str, target: str, rounded: bool, data: st.DataObject) -> None:
    """Python compares integers and floats exactly."""
    whole = st.sampled_from([0, 1, -7, 255, 256, 2**24 + 1, 2**53 + 1, 2**63 - 1, -(2**63)]).filter(
        lambda n: np.can_cast(np.min_scalar_type(n), source)
    )
    values = np.array(data.draw(st.lists(from_dtype(np.dtype(source)) | whole, min_size=1, max_size=4)), source)
    with np.errstate(all="ignore"):
        stored = values.astype(target)
    pairs = list(zip(values.tolist(), stored.tolist(), strict=True))
    fits = all(a == b or (a != a and b != b) for a, b in pairs)
    if rounded and np.dtype(target).kind == "f":
        fits = not any(math.isinf(b) and not math.isinf(a) for a, b in pairs)
    with nullcontext() if fits else pytest.raises(fastdata.errors.CodecError, match="is not exact in"):
        check_values(values, target, rounded=rounded)


def test_a_dtype_can_be_chosen(tmp_path):
    values = noise((6, 7, 8), "float64")
    values[0, 0] = np.nan, np.inf, -np.inf, -0.0, 1e-40, 0, 1, 2
    save(tmp_path / "in", {"a": values, "b": values.astype(">f4")})
    for dtype in (None, "float32"):
        made = fastdata.prep(tmp_path / "in", tmp_path / f"{dtype}.fds", dtype=dtype, workers=1)
        for (found, _), want in zip(ArrayDataset(made.out), (values, values.astype(np.float32)), strict=True):
            assert found.dtype == getattr(torch, dtype or "float64")
            np.testing.assert_array_equal(found.numpy(), want.astype(dtype or "float64"))
    with pytest.raises(ValueError, match="dtype is uint64, but must be one of uint8"):
        fastdata.prep(tmp_path / "in", tmp_path / "x.fds", dtype="uint64")


# Where arrays come from


def test_archives_and_tables_of_arrays(tmp_path):
    a, b = noise((8, 9), "uint8"), noise((12, 5), "uint8", 1)
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in/one.npz", only=a)
    np.savez_compressed(tmp_path / "in/two.npz", image=a, other=np.asfortranarray(b))
    every = ArrayDataset(fastdata.prep(tmp_path / "in", tmp_path / "e.fds", workers=1).out)
    assert [every.name(k) for k in range(3)] == ["one.npz", "two.npz/image", "two.npz/other"]
    for (found, _), want in zip(every, (a, a, b), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    chosen = fastdata.prep(tmp_path / "in", tmp_path / "c.fds", key="other", workers=1)
    assert rejects(chosen.out) == {"one.npz": "no-such-key"}
    np.testing.assert_array_equal(ArrayDataset(chosen.out)[0][0].numpy(), b)
    np.save(tmp_path / "v.npy", b)
    (tmp_path / "list.csv").write_text("path,label,age\nin/two.npz,x,0.5\nv.npy,y,0.75\n")
    listed = ArrayDataset(fastdata.prep(tmp_path / "list.csv", tmp_path / "l.fds", workers=1).out)
    assert listed.classes == ["x", "y"] and listed.targets.tolist() == [0, 0, 1] and listed.name(2) == "v.npy"
    options = {"labels": tmp_path / "list.csv", "regression": "age"}
    aged = ArrayDataset(fastdata.prep(tmp_path / "v.npy", tmp_path / "f.fds", **options, workers=1).out)
    assert aged[0][1].tolist() == [0.75]


def test_the_kind_is_told_by_the_endings(tmp_path):
    save(tmp_path / "arrays/a", {"1": np.zeros(3)})
    shutil.copytree(tmp_path / "arrays", tmp_path / "mixed")
    (tmp_path / "mixed/a/x.png").write_bytes(encode(picture(0, 8, 8), ".png"))
    assert choose_kind(tmp_path / "arrays", {}).name == "arrays" and choose_kind(tmp_path / "mixed", {}).name == "images"
    with pytest.raises(ValueError, match=r"chunk is 64,64, but must have a positive number for each axis"):
        fastdata.prep(tmp_path / "arrays", tmp_path / "o.fds", chunk=(64, 64))
    with pytest.raises(PrepError, match=r"nothing in .* can be read; one error: a/1.npy: it is damaged"):
        (tmp_path / "arrays/a/1.npy").write_bytes(b"")
        fastdata.prep(tmp_path / "arrays", tmp_path / "o.fds")


# Through nibabel


def test_nifti(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    (tmp_path / "in").mkdir()
    values = noise((9, 10, 11), "int16") // 4
    plain, scaled = (nibabel.Nifti1Image(values, np.eye(4)) for _ in range(2))
    scaled.header.set_slope_inter(2, -5)
    swapped = nibabel.Nifti1Image(values, np.eye(4), plain.header.as_byteswapped())
    images = {"plain.nii": plain, "second.nii.gz": nibabel.Nifti2Image(values, np.eye(4)), "swapped.nii.gz": swapped}
    for name, image in (images | {"whole.nii.gz": scaled}).items():
        nibabel.save(image, tmp_path / "in" / name)
    data = (tmp_path / "in/second.nii.gz").read_bytes()
    flipped = data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]
    files = {"cut.nii.gz": data[:-3], "flipped.nii.gz": flipped, "cut.nii": (tmp_path / "in/plain.nii").read_bytes()[:-3]}
    for name, content in {**files, "empty.nii": b""}.items():
        (tmp_path / "in" / name).write_bytes(content)
    done = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1)
    found = rejects(done.out)
    assert found.pop("empty.nii") and found == dict.fromkeys(files, "undecodable") and done.kept == 4
    dataset = ArrayDataset(done.out)
    for k in range(4):
        want = np.asanyarray(nibabel.load(tmp_path / "in" / dataset.name(k)).dataobj)
        np.testing.assert_array_equal(dataset[k][0].numpy(), want)
    assert dataset[0][0].dtype == torch.int16 and "nibabel" in Store(done.out, kind=None).manifest.libraries
    scaled.header.set_slope_inter(0.37, 11.5)
    nibabel.save(scaled, tmp_path / "float.nii.gz")
    alone = ArrayDataset(fastdata.prep(tmp_path / "float.nii.gz", tmp_path / "f.fds", workers=1).out)
    want = np.asanyarray(nibabel.load(tmp_path / "float.nii.gz").dataobj)
    np.testing.assert_array_equal(alone[0][0].numpy(), want.astype(np.float32))


def test_a_mask_of_nifti_lies_where_its_volume_does(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    values, affine = noise((9, 10, 11), "int16"), np.diag([0.7, 0.7, 3.0, 1.0])
    for folder, dtype in (("in", "int16"), ("masks", "uint8")):
        (tmp_path / folder).mkdir()
        for k, flip in enumerate([(1, 1, 1), (-1, -1, 1), (1, 1, 2)]):
            own = affine if folder == "in" else affine * np.array([*flip, 1.0]) + 1e-4
            nibabel.save(nibabel.Nifti1Image((values % 3).astype(dtype), own), tmp_path / folder / f"{k}.nii.gz")
    done = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", masks=tmp_path / "masks", workers=1)
    assert done.kept == 1 and rejects(done.out) == dict.fromkeys(["1.nii.gz", "2.nii.gz"], "mask-geometry")
    assert "its affine differs from that of its volume: resample it" in done.first_reject


# The store


def test_any_number_of_workers_makes_the_same_store_and_export_writes_the_originals(tmp_path):
    """Volumes in two classes, with masks; one is damaged."""
    arrays = {f"{'ab'[k % 2]}/{k:02d}": noise((60 + k, 64, 80), "uint16", k) for k in range(12)}
    masks = {name: a % 5 for name, a in arrays.items()}
    save(tmp_path / "in", arrays)
    save(tmp_path / "masks", {**masks, "b/bad": np.zeros(1)})
    (tmp_path / "in/b/bad.npy").write_bytes(b"x")
    one, two = (fastdata.prep(tmp_path / "in", tmp_path / f"{n}.fds", masks=tmp_path / "masks", workers=n).out for n in (1, 2))
    assert tree(one) == tree(two) and len(shards(two)) > 10 and rejects(two) == {"b/bad.npy": "undecodable"}
    again = fastdata.prep(tmp_path / "in", two, masks=tmp_path / "masks", workers=1)
    assert again.resumed == again.inputs == 13
    assert export(two, tmp_path / "out") == 12
    for kind, values in (("arrays", arrays), ("masks", masks)):
        for name, array in values.items():
            np.testing.assert_array_equal(np.load(tmp_path / "out" / kind / f"{name}.npy"), array)
