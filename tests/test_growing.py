"""Stores that grow: append, merge and subset, against stores that were prepared in one go, and what readers of before see."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastdata
import stores
from fastdata import ArrayDataset, LMDBDataset, Loader, MaskDataset, PrepError, RAMDataset, StoreError, TableDataset, TokenDataset
from fastdata.store.format import read_manifest
from fastdata.store.store import Store
from fastdata.store.verify import verify
from support import MAIN, PREP, Array, encode, kill_group, picture, run, start, tree, until, write_pictures


def classes(root: Path, found: dict[str, int], *, seed: int = 0) -> Path:
    """A folder of so many images of each class, all different."""
    for k, (name, count) in enumerate(found.items()):
        write_pictures(root / name, count, height=40 + k, seed=seed + 100 * k)
    return root


def both(root: Path, *parts: Path) -> Path:
    """A folder with the files of several, whose names begin with the number of the part so that they are listed in order."""
    for k, part in enumerate(parts):
        for path in sorted(part.rglob("*.*")):
            target = root / path.parent.relative_to(part) / f"{k}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return root


def samples(path: Path, **options: Any) -> list[tuple[str, bytes, Any]]:
    """The samples of a store of images: the name of the class, the pixels, and the target."""
    dataset = LMDBDataset(path, **options)
    images = stores.whole(path) if Store(path).manifest.variants[0].form.codec in ("rgb", "jpeg") else []
    found = []
    for k in range(len(dataset)):
        image, label = dataset[k]
        name = dataset.classes[label] if isinstance(label, int) and label >= 0 else ""
        assert not images or np.array_equal(image.permute(1, 2, 0), images[k])
        found.append((name, image.numpy().tobytes(), label))
    return found


def sound(path: Path) -> None:
    assert list(verify(path)) == []


# Append


def test_a_store_that_grew_has_what_both_stores_have(tmp_path: Path) -> None:
    one, two = classes(tmp_path / "one", {"cat": 5, "dog": 4}), classes(tmp_path / "two", {"ant": 3, "dog": 2, "cat": 1}, seed=7)
    grown = fastdata.prep(one, tmp_path / "o.fds", size=32, codec="rgb", quality=80, workers=1).out
    before = tree(grown)
    summary = fastdata.append(two, grown, workers=1)
    assert (summary.kept, summary.out) == (6, grown / "version-2")
    assert any("new classes, from number 2 on: ant" in note for note in summary.notes)
    alone = [fastdata.prep(p, tmp_path / f"{p.name}.fds", size=32, codec="rgb", quality=80, workers=1).out for p in (one, two)]
    want = [(name, pixels) for path in alone for name, pixels, _ in samples(path)]
    assert [(name, pixels) for name, pixels, _ in samples(grown)] == want
    dataset = LMDBDataset(grown)
    assert dataset.classes == ["cat", "dog", "ant"] and dataset.targets[:9].tolist() == LMDBDataset(alone[0]).targets.tolist()
    assert [dataset.name(k) for k in range(15)] == [LMDBDataset(p).name(k) for p in alone for k in range(len(LMDBDataset(p)))]
    after = tree(grown)
    assert {name: after[name] for name in before} == before, "what the store was made of has not changed"
    assert not (tmp_path / "o.fds.append").exists()
    sound(grown)
    assert {int(s) for s in Store(grown).samples["source"]} == set(range(15))
    images = sorted(one.rglob("*.png")) + sorted(two.rglob("*.png"))
    whole = fastdata.prep(both(tmp_path / "both", one, two), tmp_path / "all.fds", size=32, codec="rgb", quality=80, workers=1)
    assert len(images) == whole.kept and sorted(want) == sorted((name, pixels) for name, pixels, _ in samples(whole.out))


def test_readers_keep_the_version_that_they_opened(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=[32, 16], workers=1).out
    old, ram = LMDBDataset(grown), RAMDataset(grown, size=[32, 16])
    lazy, data = LMDBDataset(grown), [pickle.dumps(d) for d in (LMDBDataset(grown), ram)]
    want = samples(grown)
    for number in (2, 3):
        fastdata.append(classes(tmp_path / f"{number}", {"a": number}, seed=number), grown, workers=1)
        copies = [pickle.loads(d) for d in data]
        for dataset in (old, lazy, ram, *copies, old.with_size(32), copies[0].with_size(32), LMDBDataset(grown / "version-1")):
            assert len(dataset) == 4
            assert [image.numpy().tobytes() for image, _ in (dataset[k] for k in range(4))] == [pixels for _, pixels, _ in want]
        assert len(old.with_size(16)) == len(copies[0].with_size(16)) == 4 and old.with_size(16)[0][0].shape != old[0][0].shape
    assert len(LMDBDataset(grown)) == 9 and len(LMDBDataset(grown / "version-2")) == 6 and len(RAMDataset(grown)) == 9
    assert [name for name, *_ in samples(grown)][:4] == [name for name, *_ in want]
    for path in (grown, grown / "version-1", grown / "version-2"):
        sound(path)


def test_versions_are_marked_for_older_readers(tmp_path: Path) -> None:
    """They read the first version, which is as it was, and refuse a later one by its number: a major one of docs/format.md."""
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    first = (grown / "manifest.json").read_bytes()
    fastdata.append(classes(tmp_path / "two", {"a": 4}, seed=9), grown, workers=1)
    assert (grown / "manifest.json").read_bytes() == first and json.loads(first)["version"] == "1.0"
    later = json.loads((grown / "version-2" / "manifest.json").read_bytes())
    assert (later["version"], later["shards_in"]) == ("2.0", "..")
    merged = fastdata.merge([grown, grown / "version-1"], tmp_path / "m.fds")
    assert json.loads((merged / "manifest.json").read_bytes())["version"] == "1.0", "a merged store is like any other"
    assert not [path for path in merged.rglob("*") if "version" in path.name]


def test_what_is_there_already_is_not_added_again(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    more = classes(tmp_path / "two", {"a": 3}, seed=9)
    for _ in range(2):
        summary = fastdata.append(more, grown, workers=1)
    assert any("has these samples already: nothing was added" in note for note in summary.notes)
    assert len(LMDBDataset(grown)) == 7 and not (grown / "version-3").exists()
    other = both(tmp_path / "same names", more)  # other files of equal names and sizes: only bytes tell them
    for path in other.rglob("*.png"):
        path.rename(path.with_name(path.name[2:]))
    (other / "a" / "00.png").write_bytes((more / "a" / "01.png").read_bytes())
    assert fastdata.append(other, grown, workers=1).kept == 3 and len(LMDBDataset(grown)) == 10
    (other / "a").rename(other / "b")  # the same shards, but other labels
    fastdata.append(other, grown, workers=1)
    assert LMDBDataset(grown).targets.tolist() == [0] * 10 + [1] * 3


APPEND = ("--workers", "2", "--progress", "off")


@pytest.mark.slow
def test_kill_9_at_random_moments_of_an_append(tmp_path: Path) -> None:
    """The store has its old samples or all; a reader at any moment sees one or the other; the same command ends it."""
    small, large = classes(tmp_path / "one", {"a": 5, "b": 4}), classes(tmp_path / "two", {"b": 30, "c": 40}, seed=50)
    first = fastdata.prep(small, tmp_path / "first.fds", size=32, workers=1).out
    want = shutil.copytree(first, tmp_path / "want.fds")
    began = time.monotonic()
    assert run(*PREP, large, "--append", want, *APPEND).returncode == 0
    seconds = time.monotonic() - began
    expected = tree(want)
    rng, old, new = random.Random(1), 0, 0
    for k in range(8):
        out = shutil.copytree(first, tmp_path / f"{k}.fds")
        process = start(*PREP, large, "--append", out, *APPEND)
        if k % 4 == 3:
            until(lambda out=out, p=process: list(out.glob("version-*")) or p.poll() is not None)
            time.sleep(rng.uniform(0, 0.02))
        else:
            end = time.monotonic() + rng.uniform(0, seconds)
            while time.monotonic() < end and process.poll() is None:
                assert len(LMDBDataset(out)) in (9, 79)
        kill_group(process)
        assert len(LMDBDataset(out)) in (9, 79)
        sound(out)
        old, new = old + (len(LMDBDataset(out)) == 9), new + (len(LMDBDataset(out)) == 79)
        second = run(*PREP, large, "--append", out, *APPEND)
        assert second.returncode == 0, second.stderr
        assert tree(out) == expected, f"round {k} ended otherwise"
        assert not out.with_name(f"{k}.fds.append").exists()
    assert old >= 4


def test_a_killed_append_that_had_ended_is_not_done_twice(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    more = classes(tmp_path / "two", {"a": 3}, seed=9)
    fastdata.append(more, grown, workers=1)
    fastdata.prep(more, tmp_path / "o.fds.append", size=32, workers=1)  # as if it had been killed before it removed this
    fastdata.append(more, grown, workers=1)
    assert len(LMDBDataset(grown)) == 7 and not (tmp_path / "o.fds.append").exists()


def test_an_append_without_room_leaves_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    before = tree(grown)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastdata.prepare.join.os.link", full)
    monkeypatch.setattr("fastdata.prepare.join.shutil.copyfile", full)
    with pytest.raises(StoreError, match="No space left on device"):
        fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1)
    monkeypatch.undo()
    assert len(LMDBDataset(grown)) == 4 and {k: v for k, v in tree(grown).items() if k in before} == before
    fastdata.append(tmp_path / "two", grown, workers=1)
    assert len(LMDBDataset(grown)) == 7
    sound(grown)


def test_prep_and_overwrite_of_a_store_that_grew(tmp_path: Path) -> None:
    one = classes(tmp_path / "one", {"a": 4})
    grown = fastdata.prep(one, tmp_path / "o.fds", size=32, workers=1).out
    fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1)
    assert fastdata.prep(one, grown, size=32, workers=1).kept == 4 and len(LMDBDataset(grown)) == 7, "the same command is done"
    fastdata.prep(one, grown, size=16, workers=1, overwrite=True)
    alone = fastdata.prep(one, tmp_path / "alone.fds", size=16, workers=1).out
    assert tree(grown) == tree(alone)


@pytest.mark.slow
def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, codec="png", workers=1).out
    more = classes(tmp_path / "two", {"a": 3, "b": 1}, seed=9)
    tried = run(*PREP, more, "--append", grown, "--dry-run")
    assert tried.returncode == 0 and "4 inputs" in tried.stdout and not (grown / "version-2").exists()
    found = run(*PREP, more, "--append", grown, "--workers", "1")
    assert found.returncode == 0, found.stderr
    assert "version-2: 4 of 4 images kept" in found.stdout and "4 samples of before and 4 new ones" in found.stdout
    assert "new classes, from number 1 on: b" in found.stdout
    assert "8 samples" in (told := run(*MAIN, "info", grown).stdout) or "8 images" in told, told
    assert run(*MAIN, "verify", grown).returncode == 0
    wrong = run(*PREP, more, tmp_path / "x.fds", "--append", grown)
    assert wrong.returncode == 2 and "leave one out" in wrong.stderr
    other = run(*PREP, more, "--append", grown, "--codec", "jpeg")
    assert other.returncode == 2 and "--codec is jpeg, but" in other.stderr and "prepared with png" in other.stderr
    assert run(*MAIN, "export", grown, tmp_path / "files").returncode == 0
    assert len(list((tmp_path / "files").rglob("*.png"))) == 8


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": 16}, r"size is 16, but .* was prepared with 32: leave it out"),
        ({"gray": True}, r"gray is True, but .* was prepared with False: leave it out"),
        ({"label_column": "none"}, r"has classes, .* has no labels"),
        ({"kind": "arrays"}, r"kind is arrays, but .* was prepared with images"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: str, tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    before = tree(grown)
    with pytest.raises((PrepError, ValueError), match=error):
        fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1, **options)
    assert tree(grown) == before


def test_where_not_to_append(tmp_path: Path) -> None:
    one = classes(tmp_path / "one", {"a": 4})
    with pytest.raises(StoreError, match="no store at"):
        fastdata.append(one, tmp_path / "nothing.fds")
    grown = fastdata.prep(one, tmp_path / "o.fds", size=32, workers=1).out
    with pytest.raises(ValueError, match="append adds to the store"):
        fastdata.append(one, grown, out=tmp_path / "x.fds")
    fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1)
    with pytest.raises(PrepError, match=r"is a version of .*: append to the store itself"):
        fastdata.append(one, grown / "version-2")
    part = fastdata.subset(grown, tmp_path / "part.fds", ids=[1, 2])
    with pytest.raises(PrepError, match="is a subset of another store: append to that one"):
        fastdata.append(one, part)


def test_a_loader_resumes_on_the_version_of_its_state(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 20}), tmp_path / "o.fds", size=32, workers=1).out
    with Loader(LMDBDataset(grown), 4, shuffle=True, seed=1, num_workers=0) as loader:
        batches = [batch.ids.tolist() for batch in loader]
    with Loader(LMDBDataset(grown), 4, shuffle=True, seed=1, num_workers=0) as loader:
        ahead = iter(loader)
        first = [next(ahead).ids.tolist() for _ in range(2)]
        state = loader.state_dict()
    fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1)
    with Loader(LMDBDataset(grown), 4, shuffle=True, seed=1, num_workers=0) as loader:
        with pytest.raises(ValueError, match=r"num_samples 20, this loader has 23.*version-"):
            loader.load_state_dict(state)
    with Loader(LMDBDataset(grown / "version-1"), 4, shuffle=True, seed=1, num_workers=0) as loader:
        loader.load_state_dict(state)
        assert first + [batch.ids.tolist() for batch in loader] == batches


WORKERS = """
import json, multiprocessing, sys
import fastdata
from fastdata import LMDBDataset, Loader
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[3])
    dataset = LMDBDataset(sys.argv[1])
    fastdata.append(sys.argv[2], sys.argv[1], workers=1)
    with Loader(dataset, 2, num_workers=2) as loader:
        found = [batch[0].sum().item() for batch in loader for _ in range(2)]
    print(json.dumps([len(found), len(LMDBDataset(sys.argv[1]))]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_workers_that_start_after_the_append_read_the_version_of_their_dataset(method: str, tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 6}), tmp_path / "o.fds", size=32, workers=1).out
    more = classes(tmp_path / "two", {"a": 3}, seed=9)
    assert stores.script(WORKERS, grown, more, method) == [6, 9]


