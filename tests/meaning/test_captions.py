"""Captions, scores and vectors mean the same however they are given: five samples in every way there is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from archives import write_table, write_tar
from fastdata import LMDBDataset, Loader, prep
from fastdata.errors import PrepError
from support import encode, picture

CAPTIONS = ["plain", 'two, with a "quote"', "zwei\nZeilen", "  blanks kept ", "日本 é é"]
SCORES = [0.5, -2.0, 1700000000.25, 1700000001.75, 1e-30]  # float32 would make two of them equal
COUNTS = [0, 7, -1, 1 << 40, 9007199254740993]
VECTORS = [[0.1 * k, -1.0, 1e30] for k in range(5)]
LISTS, OBJECTS = [[*range(k)] for k in range(5)], [{"k": [k, None], "from": "ü"} for k in range(5)]
VALUES = {"caption": CAPTIONS, "score": SCORES, "count": COUNTS, "vector": VECTORS, "ids": LISTS, "meta": OBJECTS}
ROWS = [{name: values[k] for name, values in VALUES.items()} for k in range(5)]
FILES = [encode(picture(k, 8, 9), ".png") for k in range(5)]
TYPES = ("caption:text", "score:float64", "count:int64", "vector:float64[3]", "ids:int64[]", "meta:json")


def with_images(root: Path) -> Path:
    for k, data in enumerate(FILES):
        (root / f"{k}.png").write_bytes(data)
    return root


def of_rows(name: str) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def make(root: Path) -> tuple[Any, dict[str, Any]]:
        return write_table(with_images(root) / name, [{"path": f"{k}.png", **row} for k, row in enumerate(ROWS)]), {"fields": TYPES}

    return make


def beside(root: Path) -> tuple[Any, dict[str, Any]]:
    """A table of --labels for a folder of images."""
    write_table(root / "t.jsonl", [{"path": f"{k}.png", **row} for k, row in reversed([*enumerate(ROWS)])])
    (root / "in").mkdir()
    return with_images(root / "in"), {"labels": root / "t.jsonl", "fields": TYPES}


def images_in(ending: str) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def make(root: Path) -> tuple[Any, dict[str, Any]]:
        table, path = pa.Table.from_pylist([{"image": {"bytes": FILES[k]}, **ROWS[k]} for k in range(5)]), root / f"t{ending}"
        if ending == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
        return path, {"fields": TYPES}

    return make


def member(k: int, name: str) -> tuple[str, bytes]:
    """The ending and the bytes of a file with a value."""
    value, data = VALUES[name][k], io.BytesIO()  # type: ignore[index]
    if name == "caption":
        return "txt", str(value).encode()
    if name == "meta":
        return "json", json.dumps(value).encode()
    np.save(data, np.array(value, np.int64) if name == "ids" else np.array(value))
    return f"{name}.npy", data.getvalue()


MEMBERS = ("caption=txt", "score=score.npy", "count=count.npy", "vector=vector.npy", "ids=ids.npy:int64[]", "meta=json")


def files(root: Path) -> tuple[Any, dict[str, Any]]:
    (root / "in").mkdir()
    for k in range(5):
        for ending, data in (member(k, name) for name in VALUES):
            (root / f"in/{k}.{ending}").write_bytes(data)
    return with_images(root / "in"), {"fields": MEMBERS}


def tar(root: Path) -> tuple[Any, dict[str, Any]]:
    members = [(f"{k}.{ending}", data) for k in range(5) for ending, data in [("png", FILES[k]), *(member(k, n) for n in VALUES)]]
    return write_tar(root / "t.tar", members), {"fields": MEMBERS}


WAYS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "csv": of_rows("t.csv"),
    "jsonl": of_rows("t.jsonl"),
    "parquet": of_rows("t.parquet"),
    "labels": beside,
    "images in parquet": images_in(".parquet"),
    "images in arrow": images_in(".arrow"),
    "dicts": lambda root: ([{"image": FILES[k], **ROWS[k]} for k in range(5)], {"fields": TYPES}),
    "a DataFrame": lambda root: (pd.DataFrame({"image": FILES, **VALUES}, index=[3, 1, 0, 2, 4]), {"fields": TYPES}),
    "files": files,
    "tar": tar,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_values_of_a_sample_in_every_way(tmp_path: Path, way: str) -> None:
    source, options = WAYS[way](tmp_path)
    out = prep(source, tmp_path / "o.fds", codec="png", label_column="none", workers=1, **options).out
    columns = LMDBDataset(out).columns
    numbers = "score (float64), count (int64), vector (float64[3]), ids (lists of int64)"
    assert repr(columns) == f"Columns(caption (text), {numbers}, meta (json), label (int64))"
    for name, values in VALUES.items():
        wanted = values if name != "caption" or way != "csv" else [caption.strip() for caption in CAPTIONS]  # as its labels
        assert [np.asarray(value).tolist() for value in columns[name]] == wanted, name
    with Loader(LMDBDataset(out, fields=tuple(VALUES)), 5, num_workers=0) as loader:
        ((images, found),) = loader
    assert [encode(image.permute(1, 2, 0).numpy(), ".png") for image in images] == FILES
    assert found["score"].tolist() == SCORES and found["count"].tolist() == COUNTS and found["vector"].tolist() == VECTORS


def test_objects_of_dicts_are_columns(tmp_path: Path) -> None:
    boxes = [np.arange(4.0 * k).reshape(-1, 4) % 5 + [0, 0, 5, 5] for k in range(4)]
    items = [{"image": picture(k, 20, 30), "objects": {"bbox": boxes[k], "kind": np.arange(k)}} for k in range(4)]
    columns = LMDBDataset(
        prep(items, tmp_path / "o.fds", fields=("objects.bbox:xyxy", "objects.kind:int64[]"), workers=1).out
    ).columns
    assert [row.tolist() for row in columns["bbox"]] == [row.tolist() for row in boxes]
    assert [row.tolist() for row in columns["kind"]] == [[*range(k)] for k in range(4)]
    for odd in ([*items, (FILES[0], 1)], [*items, {"image": FILES[0]}]):
        with pytest.raises(PrepError, match="fields objects: item 4 of source"):
            prep(odd, tmp_path / "x.fds", fields="objects.bbox:xyxy")
