"""Columns of a CSV: stored with images, emitted as fields, selected by."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, DataLoader, Subset

import fastdata
from fastdata import CenterCrop, LMDBDataset, Loader, Ragged, RAMDataset, Trainer, prep
from fastdata.errors import FormatError, PrepError, StoreError
from fastdata.store.store import verify
from support import plain, write_pictures

COUNT = 30
FIELDS = ("caption", "score:float32", "ids:int64[]", "embedding:float32[2]", "meta:json", "good:bool", "big:uint8")
NAMES = ("caption", "score", "ids", "embedding", "meta", "good", "big", "label")


def rows() -> list[dict[str, Any]]:
    """What the table says of each image, as Python has it."""
    return [
        {
            "path": f"{k:02d}.png",
            "caption": f'a "döner", {k}\nand more' if k % 4 else "",
            "label": f"class {k % 3}",
            "score": k / 7 if k % 5 else float("nan"),
            "ids": list(range(k, k + k % 4)),
            "embedding": [k / 2, -1.5],
            "meta": {"k": [k, None]},
            "good": k % 2 == 0,
            "big": 255 - k,
        }
        for k in range(COUNT)
    ]


def write_table(path: Path, found: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        for row in found:
            cells = {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
            writer.writerow({name: "" if value != value else value for name, value in cells.items()})
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_pictures(root, COUNT)
    return write_table(root / "table.csv", rows())


@pytest.fixture(scope="module")
def store(table: Path) -> Path:
    return prep(table, table.parent / "columns.fds", size=32, fields=FIELDS, workers=2, resize="crop").out


def assert_row(found: dict[str, Any], k: int) -> None:
    want = rows()[k]
    assert found["caption"] == want["caption"] and found["meta"] == want["meta"]
    assert float(found["score"]) == pytest.approx(want["score"], rel=1e-6, nan_ok=True)
    assert found["ids"].tolist() == want["ids"] and found["ids"].dtype == torch.int64
    assert found["embedding"].tolist() == want["embedding"] and found["embedding"].dtype == torch.float32
    assert bool(found["good"]) == want["good"] and int(found["big"]) == want["big"] and int(found["label"]) == k % 3


@pytest.mark.parametrize(("kind", "workers"), [(LMDBDataset, 0), (RAMDataset, 2)])
def test_a_batch_has_the_values_of_its_rows(store: Path, kind: Any, workers: int) -> None:
    with Loader(kind(store, fields=NAMES), 8, shuffle=True, seed=1, num_workers=workers) as loader:
        seen = []
        for batch in loader:
            images, found = batch
            assert images.dtype == torch.uint8 and found["score"].dtype == torch.float32 and found["big"].dtype == torch.uint8
            assert isinstance(found["ids"], Ragged) and isinstance(found["caption"], list)
            for place, k in enumerate(batch.ids.tolist()):
                assert_row({name: value[place] for name, value in found.items()}, k)
                seen.append(k)
        assert sorted(seen) == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fields", [NAMES, *NAMES])
def test_torchs_dataloader_makes_the_same_batches(store: Path, fields: Any, workers: int) -> None:
    """Of datasets, and of torch's subsets and sums of them; one row, equal and different lengths among them."""
    dataset = LMDBDataset(store, fields=fields)
    halves = ConcatDataset([Subset(dataset, range(9)), dataset.subset(range(9, COUNT))])
    for size in (1, 7) if not workers else (7,):
        ours = list(Loader(dataset, size, num_workers=0))
        for other in (DataLoader(halves, size, num_workers=workers), Loader(halves, size, num_workers=workers)):
            assert [flattened([*batch]) for batch in other] == [flattened([*batch]) for batch in ours]


def flattened(found: Any) -> Any:
    """The values of a batch, Ragged or not, and how they are nested."""
    leaves, nesting = pytree.tree_flatten(found)
    return plain(leaves), nesting


def test_the_trainer_leaves_out_repeated_rows_of_lists_too(store: Path) -> None:
    """Of 9 samples on 2 ranks, the last batch of one repeats a sample."""
    dataset = LMDBDataset(store, fields=NAMES, crop=CenterCrop(8)).subset(range(9))
    batches = list(Loader(dataset, 3, rank=1, world_size=2, num_workers=0))
    assert batches[-1].valid < len(batches[-1].ids)
    seen = []

    def losses(model: Any, batch: Any) -> Any:
        images, found = batch
        seen.append([len(images), *(len(found[name]) for name in NAMES)])
        for place, k in enumerate(batch.ids.tolist()):
            assert_row({name: value[place] for name, value in found.items()}, k)
        return model(images.flatten(1).float()).sum(1)

    model = torch.nn.Linear(192, 1)
    Trainer(model, losses, torch.optim.SGD(model.parameters(), 1e-9)).fit(batches, epochs=1)
    assert seen == [[batch.valid] * (1 + len(NAMES)) for batch in batches]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=12), st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=12))
def test_subsets_and_sums_keep_rows_together(store: Path, first: list[int], second: list[int]) -> None:
    dataset = LMDBDataset(store, fields=NAMES, crop=CenterCrop(16))
    both = dataset.subset(first) + dataset.subset(second)
    for k, row in enumerate(first + second):
        image, found = both[k]
        assert image.shape == (3, 16, 16)
        assert_row(found, row)
    (batch,) = Loader(both, len(both), num_workers=0)
    for place, row in enumerate(first + second):
        assert_row({name: value[place] for name, value in batch[1].items()}, row)
    assert both.columns["caption"] == [rows()[k]["caption"] for k in first + second]
    assert [ids.tolist() for ids in both.columns["ids"]] == [rows()[k]["ids"] for k in first + second]


