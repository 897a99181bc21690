"""What is replaced after it was listed never makes samples of old labels and new pixels, or of halves of documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from archives import write_tar
from fastdata import prep_finish, prep_plan, prep_run
from fastdata.errors import PrepError, StoreError
from stores import write_files
from support import encode, picture


def tar(path: Path, order: list[int]) -> None:
    write_tar(path / "a.tar", [(f"{k}.{end}", data) for k in order for end, data in (("png", image(k)), ("cls", b"%d" % k))])


def image(k: int) -> bytes:
    return encode(picture(k, 8, 9), ".bmp")


def parquet(path: Path, order: list[int]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"image": [image(k) for k in order], "label": order}), path / "a.parquet")


def documents(path: Path, order: list[int]) -> None:
    (path / "a.jsonl").write_text("".join(json.dumps({"text": "x" * 999 + str(k % 5)}) + "\n" for k in order * 2000))


@pytest.mark.parametrize("write", [tar, parquet, documents])
def test_a_file_of_many_inputs_that_was_replaced_ends_the_run(write: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", [0, 1, 2, 3, 4])
    options: dict[str, Any] = {"tokenizer": "bytes"} if write is documents else {}
    prep_plan(tmp_path / "in", tmp_path / "o.fds", **options)
    write(tmp_path / "in", [4, 3, 2, 1, 0])
    with pytest.raises(StoreError, match="changed after its inputs were listed"):
        prep_run(tmp_path / "o.fds", workers=1)
    with pytest.raises(PrepError, match="was replaced"):
        prep_plan(tmp_path / "in", tmp_path / "o.fds", **options)
    prep_plan(tmp_path / "in", tmp_path / "o.fds", overwrite=True, **options)
    prep_run(tmp_path / "o.fds", workers=1)
    assert prep_finish(tmp_path / "o.fds").rejected == {}


def test_an_image_or_mask_of_another_size_is_a_reject(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{folder}/{k}.png": picture(k, 8, 9)[..., 0] // 99 for folder in ("in", "masks") for k in range(3)})
    prep_plan(tmp_path / "in", tmp_path / "o.fds", masks=tmp_path / "masks")
    write_files(tmp_path, dict.fromkeys(("in/1.png", "masks/2.png"), picture(7, 8, 9)[..., 0]))
    prep_run(tmp_path / "o.fds", workers=1)
    assert prep_finish(tmp_path / "o.fds").rejected == {"changed": 2}