# All kinds and whatever belongs to samples


def test_masks_several_sizes_and_images_without_labels(tmp_path: Path) -> None:
    for part, count, first in (("one", 3, 0), ("two", 2, 3)):
        for k in range(count):
            for name, pixels in (("in", picture(first + k, 30, 40)), ("masks", np.full((30, 40), (first + k) % 3, np.uint8))):
                (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
                (tmp_path / part / name / f"{k}.png").write_bytes(encode(pixels, ".png"))
    options: dict[str, Any] = {"size": [24, 16], "codec": "rgb", "workers": 1}
    one, two = (tmp_path / part for part in ("one", "two"))
    grown = fastdata.prep(one / "in", tmp_path / "o.fds", masks=one / "masks", **options).out
    fastdata.append(two / "in", grown, masks=two / "masks", workers=1)
    dataset = MaskDataset(grown, ignore_index=9)
    assert [int(mask[5, 5]) for _, mask in (dataset[k] for k in range(5))] == [0, 1, 2, 0, 1]
    assert dataset.class_pixels == {0: 2400, 1: 2400, 2: 1200} and len(dataset.with_size(16)) == 5
    ram = RAMDataset(grown, ignore_index=9, size=[24, 16])
    assert all(torch.equal(a, b) for k in range(5) for a, b in zip(ram[k], dataset[k], strict=True))
    sound(grown)
    with pytest.raises((PrepError, ValueError), match="mask"):
        fastdata.append(two / "in", grown, workers=1)


def test_several_images_a_sample(tmp_path: Path) -> None:
    for part, first in (("one", 0), ("two", 4)):
        for k in range(4):
            image = picture(first + k, 40, 30 + k)
            for name, pixels in (("photo", image), ("depth", image[..., 0].astype(np.uint16) * 251)):
                (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
                (tmp_path / part / name / f"{k}.png").write_bytes(encode(pixels, ".png"))
    images = ("photo=photo:rgb", "depth=depth:png:16:gray")
    grown = fastdata.prep(tmp_path / "one", tmp_path / "o.fds", images=images, workers=1).out
    fastdata.append(tmp_path / "two", grown, images=images, workers=1)
    dataset = LMDBDataset(grown)
    for k in range(8):
        want = picture(k, 40, 30 + k % 4)
        sample, _ = dataset[k]
        assert np.array_equal(sample["photo"].permute(1, 2, 0), want)
        assert np.array_equal(sample["depth"][0], want[..., 0].astype(np.uint16) * 251)
    sound(grown)
    part = fastdata.subset(grown, tmp_path / "part.fds", ids=[6, 1])
    sample, _ = LMDBDataset(part)[1]
    assert np.array_equal(sample["photo"].permute(1, 2, 0), picture(6, 40, 32))
    sound(part)


FIELDS = ("caption", "score", "ids:int64[]", "embedding:float32[2]", "meta:json", "good:bool")


def table_of(root: Path, first: int, count: int) -> Path:
    """Images with a table of values that say their number."""
    write_pictures(root, count, seed=first)
    rows = [
        {
            "path": f"{k:02d}.png",
            "label": f"class {(first + k) % 3}",
            "caption": f"number {first + k} ü",
            "score": (first + k) / 4,
            "ids": json.dumps(list(range((first + k) % 4))),
            "embedding": json.dumps([first + k, -0.5]),
            "meta": json.dumps({"k": first + k}),
            "good": (first + k) % 2 == 0,
        }
        for k in range(count)
    ]
    pd.DataFrame(rows).to_csv(root / "table.csv", index=False)
    return root / "table.csv"


def check_fields(path: Path, numbers: list[int]) -> None:
    dataset = LMDBDataset(path, fields=["caption", "score", "ids", "embedding", "meta", "good", "label"])
    assert len(dataset) == len(numbers)
    for k, n in enumerate(numbers):
        values = dataset[k][1]
        assert (values["caption"], float(values["score"]), values["meta"]) == (f"number {n} ü", n / 4, {"k": n})
        assert values["ids"].tolist() == list(range(n % 4)) and values["embedding"].tolist() == [n, -0.5]
        assert bool(values["good"]) == (n % 2 == 0) and dataset.classes[int(values["label"])] == f"class {n % 3}"
    sound(path)


def test_columns_follow_their_samples(tmp_path: Path) -> None:
    one, two = table_of(tmp_path / "one", 0, 7), table_of(tmp_path / "two", 7, 5)
    grown = fastdata.prep(one, tmp_path / "o.fds", size=32, fields=FIELDS, workers=1).out
    fastdata.append(two, grown, fields=FIELDS, workers=1)
    check_fields(grown, [*range(12)])
    check_fields(grown / "version-1", [*range(7)])
    merged = fastdata.merge([grown / "version-1", grown], tmp_path / "m.fds")
    check_fields(merged, [*range(7), *range(12)])
    check_fields(fastdata.subset(merged, tmp_path / "s.fds", ids=[18, 3, 7]), [3, 0, 11])
    with pytest.raises(PrepError, match=r"columns .*give the same fields to both"):
        fastdata.append(two, grown, fields=FIELDS[:3], workers=1)


def coco(root: Path, names: dict[int, str], wanted: list[str], *, seed: int) -> Path:
    """Images with one box each, of the classes that are wanted."""
    write_pictures(root, len(wanted), seed=seed)
    numbers = {name: k for k, name in names.items()}
    boxes = [
        {"id": k, "image_id": k, "category_id": numbers[name], "bbox": [k, 2, 10, 12], "area": 120, "iscrowd": 0}
        for k, name in enumerate(wanted)
    ]
    body = {
        "images": [{"id": k, "file_name": f"{k:02d}.png", "height": 48, "width": 64} for k in range(len(wanted))],
        "annotations": boxes,
        "categories": [{"id": k, "name": name} for k, name in names.items()],
    }
    (root.parent / f"{root.name}.json").write_text(json.dumps(body))
    return root.parent / f"{root.name}.json"


def test_classes_of_boxes_are_joined_by_name(tmp_path: Path) -> None:
    first = ["cat", "dog", "cat"]
    second = ["elk", "cat", "elk", "dog"]
    one = coco(tmp_path / "one", {3: "cat", 8: "dog"}, first, seed=0)
    two = coco(tmp_path / "two", {1: "elk", 3: "cat", 8: "dog"}, second, seed=10)
    grown = fastdata.prep(tmp_path / "one", tmp_path / "o.fds", size=32, coco=one, workers=1).out
    fastdata.append(tmp_path / "two", grown, coco=two, workers=1)
    column = next(c for c in Store(grown).manifest.columns if c.names)
    dataset = LMDBDataset(grown, fields=["boxes", column.name])
    found = [column.names[int(dataset[k][1][column.name][0])] for k in range(7)]
    assert found == [*first, *second] and dict(zip(column.names, column.ids, strict=True)) == {"cat": 3, "dog": 8, "elk": 1}
    boxes = LMDBDataset(grown / "version-1", fields="boxes")
    assert torch.equal(dataset[2][1]["boxes"], boxes[2][1])
    sound(grown)
    three = coco(tmp_path / "three", {4: "cat", 8: "dog"}, ["cat"], seed=20)
    with pytest.raises(PrepError, match="other ids for the same names"):
        fastdata.append(tmp_path / "three", grown, coco=three, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokenizer", [{"tokenizer": "bytes"}, {"tokenizer": "chars", "end_token": "none"}, {"train_bpe": 300}], ids=str
)
def test_text(tokenizer: dict[str, Any], tmp_path: Path) -> None:
    texts = [["ab cd ab", "die Katze ", "dada"], ["bad cab", "a cat died"]]
    for name, found in zip(("one", "two"), texts, strict=True):
        (tmp_path / name).mkdir()
        for k, text in enumerate(found):
            (tmp_path / name / f"{k}.txt").write_text(text)
    grown = fastdata.prep(tmp_path / "one", tmp_path / "o.fds", **tokenizer, workers=1).out
    if "chars" not in tokenizer.values():
        fastdata.append(tmp_path / "two", grown, workers=1)
    else:
        (tmp_path / "two" / "1.txt").write_text("a tie dab ")  # characters of before only
        texts[1][1] = "a tie dab "
        fastdata.append(tmp_path / "two", grown, workers=1)
    dataset = TokenDataset(grown, 64, mode="document")
    end = Store(grown, "tokens").manifest.section("tokens").end
    read = [dataset[k][0][: int(dataset[k][1])] for k in range(len(dataset))]
    decoded = [dataset.decode([t for t in tokens.tolist() if t != end]) for tokens in read]
    assert decoded == [text for some in texts for text in some]
    ram = RAMDataset(grown, block_size=4, mode="sequential")
    disk = TokenDataset(grown, 4, mode="sequential")
    assert len(ram) == len(disk) and all(torch.equal(ram[k], disk[k]) for k in range(len(disk)))
    assert TokenDataset(grown / "version-1", 4).num_documents == 3
    assert Store(grown, "tokens").names() == ["0.txt", "1.txt", "2.txt", "0.txt", "1.txt"]
    assert Store(grown, "tokens").samples["source"].tolist() == [*range(5)]
    sound(grown)
    with pytest.raises(PrepError, match="only stores of images have subsets on disk"):
        fastdata.subset(grown, tmp_path / "s.fds", ids=[0])


def test_tokens_without_a_tokenizer_and_another_tokenizer(tmp_path: Path) -> None:
    for name, first in (("one", 0), ("two", 500)):
        (tmp_path / name).mkdir()
        np.arange(first, first + 500, dtype="<u2").tofile(tmp_path / name / "a.bin")
    grown = fastdata.prep(tmp_path / "one", tmp_path / "o.fds", end_token="0", workers=1).out
    fastdata.append(tmp_path / "two", grown, workers=1)
    rows = TokenDataset(grown, 100, mode="sequential")
    assert np.concatenate([rows[k][:-1] for k in range(len(rows))])[:1000].tolist()[:999] == [*range(999)]
    (tmp_path / "t.txt").write_text("text")
    with pytest.raises((PrepError, ValueError), match="tokenizer"):
        fastdata.append(tmp_path / "t.txt", grown, tokenizer="bytes", workers=1)


def volumes(root: Path, first: int, count: int) -> list[Array]:
    rng = np.random.default_rng(first)
    found = [rng.integers(0, 1000, (20 + k, 33, 18)).astype(np.int16) for k in range(count)]
    for name in ("in", "masks"):
        (root / name).mkdir(parents=True)
        for k, array in enumerate(found):
            np.save(root / name / f"{k}.npy", array if name == "in" else (array % 5).astype(np.uint8))
    return found


def test_arrays(tmp_path: Path) -> None:
    arrays = [*volumes(tmp_path / "one", 0, 3), *volumes(tmp_path / "two", 3, 4)]
    grown = fastdata.prep(tmp_path / "one" / "in", tmp_path / "o.fds", masks=tmp_path / "one" / "masks", chunk=16, workers=1).out
    fastdata.append(tmp_path / "two" / "in", grown, masks=tmp_path / "two" / "masks", workers=1)
    for dataset in (ArrayDataset(grown, ignore_index=9), RAMDataset(grown, ignore_index=9)):
        assert len(dataset) == 7
        for k, array in enumerate(arrays):
            np.testing.assert_array_equal(dataset[k][0], array)
            np.testing.assert_array_equal(dataset[k][1], array % 5)
        assert sum(dataset.class_voxels.values()) == sum(a.size for a in arrays)
    sound(grown)


@pytest.mark.slow
def test_tables_of_one_layout(tmp_path: Path) -> None:
    frames = [
        pd.DataFrame({"x": [1000, 2, 3], "c": ["red", "blue", "red"], "m": [1.5, None, 2.5], "y": [1, 0, 1]}),
        pd.DataFrame({"x": [1001, 4], "c": ["red", "blue"], "m": [None, 3.5], "y": [0, 1]}),
        pd.DataFrame({"x": [1, 4], "c": ["red", "blue"], "m": [None, 3.5], "y": [0, 1]}),
        pd.DataFrame({"x": [1001, 4], "c": ["red", "green"], "m": [None, 3.5], "y": [0, 1]}),
        pd.DataFrame({"x": [1001, 4], "c": ["red", "blue"], "m": [1, 3.5], "y": [0, 1]}),
    ]
    for k, frame in enumerate(frames):
        frame.to_parquet(tmp_path / f"{k}.parquet")
    grown = fastdata.prep(tmp_path / "0.parquet", tmp_path / "o.fds", target="y", workers=1).out
    fastdata.append(tmp_path / "1.parquet", grown, target="y", workers=1)
    dataset = TableDataset(grown)
    assert dataset.column("x").tolist() == [1000, 2, 3, 1001, 4] and dataset.targets.tolist() == [1, 0, 1, 0, 1]
    assert [dataset.categories["c"][k] for k in dataset.column("c")] == ["red", "blue", "red", "red", "blue"]
    assert dataset.column("m.missing").tolist() == [False, True, False, True, False] and dataset.missing == {"m": 2}
    sound(grown)
    for k, what in ((2, "column x has the dtype"), (3, "column c has the names"), (4, "column m has missing values in one")):
        with pytest.raises(PrepError, match=f"{what}.*prepare all rows together"):
            fastdata.append(tmp_path / f"{k}.parquet", grown, target="y", workers=1, overwrite=True)
    assert len(TableDataset(grown)) == 5


# Merge


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """Stores of the classes of their names, two images of each."""
    root = tmp_path_factory.mktemp("pool")
    found = {}
    for k, names in enumerate([("a",), ("b", "a"), ("c", "d"), ("d", "b", "a"), ("e",)]):
        folder = classes(root / str(k), dict.fromkeys(names, 2), seed=1000 * k)
        found[tuple(sorted(names))] = fastdata.prep(folder, root / f"{k}.fds", size=16, codec="rgb", workers=1).out
    return found


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_merged_stores_are_their_samples_in_a_row(pool: dict[tuple[str, ...], Path], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(pool)), min_size=2, max_size=5))
    paths = [pool[names] for names in chosen]
    out = stores.folder() / "m.fds"
    merged = fastdata.merge(paths, out)
    want = [(name, pixels) for path in paths for name, pixels, _ in samples(path)]
    assert [(name, pixels) for name, pixels, _ in samples(merged)] == want
    assert LMDBDataset(merged).classes == list(dict.fromkeys(name for names in chosen for name in names))
    sound(merged)
    rows = data.draw(st.sets(st.integers(0, len(want) - 1), min_size=1))
    part = fastdata.subset(merged, out.with_name("s.fds"), ids=rows)
    assert [(name, pixels) for name, pixels, _ in samples(part)] == [want[k] for k in sorted(rows)]
    sound(part)
    again = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    inner = fastdata.subset(part, out.with_name("t.fds"), ids=again)
    assert [(name, pixels) for name, pixels, _ in samples(inner)] == [want[sorted(rows)[k]] for k in sorted(again)]
    shutil.rmtree(out.parent)


