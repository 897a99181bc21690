"""What a run says beside its figures: what was left out, and what was made otherwise than was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import stores
from fastdata import PrepError, prep
from fastdata.store.export import export
from support import MAIN, PREP, encode, picture, run


@pytest.mark.parametrize(
    ("text", "options", "kept"),
    [
        ("a\n\nb\r\n\r\n  \nc", {"split_lines": True}, 3),
        ("a\nb\n\n", {"split_lines": True}, 2),
        ("a--b----c--\n", {"split_on": "--"}, 3),
    ],
)
def test_blank_documents_are_left_out(tmp_path: Path, text: str, options: dict[str, object], kept: int) -> None:
    (tmp_path / "t.txt").write_text(text, newline="")
    made = prep(tmp_path / "t.txt", tmp_path / "o.fds", tokenizer="bytes", workers=1, **options)
    assert (made.kept, made.rejected) == (kept, {})


def test_masks_in_tars_are_counted(tmp_path: Path) -> None:
    export(stores.masked(), tmp_path / "tars", to="webdataset")
    made = prep(tmp_path / "tars/00000.tar", tmp_path / "o.fds", workers=1)
    assert f"skipped {made.kept} files, not read as images: .mask.png {made.kept}" in made.lines()


def test_a_store_as_source_is_told_so(tmp_path: Path) -> None:
    for path, options in ((stores.store(), {}), (stores.tokens(), {"tokenizer": "bytes"})):
        with pytest.raises(PrepError, match=rf"SOURCE {path} is a store already: fastdata info {path} shows"):
            prep(path, tmp_path / "o.fds", **options)


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a rose")
    (tmp_path / "sheet.png").write_bytes(encode(picture(0, 8, 8), ".png"))
    for given, message in (
        (stores.store(), "nor a store of text"),
        (tmp_path / "nowhere", "nor a store of text"),
        (tmp_path / "sheet.png", r"the tokenizer sheet\.png is not a tokenizer\.json"),
    ):
        with pytest.raises(PrepError, match=message):
            prep(tmp_path / "t.txt", tmp_path / "o.fds", tokenizer=str(given))


def test_changed_options_of_text_are_told_as_they_are_typed(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.txt").write_text("a rose\nis a rose\n")
    assert run(*PREP, "t.txt", "--train-bpe", "300", "--split-lines", cwd=tmp_path).returncode == 0
    done = run(*PREP, "t.txt", "--train-bpe", "301", "--split-on", "rose", "--end-token", "none", cwd=tmp_path)
    assert done.returncode == 2
    assert [line.strip() for line in done.stderr.splitlines()[1:-1]] == [
        "--end-token 0, now none",
        "--split-lines yes, now none",
        "--split-on none, now rose",
        "--train-bpe 300, now 301",
    ]
    shown = run(*MAIN, "info", "t.fds", cwd=tmp_path).stdout
    assert "  options: split-lines, field text, end-token 0, train-bpe 300, vocab-size " in shown


def test_options_of_masks_and_separators_are_shown_as_they_are_typed(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a\n\nb")
    prep(tmp_path / "t.txt", tmp_path / "o.fds", tokenizer="bytes", split_on="\n\n", workers=1)
    assert " split-on '\\n\\n', field text, " in run(*MAIN, "info", tmp_path / "o.fds").stdout
    (tmp_path / "other").mkdir()
    (tmp_path / "other/characters.json").write_text('["a", "b"]\n')
    (tmp_path / "c.txt").write_text("ab")
    prep(tmp_path / "c.txt", tmp_path / "c.fds", tokenizer=str(tmp_path / "other"), end_token="none", workers=1)
    (tmp_path / "other/characters.json").write_text('["a", "b", "c"]\n')
    with pytest.raises(PrepError, match=r"tokenizer characters\.json, now with other contents"):
        prep(tmp_path / "c.txt", tmp_path / "c.fds", tokenizer=str(tmp_path / "other"), end_token="none", workers=1)
    assert "mask-bits 8" in run(*MAIN, "info", stores.masked()).stdout
