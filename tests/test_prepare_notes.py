"""What a run says beside its figures: what was left out, and what was made otherwise than was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import stores
from fastdata import prep
from fastdata.errors import PrepError
from fastdata.store.export import export


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
