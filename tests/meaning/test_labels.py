"""What labels mean: the same, whatever they were read from."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import ConcatDataset, Subset

from archives import write_table, write_tar
from fastdata import LMDBDataset, prep
from fastdata.errors import PrepError
from fastdata.store.store import Store
from stores import write_files
from support import encode, picture

TEXTS = ("csv", "tar")  # whose cells are text
TYPED = ("jsonl", "parquet", "images", "list")
WAYS = (*TEXTS, *TYPED)


def pixels(count: int) -> list[Any]:
    return [picture(k, 8, 9) for k in range(count)]


def given(way: str, root: Path, labels: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Images with these labels as SOURCE, and the options that name them. None is an empty cell, or no member."""
    root.mkdir(parents=True, exist_ok=True)
    files = [encode(image, ".png") for image in pixels(len(labels))]
    if way == "list":
        return pixels(len(labels)), {"labels": labels}
    if way == "images":
        pq.write_table(pa.table({"image": [{"bytes": data} for data in files], "label": pa.array(labels)}), root / "t.parquet")
        return root / "t.parquet", {}
    if way == "tar":
        members = [(f"{k}.png", files[k]) for k in range(len(labels))]
        members += [(f"{k}.cls", str(label).encode()) for k, label in enumerate(labels) if label is not None]
        return write_tar(root / "t.tar", sorted(members)), {}
    if way == "folders":
        return write_files(root, {f"{label}/{k}.png": files[k] for k, label in enumerate(labels)}), {}
    write_files(root, {f"{k}.png": data for k, data in enumerate(files)})
    return write_table(root / f"t.{way}", [{"path": f"{k}.png", "label": label} for k, label in enumerate(labels)]), {}


def made(source: Any, out: Path, **options: Any) -> Store:
    return Store(prep(source, out, workers=1, codec="rgb", **options).out)


def stored(way: str, root: Path, labels: Sequence[Any], **options: Any) -> Store:
    source, named = given(way, root / way, labels)
    return made(source, root / f"{way}.fds", **named, **options)


NUMBERS = ("1e400", "nan", "Infinity", "-0", "+1", "5.0", "\uff11")  # which are no class numbers, nor names
LADDER: list[tuple[list[Any], Any, Any, tuple[str, ...]]] = [  # labels, the names of the classes or an error, targets, ways
    ([3, 7, 3], tuple(map(str, range(8))), [3, 7, 3], WAYS),
    (["3", "7", "3"], tuple(map(str, range(8))), [3, 7, 3], WAYS),
    (["dog", " cat ", "dog"], ("cat", "dog"), [1, 0, 1], WAYS),
    (["9", "dog", "10"], ("10", "9", "dog"), [1, 2, 0], WAYS),
    (["01", "1", "2"], ("01", "1", "2"), [0, 1, 2], WAYS),
    (["10", "02", "01"], ("01", "02", "10"), [2, 1, 0], WAYS),
    (["1_2", "10_3"], ("10_3", "1_2"), [1, 0], WAYS),
    ([0, 29, 5], tuple(map(str, range(30))), [0, 29, 5], WAYS),
    ([0, 30, 5], r"3 different whole numbers occur as labels, the largest is 30.*--classes FILE", None, WAYS),
    ([0, -1, 2], r"cannot stand for classes, such as '?-1'?.*--regression.*--classes", None, WAYS),
    ([-1, -1], (), [-1, -1], WAYS),
    ([-0.5, -1.5], r"cannot stand for classes, such as .*--regression", None, WAYS),
    ([0.0, 1.0], r"cannot stand for classes, such as '?0\.0'?: .*--regression", None, WAYS),
    *(([odd, "1", "2"], rf"cannot stand for classes, such as '{re.escape(odd)}'", None, WAYS) for odd in NUMBERS),
    (["NaN", "1_000", "A", "a", " a ", "00", "null"], ("00", "1_000", "A", "NaN", "a", "null"), [3, 1, 2, 4, 4, 0, 5], WAYS),
    ([[1.5, 2], [0.5, 1]], r"such as \(1\.5, 2.*--regression", None, TYPED),
    ([True, False], ("False", "True"), [1, 0], WAYS),
    ([True, True], ("False", "True"), [1, 1], WAYS),
    (["cat", None, "dog"], ("cat", "dog"), [0, 1], WAYS),
    ([4, None], ("0", "1", "2", "3", "4"), [4], WAYS),
    ([1, 1.0, 0], r"cannot stand for classes, such as 1\.0", None, ("jsonl", "list")),
    (["cat", 1, "dog"], r"labels of .* are partly whole numbers, such as 1, partly text, such as 'cat'", None, ("jsonl", "list")),
    (["cat", 1, "dog"], ("1", "cat", "dog"), [1, 0, 2], TEXTS),
]


