"""WebDataset tars as SOURCE, and as what export writes; against Python's tarfile."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives import all_pixels, equal, pixels_of, png, problems, write_tar
from fastdata import PrepError, prep
from fastdata.images.prepare import ImageRecipe
from fastdata.prepare.plan import make_plan
from fastdata.sources.catalog import read_source
from fastdata.sources.listing import list_sources
from fastdata.sources.tar_members import members
from fastdata.store.store import Store
from stores import folder, whole
from support import PREP, encode, picture, run


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
    assert _labels(source) == (("0", "1", "2"), [0, 1, 2, 0, 0, 1, 2])
    equal(all_pixels(source), [pixels for pixels, _ in images])
    assert _names(tmp_path) == _names(str(tmp_path / "*.tar")) == _names(source)
    made = Store(prep(source, tmp_path / "o.fds", codec="rgb", workers=2).out)
    assert made.names() == _names(source) and made.samples["label"].tolist() == [0, 1, 2, 0, 0, 1, 2]
    equal(whole(made.path), [pixels for pixels, _ in images])


@pytest.mark.parametrize(
    ("files", "names", "labels"),
    [
        ([{"cls": b"3"}, {"cls": b" 1 "}], ("0", "1", "2", "3"), [3, 1]),
        ([{"cls": b"dog"}, {"cls": "ähre".encode()}], ("dog", "ähre"), [0, 1]),
        ([{"cls": b"9"}, {"cls": b"dog"}, {"cls": b"10"}], ("10", "9", "dog"), [1, 2, 0]),
        ([{"json": b'{"label": 2, "cls": 0}'}, {"json": b'{"cls": 0}'}], ("0", "1", "2"), [2, 0]),
        ([{"json": b'{"label": "x"}'}, {"json": b'{"label": "a"}', "txt": b"a caption"}], ("a", "x"), [1, 0]),
        ([{"json": b'{"label": [1.5, -2], "names": ["p", "q"]}'}, {"json": b'{"label": [0, 1]}'}], ("p", "q"), [(1.5, -2), (0, 1)]),
        ([{"cls": b"1", "json": b'{"label": 0}'}], ("0", "1"), [1]),
        ([{"cls": b"99999999"}, {"cls": b"70000"}], ("70000", "99999999"), [1, 0]),
        ([{"txt": b"no label"}, {"json": b"{"}], (), [-1, -1]),
        ([{"cls": b"-1"}], (), [-1]),
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
    write_tar(tmp_path / "x.tar", [("0.png", data), ("0.cls", b"1"), ("1.png", data), ("2.png", data), ("2.cls", b"-1")])
    assert problems(list_sources(tmp_path / "x.tar")) == ["", "no-label", "no-label"]
    (tmp_path / "t.csv").write_text("path,x\nx.tar/1.png,0.5\nx.tar/2.png,0.25\n")
    summary = prep(tmp_path / "x.tar", tmp_path / "o.fds", labels=tmp_path / "t.csv", workers=1)
    assert Store(summary.out).samples["label"].tolist() == [[0.5], [0.25]] and summary.rejected == {"no-label": 1}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b'{"label": [1, 2]}', b'{"label": [1]}'], "not all lists of numbers of one length: some .* 2 numbers"),
        ([b'{"label": [1, 2]}', b'{"label": 1}'], "not all lists of numbers of one length: some .* 2 numbers"),
        ([b'{"label": "0.5"}', b'{"label": "1.5"}'], "not all whole, such as '0.5'"),
    ],
)
def test_labels_that_fit_nothing_are_errors(tmp_path: Path, contents: list[bytes], message: str) -> None:
    write_tar(tmp_path / "x.tar", [m for k, text in enumerate(contents) for m in ((f"{k}.png", b""), (f"{k}.json", text))])
    with pytest.raises(PrepError, match=message):
        list_sources(tmp_path / "x.tar")


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
    images = [png(k) for k in range(4)]
    path = write_tar(
        tmp_path / "x.tar",
        zip(names, (data for _, data in images), strict=True),
        format=form,
        encoding="utf-8",
        errors="surrogateescape",
    )
    assert _names(path) == [f"x.tar/{name}" for name in names]
    equal(all_pixels(path), [pixels for pixels, _ in images])
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


@pytest.mark.parametrize("form", ["gnu", "0.0", "1.0"])
def test_sparse_members_are_rejected_by_name_and_those_behind_are_read(tmp_path: Path, form: str) -> None:
    pixels, data = png(0)
    (tmp_path / "1.png").write_bytes(b"")
    with (tmp_path / "1.png").open("r+b") as file:
        for k in range(9):  # more holes than one header has room for
            file.seek(k << 18)
            file.write(b"x" * 8192)
    for name in ("0.png", "2.png"):
        (tmp_path / name).write_bytes(data)
    option = ["--format=gnu"] if form == "gnu" else ["--format=pax", f"--sparse-version={form}"]
    made = run("tar", *option, "-S", "-cf", "x.tar", "0.png", "1.png", "2.png", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert [member.issparse() for member in tar] == [False, True, False]
    found = list_sources(tmp_path / "x.tar")
    assert [s.name for s in found.sources][::2] == ["x.tar/0.png", "x.tar/2.png"] and problems(found) == ["", "unsupported", ""]
    np.testing.assert_array_equal(pixels_of(found, 2), pixels)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.text("aé/.\udcff", min_size=1, max_size=150), st.binary(max_size=1200)), max_size=8),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_members_lie_where_tarfile_finds_them(rows: list[tuple[str, bytes]], form: int) -> None:
    path = folder() / "x.tar"
    write_tar(path, rows, format=form, encoding="utf-8", errors="surrogateescape")
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        wanted = [(m.name.removeprefix("./").rstrip("/") or ".", m.offset_data, m.size) for m in tar if m.isreg()]
    with path.open("rb") as file:
        assert [tuple(m)[:3] for m in members(file, path)] == wanted


# Hostile tars


@pytest.fixture(scope="module")
def ten() -> bytes:
    """A tar of ten samples of two members, 2,048 bytes each."""
    rows = [m for k in range(10) for m in ((f"{k}.png", png(k, 4, 4)[1]), (f"{k}.cls", b"1"))]
    assert all(len(data) <= 512 for _, data in rows)
    return write_tar(folder() / "x.tar", rows, format=tarfile.USTAR_FORMAT).read_bytes()


@pytest.mark.parametrize(
    ("length", "whole_ones"),
    [(2048 * 4, 4), (2048 * 4 + 100, 4), (2048 * 4 + 512, 4), (2048 * 4 + 540, 4), (2048 * 4 + 1500, 4), (2048 * 10, 10), (0, 0)],
)
def test_of_a_tar_cut_short_whole_samples_are_used_and_one_reject_tells(
    tmp_path: Path, ten: bytes, length: int, whole_ones: int
) -> None:
    (tmp_path / "x.tar").write_bytes(ten[:length])
    found = list_sources(tmp_path / "x.tar")
    assert problems(found)[:whole_ones] == [""] * whole_ones
    more = {"no-label": 1} if length == 2048 * 4 + 1500 else {}  # the image was before the cut, its label behind
    assert len(found.sources) == whole_ones + 1 + len(more)
    if not whole_ones:
        with pytest.raises(PrepError, match=r"none of 1 inputs can be used \(truncated 1\)"):
            prep(tmp_path / "x.tar", tmp_path / "o.fds", workers=1)
        return
    summary = prep(tmp_path / "x.tar", tmp_path / "o.fds", workers=1)
    assert summary.kept == whole_ones and summary.rejected == {"truncated": 1, **more}


def test_every_cut_leaves_a_reject_and_never_a_wrong_image(ten: bytes) -> None:
    path = folder() / "x.tar"
    wanted = [hashlib.sha256(png(k, 4, 4)[1]).hexdigest() for k in range(10)]
    for length in range(0, 2048 * 10, 131):
        path.write_bytes(ten[:length])
        found = list_sources(path)
        good = [s for s in found.sources if not s.problem]
        assert [hashlib.sha256(read_source(found.root, s)).hexdigest() for s in good] == wanted[: len(good)]
        assert [s.problem for s in found.sources].count("truncated") == 1 and len(good) >= length // 2048


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_cuts_within_long_names_and_labels(tmp_path: Path, form: int) -> None:
    rows = [m for k in range(3) for m in ((f"{'é' * 120}{k}.png", png(k, 4, 4)[1]), (f"{'é' * 120}{k}.cls", b"dog" * 200))]
    data = write_tar(tmp_path / "x.tar", rows, format=form, encoding="utf-8").read_bytes()
    found = list_sources(tmp_path / "x.tar").sources
    ends = [data.index(b"dogdog", int(s.place[2])) + 600 for s in found]
    for length in range(0, ends[-1] + 1, 97):
        (tmp_path / "x.tar").write_bytes(data[:length])
        cut = list_sources(tmp_path / "x.tar")
        good = [s for s in cut.sources if not s.problem]
        assert [s.place for s in good if s.label >= 0] == [s.place for s, end in zip(found, ends, strict=True) if end <= length]
        assert [s.problem for s in cut.sources].count("truncated") == 1 and len(cut.sources) <= len(good) + 2


def test_a_tar_cut_after_it_was_listed(tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(ten)
    found = list_sources(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(ten[: 2048 * 6 + 530])
    assert problems(found) == [""] * 6 + ["truncated"] * 4


def test_damage_in_a_header_is_an_error_that_says_where(tmp_path: Path, ten: bytes) -> None:
    damaged = bytearray(ten)
    damaged[2048 * 3 + 5] ^= 1
    (tmp_path / "x.tar").write_bytes(damaged)
    with pytest.raises(PrepError, match=r"x\.tar is damaged at byte 6144 \(bad checksum\)"):
        list_sources(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(b"this is no tar" * 100)
    with pytest.raises(PrepError, match=r"x\.tar is not a tar file"):
        list_sources(tmp_path / "x.tar")


def test_tars_that_were_joined_are_read_to_the_end(tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(ten + ten)
    assert problems(list_sources(tmp_path / "x.tar")) == [""] * 20


@pytest.mark.parametrize("attributes", [b"30 path=x\n", b"9 path=xy", b"12 size=-99\n", b"11 size=ab\n"])
def test_attributes_that_make_no_sense_are_an_error(tmp_path: Path, attributes: bytes) -> None:
    header = _header("x", tarfile.XHDTYPE, size=len(attributes)).tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "x.tar").write_bytes(header + attributes.ljust(512, b"\0") + bytes(1024))
    with pytest.raises(PrepError, match="is damaged at byte 512"):
        list_sources(tmp_path / "x.tar")


@pytest.mark.parametrize("size", [1 << 62, -5])
def test_sizes_beyond_the_file(tmp_path: Path, size: int) -> None:
    header = tarfile.TarInfo("0.png")
    header.size = size
    (tmp_path / "x.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    if size < 0:
        with pytest.raises(PrepError, match="damaged"):
            list_sources(tmp_path / "x.tar")
    else:
        assert problems(list_sources(tmp_path / "x.tar")) == ["truncated"]


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.zst"])
def test_compressed_tars_are_refused_with_advice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(PrepError, match=rf"{name} is compressed.*decompress it"):
        list_sources(tmp_path / name)


def test_another_classes_json_is_left_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("0.png", png(0)[1]), ("0.cls", b"2")])
    for content in (b"{}", b'["a", "b"]', b'["a", "a", "b"]', b"[1, 2, 3]", b"\xff", b"[" * 100_000):
        (tmp_path / "classes.json").write_bytes(content)
        assert _labels(tmp_path / "x.tar") == (("0", "1", "2"), [2])
    (tmp_path / "classes.json").write_bytes(b'["c", "b", "a"]')
    assert _labels(tmp_path / "x.tar") == (("c", "b", "a"), [2])


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path) -> None:
    for k in range(3):
        write_tar(tmp_path / f"part-{k:02d}.tar", [(f"{k}.png", png(k)[1])])
    done = run(*PREP, "part-{00..02}.tar", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(Store(tmp_path / "part.fds")) == 3
    missing = run(*PREP, "part-{00..09}.tar", cwd=tmp_path)
    assert missing.returncode == 2
    assert "7 of 10 are not there: part-03.tar, part-04.tar, part-05.tar, part-06.tar, part-07.tar ..." in missing.stderr
    nothing = run(*PREP, "other-*.tar", cwd=tmp_path)
    assert nothing.returncode == 2 and "1 of 1 are not there: other-*.tar" in nothing.stderr
    probe = run(*PREP, "part-*.tar", "--dry-run", cwd=tmp_path)
    assert probe.returncode == 0 and "3 inputs" in probe.stdout
    write_tar(tmp_path / "part-01.tar", [("1.png", png(77, 30, 30)[1])])
    changed = run(*PREP, "part-{00..02}.tar", cwd=tmp_path)
    assert changed.returncode == 2 and "was made, or begun, with other options or inputs" in changed.stderr


def test_members_that_moved_are_another_source(tmp_path: Path) -> None:
    data = png(0)[1]
    plans = []
    for text in (b"short", b"a text that is longer than five hundred and twelve bytes" * 99):
        write_tar(tmp_path / "x.tar", [("0.txt", text), ("0.png", data)])
        plans.append(make_plan(list_sources(tmp_path / "x.tar"), ImageRecipe()).fingerprint)
    assert plans[0] != plans[1]


def test_a_member_of_no_bytes_is_an_empty_image() -> None:
    path = write_tar(folder() / "x.tar", [("0.png", b""), ("1.png", png(0)[1])])
    assert problems(list_sources(path)) == ["empty", ""]
    assert io.BytesIO(read_source(path.parent, list_sources(path).sources[1])).read() == png(0)[1]
