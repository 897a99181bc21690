"""WebDataset tars as SOURCE, and as what export writes; against Python's tarfile."""

from __future__ import annotations

import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archives import all_pixels, equal, pixels_of, png, problems, write_table, write_tar
from fastdata import prep
from fastdata.errors import PrepError
from fastdata.sources.listing import list_sources
from fastdata.store.export import export
from fastdata.store.store import Store
from stores import folder, store, unlabelled, whole, write_files
from support import encode, picture, run


def _names(source: Any) -> list[str]:
    return [s.name for s in list_sources(source).sources]


def _labels(source: Any) -> tuple[tuple[str, ...], list[Any]]:
    found = list_sources(source)
    return found.labels.names, [s.label for s in found.sources]


def _header(name: str, kind: bytes, **more: Any) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type = kind
    for key, value in more.items():
        setattr(header, key, value)
    return header


# Reading


def test_samples_come_in_their_order_with_pixels_and_classes(tmp_path: Path) -> None:
    images = [png(k, 9 + k, 12) for k in range(7)]
    for shard, part in (("000", images[:4]), ("001", images[4:])):
        rows = [[(f"a/{k}.cls", b"%d\n" % (k % 3)), (f"a/{k}.png", data)][:: 1 - 2 * (k % 2)] for k, (_, data) in enumerate(part)]
        write_tar(tmp_path / f"s-{shard}.tar", [member for row in rows for member in row])
    source = str(tmp_path / "s-{000..001}.tar")
    assert _names(source) == [f"s-00{k // 4}.tar/a/{k % 4}.png" for k in range(7)]
    assert _names(tmp_path) == _names(str(tmp_path / "*.tar")) == _names(source)
    made = Store(prep(source, tmp_path / "o.fds", codec="rgb", workers=2).out)
    assert made.names() == _names(source) and made.samples["label"].tolist() == [0, 1, 2, 0, 0, 1, 2]
    equal(whole(made.path), [pixels for pixels, _ in images])


@pytest.mark.parametrize(
    ("files", "names", "labels"),
    [
        ([{"json": b'{"label": 2, "cls": 0}'}, {"json": b'{"cls": 0}'}], ("0", "1", "2"), [2, 0]),
        ([{"json": b'{"label": "x"}'}, {"json": b'{"label": "a"}', "txt": b"a caption"}], ("a", "x"), [1, 0]),
        ([{"cls": b"1", "json": b'{"label": 0}'}], ("0", "1"), [1]),
        ([{"txt": b"no label"}, {"json": b"{"}], (), [-1, -1]),
    ],
)
def test_labels(tmp_path: Path, files: list[dict[str, bytes]], names: tuple[str, ...], labels: list[Any]) -> None:
    rows = [
        (f"{k}.{ending}", data) for k, row in enumerate(files) for ending, data in [("jpg", encode(picture(k, 8, 8))), *row.items()]
    ]
    write_tar(tmp_path / "x.tar", rows)
    assert _labels(tmp_path / "x.tar") == (names, labels)


def test_samples_without_a_label_among_others_are_rejects(tmp_path: Path) -> None:
    data = png(0)[1]
    write_tar(tmp_path / "x.tar", [("0.png", data), ("0.cls", b"1"), ("1.png", data), ("2.png", data), ("2.cls", b" ")])
    assert problems(list_sources(tmp_path / "x.tar")) == ["", "no-label", "no-label"]
    (tmp_path / "t.csv").write_text("path,x\nx.tar/1.png,0.5\nx.tar/2.png,0.25\n")
    summary = prep(tmp_path / "x.tar", tmp_path / "o.fds", labels=tmp_path / "t.csv", regression="x", workers=1)
    assert Store(summary.out).samples["label"].tolist() == [[0.5], [0.25]] and summary.rejected == {"no-label": 1}