@pytest.mark.parametrize("way", WAYS)
def test_numbers_keep_their_number_and_names_are_sorted(tmp_path: Path, way: str) -> None:
    for k, (labels, names, targets, ways) in enumerate(LADDER):
        if way not in ways:
            continue
        if isinstance(names, str):
            with pytest.raises(PrepError, match=names.replace("--", "(--)?")):
                stored(way, tmp_path / str(k), labels)
            continue
        store = stored(way, tmp_path / str(k), labels)
        assert (store.manifest.labels.names, store.samples["label"].tolist()) == (names, targets), labels
        missing = sum(label is None for label in labels)
        assert [one["reason"] for one in store.rejects()] == ["no-label"] * missing


@pytest.mark.parametrize("way", WAYS)
def test_numbers_to_predict_are_asked_for(tmp_path: Path, way: str) -> None:
    store = stored(way, tmp_path, [0.5, 2, float("nan"), None, 1e39, -1], regression="label")
    assert (store.manifest.labels.kind, store.manifest.labels.names) == ("vector", ("label",))
    assert store.samples["label"].tolist() == [[0.5], [2], [-1]]
    missing = ["no-label", "not-finite", "not-finite"]
    assert sorted(one["reason"] for one in store.rejects()) == missing
    with pytest.raises(PrepError, match="'cat', which is no number"):
        stored(way, tmp_path / "named", ["cat", "dog"], regression="label")


@pytest.mark.parametrize("way", TYPED)
def test_lists_are_targets_of_one_length(tmp_path: Path, way: str) -> None:
    store = stored(way, tmp_path, [[1.5, 2.0], [0.5, 1.0]], regression="label")
    assert store.manifest.labels.names == ("label1", "label2") and store.samples["label"].tolist() == [[1.5, 2], [0.5, 1]]
    with pytest.raises(PrepError, match="of equal length > 0, but some have length 1, some have length 2"):
        stored(way, tmp_path / "uneven", [[1.0], [0.5, 1.0]], regression="label")
    with pytest.raises(PrepError, match=r"\(1.0,\), which is no number"):
        stored(way, tmp_path / "nested", [[[1.0]], [[0.5]]], regression="label")


@pytest.mark.parametrize("way", [*WAYS, "folders"])
def test_classes_of_a_store_or_a_file_win(tmp_path: Path, way: str) -> None:
    train = stored(way, tmp_path, ["ant", "bee", "cow"])
    source, named = given(way, tmp_path / "val", ["cow", "cow"])
    (tmp_path / "names.txt").write_text("cow\nu\u0308l\nbee\nant\n")
    for classes, target in ((train.path, 2), (tmp_path / "names.txt", 0)):
        store = made(source, tmp_path / "val.fds", classes=classes, overwrite=True, **named)
        assert store.samples["label"].tolist() == [target] * 2 and len(store.manifest.labels.names) > 2
    source, named = given(way, tmp_path / "more", ["\u00fcl", "cow"])
    assert sorted(made(source, tmp_path / "m.fds", classes=tmp_path / "names.txt", **named).samples["label"].tolist()) == [0, 1]
    with pytest.raises(PrepError, match=r"has classes that (--)?classes does not have: \u00fcl; (--)?classes has 3: ant, bee, cow"):
        made(source, tmp_path / "n.fds", classes=train.path, **named)
    with pytest.raises(PrepError, match=r"'a' comes more than once in (--)?classes"):
        made(source, tmp_path / "n.fds", classes=["a", "b", "a"], **named)


def test_numbers_of_another_store_stay_numbers(tmp_path: Path) -> None:
    """Also if the larger ones do not occur, or they are too far apart."""
    (tmp_path / "names.txt").write_text("70000\n5\n-1\n")
    for way in WAYS:
        train, val = stored(way, tmp_path, [0, 1, 2]), stored(way, tmp_path / "val", [1, 2, 1])
        assert train.manifest.labels == val.manifest.labels and val.samples["label"].tolist() == [1, 2, 1]
        named = stored(way, tmp_path / "n", [5, 70000, -1], classes=tmp_path / "names.txt")
        assert named.samples["label"].tolist() == [1, 0, 2]


# Everything else that has labels: one dataset

