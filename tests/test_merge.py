"""Merged stores, against their parts and against stores that were prepared in one go."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
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
from fastdata import ArrayDataset, LMDBDataset, MaskDataset, PrepError, RAMDataset, StoreError, TokenDataset
from fastdata.store.store import Store
from fastdata.store.verify import verify
from support import MAIN, Array, encode, kill_group, picture, run, start, tree, until, write_pictures


def classes(root: Path, found: dict[str, int], *, seed: int = 0) -> Path:
    """A folder of so many images of each class, all different."""
    for k, (name, count) in enumerate(found.items()):
        write_pictures(root / name, count, height=40 + k, seed=seed + 100 * k)
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


def merged_parts(out: Path, *parts: Path, each: Sequence[dict[str, Any]] = ({}, {}), **options: Any) -> Path:
    """A store of several sources, each of which is prepared by itself, with options of its own, to `out`.0, `out`.1, ..."""
    made = [
        fastdata.prep(part, out.with_name(f"{out.name}.{k}"), workers=1, **options, **own).out
        for k, (part, own) in enumerate(zip(parts, each, strict=True))
    ]
    return fastdata.merge(made, out)


def test_a_merged_store_has_what_both_stores_have(tmp_path: Path) -> None:
    one, two = classes(tmp_path / "one", {"cat": 5, "dog": 4}), classes(tmp_path / "two", {"ant": 3, "dog": 2, "cat": 1}, seed=7)
    options: dict[str, Any] = {"size": 32, "codec": "rgb", "quality": 80}
    with pytest.raises(PrepError, match=rf"classes in another order: prepare {tmp_path}/p.fds.1 with --classes {tmp_path}/p.fds.0"):
        merged_parts(tmp_path / "p.fds", one, two, **options)
    out = merged_parts(tmp_path / "o.fds", one, two, each=({}, {"classes": ["cat", "dog", "ant"]}), **options)
    alone = [tmp_path / "o.fds.0", tmp_path / "o.fds.1"]
    want = [(name, pixels) for path in alone for name, pixels, _ in samples(path)]
    assert [(name, pixels) for name, pixels, _ in samples(out)] == want
    dataset = LMDBDataset(out)
    assert dataset.classes == ["cat", "dog", "ant"] and dataset.targets[:9].tolist() == LMDBDataset(alone[0]).targets.tolist()
    assert [dataset.name(k) for k in range(15)] == [LMDBDataset(p).name(k) for p in alone for k in range(len(LMDBDataset(p)))]
    sound(out)
    assert {int(s) for s in Store(out).samples["source"]} == set(range(15))


def test_masks_several_sizes_and_images_without_labels(tmp_path: Path) -> None:
    for part, count, first in (("one", 3, 0), ("two", 2, 3)):
        for k in range(count):
            for name, pixels in (("in", picture(first + k, 30, 40)), ("masks", np.full((30, 40), (first + k) % 3, np.uint8))):
                (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
                (tmp_path / part / name / f"{k}.png").write_bytes(encode(pixels, ".png"))
    options: dict[str, Any] = {"size": [24, 16], "codec": "rgb"}
    one, two = (tmp_path / part for part in ("one", "two"))
    masks = [{"masks": one / "masks"}, {"masks": two / "masks"}]
    out = merged_parts(tmp_path / "o.fds", one / "in", two / "in", each=masks, **options)
    dataset = MaskDataset(out, ignore_index=9)
    assert [int(mask[5, 5]) for _, mask in (dataset[k] for k in range(5))] == [0, 1, 2, 0, 1]
    assert dataset.class_pixels == {0: 2400, 1: 2400, 2: 1200} and len(dataset.with_size(16)) == 5
    ram = RAMDataset(out, ignore_index=9, size=[24, 16])
    assert all(torch.equal(a, b) for k in range(5) for a, b in zip(ram[k], dataset[k], strict=True))
    sound(out)
    with pytest.raises(PrepError, match=r"mask"):
        merged_parts(tmp_path / "p.fds", one / "in", two / "in", each=[masks[0], {}], **options)


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
    out = merged_parts(tmp_path / "o.fds", one, two, size=32, fields=FIELDS)
    check_fields(out, [*range(12)])
    check_fields(fastdata.merge([tmp_path / "o.fds.0", out], tmp_path / "m.fds"), [*range(7), *range(12)])
    with pytest.raises(PrepError, match=r"(?s)  columns .*Give the same options and --fields"):
        merged_parts(tmp_path / "p.fds", one, two, size=32, each=[{"fields": FIELDS}, {"fields": FIELDS[:3]}])


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


def test_boxes_follow_their_images(tmp_path: Path) -> None:
    first, second = ["cat", "dog", "cat"], ["elk", "cat", "elk", "dog"]
    names = {1: "elk", 3: "cat", 8: "dog"}
    one, two = coco(tmp_path / "one", names, first, seed=0), coco(tmp_path / "two", names, second, seed=10)
    out = merged_parts(tmp_path / "o.fds", tmp_path / "one", tmp_path / "two", each=[{"coco": one}, {"coco": two}], size=32)
    column = next(c for c in Store(out).manifest.columns if c.names)
    dataset = LMDBDataset(out, fields=["boxes", column.name])
    assert [column.names[int(dataset[k][1][column.name][0])] for k in range(7)] == [*first, *second]
    boxes = LMDBDataset(tmp_path / "o.fds.0", fields="boxes")
    assert torch.equal(dataset[2][1]["boxes"], boxes[2][1])
    sound(out)
    three = coco(tmp_path / "three", {4: "cat", 8: "dog"}, ["cat"], seed=20)
    with pytest.raises(PrepError, match="was prepared in another way"):
        merged_parts(tmp_path / "p.fds", tmp_path / "one", tmp_path / "three", each=[{"coco": one}, {"coco": three}], size=32)


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
    if "chars" in tokenizer.values():
        (tmp_path / "two" / "1.txt").write_text("a tie dab ")  # characters of before only
        texts[1][1] = "a tie dab "
    first = fastdata.prep(tmp_path / "one", tmp_path / "first.fds", workers=1, **tokenizer).out
    same = (
        tokenizer if "bytes" in tokenizer.values() else {**tokenizer, "train_bpe": None, "tokenizer": first}
    )  # which it brings along
    second = fastdata.prep(tmp_path / "two", tmp_path / "second.fds", workers=1, **same).out
    out = fastdata.merge([first, second], tmp_path / "o.fds")
    dataset = TokenDataset(out, 64, mode="document")
    end = Store(out, "tokens").manifest.section("tokens").end
    read = [dataset[k][0][: int(dataset[k][1])] for k in range(len(dataset))]
    decoded = [dataset.decode([t for t in tokens.tolist() if t != end]) for tokens in read]
    assert decoded == [text for some in texts for text in some]
    ram = RAMDataset(out, block_size=4, mode="sequential")
    disk = TokenDataset(out, 4, mode="sequential")
    assert len(ram) == len(disk) and all(torch.equal(ram[k], disk[k]) for k in range(len(disk)))
    assert Store(out, "tokens").names() == ["0.txt", "1.txt", "2.txt", "0.txt", "1.txt"]
    assert Store(out, "tokens").samples["source"].tolist() == [*range(5)]
    sound(out)


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
    parts = [tmp_path / "one", tmp_path / "two"]
    each = [{"masks": part / "masks"} for part in parts]
    out = merged_parts(tmp_path / "o.fds", *(part / "in" for part in parts), each=each, chunk=16)
    for dataset in (ArrayDataset(out, ignore_index=9), RAMDataset(out, ignore_index=9)):
        assert len(dataset) == 7
        for k, array in enumerate(arrays):
            np.testing.assert_array_equal(dataset[k][0], array)
            np.testing.assert_array_equal(dataset[k][1], array % 5)
        assert sum(dataset.class_voxels.values()) == sum(a.size for a in arrays)
    sound(out)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """Stores of two images of each of some classes, whose names are given to all in one order."""
    root = tmp_path_factory.mktemp("pool")
    found = {}
    for k, names in enumerate([("a",), ("b", "a"), ("c", "d"), ("d", "b", "a"), ("e",)]):
        folder = classes(root / str(k), dict.fromkeys(names, 2), seed=1000 * k)
        found[names] = fastdata.prep(folder, root / f"{k}.fds", size=16, codec="rgb", classes=[*"abcde"], workers=1).out
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
    assert LMDBDataset(merged).classes == [*"abcde"]
    sound(merged)
    shutil.rmtree(out.parent)


def test_shards_are_copied_where_there_are_no_links(
    pool: dict[tuple[str, ...], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("fastdata.store.files.os.link", refuse)
    merged = fastdata.merge([pool[("a",)], pool[("e",)]], tmp_path / "m.fds")
    assert all(path.stat().st_nlink == 1 for path in merged.glob("*/*.mdb")) and not list(merged.rglob("*.tmp"))
    sound(merged)


def test_links_are_followed(pool: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    """A store may be a folder of symbolic links, or behind one: the merged store has the files themselves."""
    one, two = pool[("a",)], shutil.copytree(pool[("e",)], tmp_path / "two.fds")
    linked = tmp_path / "linked.fds"
    for path in sorted(one.rglob("*")):
        if path.is_file():
            (linked / path.relative_to(one)).parent.mkdir(parents=True, exist_ok=True)
            (linked / path.relative_to(one)).symlink_to(path)
    (tmp_path / "behind.fds").symlink_to(two)
    merged = fastdata.merge([linked, tmp_path / "behind.fds"], tmp_path / "m.fds")
    shards = sorted(merged.glob("*/*.mdb"))
    assert shards and not any(path.is_symlink() for path in merged.rglob("*"))
    files = [path for store in (one, two) for path in sorted(store.glob("*/*.mdb"))]
    assert all(new.samefile(old) for new, old in zip(shards, files, strict=True))
    want = samples(merged)
    shutil.rmtree(linked)
    (tmp_path / "behind.fds").unlink()
    shutil.rmtree(two)
    assert samples(merged) == want
    sound(merged)


@pytest.mark.parametrize("codec", ["jpeg", "png", "original"])
def test_a_sample_and_its_bytes_are_taken_out(codec: str, tmp_path: Path) -> None:
    """As docs/scale.md says: also where the sources are gone, the samples that stay keep their pixels."""
    whole = fastdata.prep(classes(tmp_path / "in", {"a": 3, "b": 2}), tmp_path / "o.fds", size=32, codec=codec, workers=1).out
    assert run(*MAIN, "export", whole, tmp_path / "files").returncode == 0
    dataset = LMDBDataset(whole)
    gone = next(path for path in sorted((tmp_path / "files").rglob("*.*")) if path.stem == Path(dataset.name(1)).stem)
    record = gone.read_bytes()
    gone.unlink()
    part = fastdata.prep(tmp_path / "files", tmp_path / "p.fds", codec="png" if codec == "png" else "original", workers=1).out
    assert [dataset[k][0].tolist() for k in (0, 2, 3, 4)] == [image.tolist() for image, _ in LMDBDataset(part)]
    assert [any(record in path.read_bytes() for path in store.rglob("*.*")) for store in (whole, part)] == [True, False]


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
    other = fastdata.prep(
        classes(tmp_path / "x", {"a": 2}), tmp_path / "x.fds", size=16, codec="png", classes=[*"abcde"], workers=1
    ).out
    cases: list[tuple[list[Path], Path | str, str]] = [
        ([one, other], tmp_path / "m.fds", "codec rgb, now png"),
        ([one, stores.tokens()], tmp_path / "m.fds", "only stores of one kind"),
        ([one, one], one, "is a store already|is, or lies inside of"),
        ([one, one], one / "m.fds", "lies inside of"),
        ([one], tmp_path / "m.fds", "two or more"),
        ([one, one], "s3://bucket/m.fds", "merged on a disk"),
    ]
    before = tree(one)
    for paths, out, error in cases:
        with pytest.raises((PrepError, ValueError), match=error):
            fastdata.merge(paths, out)
    assert tree(one) == before and not (tmp_path / "m.fds").exists()