def test_which_member_is_the_image(tmp_path: Path) -> None:
    data = png(0)[1]
    rows = [
        ("./a/0.png", data), ("./a/0.mask.png", data), ("./a/0.txt", b""),
        ("1.left.PNG", data), ("1.cls", b"0"),
        ("2.png", data), ("2.jpg", data),
        ("3.txt", b"no image"),
        ("4.left.png", data), ("4.right.png", data),
        ("__meta__", b""), (".hidden.png", data), ("README", b""), ("b.c/5.png", data), ("b.c/5.json", b"[]"),
    ]  # fmt: skip
    write_tar(tmp_path / "x.tar", rows)
    found = list_sources(tmp_path / "x.tar")
    assert [(s.name.removeprefix("x.tar/"), s.problem) for s in found.sources] == [
        ("a/0.png", "no-label"),
        ("1.left.PNG", ""),
        ("2", "two-images"),
        ("3", "no-image"),
        ("4", "two-images"),
        ("b.c/5.png", "no-label"),
    ]
    skipped = {".mask.png": 1, ".txt": 2, "__meta__": 1, ".hidden.png": 1, "README": 1, ".json": 1}
    assert found.skipped == skipped
    np.testing.assert_array_equal(pixels_of(found, 0), png(0)[0])


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_names_that_are_not_utf_8(tmp_path: Path, form: int) -> None:
    long = "d" * 90 + "/" + "n" * (60 if form == tarfile.USTAR_FORMAT else 220)
    names = [f"{long}.png", "caf\udce9.png", "新.png", "with space\n.png"]
    members = [(name, png(k)[1]) for k, name in enumerate(names)]
    path = write_tar(tmp_path / "x.tar", members, format=form, encoding="utf-8", errors="surrogateescape")
    assert _names(path) == [f"x.tar/{name}" for name in names]
    equal(all_pixels(path), [png(k)[0] for k in range(4)])
    assert Store(prep(path, tmp_path / "o.fds", workers=1).out).names() == _names(path)


def test_what_is_no_plain_file_is_rejected_or_left_out(tmp_path: Path) -> None:
    pixels, data = png(0)
    rows: list[tuple[str | tarfile.TarInfo, bytes]] = [
        (_header("d", tarfile.DIRTYPE), b""),
        ("0.png", data),
        (_header("1.png", tarfile.LNKTYPE, linkname="0.png"), b""),
        (_header("2.png", tarfile.SYMTYPE, linkname="/etc/passwd"), b""),
        (_header("3.png", tarfile.CHRTYPE, devmajor=1, devminor=5), b""),
        (_header("4.png", tarfile.FIFOTYPE), b""),
        ("5.png", data),
        (_header("5.cls", tarfile.SYMTYPE, linkname="/etc/passwd"), b""),
    ]
    found = list_sources(write_tar(tmp_path / "x.tar", rows))
    assert problems(found) == ["", *["not-a-file"] * 4, ""] and found.labels.kind == "none"
    np.testing.assert_array_equal(pixels_of(found, 5), pixels)


@pytest.mark.parametrize("form", ["--format=gnu", "--sparse-version=0.0", "--sparse-version=1.0"])
def test_sparse_members_are_rejected_by_name_and_those_behind_are_read(tmp_path: Path, form: str) -> None:
    pixels, data = png(0)
    for name in ("0.png", "2.png"):
        (tmp_path / name).write_bytes(data)
    with (tmp_path / "1.png").open("wb") as file:
        for k in range(9):  # more holes than one header has room for
            file.seek(k << 18)
            file.write(b"x" * 8192)
    assert run("tar", form, "-S", "-cf", "x.tar", "0.png", "1.png", "2.png", cwd=tmp_path).returncode == 0
    found = list_sources(tmp_path / "x.tar")
    assert [s.name for s in found.sources][::2] == ["x.tar/0.png", "x.tar/2.png"] and problems(found) == ["", "unsupported", ""]
    np.testing.assert_array_equal(pixels_of(found, 2), pixels)


def test_members_of_a_sample_that_lie_apart_or_come_twice_are_errors(tmp_path: Path) -> None:
    data = png(0)[1]
    write_tar(tmp_path / "x.tar", [("0.png", data), ("1.png", data), ("0.cls", b"1")])
    with pytest.raises(PrepError, match=r"the members of sample '0' are not adjacent; .* tar --sort=name"):
        list_sources(tmp_path / "x.tar")
    for twice in ("0.cls", "0.CLS"):
        write_tar(tmp_path / "x.tar", [("0.png", data), ("0.cls", b"1"), (twice, b"2")])
        with pytest.raises(PrepError, match=r"x\.tar has the member '0\.cls' twice"):
            list_sources(tmp_path / "x.tar")


# Hostile tars


@pytest.fixture(scope="module")
def ten() -> bytes:
    """A tar of ten samples of two members, 2,048 bytes each, and 20 blocks of zeros."""
    rows = [m for k in range(10) for m in ((f"{k}.png", png(k, 4, 4)[1]), (f"{k}.cls", b"1"))]
    assert all(len(data) <= 512 for _, data in rows)
    return write_tar(folder() / "x.tar", rows, format=tarfile.USTAR_FORMAT).read_bytes()


