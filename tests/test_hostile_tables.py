"""Sources of odd things: pipes where files are expected, quotes in wrong places, other encodings: an error, never joined rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from archives import png, write_tar
from fastdata import TableDataset, prep
from fastdata.errors import PrepError, StoreError
from fastdata.sources.listing import list_sources
from stores import write_files
from support import PREP, run

BROKEN = {  # rows behind a header of three columns, and the line where the row that is named begins
    "the closing quote is missing": ('1,"open,p\n0,"v0",q\n', 2),
    "no quote closes it": ('1,a,p\n0,"v0,q\n2,b,r\n', 3),
    "a quote that is not doubled": ('1,"say "hi"",p\n', 2),
    "far away": ("".join(f"{k},v,q\n" for k in range(20_000)) + '1,"a"b,p\n', 20002),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_quote_in_a_wrong_place_is_an_error(tmp_path: Path, case: str) -> None:
    rows, line = BROKEN[case]
    (tmp_path / "x.csv").write_text("path,label,y\n" + rows)
    message = rf"x.csv, the row that begins at line {line}: .* a quote is missing"
    with pytest.raises(StoreError, match=message):
        TableDataset(tmp_path / "x.csv", target="y")
    with pytest.raises(PrepError, match=message):
        list_sources(tmp_path / "x.csv")


LATIN = ("path,label\na.png,café\n", "path,café\na.png,cat\n")
TEXTS = {"csv": "path,label\na.png,x\n", "tsv": "path\tlabel\na.png\tx\n", "jsonl": '{"path": "a.png", "label": "x"}\n'}
WIDE = [(f"t.{ending}", text.encode(f"utf-16{order}")) for order in ("", "-le", "-be") for ending, text in TEXTS.items()]
TABLES: list[tuple[str, str | bytes, str, dict[str, Any]]] = [  # the file, what it holds, the error, and options
    ("t.csv", "path,label\n", "has no rows", {}),
    ("t.csv", "path,label\na.png\n", "row 2: 1 column, but the first row has 2", {}),
    ("t.csv", "a.png,1\nb.png,3\n", r"has no column path, only a.png, 1: .* TableDataset reads it", {}),
    ("labels.csv", "path,x\nc.jpg,2\n", r"names no input of .*: its first path is 'c.jpg', but .* such as 'a.png'", {}),
    ("labels.csv", "path,x\na.png,1\n./a.png,2\n", "'a.png' more than once", {}),
    ("t.csv", "path,label\na.png,cat\n./a.png,dog\n", r"names '\./a\.png' more than once, with different labels; keep", {}),
    ("t.csv", "path,a,a\na.png,1,2\n", "has two columns of the same name: path, a, a", {}),
    ("t.csv", 'path,v\na.png,"[1, 1e400]"\n', "1e400 is too large for a float", {"fields": "v:json"}),
    ("t.jsonl", '{"path": "a.png", "v": -1e400}\n', "1e400 is too large for a float", {"fields": "v:json"}),
    ("t.jsonl", '{"path": "a.png"}\n[1]', "t.jsonl, line 2 is not a JSON object", {}),
    ("t.jsonl", '{"path": "a.png", "v": 1, "v": 2}', "line 1 .* an object has the key 'v' twice", {}),
    ("t.jsonl", '{"path": "a.png", "v": "x"}\n{"path": "b.png"}', "row of 'b.png': it holds no text: fill it", {"fields": "v"}),
    ("t.jsonl", '{"path": "a.png", "v": "\\ud800"}', "row of 'a.png': 'utf-8' codec can't encode", {"fields": "v"}),
    ("t.jsonl", '{"path": "a.png", "v": 1}', "'a.png': its values are not text: give their type", {"fields": "v"}),
    ("t.jsonl", '{"path": "a.png", "label": {"a": 1}}', "column label of t.jsonl holds a dict, but labels are numbers", {}),
    ("labels.jsonl", '{"path": "a.png", "label": {"a": 1}}', "column label of labels.jsonl holds a dict, but labels", {}),
    *(("t.csv", text.encode("latin-1"), r"is not UTF-8: .*café.* iconv -f LATIN1 -t UTF-8 .*t\.csv", {}) for text in LATIN),
    *((name, data, "it is UTF-16(LE|BE)?, not UTF-8: convert it with iconv", {}) for name, data in WIDE),
]


@pytest.mark.parametrize(("name", "data", "message", "options"), TABLES)
def test_a_table_that_is_wrong_is_an_error_that_says_where(
    tmp_path: Path, name: str, data: str | bytes, message: str, options: dict[str, Any]
) -> None:
    """As SOURCE, or as labels beside a folder of images."""
    table = write_files(tmp_path, {"a.png": png(0)[1], "b.png": png(0)[1], name: data}) / name
    source, more = (tmp_path, {"labels": table}) if name.startswith("labels") else (table, {})
    none = {"label_column": "none"} if "fields" in options else {}
    with pytest.raises(PrepError, match=message):
        prep(source, tmp_path.with_suffix(".fds"), **options, **more, **none)
    assert not tmp_path.with_suffix(".fds").exists()


@pytest.mark.parametrize("ending", TEXTS)
def test_a_mark_at_the_beginning_of_utf_8_is_no_part_of_it(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"x.{ending}").write_bytes(TEXTS[ending].encode("utf-8-sig"))
    assert [source.name for source in list_sources(tmp_path / f"x.{ending}").sources] == ["a.png"]


FOREIGN = Path(__file__).parent / "data" / "foreign"


@pytest.mark.parametrize(
    ("source", "pipe", "options", "code"),
    [
        ("in", "in/index.json", (), 0),
        ("tars/x.tar", "tars/classes.json", (), 0),
        ("in", "labels/a.json", ("--coco", "labels/a.json"), 2),
        ("in", "labels/a.txt", ("--yolo", "labels"), 2),
        ("mds", "mds/shard.00000.mds", (), 2),
    ],
)
def test_a_pipe_is_no_file(tmp_path: Path, source: str, pipe: str, options: tuple[str, ...], code: int) -> None:
    """The command, which a pipe would keep for ever."""
    write_files(tmp_path, {"in/a.png": png(0)[1], "tars/notes.txt": "", "labels/notes.md": ""})
    write_tar(tmp_path / "tars/x.tar", [("0.png", png(0)[1]), ("0.cls", b"0")])
    shutil.copytree(FOREIGN / "mds-jpeg", tmp_path / "mds")
    (tmp_path / pipe).unlink(missing_ok=True)
    os.mkfifo(tmp_path / pipe)
    done = run(*PREP, source, "o.fds", "--workers", "1", *options, cwd=tmp_path, seconds=60)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert ("it is no ordinary file" in done.stderr) == (code == 2), done.stderr
