"""Merged stores, against their parts and against stores that were prepared in one go."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
import stores
from fastdata import LMDBDataset, MaskDataset, RAMDataset
from fastdata.errors import PrepError
from fastdata.store.store import Store, verify
from support import MAIN, plain, run, tree, write_pictures
from test_digests import inputs


def classes(root: Path, found: dict[str, int], *, seed: int = 0) -> Path:
    """A folder of so many images of each class, all different."""
    for k, (name, count) in enumerate(found.items()):
        write_pictures(root / name, count, height=40 + k, seed=seed + 100 * k)
    return root


def samples(path: Path) -> list[tuple[str, str, bytes]]:
    """The samples of a store of images: their names, classes and pixels."""
    dataset = LMDBDataset(path)
    found = ((dataset.name(k), *dataset[k]) for k in range(len(dataset)))
    return [(name, dataset.classes[label], image.numpy().tobytes()) for name, image, label in found]


def sound(path: Path) -> None:
    assert list(verify(path)) == []


def test_a_merged_store_has_what_both_stores_have(tmp_path: Path) -> None:
    one, two = classes(tmp_path / "one", {"cat": 5, "dog": 4}), classes(tmp_path / "two", {"ant": 3, "dog": 2, "cat": 1}, seed=7)
    options: dict[str, Any] = {"size": 32, "codec": "rgb", "workers": 1}
    first, other = (fastdata.prep(part, part.with_suffix(".fds"), **options).out for part in (one, two))
    with pytest.raises(PrepError, match=rf"class order: for classes, prepare {other} with --classes {first}"):
        fastdata.merge([first, other], tmp_path / "o.fds")
    second = fastdata.prep(two, other, classes=["cat", "dog", "ant"], overwrite=True, **options).out
    out = fastdata.merge([first, second], tmp_path / "o.fds")
    assert LMDBDataset(out).classes == ["cat", "dog", "ant"] and samples(out) == samples(first) + samples(second)
    sound(out)
    assert {int(s) for s in Store(out).samples["source"]} == set(range(15))


PARTS: dict[str, tuple[str, dict[str, Any]]] = {  # sources of test_digests, and options
    "masks": ("flat", {"masks": "masks", "size": [24, 16], "codec": "rgb"}),
    "columns": ("described", {"fields": ("caption=txt", "embedding=npy"), "tokenize": "caption=bytes", "size": 32}),
    "table": ("t.csv", {"fields": ("score:float32", "code:text"), "label_column": "label", "size": 32}),
    "boxes": ("flat", {"coco": "coco.json", "size": 32}),
    "text": ("text", {"tokenizer": "bytes"}),
    "trained": ("text", {"train_bpe": 300}),
    "arrays": ("arrays", {"masks": "array-masks", "chunk": 16}),
}


def part(name: str, out: Path, **more: Any) -> Path:
    source, options = PARTS[name]
    placed = {key: inputs() / value if key in ("masks", "coco") else value for key, value in options.items()}
    return fastdata.prep(inputs() / source, out, workers=1, **{**placed, **more}).out


def contents(path: Path) -> list[Any]:
    """The samples of a store of any kind, with all columns, from the disk; and from memory, which are the same."""
    manifest, more = Store(path, kind=None).manifest, dict[str, Any]()
    if manifest.kind == "tokens":
        more = {"block_size": 64, "mode": "document"}
    if manifest.columns:
        more = {"fields": [column.name for column in manifest.columns]}
    if manifest.section("masks") is not None:
        more = {"ignore_index": 9}
    disk, memory = (make(path, **more) for make in (fastdata.open, RAMDataset))
    found = [plain(disk[k]) for k in range(len(disk))]
    assert [plain(memory[k]) for k in range(len(memory))] == found
    return found


@pytest.mark.parametrize("name", PARTS)
def test_a_merged_store_has_the_samples_of_its_parts(name: str, tmp_path: Path) -> None:
    """The second has the tokenizer of the first, if that was trained."""
    first = part(name, tmp_path / "0.fds")
    more: dict[str, Any] = {"tokenizer": first, "train_bpe": None} if name == "trained" else {}
    parts = [first, part(name, tmp_path / "1.fds", limit=2, **more)]
    out = fastdata.merge(parts, tmp_path / "o.fds")
    assert contents(out) == [sample for one in parts for sample in contents(one)]
    stored = [Store(path, kind=None) for path in (*parts, out)]
    assert stored[2].names() == [*stored[0].names(), *stored[1].names()]
    count, sources = stored[0].manifest.num_samples, stored[2].samples["source"]
    assert (sources[:count] == stored[0].samples["source"]).all() and (np.diff(sources.astype(int)) >= 0).all()
    if name == "masks":
        pixels = [Counter(MaskDataset(path).class_pixels) for path in (*parts, out)]
        assert pixels[2] == pixels[0] + pixels[1]
    sound(out)


def test_columns_masks_and_tokenizers_that_differ_are_refused(tmp_path: Path) -> None:
    other = json.loads((inputs() / "coco.json").read_text())
    for one in (*other["categories"], *other["annotations"]):
        key = "id" if "name" in one else "category_id"
        one[key] = 20 - one[key]  # in another order
    (tmp_path / "a.json").write_text(json.dumps(other))
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "mask": ("masks", {"masks": None}),
        r"(?s)  columns .*Give the same options and --fields": ("columns", {"fields": ("caption=txt",)}),
        "was prepared differently": ("boxes", {"coco": tmp_path / "a.json"}),
        "tokenizer": ("text", {"tokenizer": "chars", "end_token": "none"}),
    }
    for message, (name, more) in cases.items():
        made = [part(name, tmp_path / f"{name}{k}.fds", **options) for k, options in enumerate(({}, more))]
        with pytest.raises(PrepError, match=message):
            fastdata.merge(made, tmp_path / "o.fds")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores of two images of a class, whose classes have one list of names."""
    root, options = tmp_path_factory.mktemp("pool"), {"size": 16, "codec": "rgb", "classes": [*"ae"], "workers": 1}
    folders = [classes(root / name, {name: 2}, seed=k) for k, name in enumerate("ae")]
    return [fastdata.prep(folder, folder.with_suffix(".fds"), **options).out for folder in folders]


