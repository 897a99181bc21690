"""What preparing says: of labels, of what was left out, and options as they are typed; help, versions and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
import stores
from archives import write_tar
from fastdata import __version__, prep
from fastdata.errors import PrepError
from fastdata.prepare.finish import Summary
from fastdata.store.export import export
from fastdata.store.store import Store
from support import MAIN, PREP, encode, picture, run, write_pictures

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": 0}, "{size} is 0, but sizes must be different numbers from 1 to 65500"),
    ({"quality": 101}, "{quality} is 101, but must be from 1 to 100"),
    ({"mask_bits": 16}, "{mask_bits} and {palette} are about masks: give {masks} too"),
    ({"train_bpe": 5}, "{train_bpe} is 5, but must be 257 or more: 256 bytes and an end token"),
    ({"tokenizer": "bytes", "size": 8}, "{size} is about images"),
    ({"chunk": 4}, "{chunk} is about arrays"),
    ({"label_from": "x"}, "{label_from} 'x' has 0 groups"),
    ({"label_from": "(x+)_"}, "{label_from} '(x+)_' finds a class in none of 2 paths, such as 00.png"),
    ({"label_from": r"(\d"}, "not a regular expression: missing"),
    ({"bits": 16}, "give rgb or png, with {codec} or in {images}"),
    ({"workers": 0}, "{workers} is 0, but must be positive"),
    ({"root": "in"}, "{root} in needs a table of paths"),
    ({"label_column": "x"}, "{label_column} x: "),
    ({"limit": 0}, "{limit} is 0, but must be positive"),
    ({"split": "val"}, "{split} val needs a table of paths"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_messages_name_options_as_they_are_typed(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_pictures(tmp_path / "in", 2)
    names = re.findall(r"{(\w+)}", message)
    typed = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)[: 1 + (value is not True)]]
    done = run(*PREP, "in", "o.fds", *typed, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert message.format(**{name: f"--{name.replace('_', '-')}" for name in names}) in done.stderr
    with pytest.raises((ValueError, fastdata.errors.PrepError)) as caught:
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds", **options)
    assert message.format(**{name: name for name in names}) in str(caught.value)
    assert not (tmp_path / "o.fds").exists()


def test_commands_in_messages_stay_commands_in_python(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_pictures(tmp_path / "in" / split / "ant", 1)
    with pytest.raises(fastdata.errors.PrepError, match=r"fastdata-prep .*in-val\.fds --classes in-train\.fds"):
        fastdata.prep_plan(tmp_path / "in", tmp_path / "o.fds")


@pytest.mark.parametrize("command", [PREP, [*MAIN, "prep"]])
def test_help_and_version_of_prep(command: list[str]) -> None:
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.returncode == 0 and short.stdout == long.stdout
    assert "--label-from" in short.stdout and re.search(r"\[default:\s+90\]", short.stdout)
    groups = re.findall(r"^(\S.*):$", short.stdout, re.MULTILINE)
    assert groups == ["Images", "Labels", "Masks", "Text", "Arrays", "The run"]
    assert __version__ in run(*command, "--version").stdout


def test_wrong_values_are_told_by_name() -> None:
    wrong = {"quality is 'high', but must be an int": {"quality": "high"}, "prep has no argument 'colour'": {"colour": "red"}}
    wrong |= {"resize is tall, but must be one of short, long, crop, stretch": {"resize": "tall"}}
    for message, options in wrong.items():
        with pytest.raises((TypeError, ValueError), match=message):
            fastdata.prep([np.zeros((8, 8, 3), np.uint8)], "o.fds", **options)


IMAGE = encode(picture(0, 12, 16), ".png")


def labels(summary: Summary) -> list[str]:
    """The class of each sample, by name."""
    store = Store(summary.out)
    return [store.manifest.labels.names[k] for k in store.samples["label"]]


def test_what_labels_are_is_announced(tmp_path: Path) -> None:
    write_pictures(tmp_path / "flat/images", 3)
    said = run(*PREP, "flat/images", "none.fds", cwd=tmp_path).stdout
    for part in ("labels: none, so targets will be -1", "one folder for each class", "(as SOURCE or", r"--label-from '(n\d+)_'"):
        assert part in said
    meant = run(*PREP, "flat/images", "meant.fds", "--label-column", "none", cwd=tmp_path).stdout
    assert "labels: none" in meant and "To add labels" not in meant
    assert any("all samples have the same class, images: is" in note for note in prep(tmp_path / "flat", tmp_path / "o.fds").notes)
    for name in ("ant", "bee"):
        write_pictures(tmp_path / "in" / name, 2)
    (tmp_path / "in/cow").mkdir()
    notes = prep(tmp_path / "in", tmp_path / "i.fds").notes
    assert {"labels: 3 classes from the folders: ant, bee, cow", "classes without a sample: 1 (cow)"} <= {*notes}


def test_a_pattern_finds_the_class_in_each_path_of_an_archive(tmp_path: Path) -> None:
    names = ["n02_a.png", "n01_b.png", "deep/n02_c.png", "n10_d.png", "odd.png"]
    source = write_tar(tmp_path / "in.tar", [(name, IMAGE) for name in names])
    summary = prep(source, tmp_path / "o.fds", label_from=r"(n\d+)_", workers=1)
    store = Store(summary.out)
    found = {name.removeprefix("in.tar/"): label for name, label in zip(store.names(), labels(summary), strict=True)}
    assert found == {name: re.findall(r"n\d+", name)[0] for name in names[:-1]}
    assert store.manifest.labels.names == ("n01", "n02", "n10") and summary.rejected == {"no-label": 1}


def pairs(root: Path, images: str, masks: str, suffix: str = "") -> None:
    """Three images, and for each a mask of other classes in each row."""
    mask = np.repeat(np.arange(12, dtype=np.uint8) % 3, 16).reshape(12, 16)
    stores.write_files(root, {f"{images}/{k}.jpg": picture(k, 12, 16) for k in range(3)})
    stores.write_files(root, {f"{masks}/{k}{suffix}.png": mask for k in range(3)})


def test_images_and_masks_side_by_side_are_refused_with_a_command_that_works(tmp_path: Path) -> None:
    for images, masks, suffix in (("images", "masks", ""), ("imgs", "Annotations", ""), ("images", "labels", "_mask")):
        (root := tmp_path / f"{masks} dir").mkdir()
        pairs(root, images, masks, suffix)
        refused = run(*PREP, root, cwd=tmp_path)
        assert refused.returncode == 2 and "would become a class" in refused.stderr
        (command,) = [line.strip() for line in refused.stderr.splitlines() if line.strip().startswith("fastdata-prep ")]
        call = "fastdata-prep() { " + " ".join(f"'{part}'" for part in PREP) + ' "$@"; }; '
        done = run("bash", "-c", call + command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        store = Store(tmp_path / f"{masks} dir.fds")
        assert len(store) == 3 and store.manifest.section("masks") is not None


def test_classes_that_are_called_after_masks_stay_classes(tmp_path: Path) -> None:
    stores.write_files(tmp_path / "in", {f"{name}.png": IMAGE for name in ("with_mask/0", "without_mask/0", "face/9")})
    assert Store(prep(tmp_path / "in", tmp_path / "o.fds").out).manifest.labels.names == ("face", "with_mask", "without_mask")
    pairs(tmp_path / "both", "images", "masks")
    summary = prep(tmp_path / "both", tmp_path / "b.fds", label_from="([^/]+)/")
    assert sorted(set(labels(summary))) == ["images", "masks"]


def test_what_labels_come_from_is_said_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 2)
    (tmp_path / "t.csv").write_text("00.png,1\n")
    with pytest.raises(ValueError, match=r"label_from takes .*: leave out labels, label_column and regression"):
        prep(tmp_path / "in", tmp_path / "o.fds", label_from="(.)", labels=tmp_path / "t.csv")
    with pytest.raises(ValueError, match="label_from is about images"):
        prep(tmp_path / "t.csv", tmp_path / "o.fds", kind="tokens", tokenizer="bytes", label_from="(.)")


def test_masks_in_tars_are_counted(tmp_path: Path) -> None:
    export(stores.masked(), tmp_path / "tars", to="webdataset")
    made = prep(tmp_path / "tars/00000.tar", tmp_path / "o.fds", workers=1)
    assert f"skipped {made.kept} files, not read as images: .mask.png {made.kept}" in made.lines()


def test_a_store_as_source_is_told_so(tmp_path: Path) -> None:
    for path, options in ((stores.store(), {}), (stores.tokens(), {"tokenizer": "bytes"})):
        with pytest.raises(PrepError, match=rf"SOURCE {path} is a store already: fastdata info {path} shows"):
            prep(path, tmp_path / "o.fds", **options)
