"""SOURCE as it is typed: braces, wildcards, and archives of several folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from archives import all_pixels, equal, png, write_tar
from fastdata.errors import PrepError
from fastdata.sources.base import expand, locate
from fastdata.sources.listing import list_sources


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