def test_samples_are_chosen_by_their_columns(store: Path) -> None:
    dataset = LMDBDataset(store, fields="big")
    assert set(dataset.columns) == set(NAMES) and dataset[5][1] == 250 and type(dataset[5][1]) is int
    high = dataset.subset(dataset.columns["score"] > 2)
    assert [high.columns["big"][k] for k in range(len(high))] == [255 - k for k in range(COUNT) if k / 7 > 2 and k % 5]
    with pytest.raises(KeyError, match="no column mood, only caption"):
        dataset.columns["mood"]


@pytest.mark.parametrize(
    ("field", "cells", "message"),
    [
        ("value:uint8", "256", "row of '01.png': 256 does not fit uint8"),
        ("value:int64", "", "row of '01.png': it holds no value"),
        ("value:float32[2]", "[1, 2, 3]", "it has shape [3], but value has shape [2] for each sample"),
        ("mood", "1", "has no column mood; it has path, value"),
    ],
)
def test_what_does_not_fit_names_its_row(table: Path, tmp_path: Path, field: str, cells: str, message: str) -> None:
    good = {"value:float32[2]": "[1, 2]", "value:int64[]": "[]", "value:json": "1"}.get(field, "1")
    path = write_table(tmp_path / "t.csv", [{"path": "00.png", "value": good}, {"path": "01.png", "value": cells}])
    with pytest.raises(PrepError, match="fields") as caught:
        prep(path, tmp_path / "o.fds", fields=field, root=table.parent)
    assert message in str(caught.value) and not (tmp_path / "o.fds").exists()


def test_wrong_use(table: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no column mood in .*, only caption, score"):
        LMDBDataset(store, fields=("mood",))
    with pytest.raises(ValueError, match="several different names"):
        LMDBDataset(store, fields=("caption", "caption"))
    with pytest.raises(ValueError, match="the datasets differ in fields"):
        LMDBDataset(store, fields="caption") + LMDBDataset(store)
    other = prep(table, tmp_path / "o.fds", size=32, fields="score:float64", resize="crop", workers=1).out
    with pytest.raises(ValueError, match=r"columns score \(float32\) and score \(float64\) of two datasets differ"):
        LMDBDataset(store, fields="score") + LMDBDataset(other, fields="score")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("score.npy", b"NUMPY", b"NUMBY", "score.npy is damaged"),
        ("score.npy", b"<f4", b"<i4", r"score.npy holds int32 \[30\], but the manifest says float32"),
        ("caption.values.npy", "ö".encode(), b"\xff\xff", "caption.offsets.npy does not fit the 30 samples"),
        ("meta.values.npy", b'{"k":[7', b'{"k"?[7', "meta.offsets.npy does not fit the 30 samples"),
    ],
)
def test_a_column_that_is_another_is_refused(store: Path, tmp_path: Path, name: str, old: bytes, new: bytes, message: str) -> None:
    copy = shutil.copytree(store, tmp_path / "o.fds")
    data = (copy / "columns" / name).read_bytes()
    assert old in data and len(old) == len(new) and list(verify(copy)) == []
    (copy / "columns" / name).write_bytes(data.replace(old, new, 1))
    assert any(f"columns/{name} is not what was written" in line for line in verify(copy))
    dataset = LMDBDataset(copy, fields=name.partition(".")[0])
    with pytest.raises(FormatError, match=message):
        for k in range(COUNT):
            dataset[k]


lists = st.lists(st.lists(st.integers(-100, 100), max_size=6), max_size=6)


@settings(max_examples=80, deadline=None)
@given(lists, st.integers(0, 8), st.integers(-3, 3))
def test_ragged(values: list[list[int]], length: int, fill: int) -> None:
    flat = torch.tensor([item for one in values for item in one], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(one) for one in values])], dtype=torch.int64)
    ragged = Ragged(flat, offsets)
    assert len(ragged) == len(values) and [one.tolist() for one in ragged] == values
    assert [ragged[k].tolist() for k in range(-len(values), len(values))] == values * 2
    assert ragged.lengths.tolist() == [len(one) for one in values]
    assert ragged.rows.tolist() == [k for k, one in enumerate(values) for _ in one]
    longest = max(map(len, values), default=0)
    for width in (length, longest):
        padded = ragged.padded(None if width == longest else width, fill)
        assert padded.tolist() == [(one + [fill] * width)[:width] for one in values]
    if values and longest:
        assert flattened(Ragged.of(ragged.unbind())) == flattened(ragged)


def test_ragged_travels_as_a_tensor_does() -> None:
    boxes = Ragged(torch.arange(12.0).view(3, 4), torch.tensor([0, 1, 3]))
    doubled = pytree.tree_map(lambda tensor: tensor * 2, {"boxes": boxes})["boxes"]
    assert isinstance(doubled, Ragged) and torch.equal(doubled.values, 2 * boxes.values)
    assert boxes.padded().shape == (2, 2, 4) and boxes.padded(1).shape == (2, 1, 4)
    assert repr(boxes) == "Ragged(2 lists, float32 [3, 4])"
    with pytest.raises(IndexError, match="index is 2, but the batch has 2 lists"):
        boxes[2]
    batch = fastdata.Batch.of(({"boxes": boxes},), 2, np.arange(2), (0, 2)).to(torch.float64)
    assert batch[0]["boxes"].values.dtype == torch.float64 and batch[0]["boxes"].offsets.dtype == torch.int64
    assert batch.valid == 2
