"""What labels come from, and what is said, or refused, where they would silently be none, wrong, or incomplete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archives import write_tar
from fastdata import Summary, prep
from fastdata.errors import PrepError
from fastdata.store.store import Store
from support import PREP, Array, encode, picture, run, write_pictures

IMAGE = encode(picture(0, 12, 16), ".png")


def put(path: Path, data: bytes = IMAGE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    """A table of images and other columns."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = len(next(iter(columns.values())))
    images = [{"bytes": encode(picture(k, 8, 9), ".png"), "path": f"{k}.png"} for k in range(rows)]
    parquet.write_table(pyarrow.table({"image": images, **columns}), path)
    return path


def labels(summary: Summary) -> list[str]:
    """The class of each sample, by name."""
    store = Store(summary.out)
    return [store.manifest.labels.names[k] for k in store.samples["label"]]


# ------------------------------------------------------------------------------------------------------- a flat folder


def test_a_store_without_labels_is_announced_with_what_would_give_some(tmp_path: Path) -> None:
    write_pictures(tmp_path / "flat", 3)
    done = run(*PREP, "flat", cwd=tmp_path)
    assert done.returncode == 0
    said = next(line for line in done.stdout.splitlines() if line.startswith("labels: none"))
    assert "-1" in said and "one folder for each class" in said and ".csv" in said and r"--label-from '(n\d+)_'" in said
    assert "--labels FILE" in said
    meant = run(*PREP, "flat", "meant.fds", "--label-column", "none", cwd=tmp_path).stdout
    assert "labels: none" in meant and "To add labels" not in meant


def test_classes_are_announced(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        write_pictures(tmp_path / "in" / name, 2)
    (tmp_path / "in/cow").mkdir()
    done = run(*PREP, "in", cwd=tmp_path)
    assert "labels: 3 classes from the folders: ant, bee, cow" in done.stdout
    assert "classes without a sample: 1 (cow)" in done.stdout


def test_classes_that_are_none_are_announced(tmp_path: Path) -> None:
    write_pictures(tmp_path / "one/images", 3)
    assert any("all samples have one class, images" in note for note in prep(tmp_path / "one", tmp_path / "o.fds").notes)
    (tmp_path / "one/t.csv").write_text("path,label\n" + "".join(f"images/{k:02d}.png,cat\n" for k in range(3)))
    (note,) = (note for note in prep(tmp_path / "one/t.csv", tmp_path / "c.fds").notes if "all samples" in note)
    assert note == "all samples have one class, cat: is this intended?"


@pytest.mark.parametrize("archived", [False, True])
def test_a_pattern_finds_the_class_in_each_path(tmp_path: Path, archived: bool) -> None:
    names = ["n02_a.png", "n01_b.png", "deep/n02_c.png", "n10_d.png"]
    if archived:
        source = write_tar(tmp_path / "in.tar", [(name, IMAGE) for name in names])
    else:
        source = tmp_path / "in"
        for name in names:
            put(source / name)
    summary = prep(source, tmp_path / "o.fds", label_from=r"(n\d+)_", workers=1)
    wanted = {name: re.findall(r"n\d+", name)[0] for name in names}
    store = Store(summary.out)
    assert store.manifest.labels.names == ("n01", "n02", "n10")
    found = dict(zip(store.names(), labels(summary), strict=True))
    assert {name.removeprefix("in.tar/"): label for name, label in found.items()} == wanted


def test_paths_that_the_pattern_does_not_fit_are_rejects(tmp_path: Path) -> None:
    for name in ("cat_1.png", "dog_1.png", "odd.png"):
        put(tmp_path / "in" / name)
    done = run(*PREP, "in", "--label-from", "([a-z]+)_", cwd=tmp_path)
    assert done.returncode == 3, "one of three is more than --max-reject-rate"
    assert "the first reject: odd.png: no-label: " in done.stdout
    store = Store(tmp_path / "in.fds")
    assert [(r["name"], r["reason"]) for r in store.rejects()] == [("odd.png", "no-label")]
    assert store.manifest.labels.names == ("cat", "dog")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(x+)_", r"--label-from '\(x\+\)_' finds a class in none of 2 paths, such as 00.png"),
        ("(x*)", "finds a class in none"),
        (r"\d+", "0 groups, but needs one"),
        (r"(\d)(\d)", "2 groups, but needs one"),
        (r"(\d", "not a regular expression: missing"),
    ],
)
def test_wrong_patterns_are_errors(tmp_path: Path, pattern: str, message: str) -> None:
    write_pictures(tmp_path / "in", 2)
    done = run(*PREP, "in", "--label-from", pattern, cwd=tmp_path)
    assert done.returncode == 2 and re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "in.fds").exists()


