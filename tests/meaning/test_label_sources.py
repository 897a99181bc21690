"""The same labels from everything that has labels besides tables and tars (test_labels): one dataset."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import ConcatDataset, Subset

from fastdata import LMDBDataset, prep
from fastdata.errors import PrepError
from support import encode, picture

LABELS = ["cow", "ant", "bee", "ant", "cow", "bee"]
CLASSES, TARGETS = ["ant", "bee", "cow"], [2, 0, 1, 0, 2, 1]
PIXELS = [picture(k, 8, 9) for k in range(6)]
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
    (root / "in").mkdir()
    for k, data in enumerate(FILES):
        (root / f"in/{k}-{LABELS[k]}.png").write_bytes(data)
    return root / "in"


def beside(root: Path) -> tuple[Any, dict[str, Any]]:
    rows = [f"{k}-{LABELS[k]}.png,{LABELS[k]}\n" for k in ORDER]
    (root / "t.csv").write_text("path,label\n" + "".join(rows))
    return folder(root), {"labels": root / "t.csv"}


def arrow(root: Path) -> tuple[Any, dict[str, Any]]:
    table = pa.table({"image": [{"bytes": data} for data in FILES], "label": pa.array(LABELS).dictionary_encode()})
    with pa.ipc.new_file(root / "t.arrow", table.schema) as file:
        file.write_table(table)
    return root / "t.arrow", {}


def function(root: Path) -> tuple[Any, dict[str, Any]]:
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    (root / "pictures_of_labels.py").write_text(f"import sys\nsys.path += {folders}\nfrom test_label_sources import pairs\n")
    return "pictures_of_labels:pairs", {}


WAYS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
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


@pytest.mark.parametrize("way", WAYS)
def test_labels_of_every_source_are_one_dataset(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    source, options = WAYS[way](tmp_path)
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


@pytest.mark.parametrize("labels", [dict(enumerate(LABELS)), {*LABELS}])
def test_labels_without_an_order_are_refused(labels: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labels is \{.* must be a sequence"):
        prep(PIXELS, tmp_path / "o.fds", labels=labels)


def test_joined_datasets_have_the_same_classes(tmp_path: Path) -> None:
    other = pairs()
    other.classes = ["ant", "cow", "bee"]
    with pytest.raises(PrepError, match="the joined datasets have other classes: ant, bee, cow and ant, cow, bee"):
        prep(ConcatDataset([pairs(), other]), tmp_path / "o.fds")
