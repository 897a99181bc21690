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
from fastdata import PrepError, TableDataset
from fastdata.store.store import Store
from fastdata.store.verify import verify
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


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_images_and_classes(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "beans-train.arrow", images(note=["x"] * 7), kind)
    summary = fastdata.prep(path, tmp_path / "o.fds", codec="rgb", workers=1)
    store = Store(summary.out)
    equal(whole(store.path), IMAGES)
    assert store.manifest.labels.names == ("cat", "dog", "eel") and store.samples["label"].tolist() == [k % 3 for k in range(7)]
    assert store.names() == [f"beans-train.arrow/{k:06d}-{k}.png" for k in range(7)]
    assert any("1 column is not stored: note" in note for note in summary.notes) and list(verify(store.path)) == []


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


def test_splits_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"cache/beans-{split}.arrow", images(), "stream")
        write(tmp_path / f"saved/{split}/data-00000-of-00001.arrow", images(), "stream")
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for folder in ("cache", "saved"):
        with pytest.raises(PrepError, match=r"holds train and test side by side.*\n.*fastdata-prep") as caught:
            fastdata.prep(tmp_path / folder, tmp_path / "o.fds")
        command = next(line for line in str(caught.value).splitlines() if "fastdata-prep" in line).strip()
        source = command.split(" ")[1].strip("'")
        equal(whole(fastdata.prep(source, tmp_path / f"{folder}.fds", codec="rgb", workers=1).out), IMAGES)


def test_a_row_without_an_image_or_with_a_path_only(tmp_path: Path) -> None:
    rows = [{"bytes": encode(IMAGES[0], ".png"), "path": None}, {"bytes": None, "path": "/elsewhere/a.jpg"}, None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = write(tmp_path / "a.arrow", pa.table({"image": pa.array(rows, kind)}), "stream")
    summary = fastdata.prep(path, tmp_path / "o.fds", workers=1)
    assert (summary.kept, summary.rejected) == (1, {"missing": 1, "no-image": 1})
    assert "embed_table_storage" in Store(summary.out).rejects()[0]["detail"]


def test_files_that_are_none(tmp_path: Path) -> None:
    whole_file = write(tmp_path / "a.arrow", images(), "stream").read_bytes()
    for data in (b"", b"no arrow at all", whole_file[: len(whole_file) // 2]):
        (tmp_path / "b.arrow").write_bytes(data)
        with pytest.raises(PrepError, match=r"b\.arrow is damaged, or was cut short .*; copy it again"):
            fastdata.prep(tmp_path / "b.arrow", tmp_path / "o.fds")
    write(tmp_path / "c.arrow", pa.table({"x": [1, 2]}), "file")
    with pytest.raises(PrepError, match=r"a column of images .* is needed.*TableDataset reads it"):
        fastdata.prep(tmp_path / "c.arrow", tmp_path / "o.fds")


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
