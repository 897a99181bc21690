"""Sources of odd things: pipes where files are expected, quotes in wrong places, other encodings: an error, never joined rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from archives import png, write_tar
from fastdata import TableDataset
from fastdata.errors import PrepError, StoreError
from fastdata.sources.listing import list_sources
from support import PREP, encode, picture, run

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
    message = rf"x.csv, the row from line {line} on: .* a quote is missing"
    with pytest.raises(StoreError, match=message):
        TableDataset(tmp_path / "x.csv", target="y")
    with pytest.raises(PrepError, match=message):
        list_sources(tmp_path / "x.csv")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_tables_of_paths_in_utf_16_are_errors(tmp_path: Path, encoding: str, ending: str) -> None:
    (tmp_path / "a.png").write_bytes(encode(picture(0, 8, 8), ".png"))
    text = {"csv": "path,label\na.png,x\n", "tsv": "path\tlabel\na.png\tx\n", "jsonl": '{"path": "a.png", "label": "x"}\n'}[ending]
    (tmp_path / f"x.{ending}").write_bytes(text.encode(encoding))
    with pytest.raises(PrepError, match=rf"x.{ending}: it is UTF-16(LE|BE)?, not UTF-8: convert it with iconv"):
        list_sources(tmp_path / f"x.{ending}")
    (tmp_path / f"x.{ending}").write_bytes(text.encode("utf-8-sig"))
    assert [source.name for source in list_sources(tmp_path / f"x.{ending}").sources] == ["a.png"]


@pytest.mark.parametrize("text", ["path,label\na.png,café\n", "path,café\na.png,cat\n"])
def test_names_that_are_not_utf8_are_an_error_that_says_how_to_convert(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(PrepError, match=r"is not UTF-8: .*café.* iconv -f LATIN1 -t UTF-8 .*t\.csv"):
        list_sources(tmp_path / "t.csv")


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
    for folder in ("in", "tars", "labels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in/a.png").write_bytes(png(0)[1])
    write_tar(tmp_path / "tars/x.tar", [("0.png", png(0)[1]), ("0.cls", b"0")])
    shutil.copytree(FOREIGN / "mds-jpeg", tmp_path / "mds")
    (tmp_path / pipe).unlink(missing_ok=True)
    os.mkfifo(tmp_path / pipe)
    done = run(*PREP, source, "o.fds", "--workers", "1", *options, cwd=tmp_path, seconds=60)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert ("it is no ordinary file" in done.stderr) == (code == 2), done.stderr
