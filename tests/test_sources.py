"""The list of inputs: folders, tables, labels, patterns, and whatever a folder may hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from archives import png, write_tar
from fastdata import prep
from fastdata.errors import PrepError
from fastdata.sources.base import expand, locate
from fastdata.sources.listing import list_sources
from fastdata.store.store import Store, verify
from stores import write_files
from support import PREP, encode, picture, run, write_pictures

IMAGE = encode(picture(0, 12, 16))


def _as_image_folder(root: Path) -> list[tuple[str, int]]:
    """What torchvision's ImageFolder makes of a folder: make_dataset of torchvision.datasets.folder, in short."""
    found = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            found += [(os.path.relpath(os.path.join(folder, f), root), label) for f in sorted(files) if f.lower().endswith(".jpg")]
    return found


def test_order_and_labels_are_those_of_image_folder(tmp_path: Path) -> None:
    tricky = ["a", "a-b", "a/b", "a b", "a.b", "B", "b", "b/x/y", "b/x", "b/x-y", "b/x.y/z", "é", "10", "9", "ab", "a!/c", "A/0/0"]
    names = ("1.jpg", "10.jpg", "2.JPG", "Z.jpg", "_.jpg", "notes.txt")
    write_files(tmp_path / "in", {f"{folder}/{name}": IMAGE for folder in tricky for name in names})
    write_files(tmp_path / "elsewhere/deep", {"1.jpg": IMAGE})
    (tmp_path / "in/a/link").symlink_to(tmp_path / "elsewhere")
    found = list_sources(tmp_path / "in")
    assert [(s.name, s.label) for s in found.sources] == _as_image_folder(tmp_path / "in")
    assert found.labels.names == tuple(sorted(p.name for p in (tmp_path / "in").iterdir()))
    assert found.skipped == {".txt": 17}


def test_hidden_images_are_counted(tmp_path: Path) -> None:
    images = ("cat/a.jpg", "dog/b.jpg", "cat/.x.jpg", "cat/.c/deep/y.jpg", ".c/z.jpg", "__MACOSX/a.jpg")
    others = ("__MACOSX/cat/._a.jpg", "cat/._a.jpg", ".DS_Store", ".git/config", "cat/.notes.txt")
    write_files(tmp_path / "in", {**dict.fromkeys(images, IMAGE), **dict.fromkeys(others, b"")})
    found = list_sources(tmp_path / "in")
    assert [s.name for s in found.sources] == ["cat/a.jpg", "dog/b.jpg"] and found.labels.names == ("cat", "dog")
    notes = ("skipped 6 hidden names: .c, .git, __MACOSX, cat/.c, cat/.notes.txt and 1 more",)
    assert found.notes == notes
    assert set(notes) < set(prep(tmp_path / "in", tmp_path / "o.fds", workers=1).notes)


@pytest.mark.parametrize("target", [".", "../../..", "deep/.."])
def test_links_to_folders_above_are_left_out_and_counted(tmp_path: Path, target: str) -> None:
    """They would bring all of the other classes in again. The folder itself may be reached by a link."""
    names = ("cat/a.jpg", "dog/deep/b.jpg", "else/c.jpg", "else/in/d.jpg")
    write_files(tmp_path / "up", {"other/e.jpg": IMAGE, **{f"mess/{name}": IMAGE for name in names}})
    (tmp_path / "up/mess/dog/loop").symlink_to(target)
    (tmp_path / "up/mess/dog/wanted").symlink_to(tmp_path / "up/other")
    (tmp_path / "link").symlink_to(tmp_path / "up/mess")
    for root in (tmp_path / "up/mess", tmp_path / "link"):
        found = list_sources(root)
        assert " ".join(s.name for s in found.sources) == "cat/a.jpg dog/deep/b.jpg dog/wanted/e.jpg else/c.jpg else/in/d.jpg"
        assert found.notes == ("skipped 1 link to a folder above: dog/loop",)


def test_files_beside_class_folders_are_listed_as_without_a_label(tmp_path: Path) -> None:
    write_files(tmp_path / "in", dict.fromkeys(("cat/0.jpg", "cat/1.jpg", "stray.jpg"), IMAGE))
    (tmp_path / "in/empty class").mkdir()
    summary = prep(tmp_path / "in", tmp_path / "o.fds", workers=1)
    store = Store(summary.out)
    assert summary.rejected == {"no-label": 1} and store.rejects()[0]["name"] == "stray.jpg"
    assert store.manifest.labels.names == ("cat", "empty class") and store.samples["label"].tolist() == [0, 0]


STRANGE = ["new\nline.png", "🦊.png", "ünï.PNG", "-dash.png", "a'b\"c.png", "tab\t.png", "x" * 200 + ".png", "%s {0}.png"]


