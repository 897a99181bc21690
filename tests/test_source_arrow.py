"""Arrow's own files as SOURCE: streams and files, as Hugging Face's datasets caches and saves them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastdata
from archives import equal
from fastdata import TableDataset
from fastdata.store.store import Store
from stores import whole
from support import PREP, encode, picture, run

IMAGES = [picture(k, 20 + k, 30) for k in range(7)]
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog", "eel"]}}


def images(**columns: Any) -> pa.Table:
    """A table as datasets has it, in batches of three rows."""
    rows = [{"bytes": encode(image, ".png"), "path": f"{k}.png"} for k, image in enumerate(IMAGES)]
    table = pa.table({"image": rows, "label": [k % 3 for k in range(7)], **columns})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def write(path: Path, table: pa.Table, kind: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with make(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return path


def test_several_files_and_another_column(tmp_path: Path) -> None:
    for k in range(2):
        write(tmp_path / f"in/data-{k:05d}-of-00002.arrow", images(kind=["a", "b"] * 3 + ["a"]), "stream")
    (tmp_path / "in/state.json").write_text("{}")
    (tmp_path / "in/dataset_info.json").write_text("{}")
    write(tmp_path / "in/cache-0123456789abcdef.arrow", pa.table({"other": [1]}), "stream")
    made = Store(fastdata.prep(tmp_path / "in", tmp_path / "o.fds", codec="rgb", label_column="kind", workers=1).out)
    equal(whole(made.path), IMAGES * 2)
    assert made.manifest.labels.names == ("a", "b") and made.samples["label"].tolist() == [0, 1, 0, 1, 0, 1, 0] * 2
    pattern = fastdata.prep(str(tmp_path / "in/data-{00000..00001}-of-00002.arrow"), tmp_path / "p.fds", codec="rgb", workers=1)
    equal(whole(pattern.out), IMAGES * 2)


def test_splits_are_a_store_each(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"cache/beans-{split}.arrow", images(), "stream")
        write(tmp_path / f"saved/{split}/data-00000-of-00001.arrow", images(), "stream")
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for folder in ("cache", "saved"):
        made = fastdata.prep(tmp_path / folder, tmp_path / f"{folder}.fds", codec="rgb", workers=1)
        assert [*made.splits] == ["train", "test"]
        for one in made.splits.values():
            equal(whole(one.out), IMAGES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_a_table_with_a_target(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "t.arrow", pa.table({"x": list(range(10)), "y": ["a", "b"] * 5}), kind)
    dataset = TableDataset(path, target="y")
    assert dataset.classes == ["a", "b"] and np.array_equal([int(dataset[k][0]["x"]) for k in range(10)], range(10))


def with_far_offsets(path: Path, lengths: list[int]) -> Path:
    """The values of these lengths, of which the last is said to end a gigabyte later."""
    data, offsets = path.read_bytes(), np.cumsum([0, *lengths]).astype("<i4")
    assert data.count(offsets.tobytes()) == 1
    far = offsets.copy()
    far[-1] += 1 << 30
    path.write_bytes(data.replace(offsets.tobytes(), far.tobytes()))
    return path


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_offsets_that_lead_out_of_a_file_are_errors(tmp_path: Path, kind: str) -> None:
    """pyarrow follows them: in a process of its own, since it would end by SIGSEGV or SIGBUS."""
    far = with_far_offsets(write(tmp_path / "i.arrow", images(), kind), [len(encode(image, ".png")) for image in IMAGES[:3]])
    done = run(*PREP, far, tmp_path / "i.fds", "--workers", 1)
    assert done.returncode == 2 and "i.arrow is damaged" in done.stderr
    names = pa.table({"x": [1, 2, 3], "y": ["cat", "mouse", "ox"]})
    far = with_far_offsets(write(tmp_path / "t.arrow", names, kind), [3, 5, 2])
    done = run(sys.executable, "-c", "import sys, fastdata; fastdata.TableDataset(sys.argv[1])", far)
    assert done.returncode == 1 and "StoreError" in done.stderr and "cannot be read as a table" in done.stderr