def test_a_tar_that_is_not_whole_is_an_error(ten: bytes) -> None:
    """Cut anywhere, zeroed from anywhere on, or with a bit of any header flipped: Python's tarfile alone ends silently."""
    path, end, rng = folder() / "x.tar", 2048 * 10, np.random.default_rng(0)
    cuts = [ten[:length] for length in (*range(0, end + 1024, 131), *range(0, end + 1024, 512), len(ten) - 512)]
    zeroed = [ten[:header] + bytes(len(ten) - header) for header in range(1024, end, 1024)]
    flipped = []
    for header in range(0, end + 512, 512 * 2):
        data = bytearray(ten)
        data[header + rng.integers(512)] ^= 1 << rng.integers(8)
        flipped.append(bytes(data))
    for data in (*cuts, *zeroed, *flipped, ten + ten, b"this is no tar" * 99):
        path.write_bytes(data)
        with pytest.raises(PrepError, match=r"x\.tar .*; copy it again"):
            list_sources(path)
    for data in (ten, ten[: end + 1024]):
        path.write_bytes(data)
        assert problems(list_sources(path)) == [""] * 10


def test_a_tar_cut_after_it_was_listed(tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(ten)
    found = list_sources(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(ten[: 2048 * 6 + 530])
    assert problems(found) == [""] * 6 + ["truncated"] * 4


def test_a_pointer_and_a_compressed_tar_are_refused_with_advice(tmp_path: Path) -> None:
    for name in ("x.tar", "x.parquet", "x.arrow"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(PrepError, match=rf"{name} is a pointer of Git LFS.*git lfs pull"):
            list_sources(tmp_path / name)
    for name in ("x.tar.gz", "x.tgz", "x.tar.zst"):
        (tmp_path / name).write_bytes(b"\x1f\x8b\x08")
        with pytest.raises(PrepError, match=rf"{name} is compressed.*decompress it"):
            list_sources(tmp_path / name)


def test_another_classes_json_is_left_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("0.png", png(0)[1]), ("0.cls", b"2")])
    for content in (b"{}", b"[1, 2, 3]", b"\xff", b"[" * 100_000):
        (tmp_path / "classes.json").write_bytes(content)
        assert _labels(tmp_path / "x.tar") == (("0", "1", "2"), [2])
    (tmp_path / "classes.json").write_bytes(b'["c", "b", "a", "unused"]')
    assert _labels(tmp_path / "x.tar") == (("c", "b", "a", "unused"), [2])
    for content, message in (
        (b'["a", "b"]', "the label '2' has no name: .*classes.json"),
        (b'["a", "a", "b"]', "'a' comes more than once"),
    ):
        (tmp_path / "classes.json").write_bytes(content)
        with pytest.raises(PrepError, match=message):
            list_sources(tmp_path / "x.tar")


def test_wrong_use_of_export(tmp_path: Path) -> None:
    for options, message in (
        ({"to": "zip"}, r"^--to is 'zip', but .* holds images: give one of imagefolder, webdataset"),
        ({"shard_size": 1 << 20}, r"--shard-size goes with --to webdataset, but .* is exported to imagefolder: leave"),
    ):
        with pytest.raises(ValueError, match=message):
            export(unlabelled(), tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("most", [10_240, 23_456, 10_000_000])
def test_no_tar_is_larger_than_it_may_be(tmp_path: Path, most: int) -> None:
    """Nor is one smaller than it could be: the first sample of the next would not have fitted."""
    assert export(store("jpeg"), tmp_path / "x", size=64, to="webdataset", shard_size=most) == 42
    sizes = list[tuple[int, int]]()  # of all members, and of the first sample, an image and its class
    for tar in sorted((tmp_path / "x").glob("*.tar")):
        with tarfile.open(tar) as opened:
            members = opened.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)} and tar.stat().st_size <= most
        blocks = [512 + -(-m.size // 512) * 512 for m in members]
        sizes.append((sum(blocks), sum(blocks[:2])))
    for (used, _), (_, first) in pairwise(sizes):
        assert -(-(used + first + 1024) // 10_240) * 10_240 > most


def test_no_two_classes_share_a_folder(tmp_path: Path) -> None:
    rows = [{"path": f"{k}.png", "label": name} for k, name in enumerate(("a/b", "a_b", "a_b_", ".."))]
    write_files(tmp_path, {row["path"]: png(k)[1] for k, row in enumerate(rows)})
    export(prep(write_table(tmp_path / "t.csv", rows), tmp_path / "o.fds", workers=1).out, tmp_path / "x")
    files = sorted(str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*.jpg"))
    assert files == ["a_b/0.jpg", "a_b_/1.jpg", "a_b__/2.jpg", "unnamed/3.jpg"]