# ------------------------------------------------------------------------------------------ images and masks side by side


def pairs(root: Path, images: str, masks: str, suffix: str = "", image_ending: str = ".jpg") -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        put(root / images / f"{k}{image_ending}", encode(picture(k, 12, 16), image_ending))
        put(root / masks / f"{k}{suffix}.png", encode(rng.integers(0, 3, (12, 16), np.uint8), ".png"))


@pytest.mark.parametrize(
    ("images", "masks", "suffix"), [("images", "masks", ""), ("imgs", "Annotations", ""), ("images", "labels", "_mask")]
)
def test_images_and_masks_side_by_side_are_refused_with_a_command_that_works(
    tmp_path: Path, images: str, masks: str, suffix: str
) -> None:
    pairs(tmp_path / "cam vid", images, masks, suffix)
    refused = run(*PREP, "cam vid", cwd=tmp_path)
    assert refused.returncode == 2 and "would become two classes" in refused.stderr and not list(tmp_path.glob("*.fds"))
    (command,) = [line.strip() for line in refused.stderr.splitlines() if line.strip().startswith("fastdata-prep ")]
    call = "fastdata-prep() { " + " ".join(f"'{part}'" for part in PREP) + ' "$@"; }; '
    done = run("bash", "-c", call + command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = Store(tmp_path / "cam vid.fds")
    assert len(store) == 3 and store.manifest.section("masks") is not None


def test_classes_that_are_called_after_masks_stay_classes(tmp_path: Path) -> None:
    for folder, first in (("with_mask", 0), ("without_mask", 0), ("face", 100)):
        for k in range(2):
            put(tmp_path / f"in/{folder}/{first + k}.png")
    assert Store(prep(tmp_path / "in", tmp_path / "o.fds").out).manifest.labels.names == ("face", "with_mask", "without_mask")
    pairs(tmp_path / "both", "images", "masks")
    summary = prep(tmp_path / "both", tmp_path / "b.fds", label_from="([^/]+)/")
    assert sorted(set(labels(summary))) == ["images", "masks"]


@pytest.mark.parametrize("as_source", [True, False])
def test_labels_with_a_comma_are_no_classes(tmp_path: Path, as_source: bool) -> None:
    for k in range(2):
        put(tmp_path / "in" / f"{k}.png")
    table = tmp_path / "in.csv"
    table.write_text("path;score\n0.png;0,5\n1.png;1,25\n")
    source = table if as_source else tmp_path / "in"
    options: dict[str, Any] = {"root": tmp_path / "in"} if as_source else {"labels": table}
    with pytest.raises(PrepError, match=r"labels are numbers that are not all whole, .* such as '0,5'"):
        prep(source, tmp_path / "o.fds", **options)


# ----------------------------------------------------------------------------------------------------- other columns


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_that_are_not_stored_are_named_and_counted(tmp_path: Path, kind: str) -> None:
    columns: dict[str, Array | list[Any]] = {"label": [0, 1], "caption": ["x", "y"], "width": [4, 5]}
    if kind == "parquet":
        source = parquet(tmp_path / "in.parquet", **columns)
    else:
        for k in range(2):
            put(tmp_path / f"{k}.png")
        source = tmp_path / "in.csv"
        source.write_text("path,label,caption,width\n0.png,0,x,4\n1.png,1,y,5\n")
    done = run(*PREP, source, "o.fds", cwd=tmp_path)
    assert done.returncode == 0 and "2 columns are not stored: caption, width" in done.stdout
    assert "labels: 2 classes from column" in done.stdout
    assert Store(tmp_path / "o.fds").samples["label"].tolist() == [0, 1]


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