def test_any_name_is_kept_as_it_is(tmp_path: Path) -> None:
    """Spaces, newlines, emoji, and bytes that are not UTF-8, in names of files and of classes."""
    folders, out = [os.fsdecode(b"caf\xe9 \xff"), "emoji 🦊\n", "plain"], tmp_path / os.fsdecode(b"st\xf6re.fds")
    names = [f"{folder}/{name}" for folder in folders for name in (*STRANGE, os.fsdecode(b"\xff\xfe.png"))]
    write_files(tmp_path / "in", {name: encode(picture(k, 12, 16), ".png") for k, name in enumerate(names)})
    assert run(*PREP, tmp_path / "in", out, "--workers", "1").returncode == 0
    store = Store(out)
    assert list(store.names()) == sorted(names) and list(store.manifest.labels.names) == sorted(folders)
    assert list(verify(out)) == []
    assert repr("caf\udce9 \udcff") in run(*PREP[:2], "from fastdata.entry import main; main()", "info", out).stdout


def test_whatever_a_folder_holds(tmp_path: Path) -> None:
    """Bad files are rejected with a reason, good ones kept whatever they are called."""
    root = tmp_path / "in"
    good = write_pictures(root / "a", 3)
    files = {"png called.jpg": encode(picture(9, 12, 16), ".png"), "no ending": IMAGE, "inner/deep.jpg": IMAGE, "empty.jpg": b""}
    files |= {"cut.jpg": IMAGE[: len(IMAGE) // 2], "cut.png": good[0].read_bytes()[:-20], "text.jpg": b"this is no image\n" * 50}
    write_files(root / "a", files)
    links = {"broken.jpg": "nowhere", "self.jpg": "self.jpg", "good link.jpg": "no ending", "endless.jpg": "/dev/zero"}
    for name, target in {**links, "loop": "..", "inner/up": "../inner"}.items():
        (root / "a" / name).symlink_to(target)
    (root / "a/folder.jpg").mkdir()
    os.mkfifo(root / "a/pipe.jpg")
    store = Store(prep(root, tmp_path / "o.fds", workers=2, timeout=10).out)
    kept = {"00.png", "01.png", "02.png", "png called.jpg", "no ending", "good link.jpg", "inner/deep.jpg"}
    assert {n.removeprefix("a/") for n in store.names()} == kept
    assert {r["name"].removeprefix("a/"): r["reason"] for r in store.rejects()} == {
        "empty.jpg": "empty",
        "cut.jpg": "truncated",
        "cut.png": "truncated",
        "text.jpg": "not-an-image",
        "broken.jpg": "broken-link",
        "self.jpg": "unreadable",
        "pipe.jpg": "not-a-file",
        "endless.jpg": "not-a-file",
    }
    assert all(str(tmp_path) not in r["detail"] for r in store.rejects())


@pytest.mark.parametrize("name", ["nothing", "file.txt", "empty"])
def test_a_source_without_images_is_an_error(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {"file.txt": "text", "empty/notes.txt": "text"})
    with pytest.raises(PrepError, match=r"does not exist|neither a folder nor|no images in .*it has 1 other file \(.txt 1\)"):
        prep(tmp_path / name, tmp_path / "o.fds")


def test_braces_and_wildcards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-08", "a-09", "a-10", "a-11", "b-8", "b-9", "b-10", "[x]", "{0..1}"):
        Path(f"{name}.tar").touch()
    for text, names in {
        "a-{08..11}.tar": ["a-08", "a-09", "a-10", "a-11"],
        "a-{10..09}.tar": ["a-10", "a-09"],
        "b-{8..10}.tar": ["b-8", "b-9", "b-10"],
        "{b-9,a-1?,[x]}.tar": ["b-9", "a-10", "a-11", "[x]"],
        "{a,b}-1*.tar": ["a-10", "a-11", "b-10"],
        "a-*.tar": ["a-08", "a-09", "a-10", "a-11"],
        "[x].tar": ["[x]"],
        "{0..1}.tar": ["{0..1}"],
        "nothing": [],
    }.items():
        assert [str(p) for p in expand(text)] == [f"{name}.tar" for name in names], text
    with pytest.raises(PrepError, match=r"2 of 4 paths are absent: a-9\.\.10\.tar, b-9\.\.10\.tar"):
        expand("{a,b}-{9..10,10}.tar")


def test_where_names_begin_and_what_the_store_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/in").mkdir(parents=True)
    Path("data/x.parquet").touch()
    for source, root, name in [
        ("data", "data", "data"),
        ("data/x.parquet", "data", "x"),
        ("data/part-{00..09}.tar", "data", "part"),
        ("data/*.parquet", "data", "data"),
        ("data/{in,out}/x-*.tar", "data", "data"),
        ("*.tar", ".", tmp_path.name),
    ]:
        assert locate(source) == (Path(root), name), source


def test_a_folder_of_images_with_an_archive_in_it_stays_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "in.tar", [("0.png", png(0)[1])])
    (tmp_path / "1.png").write_bytes(png(1)[1])
    found = list_sources(tmp_path)
    assert [s.name for s in found.sources] == ["1.png"] and found.skipped == {".tar": 1}