LABELS = ["cow", "ant", "bee", "ant", "cow", "bee"]
CLASSES, TARGETS = ["ant", "bee", "cow"], [2, 0, 1, 0, 2, 1]
PIXELS = pixels(6)
FILES = [encode(pixels, ".png") for pixels in PIXELS]
ORDER = [3, 0, 5, 1, 4, 2]


class Pairs(list[Any]):
    """As torchvision's datasets are: numbers, and the names of the classes."""

    classes = CLASSES


def pairs() -> Pairs:
    return Pairs(zip(PIXELS, TARGETS, strict=True))


def shuffled() -> pd.DataFrame:
    """A DataFrame whose index is in another order than its rows."""
    return pd.DataFrame({"image": FILES, "label": LABELS}, index=ORDER)


def folder(root: Path) -> Path:
    return write_files(root / "in", {f"{k}-{LABELS[k]}.png": data for k, data in enumerate(FILES)})


def beside(root: Path) -> tuple[Any, dict[str, Any]]:
    rows = [{"path": f"{k}-{LABELS[k]}.png", "label": LABELS[k]} for k in ORDER]
    return folder(root), {"labels": write_table(root / "t.csv", rows)}


def arrow(root: Path) -> tuple[Any, dict[str, Any]]:
    table = pa.table({"image": [{"bytes": data} for data in FILES], "label": pa.array(LABELS).dictionary_encode()})
    with pa.ipc.new_file(root / "t.arrow", table.schema) as file:
        file.write_table(table)
    return root / "t.arrow", {}


def function(root: Path) -> tuple[Any, dict[str, Any]]:
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    (root / "pictures_of_labels.py").write_text(f"import sys\nsys.path += {folders}\nfrom test_labels import pairs\n")
    return "pictures_of_labels:pairs", {}


OTHERS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "labels beside a folder": beside,
    "a pattern": lambda root: (folder(root), {"label_from": "-([a-z]+)"}),
    "an Arrow file": arrow,
    "an Arrow table": lambda root: (pa.table({"image": FILES, "label": LABELS}), {}),
    "a DataFrame": lambda root: (shuffled(), {}),
    "two Series": lambda root: (shuffled()["image"], {"labels": shuffled()["label"]}),
    "numpy's text": lambda root: (PIXELS, {"labels": np.array(LABELS)}),
    "a generator of labels": lambda root: (PIXELS, {"labels": (name for name in LABELS)}),
    "dicts": lambda root: ([{"image": data, "label": name} for data, name in zip(FILES, LABELS, strict=True)], {}),
    "pairs with classes": lambda root: (pairs(), {}),
    "torch's wrappers": lambda root: (
        ConcatDataset([Subset(pairs(), [0, 1]), Subset(Subset(pairs(), [5, 4, 3, 2]), [3, 2, 1, 0])]),
        {},
    ),
    "module:function": function,
}


@pytest.mark.parametrize("way", OTHERS)
def test_labels_of_every_source_are_one_dataset(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    source, options = OTHERS[way](tmp_path)
    dataset = LMDBDataset(prep(source, tmp_path / "o.fds", codec="png", workers=1, **options).out)
    assert (dataset.classes, dataset.targets.tolist()) == (CLASSES, TARGETS)
    assert all(np.array_equal(dataset[k][0].permute(1, 2, 0), PIXELS[k]) for k in range(6))


def test_categories_that_do_not_occur_keep_their_number(tmp_path: Path) -> None:
    part = shuffled().astype({"label": pd.CategoricalDtype(["cow", "ant", "emu", "bee"])}).iloc[1:]
    for source, labels in (
        (part, {}),
        (part["image"], {"labels": part["label"]}),
        (part["image"], {"labels": part["label"].array}),
    ):
        dataset = LMDBDataset(prep(source, tmp_path / "o.fds", workers=1, overwrite=True, **labels).out)
        assert (dataset.classes, dataset.targets.tolist()) == (["cow", "ant", "emu", "bee"], part["label"].cat.codes.tolist())


def test_names_of_classes_in_a_table_of_paths(tmp_path: Path) -> None:
    info = {"features": {"label": {"_type": "ClassLabel", "names": ["emu", *CLASSES]}}}
    table = pa.table({"path": sorted(map(str, folder(tmp_path).iterdir())), "label": [k + 1 for k in TARGETS]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": info})}), tmp_path / "t.parquet")
    dataset = LMDBDataset(prep(tmp_path / "t.parquet", tmp_path / "o.fds", workers=1).out)
    assert (dataset.classes, dataset.targets.tolist()) == (["emu", *CLASSES], [k + 1 for k in TARGETS])
