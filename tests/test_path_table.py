"""CSV files of paths and labels, and runs that keep nothing."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest

from fastdata import prep
from fastdata.errors import PrepError
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions
from fastdata.store.store import Store
from support import PREP, encode, picture, run, write_pictures

IMAGE = encode(picture(0, 12, 16), ".png")
NAMES = ["a.png", "deep/b.png", "with, comma.png", "with; semicolon.png", "c.png"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of five images."""
    for name in NAMES:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(IMAGE)
    return tmp_path / "photos"


def written(path: Path, rows: list[tuple[str, ...]], delimiter: str = ",", **how: int) -> Path:
    """A table by Python's csv."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, **how).writerows(rows)
    path.write_text(text.getvalue())
    return path


# ---------------------------------------------------------------------------------------------------------- delimiters


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_may_have_commas_semicolons_or_tabs(photos: Path, delimiter: str, header: bool) -> None:
    rows = [(name, ("cat", "dog")[k % 2]) for k, name in enumerate(NAMES)]
    found = list_sources(written(photos / "t.csv", [("path", "label")] * header + rows, delimiter))
    assert [(s.name, found.labels.names[int(s.label)], s.problem) for s in found.sources] == [(*row, "") for row in rows]


def test_a_comma_within_a_cell_of_a_table_with_semicolons_stays_there(photos: Path) -> None:
    (photos / "t.csv").write_text("a.png;tench, Tinca tinca\nc.png;goldfish, Carassius auratus\n")
    assert list_sources(photos / "t.csv").labels.names == ("goldfish, Carassius auratus", "tench, Tinca tinca")
    (photos / "u.csv").write_text("path;x;y\na.png;0,5;1\nc.png;1,5;2\n")
    with pytest.raises(PrepError, match=r"columns x and y of u\.csv.* holds '0,5', which is no number"):
        list_sources(photos / "u.csv", LabelOptions(regression=("x", "y")))


def test_a_first_row_whose_file_is_missing_is_a_row_and_no_header(tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((4, 4), np.uint8))
    (tmp_path / "t.csv").write_text("one.npy,0\ntwo.npy,1\n")
    summary = prep(tmp_path / "t.csv", tmp_path / "o.fds", kind="arrays", workers=1)
    assert (summary.inputs, summary.kept, summary.rejected) == (2, 1, {"missing": 1})


# ------------------------------------------------------------------------------------------------- columns, by name


def test_the_column_of_paths_is_found_by_its_name(photos: Path) -> None:
    table = written(photos / "t.csv", [("id", "Class", "File_Name"), ("1", "cat", "a.png"), ("2", "dog", "c.png")])
    found = list_sources(table)
    assert [(s.name, s.label, s.problem) for s in found.sources] == [("a.png", 0, ""), ("c.png", 1, "")]
    assert found.labels.names == ("cat", "dog") and any("1 column is not stored: id" in note for note in found.notes)


def test_columns_of_floats_can_be_named(photos: Path) -> None:
    table = written(photos / "t.csv", [("path", "note", "x", "y"), ("a.png", "fine", "0.5", "2"), ("c.png", "dull", "-1", "1e3")])
    with pytest.raises(PrepError, match=r"its labels may be note, x, y: name .* --label-column, or .* --regression"):
        list_sources(table)
    store = Store(prep(table, photos.parent / "o.fds", regression=["y", "x"], workers=1).out)
    assert (store.manifest.labels.kind, store.manifest.labels.names) == ("vector", ("y", "x"))
    np.testing.assert_array_equal(store.samples["label"], np.array([[2, 0.5], [1e3, -1]], np.float32))
    one = Store(prep(table, photos.parent / "p.fds", regression="x", workers=1).out)
    np.testing.assert_array_equal(one.samples["label"], np.array([[0.5], [-1]], np.float32))


def test_options_about_columns_need_names(photos: Path) -> None:
    (photos / "t.csv").write_text("a.png,cat\nc.png,dog\n")
    for options, message in (({"split": "train"}, "--split"), ({"label_column": "label"}, "--label-column label")):
        with pytest.raises(PrepError, match=f"{message}.* first line, such as path,label,split"):
            list_sources(photos / "t.csv", LabelOptions(**options))


def test_none_is_no_labels_and_a_folder_has_no_columns(photos: Path) -> None:
    written(photos / "t.csv", [("path", "cat", "none"), ("a.png", "0.5", "0"), ("c.png", "0", "1")])
    assert list_sources(photos / "t.csv", LabelOptions(label_column="none")).labels.kind == "none"
    for options in (LabelOptions(label_column="cat"), LabelOptions(regression=("cat",))):
        with pytest.raises(PrepError, match=r"(--label-column|--regression) cat: .* is a folder, which has no columns"):
            list_sources(photos, options)


def test_labels_in_another_order_than_the_files(tmp_path: Path) -> None:
    """And under other spellings of their paths; with columns."""
    rng = np.random.default_rng(0)
    names = [f"{folder}/{k:03d}.png" for folder in "ab" for k in range(60)]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    chosen = [names[k] for k in rng.permutation(len(names))[:100]]
    rows = {name: (f"c{rng.integers(7)}", f"number {k}") for k, name in enumerate(chosen)}
    table = written(tmp_path / "t.csv", [("path", "label", "note"), *((f"./{n[0]}//{n[2:]}", *row) for n, row in rows.items())])
    found = list_sources(tmp_path / "in", LabelOptions(labels=table), ["note"])
    expected = [(n, *((*rows[n], "") if n in rows else ("", None, "not-listed"))) for n in names]
    named = ["" if s.label == -1 else found.labels.names[int(s.label)] for s in found.sources]
    values = [s.values[0] if s.values else None for s in found.sources]
    assert [(s.name, n, v, s.problem) for s, n, v in zip(found.sources, named, values, strict=True)] == expected


def test_labels_beside_a_table_take_the_place_of_its_own(photos: Path) -> None:
    source = written(photos / "t.csv", [("path", "label"), *((name, "old") for name in NAMES[:2])])
    beside = written(
        photos.parent / "l.csv", [("path", "kind", "x"), *((name, f"new{k}", "1") for k, name in enumerate(NAMES[:2]))]
    )
    found = list_sources(source, LabelOptions(labels=beside, label_column="kind"))
    assert found.labels.names == ("new0", "new1") and [s.label for s in found.sources] == [0, 1]


@pytest.mark.parametrize("values", [("0.5", "1.5"), ("3", "7"), ("cat", "dog")])
def test_with_a_label_column_of_none_a_table_beside_a_folder_gives_no_labels(photos: Path, values: tuple[str, str]) -> None:
    table = written(photos.parent / "t.csv", [("path", "label"), *zip(NAMES, values, strict=False)])
    found = list_sources(photos, LabelOptions(labels=table, label_column="none"))
    assert (found.labels.kind, found.labels.names, found.labelled_by) == ("none", (), "")
    assert {(source.label, source.problem) for source in found.sources} == {(-1, "")}


def test_lists_beside_a_folder_are_no_labels(photos: Path) -> None:
    path = photos.parent / "t.jsonl"
    path.write_text("".join(f'{{"path": "{name}", "label": [0.5, 1.5]}}\n' for name in NAMES))
    with pytest.raises(PrepError, match=r"column label of t\.jsonl.* such as \(0\.5, 1\.5\): to predict numbers"):
        list_sources(photos, LabelOptions(labels=path))
    assert list_sources(photos, LabelOptions(labels=path, label_column="none")).labels.kind == "none"


# -------------------------------------------------------------------------------------------------------------- splits


def splits(path: Path) -> Path:
    kinds = ["train", "train", "val", "val", "train"]
    rows = [(name, ("cat", "dog")[k % 2], kinds[k]) for k, name in enumerate(NAMES)]
    return written(path, [("path", "label", "split"), *rows])


def test_a_split_is_chosen_by_name_and_names_the_store(photos: Path) -> None:
    splits(photos / "t.csv")
    assert run(*PREP, "photos/t.csv", "--split", "val", cwd=photos.parent).returncode == 0
    assert len(Store(photos.parent / "t-val.fds")) == 2
    refused = run(*PREP, "photos/t.csv", "--split", "test", cwd=photos.parent)
    assert refused.returncode == 2 and "--split test" in refused.stderr and "train, val" in refused.stderr
    written(photos / "u.csv", [("path", "label"), ("a.png", "x")])
    with pytest.raises(PrepError, match=r"--split val: .* no column split; it has path, label"):
        list_sources(photos / "u.csv", LabelOptions(split="val"))


def test_splits_of_labels_beside_a_folder_would_be_mixed(photos: Path) -> None:
    splits(photos.parent / "t.csv")
    with pytest.raises(PrepError, match=r"train and val, which would be mixed.*--root .*photos --split train"):
        prep(photos, photos.parent / "o.fds", labels=photos.parent / "t.csv")


# ------------------------------------------------------------------------------- where files are, and those that are not


def test_paths_may_count_from_another_folder(photos: Path) -> None:
    (photos.parent / "lists").mkdir()
    written(photos.parent / "lists/t.csv", [("path", "label"), *((name, "cat") for name in NAMES), ("gone.png", "cat")])
    lost = run(*PREP, "lists/t.csv", "o.fds", cwd=photos.parent)
    assert lost.returncode == 2 and "none of 6 inputs can be used (missing 6)" in lost.stderr
    assert f"tried {photos.parent / 'lists' / NAMES[0]}" in lost.stderr and "--root FOLDER" in lost.stderr
    assert not (photos.parent / "o.fds").exists()
    found = run(*PREP, "lists/t.csv", "o.fds", "--root", "photos", "--max-reject-rate", "1", cwd=photos.parent)
    assert found.returncode == 0, found.stderr
    assert f"the first reject: gone.png: missing: there is no such file (tried {photos / 'gone.png'})" in found.stdout
    assert Store(photos.parent / "o.fds").names() == NAMES
    here = prep(written(photos / "t.csv", [(name, "cat") for name in NAMES]), photos.parent / "p.fds", workers=1)
    assert Store(here.out).names() == NAMES


# -------------------------------------------------------------------------------------------- runs that keep nothing


def test_a_run_that_keeps_nothing_makes_no_store_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(3):
        (tmp_path / f"in/{k}.jpg").write_bytes(b"no image")
    done = run(*PREP, "in", "o.fds", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "o.fds").exists()
    assert "none of 3 inputs can be used (not-an-image 3), so no store was made; the first: 0.jpg: not-an-image: " in done.stderr
    write_pictures(tmp_path / "in", 2)
    assert run(*PREP, "in", "o.fds", "--max-reject-rate", "1", cwd=tmp_path).returncode == 0, "nothing is left in the way"


# ---------------------------------------------------------------------------------------------------- links and Parquet


def test_paths_in_a_parquet_without_images_say_how_to_embed_them(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (path,) = write_pictures(tmp_path / "far", 1)
    (tmp_path / "in").mkdir()
    table = pyarrow.table({"image": [{"bytes": None, "path": str(path)}] * 2, "label": [0, 1]})
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    parquet.write_table(table.set_column(0, "image", table["image"].cast(kind)), tmp_path / "in/x.parquet")
    with pytest.raises(PrepError, match=rf"only a path, {path}, .*embed_table_storage"):
        prep(tmp_path / "in/x.parquet", tmp_path / "o.fds")
    assert not (tmp_path / "o.fds").exists()


# --------------------------------------------------------------------------------------- what would silently be wrong


def test_a_path_with_two_labels_is_an_error_and_one_that_comes_again_is_told(photos: Path) -> None:
    rows = [("path", "label"), ("a.png", "cat"), ("c.png", "dog"), ("./a.png", "cat")]
    found = list_sources(written(photos / "t.csv", rows))
    (note,) = found.notes
    assert len(found.sources) == 3 and "1 row of t.csv repeats a path, such as ./a.png" in note
    with pytest.raises(PrepError, match=r"names 'a\.png' more than once, with different labels; keep the row that is right"):
        list_sources(written(photos / "t.csv", [*rows, ("a.png", "dog")]))
    assert list_sources(written(photos / "t.csv", [*rows, ("a.png", "dog")]), LabelOptions(label_column="none")).sources


def test_a_name_that_no_file_can_have_names_a_column(photos: Path) -> None:
    assert len(list_sources(written(photos / "t.csv", [("x" * 300, "label"), ("a.png", "cat")])).sources) == 1


@pytest.mark.parametrize("text", ["path,label\na.png,café\n", "path,café\na.png,cat\n", "a.png,café\n"])
def test_names_that_are_not_utf8_are_an_error_that_says_how_to_convert(photos: Path, text: str) -> None:
    (photos / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(PrepError, match=r"is not UTF-8: .*'café'.* iconv -f LATIN1 -t UTF-8 .*t\.csv"):
        list_sources(photos / "t.csv")


def test_paths_need_not_be_utf8(photos: Path) -> None:
    name = os.fsdecode("café.png".encode("latin-1"))
    (photos / name).write_bytes(IMAGE)
    (photos / "t.csv").write_bytes(f"path,label\n{name},cat\n".encode(errors="surrogateescape"))
    assert [(s.name, s.problem) for s in list_sources(photos / "t.csv").sources] == [(name, "")]


# ------------------------------------------------------------------------------------------------- what a message says


def test_a_table_without_paths_is_pointed_to_its_dataset(photos: Path) -> None:
    for rows in ([("58", "Rome", "low")], [("58", "1", "2"), ("59", "1", "2")]):
        with pytest.raises(PrepError, match=r"a table without paths is not prepared: TableDataset reads it"):
            prep(written(photos / "t.csv", [("age", "city", "income"), *rows]), photos.parent / "o.fds")
    with pytest.raises(PrepError) as caught:
        prep(written(photos / "t.csv", [("path", "label"), ("gone.png", "cat")]), photos.parent / "o.fds")
    assert "TableDataset" not in str(caught.value)
