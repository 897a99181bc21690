"""A SOURCE of train/ and val/, or with a column of splits, is a store for each, with the same classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastdata
from archives import write_table
from fastdata.errors import PrepError
from fastdata.store.store import Store
from stores import write_files
from support import PREP, encode, picture, run, tree

IMAGE = encode(picture(0, 12, 16), ".png")


def put(root: Path, *names: str, image: bytes = IMAGE) -> Path:
    return write_files(root, dict.fromkeys(names, image))


def folders(root: Path) -> Path:
    """val has its classes in other places than train; test has none."""
    return put(
        root / "my photos", *(f"train/{c}/{k}.png" for c in "abc" for k in range(2)), "val/c/0.png", "val/b/0.png", "test/0.png"
    )


def table(root: Path, ending: str) -> Path:
    rows = [("train", 0), ("train", 2), ("val", 2), ("train", 1), ("val", 1)]
    put(root / "my photos", *(f"{k}.png" for k in range(len(rows))))
    lines = [{"path": f"{k}.png", "label": label, "split": split} for k, (split, label) in enumerate(rows)]
    return write_table(root / f"my photos/my photos.{ending}", lines)


@pytest.mark.parametrize(("first", "second"), [("Train", "TEST"), ("dev", "training")])
def test_names_of_splits(tmp_path: Path, first: str, second: str) -> None:
    """And tables with images, which lie side by side."""
    put(tmp_path / "in", f"{first}/a/0.png", f"{second}/a/0.png")
    (tmp_path / "tables").mkdir()
    for split in (first, second):
        for part in range(2):
            rows = pa.table({"image": [{"bytes": IMAGE}] * 3, "label": ["x", "y", "z"]})
            pq.write_table(rows, tmp_path / f"tables/{split}-0000{part}-of-00002.parquet")
    for source, count in (("in", 1), ("tables", 6)):
        found = fastdata.prep(tmp_path / source, tmp_path / f"{source}.fds", workers=1).splits
        assert {name: one.kept for name, one in found.items()} == {first: count, second: count}


@pytest.mark.parametrize("how", ["folders", "csv", "jsonl", "parquet"])
def test_each_split_is_a_store_with_the_classes_of_train(tmp_path: Path, how: str) -> None:
    source = folders(tmp_path) if how == "folders" else table(tmp_path, how)
    (tmp_path / "out").mkdir()
    made = fastdata.prep(source, tmp_path / "out/o.fds", workers=1)
    assert [*made.splits] == (["train", "test", "val"] if how == "folders" else ["train", "val"])
    assert made.out == made.splits["train"].out == tmp_path / "out/o-train.fds"
    train, val = (Store(made.splits[name].out) for name in ("train", "val"))
    assert len(train.manifest.labels.names) == 3 and train.manifest.labels == val.manifest.labels
    assert val.samples["label"].tolist() == ([1, 2] if how == "folders" else [2, 1])
    assert sorted(set(train.samples["label"].tolist())) == [0, 1, 2]
    if how == "folders":
        assert Store(tmp_path / "out/o-test.fds").manifest.labels.kind == "none"


def test_the_command_makes_all_and_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    folders(tmp_path)
    done = run(*PREP, "my photos", cwd=tmp_path)
    names = [f"my photos-{split}.fds" for split in ("test", "train", "val")]
    assert done.returncode == 0 and sorted(path.name for path in tmp_path.glob("*.fds")) == names
    assert [line.split(":")[0].rpartition("/")[2] for line in done.stdout.splitlines() if " kept" in line] == [
        names[1],
        names[0],
        names[2],
    ]
    before = [tree(tmp_path / name) for name in names]
    shutil.rmtree(tmp_path / names[2])
    again = run(*PREP, "my photos", cwd=tmp_path)
    assert again.returncode == 0 and again.stdout.count("already finished") == 2
    assert [tree(tmp_path / name) for name in names] == before


def test_a_class_that_train_lacks_is_an_error_before_anything_is_made(tmp_path: Path) -> None:
    put(tmp_path / "in", "train/a/0.png", "train/b/0.png", "val/b/0.png", "val/d/0.png")
    with pytest.raises(
        PrepError, match=r"val has classes that (--)?classes does not have: d; .* \(from train\): give .*classes with the"
    ):
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds")
    assert not [*tmp_path.glob("*.fds")]
    (tmp_path / "names.txt").write_text("d\nb\na\n")
    made = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1, classes=tmp_path / "names.txt")
    assert [Store(one.out).samples["label"].tolist() for one in made.splits.values()] == [[2, 1], [1, 0]]


def test_rows_without_a_split_are_an_error(tmp_path: Path) -> None:
    write_table(tmp_path / "t.jsonl", [{"path": f"{k}.png", "label": k, "split": ["train", None][k]} for k in range(2)])
    with pytest.raises(PrepError, match="beside them: rows of split ''"):
        fastdata.prep(tmp_path / "t.jsonl", tmp_path / "o.fds")


def test_masks_of_splits_lie_in_folders_of_their_names(tmp_path: Path) -> None:
    put(tmp_path / "in", "train/0.png", "val/1.png")
    put(tmp_path / "masks", "train/0.png", "val/1.png", image=encode(picture(0, 12, 16)[..., 0] // 99, ".png"))
    made = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", masks=tmp_path / "masks", workers=1)
    assert [(one.kept, one.rejected) for one in made.splits.values()] == [(1, {}), (1, {})]
    shutil.rmtree(tmp_path / "masks/val")
    with pytest.raises(PrepError, match="holds train and val side by side"):
        fastdata.prep(tmp_path / "in", tmp_path / "p.fds", masks=tmp_path / "masks")


@pytest.mark.parametrize(
    ("other", "labels", "message"),
    [
        ("a/0.png", False, r"train and val side by side \(beside them: a/0\.png\), which would be mixed"),
        ("0.png", False, r"beside them: 0\.png"),
        ("train/0.png", True, "side by side, which would be mixed; prepare each split by itself"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_commands(tmp_path: Path, other: str, labels: bool, message: str) -> None:
    put(tmp_path / "in", "train/a/0.png", "val/a/0.png", other)
    (tmp_path / "t.csv").write_text("path,label\ntrain/0.png,1\n")
    with pytest.raises(PrepError, match=message) as caught:
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds", labels=tmp_path / "t.csv" if labels else None)
    assert str(caught.value).count("\n  fastdata-prep ") == 2