def test_shards_are_linked_and_a_removed_store_takes_nothing_along(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(pool[names], tmp_path / f"{k}.fds") for k, names in enumerate([("a",), ("e",)])]
    merged = fastdata.merge(copies, tmp_path / "m.fds")
    assert all(path.stat().st_nlink == 2 for path in merged.glob("*/*.mdb"))
    want = samples(merged)
    for path in copies:
        shutil.rmtree(path)
    assert samples(merged) == want
    sound(merged)


def test_shards_are_copied_where_there_are_no_links(
    pool: dict[tuple[str, ...], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("fastdata.prepare.join.os.link", refuse)
    merged = fastdata.merge([pool[("a",)], pool[("e",)]], tmp_path / "m.fds")
    assert all(path.stat().st_nlink == 1 for path in merged.glob("*/*.mdb")) and not list(merged.rglob("*.tmp"))
    sound(merged)


MERGE = "import sys, fastdata; fastdata.merge(sys.argv[2:], sys.argv[1])"


@pytest.mark.slow
def test_kill_9_at_random_moments_of_a_merge(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    paths = [path for path in pool.values() for _ in range(30)]
    command = [sys.executable, "-c", MERGE]
    began = time.monotonic()
    subprocess.run([*command, tmp_path / "want.fds", *paths], check=True)
    seconds, expected = time.monotonic() - began, tree(tmp_path / "want.fds")
    rng, unfinished = random.Random(3), 0
    for k in range(8):
        out = tmp_path / f"{k}.fds"
        process = start(*command, out, *paths)
        until(lambda out=out, p=process: out.exists() or p.poll() is not None)
        time.sleep(rng.uniform(0, seconds / 10))
        kill_group(process)
        if not (out / "manifest.json").exists():
            unfinished += 1
            with pytest.raises(StoreError):
                Store(out)
            subprocess.run([*command, out, *paths], check=True)
        shutil.rmtree(out / "work", ignore_errors=True)  # with the lock, if the store was finished and nothing else
        assert tree(out) == expected
    assert unfinished >= 3


def test_what_does_not_merge(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    one = pool[("a",)]
    other = fastdata.prep(classes(tmp_path / "x", {"a": 2}), tmp_path / "x.fds", size=16, codec="png", workers=1).out
    cases: list[tuple[list[Path], Path, str]] = [
        ([one, other], tmp_path / "m.fds", "--codec rgb, now png|codec rgb, now png"),
        ([one, stores.tokens()], tmp_path / "m.fds", "only stores of one kind"),
        ([one, one], one, "is a store already|is, or lies inside of"),
        ([one, one], one / "m.fds", "lies inside of"),
        ([one], tmp_path / "m.fds", "two or more"),
    ]
    before = tree(one)
    for paths, out, error in cases:
        with pytest.raises((PrepError, ValueError), match=error):
            fastdata.merge(paths, out)
    part = fastdata.subset(one, tmp_path / "p.fds", ids=[0])
    with pytest.raises(PrepError, match="is a subset of another store"):
        fastdata.merge([one, part], tmp_path / "m.fds")
    assert tree(one) == before and not (tmp_path / "m.fds").exists()


@pytest.mark.slow
def test_the_commands(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    merged = run(*MAIN, "merge", pool[("a",)], pool[("c", "d")], tmp_path / "m.fds")
    assert merged.returncode == 0 and "6 samples of 2 stores" in merged.stdout, merged.stderr
    (tmp_path / "ids.txt").write_text("5\n0\n\n")
    part = run(*MAIN, "subset", tmp_path / "m.fds", tmp_path / "s.fds", "--ids", tmp_path / "ids.txt")
    assert part.returncode == 0 and "2 of 6 samples" in part.stdout, part.stderr
    assert run(*MAIN, "verify", tmp_path / "s.fds").returncode == 0 and run(*MAIN, "info", tmp_path / "s.fds").returncode == 0
    (tmp_path / "ids.txt").write_text("5\nfive\n")
    wrong = run(*MAIN, "subset", tmp_path / "m.fds", tmp_path / "t.fds", "--ids", tmp_path / "ids.txt")
    assert wrong.returncode == 2 and "ids.txt, line 2: 'five' is not the number" in wrong.stderr
    assert run(*MAIN, "merge", pool[("a",)], stores.tokens(), tmp_path / "x.fds").returncode == 2
    assert run(*MAIN, "export", tmp_path / "s.fds", tmp_path / "files").returncode == 0
    assert len(list((tmp_path / "files").rglob("*.png"))) == 2


# Subset


def test_conditions_and_fractions(tmp_path: Path) -> None:
    whole = fastdata.prep(table_of(tmp_path / "one", 0, 20), tmp_path / "o.fds", size=32, fields=FIELDS, workers=1).out
    cases = [
        (["label=class 1"], [k for k in range(20) if k % 3 == 1]),
        (["score>=2.5"], [*range(10, 20)]),
        (["score >= 2.5", "label != class 1", "good = true"], [k for k in range(10, 20) if k % 3 != 1 and k % 2 == 0]),
        (["caption=number 7 ü"], [7]),
        (["score<0.25"], [0]),
    ]
    for k, (where, want) in enumerate(cases):
        check_fields(fastdata.subset(whole, tmp_path / f"{k}.fds", where=where), want)
    drawn = fastdata.subset(whole, tmp_path / "d.fds", where=["good=true"], fraction=0.4, seed=1)
    found = [int(LMDBDataset(drawn, fields="meta")[k][1]["k"]) for k in range(len(LMDBDataset(drawn)))]
    assert len(found) == 4 and found == sorted(found) and all(k % 2 == 0 for k in found)
    again = fastdata.subset(whole, tmp_path / "again.fds", where=["good=true"], fraction=0.4, seed=1)
    assert (again / "rows.npy").read_bytes() == (drawn / "rows.npy").read_bytes()
    for wrong, error in (
        ({"where": ["score>99"]}, "no sample of .* is left"),
        ({"where": ["nothing=3"]}, "has no column nothing; it has label, caption"),
        ({"where": ["score"]}, "is no condition"),
        ({"where": ["score>high"]}, "'high' is not a number"),
        ({"where": ["label=cat"]}, "'cat' is not a number, nor one of class 0"),
        ({"where": ["ids=3"]}, "does not hold one number"),
        ({"where": ["caption<a"]}, "compared with = or !="),
        ({"ids": [20]}, "has 20, but .* has the samples 0 to 19"),
        ({"ids": [-1]}, "has -1"),
        ({"fraction": 0}, "fraction is 0"),
        ({}, "nothing says which samples: give ids, where or fraction"),
    ):
        with pytest.raises((PrepError, ValueError), match=error):
            fastdata.subset(whole, tmp_path / "x.fds", **wrong)
        assert not (tmp_path / "x.fds").exists()


def test_a_subset_in_memory_holds_its_samples_only(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    whole = pool[("a", "b", "d")]
    part = fastdata.subset(whole, tmp_path / "p.fds", ids=[1, 4])
    ram, disk = RAMDataset(part), LMDBDataset(whole)
    assert [ram[k][0].numpy().tobytes() for k in (0, 1)] == [disk[k][0].numpy().tobytes() for k in (1, 4)]
    assert ram.targets.tolist() == disk.targets[[1, 4]].tolist() and ram.name(1) == disk.name(4)
    other = RAMDataset(fastdata.subset(whole, tmp_path / "q.fds", ids=[0, 5]))  # as many bytes, of the same shards
    assert [other[k][0].numpy().tobytes() for k in (0, 1)] == [disk[k][0].numpy().tobytes() for k in (0, 5)]
    with Loader(LMDBDataset(part), 1, num_workers=1) as loader:
        assert [batch[0].numpy().tobytes() for batch in loader] == [disk[k][0].numpy().tobytes() for k in (1, 4)]


def test_a_damaged_record_of_a_subset_is_named(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    whole = shutil.copytree(pool[("a", "b", "d")], tmp_path / "w.fds")
    part = fastdata.subset(whole, tmp_path / "p.fds", ids=[1, 4])
    (shard,) = whole.glob("*/shard-*.mdb")
    data = bytearray(shard.read_bytes())
    record = stores.whole(whole)[4].tobytes()
    place = data.index(record)
    data[place] ^= 1
    shard.write_bytes(data)
    problems = list(verify(part))
    assert any("its checksum differs" in line for line in problems) and any("sample 1 (" in line for line in problems), problems
    shutil.move(whole, tmp_path / "elsewhere.fds")
    with pytest.raises(StoreError, match=r"p.fds has its shards in .*w.fds: no store at .*w.fds"):
        LMDBDataset(part)


def test_manifests_of_versions_are_checked(tmp_path: Path) -> None:
    grown = fastdata.prep(classes(tmp_path / "one", {"a": 4}), tmp_path / "o.fds", size=32, workers=1).out
    fastdata.append(classes(tmp_path / "two", {"a": 3}, seed=9), grown, workers=1)
    manifest = grown / "version-2" / "manifest.json"
    body = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(body | {"version": "3.0"}))
    with pytest.raises(fastdata.FormatError, match=r"format version 3\.0, this fastdata reads up to 2\.x"):
        LMDBDataset(grown)
    manifest.write_text(json.dumps(body | {"shards_in": 3}))
    with pytest.raises(fastdata.FormatError, match="is damaged"):
        LMDBDataset(grown)
    manifest.write_text(json.dumps(body))
    assert read_manifest(grown / "version-2").shards_in == ".." and Store(grown).shards.samefile(grown)


@pytest.mark.slow
def test_every_snippet_of_the_docs_runs(tmp_path: Path) -> None:
    for k, name in enumerate(("photos", "more", "yet-more", "others")):
        classes(tmp_path / name, {"cat": 12, "dog": 9}, seed=1000 * k)
    fastdata.prep(tmp_path / "others", tmp_path / "others.fds", size=64, workers=1)
    text = (Path(__file__).parent.parent / "docs" / "growing.md").read_text()
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, block in blocks:
        command = ["bash", "-euc", block] if language == "bash" else [sys.executable, "-W", "error", "-c", block]
        done = run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert len(blocks) == 3 and len(LMDBDataset(tmp_path / "photos.fds")) == 63
    assert len(LMDBDataset(tmp_path / "all.fds")) == 63 and len(LMDBDataset(tmp_path / "few.fds")) == 3
