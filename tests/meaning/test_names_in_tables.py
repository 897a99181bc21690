"""Which file the name in a table means, as SOURCE and beside a folder, and which column holds the names."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fastdata
from fastdata.errors import PrepError
from fastdata.store.store import Store
from support import encode, picture

IMAGE = encode(picture(0, 12, 16), ".png")
DECOMPOSED = unicodedata.normalize("NFD", "\u00fcber")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four images, one of which has a decomposed name, and a caption beside one."""
    for name in ("a.png", "b/c.v2.png", f"{DECOMPOSED}.png", "e.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(IMAGE)
    (tmp_path / "in/a.txt").write_text("a caption")
    return tmp_path / "in"


def write(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_a_name_means_the_only_file_that_it_can_mean(photos: Path, tmp_path: Path, beside: bool, header: bool) -> None:
    rows = [("a", "x"), ("b\\\\c.v2".replace("\\\\", "\\"), "y"), ("\u00fcber.png", "x"), ("gone", "y")]
    table = write(photos / "t.csv", [("id", "label")] * header + rows)
    source, options = (photos, {"labels": table}) if beside else (table, {})
    made = fastdata.prep(source, tmp_path / "o.fds", workers=1, **options)
    store = Store(made.out)
    labels = {name: store.manifest.labels.names[k] for name, k in zip(store.names(), store.samples["label"], strict=True)}
    assert labels == {"a.png": "x", "b/c.v2.png": "y", f"{DECOMPOSED}.png": "x"}
    assert made.rejected == ({"missing": 1, "no-label": 1} if beside else {"missing": 1})
    (photos / "a.jpg").write_bytes(encode(picture(0, 12, 16)))
    with pytest.raises(PrepError, match=r"t\.csv names 'a', which may be a\.(png|jpg) or a\.(png|jpg): write the ending"):
        fastdata.prep(source, tmp_path / "p.fds", **options)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_column_of_names_can_be_named(photos: Path, tmp_path: Path, ending: str) -> None:
    frame = pd.DataFrame({"path": ["elsewhere"] * 2, "photo": ["a", "e.png"], "label": [1, 0]}, index=["p", "q"])
    table = photos / f"t.{ending}"
    if ending == "csv":
        frame.to_csv(table)
    elif ending == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    else:
        frame.to_parquet(table)
    store = Store(fastdata.prep(table, tmp_path / "o.fds", path_column="photo", workers=1).out)
    assert (store.names(), store.samples["label"].tolist()) == (["a.png", "e.png"], [1, 0])
    with pytest.raises(PrepError, match=r"path_column nope: .* has no column nope; it has .*photo, label"):
        fastdata.prep(table, tmp_path / "o.fds", path_column="nope")


def test_the_index_of_a_data_frame_is_no_path_and_no_label(photos: Path, tmp_path: Path) -> None:
    for k, (names, columns) in enumerate([(["photo", "x"], {}), (["photo", "x"], {"index_label": "Unnamed: 0"})]):
        pd.DataFrame([["a.png", "u"], ["e.png", "v"]], columns=names).to_csv(photos / "t.csv", **columns)
        made = fastdata.prep(photos / "t.csv", tmp_path / f"{k}.fds", workers=1)
        store = Store(made.out)
        assert (store.names(), store.manifest.labels.names) == (["a.png", "e.png"], ("u", "v"))
        assert any(note.startswith("1 column is not stored: ") for note in made.notes)


def test_cells_may_be_longer_than_the_default_of_csv(photos: Path, tmp_path: Path) -> None:
    table = write(photos / "t.csv", [("path", "label", "rle"), ("a.png", "x", "12 " * 60_000), ("e.png", "y", "")])
    made = fastdata.prep(table, tmp_path / "o.fds", fields="rle", workers=1)
    assert made.kept == 2 and len(fastdata.LMDBDataset(made.out).columns["rle"][0]) > 131_072
