"""What labels come from, and what is said, or refused, where they would silently be none, wrong, or incomplete."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from archives import write_tar
from fastdata import prep
from fastdata.errors import PrepError
from fastdata.prepare.summary import Summary
from fastdata.store.store import Store
from support import PREP, encode, picture, run, write_pictures

IMAGE = encode(picture(0, 12, 16), ".png")


def put(path: Path, data: bytes = IMAGE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def labels(summary: Summary) -> list[str]:
    """The class of each sample, by name."""
    store = Store(summary.out)
    return [store.manifest.labels.names[k] for k in store.samples["label"]]


def test_what_labels_are_is_announced(tmp_path: Path) -> None:
    write_pictures(tmp_path / "flat/images", 3)
    said = run(*PREP, "flat/images", "none.fds", cwd=tmp_path).stdout
    for part in ("labels: none, so targets will be -1", "one folder for each class", "--labels FILE", r"--label-from '(n\d+)_'"):
        assert part in said
    meant = run(*PREP, "flat/images", "meant.fds", "--label-column", "none", cwd=tmp_path).stdout
    assert "labels: none" in meant and "To add labels" not in meant
    assert any("all samples have one class, images: is this" in note for note in prep(tmp_path / "flat", tmp_path / "o.fds").notes)
    for name in ("ant", "bee"):
        write_pictures(tmp_path / "in" / name, 2)
    (tmp_path / "in/cow").mkdir()
    notes = prep(tmp_path / "in", tmp_path / "i.fds").notes
    assert {"labels: 3 classes from the folders: ant, bee, cow", "classes without a sample: 1 (cow)"} <= {*notes}


@pytest.mark.parametrize("archived", [False, True])
def test_a_pattern_finds_the_class_in_each_path(tmp_path: Path, archived: bool) -> None:
    names = ["n02_a.png", "n01_b.png", "deep/n02_c.png", "n10_d.png", "odd.png"]
    source = tmp_path / "in"
    if archived:
        source = write_tar(tmp_path / "in.tar", [(name, IMAGE) for name in names])
    else:
        for name in names:
            put(source / name)
    summary = prep(source, tmp_path / "o.fds", label_from=r"(n\d+)_", workers=1)
    store = Store(summary.out)
    found = {name.removeprefix("in.tar/"): label for name, label in zip(store.names(), labels(summary), strict=True)}
    assert found == {name: re.findall(r"n\d+", name)[0] for name in names[:-1]}
    assert store.manifest.labels.names == ("n01", "n02", "n10") and summary.rejected == {"no-label": 1}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(x+)_", r"--label-from '\(x\+\)_' finds a class in none of 2 paths, such as 00.png"),
        (r"(\d)(\d)", "2 groups, but needs one"),
        (r"(\d", "not a regular expression: missing"),
    ],
)
def test_wrong_patterns_are_errors(tmp_path: Path, pattern: str, message: str) -> None:
    write_pictures(tmp_path / "in", 2)
    done = run(*PREP, "in", "--label-from", pattern, cwd=tmp_path)
    assert done.returncode == 2 and re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "in.fds").exists()


def pairs(root: Path, images: str, masks: str, suffix: str = "") -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        put(root / images / f"{k}.jpg", encode(picture(k, 12, 16)))
        put(root / masks / f"{k}{suffix}.png", encode(rng.integers(0, 3, (12, 16), np.uint8), ".png"))


def test_images_and_masks_side_by_side_are_refused_with_a_command_that_works(tmp_path: Path) -> None:
    for images, masks, suffix in (("images", "masks", ""), ("imgs", "Annotations", ""), ("images", "labels", "_mask")):
        (root := tmp_path / f"{masks} dir").mkdir()
        pairs(root, images, masks, suffix)
        refused = run(*PREP, root, cwd=tmp_path)
        assert refused.returncode == 2 and "would become two classes" in refused.stderr
        (command,) = [line.strip() for line in refused.stderr.splitlines() if line.strip().startswith("fastdata-prep ")]
        call = "fastdata-prep() { " + " ".join(f"'{part}'" for part in PREP) + ' "$@"; }; '
        done = run("bash", "-c", call + command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        store = Store(tmp_path / f"{masks} dir.fds")
        assert len(store) == 3 and store.manifest.section("masks") is not None


def test_classes_that_are_called_after_masks_stay_classes(tmp_path: Path) -> None:
    for folder, first in (("with_mask", 0), ("without_mask", 0), ("face", 100)):
        for k in range(2):
            put(tmp_path / f"in/{folder}/{first + k}.png")
    assert Store(prep(tmp_path / "in", tmp_path / "o.fds").out).manifest.labels.names == ("face", "with_mask", "without_mask")
    pairs(tmp_path / "both", "images", "masks")
    summary = prep(tmp_path / "both", tmp_path / "b.fds", label_from="([^/]+)/")
    assert sorted(set(labels(summary))) == ["images", "masks"]


def test_labels_with_a_comma_are_no_classes(tmp_path: Path) -> None:
    for k in range(2):
        put(tmp_path / "in" / f"{k}.png")
    table = tmp_path / "in.csv"
    table.write_text("path;score\n0.png;0,5\n1.png;1,25\n")
    for source, options in ((table, {"root": tmp_path / "in"}), (tmp_path / "in", {"labels": table})):
        with pytest.raises(PrepError, match=r"labels are numbers that are not all whole, .* such as '0,5'"):
            prep(source, tmp_path / "o.fds", **options)


def test_columns_that_are_not_stored_are_named_and_counted(tmp_path: Path) -> None:
    images = [{"bytes": IMAGE, "path": f"{k}.png"} for k in range(2)]
    columns = {"label": [0, 1], "caption": ["x", "y"], "width": [4, 5]}
    parquet.write_table(pyarrow.table({"image": images, **columns}), tmp_path / "in.parquet")
    for k in range(2):
        put(tmp_path / f"{k}.png")
    (tmp_path / "in.csv").write_text("path,label,caption,width\n0.png,0,x,4\n1.png,1,y,5\n")
    for kind in ("parquet", "csv"):
        notes = "\n".join(prep(tmp_path / f"in.{kind}", tmp_path / f"{kind}.fds", workers=1).notes)
        assert "2 columns are not stored: caption, width" in notes and "labels: 2 classes from column" in notes
        assert Store(tmp_path / f"{kind}.fds").samples["label"].tolist() == [0, 1]


def test_what_labels_come_from_is_said_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 2)
    (tmp_path / "t.csv").write_text("00.png,1\n")
    with pytest.raises(ValueError, match=r"label_from takes .*, labels and label_column .*: give one of them"):
        prep(tmp_path / "in", tmp_path / "o.fds", label_from="(.)", labels=tmp_path / "t.csv")
    for options in (["--split", "train"], ["--root", "in"], ["--label-column", "x"]):
        refused = run(*PREP, "in", *options, cwd=tmp_path)
        assert refused.returncode == 2 and options[0] in refused.stderr and "in" in refused.stderr
    with pytest.raises(ValueError, match="label_from is about images"):
        prep(put(tmp_path / "a.txt", b"text"), tmp_path / "o.fds", tokenizer="bytes", label_from="(.)")