def test_shards_are_copied_where_there_are_no_links(pool: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("fastdata.store.files.os.link", refuse)
    merged = fastdata.merge(pool, tmp_path / "m.fds")
    assert all(path.stat().st_nlink == 1 for path in merged.glob("*/*.mdb")) and not list(merged.rglob("*.tmp"))
    sound(merged)


def test_links_are_followed(pool: list[Path], tmp_path: Path) -> None:
    """A store may be a folder of symbolic links, or behind one: the merged store has the files themselves."""
    one, two = pool[0], shutil.copytree(pool[1], tmp_path / "two.fds")
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


@pytest.mark.parametrize("options", ["--codec=jpeg", "--codec=original", "--codec=png --bits=16", "--codec=png --gray"])
def test_a_sample_and_its_bytes_are_taken_out(options: str, tmp_path: Path) -> None:
    """As docs/scale.md says: also where the sources are gone, the samples that stay keep their names, labels and pixels."""
    classes(tmp_path / "in", {"a": 3, "b": 2})
    again = options.replace("jpeg", "original")
    for command in ("prep in o.fds --size=32 " + options, "export o.fds files"):
        assert run(*MAIN, *command.split(), cwd=tmp_path).returncode == 0
    whole = LMDBDataset(tmp_path / "o.fds")
    gone = next(path for path in sorted((tmp_path / "files").rglob("*.*")) if path.stem == Path(whole.name(1)).stem)
    record = gone.read_bytes()
    gone.unlink()
    assert run(*MAIN, "prep", "files", "p.fds", *again.split(), cwd=tmp_path).returncode == 0
    assert [(Path(name).with_suffix(""), *rest) for name, *rest in samples(tmp_path / "p.fds")] == [
        (Path(name).with_suffix(""), *rest) for k, (name, *rest) in enumerate(samples(tmp_path / "o.fds")) if k != 1
    ]
    found = [any(record in path.read_bytes() for path in (tmp_path / store).rglob("*.*")) for store in ("o.fds", "p.fds")]
    assert found == [True, False]


def test_what_does_not_merge(pool: list[Path], tmp_path: Path) -> None:
    one, _ = pool
    source = classes(tmp_path / "x", {"a": 2})
    other = fastdata.prep(source, tmp_path / "x.fds", size=16, codec="png", classes=[*"ae"], workers=1).out
    begun = fastdata.prep_plan(source, tmp_path / "begun.fds", size=16).out
    cases: list[tuple[list[Path], Path | str, str]] = [
        ([one, other], tmp_path / "m.fds", "codec rgb, now png"),
        ([one, stores.tokens()], tmp_path / "m.fds", "only stores of one kind"),
        *(([one, one], out, "holds a store, finished or not") for out in (other, begun)),
        ([one, one], one / "m.fds", "equals or lies in"),
        ([one], tmp_path / "m.fds", "two or more"),
        ([one, one], "s3://bucket/m.fds", "merged on a disk"),
    ]
    before = [tree(path) for path in (one, other, begun)]
    for paths, out, error in cases:
        with pytest.raises((PrepError, ValueError), match=error):
            fastdata.merge(paths, out)
    assert [tree(path) for path in (one, other, begun)] == before and not (tmp_path / "m.fds").exists()
