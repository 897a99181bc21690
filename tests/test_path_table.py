"""Tables of paths and labels, as SOURCE and beside a folder."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fastdata import prep
from fastdata.errors import PrepError
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions
from fastdata.store.store import Store
from stores import write_files
from support import PREP, encode, picture, run

IMAGE = encode(picture(0, 12, 16), ".png")
DECOMPOSED = unicodedata.normalize("NFD", "\u00fcber") + ".png"
NAMES = ["a.png", "deep/b.v2.png", "with, comma.png", "with; semicolon.png", "c.png", DECOMPOSED]
LABELS = ["cat", "dog", "cat", "dog", "cat", "dog"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six images, and a caption beside one."""
    return write_files(tmp_path / "photos", {"a.txt": "a caption", **dict.fromkeys(NAMES, IMAGE)})


def written(path: Path, rows: Sequence[Sequence[Any]], delimiter: str = ",") -> Path:
    """A table by Python's csv."""
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


@pytest.mark.parametrize("form", [",", ";", "\t", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("column", ["path", "photo"])
def test_forms_of_tables(photos: Path, form: str, column: str) -> None:
    """The index of a DataFrame is neither path nor label; --path-column wins over a usual name."""
    more = {"path": "elsewhere"} if column == "photo" else {}
    frame = pd.DataFrame({**more, column: NAMES, "kind": LABELS}, index=[*"pqrstu"])
    table = photos / (f"t.{form}" if form.isalpha() else "t.csv")
    if form == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    elif form == "parquet":
        frame.to_parquet(table)
    else:
        frame.to_csv(table, sep="\t" if form == "tsv" else form)
    found = list_sources(table, LabelOptions(path_column=column, label_column="kind" if more else None))
    assert [(s.name, found.labels.names[int(s.label)], s.problem) for s in found.sources] == [
        (*row, "") for row in zip(NAMES, LABELS, strict=True)
    ]
    with pytest.raises(PrepError, match=r"--path-column nope: .* has no column nope; it has .*kind"):
        list_sources(table, LabelOptions(path_column="nope"))


def test_the_column_of_paths_is_found_by_its_name(photos: Path) -> None:
    rows = [("1", "cat", "a.png"), ("2", "dog", "c.png"), ("3", "cat", "./a.png")]
    table = written(photos / "t.csv", [("id", "Class", "File_Name"), *rows])
    found = list_sources(table)
    assert [(s.name, s.label, s.problem) for s in found.sources] == [("a.png", 0, ""), ("c.png", 1, ""), ("./a.png", 0, "")]
    assert found.labels.names == ("cat", "dog") and any("1 column is not stored: id" in note for note in found.notes)


def test_columns_of_numbers_can_be_named(photos: Path) -> None:
    table = written(photos / "t.csv", [("path", "note", "x", "y"), ("a.png", "fine", "0.5", "2"), ("c.png", "dull", "-1", "1e3")])
    with pytest.raises(PrepError, match=r"labels may be in note, x, y: name .* --label-column, or .* --regression"):
        list_sources(table)
    found = list_sources(table, LabelOptions(regression=("y", "x")))
    assert (found.labels.kind, found.labels.names) == ("vector", ("y", "x"))
    assert [source.label for source in found.sources] == [(2, 0.5), (1e3, -1)]
    assert list_sources(table, LabelOptions(label_column="none")).labels.kind == "none"
    for options in (LabelOptions(label_column="cat"), LabelOptions(regression=("cat",))):
        with pytest.raises(PrepError, match=r"(--label-column|--regression) cat: .* is a folder, which has no columns"):
            list_sources(photos, options)


def test_labels_in_another_order_than_the_files_and_under_other_spellings(tmp_path: Path) -> None:
    names = [f"{folder}/{k:03d}.png" for folder in "ab" for k in range(60)]
    write_files(tmp_path / "in", dict.fromkeys(names, b""))
    chosen = [int(k) for k in np.random.default_rng(0).permutation(len(names))[:100]]
    rows = [(f"./{names[k][0]}//{names[k][2:]}", f"c{k % 7}", f"number {k}") for k in chosen]
    table = written(tmp_path / "t.csv", [("path", "label", "note"), *rows])
    found = list_sources(tmp_path / "in", LabelOptions(labels=table), ["note"])
    expected = [(k % 7, (f"number {k}",), "") if k in chosen else (-1, (), "not-listed") for k in range(len(names))]
    assert [source.name for source in found.sources] == names
    assert [(source.label, source.values, source.problem) for source in found.sources] == expected


def test_labels_beside_a_table_take_the_place_of_its_own(photos: Path) -> None:
    source = written(photos / "t.csv", [("path", "label"), ("a.png", "old"), ("c.png", "old")])
    beside = written(photos.parent / "l.csv", [("path", "kind", "x"), ("a.png", "new0", "1"), ("c.png", "new1", "1")])
    found = list_sources(source, LabelOptions(labels=beside, label_column="kind"))
    assert found.labels.names == ("new0", "new1") and [s.label for s in found.sources] == [0, 1]


def test_a_split_is_chosen_by_name_and_names_the_store(photos: Path) -> None:
    kinds = ["train", "train", "val", "val", "train", "train"]
    rows = [("path", "label", "Split"), *zip(NAMES, LABELS, kinds, strict=True)]
    table, beside = written(photos / "t.csv", rows), written(photos.parent / "t.csv", rows)
    assert run(*PREP, "photos/t.csv", "--split", "val", cwd=photos.parent).returncode == 0
    assert len(Store(photos.parent / "t-val.fds")) == 2
    with pytest.raises(PrepError, match=r"--split test: .* its splits are train, val"):
        list_sources(table, LabelOptions(split="test"))
    with pytest.raises(PrepError, match=r"--split val: .* no column split; it has path, label"):
        list_sources(written(photos / "u.csv", [("path", "label"), ("a.png", "x")]), LabelOptions(split="val"))
    with pytest.raises(PrepError, match=r"train and val, which would be mixed.*root .*photos split train"):
        prep(photos, photos.parent / "o.fds", labels=beside)


@pytest.mark.parametrize("beside", [False, True])
def test_a_name_means_the_only_file_that_it_can_mean(photos: Path, tmp_path: Path, beside: bool) -> None:
    rows = [("a", "x"), ("deep\\b.v2", "y"), (unicodedata.normalize("NFC", DECOMPOSED), "x"), ("gone", "y")]
    table = written(photos / "t.csv", [("id", "label"), *rows])
    source, options = (photos, {"labels": table}) if beside else (table, {})
    made = prep(source, tmp_path / "o.fds", workers=1, path_column="id", **options)
    store = Store(made.out)
    labels = {name: store.manifest.labels.names[k] for name, k in zip(store.names(), store.samples["label"], strict=True)}
    assert labels == {"a.png": "x", "deep/b.v2.png": "y", DECOMPOSED: "x"}
    assert made.rejected == ({"missing": 1, "no-label": 3} if beside else {"missing": 1})
    composed = unicodedata.normalize("NFC", DECOMPOSED)
    (photos / composed).write_bytes(IMAGE)
    exact = written(photos / "e.csv", [("path", "label"), (composed, "x")])
    found = list_sources(photos, LabelOptions(labels=exact)) if beside else list_sources(exact)
    assert [source.name for source in found.sources if not source.problem] == [composed]
    (photos / "a.jpg").write_bytes(encode(picture(0, 12, 16)))
    with pytest.raises(PrepError, match=r"t\.csv names 'a', which may be a\.(png|jpg) or a\.(png|jpg): write the ending"):
        prep(source, tmp_path / "p.fds", path_column="id", **options)


def test_paths_may_count_from_another_folder_and_a_run_that_keeps_nothing_makes_no_store(photos: Path) -> None:
    (photos.parent / "lists").mkdir()
    written(photos.parent / "lists/t.csv", [("path", "label"), *((name, "cat") for name in NAMES), ("gone.png", "cat")])
    lost = run(*PREP, "lists/t.csv", "o.fds", cwd=photos.parent)
    assert lost.returncode == 2 and "none of 7 inputs can be used (missing 7), so no store was made; the first: " in lost.stderr
    assert f"tried {photos.parent / 'lists' / NAMES[0]}" in lost.stderr and "--root FOLDER" in lost.stderr
    assert not (photos.parent / "o.fds").exists()
    found = run(*PREP, "lists/t.csv", "o.fds", "--root", "photos", "--max-reject-rate", "1", cwd=photos.parent)
    assert f"the first reject: gone.png: missing: there is no such file (tried {photos / 'gone.png'})" in found.stdout
    assert found.returncode == 0 and Store(photos.parent / "o.fds").names() == NAMES
