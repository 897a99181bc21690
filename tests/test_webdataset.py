"""The package webdataset itself reads the tars that we write, and we read those that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import webdataset as wds
from webdataset.tariterators import base_plus_ext

from archives import equal
from fastdata import prep
from fastdata.sources.tar import SAMPLE
from fastdata.store.export import export
from fastdata.store.store import Store
from stores import deep, floats, folder, store, unlabelled, whole, write_files
from support import picture

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # its reader's


def read(root: Path, *decoders: Any) -> list[dict[str, Any]]:
    """All samples of the shards of a folder, as the package reads them."""
    last = len(list(root.glob("*.tar"))) - 1
    found = wds.WebDataset(f"{root}/{{00000..{last:05d}}}.tar", shardshuffle=False)
    return list(found.decode(*decoders) if decoders else found)


# Ours, read by theirs


@pytest.mark.parametrize("codec", ["jpeg", "rgb", "png"])
def test_it_reads_our_images_and_classes(codec: str, tmp_path: Path) -> None:
    made = Store(store(codec))
    export(made.path, tmp_path / "x", size=96, to="webdataset", shard_size=200_000)
    assert len(list((tmp_path / "x").glob("*.tar"))) > 1
    samples, ending = read(tmp_path / "x", "pil"), "jpg" if codec == "jpeg" else "png"
    assert [s["__key__"] for s in samples] == [f"{k:08d}" for k in range(42)]
    assert [set(s) - {"__key__", "__url__", "__local_path__"} for s in samples] == [{ending, "cls"}] * 42
    assert [s["cls"] for s in samples] == made.samples["label"].tolist()
    if codec in ("jpeg", "rgb"):
        equal([np.asarray(s[ending]) for s in samples], whole(made.path, 96))
    assert json.loads((tmp_path / "x" / "classes.json").read_text()) == list(made.manifest.labels.names)


def test_it_reads_our_float_labels_and_stores_without_any(tmp_path: Path) -> None:
    export(floats(), tmp_path / "f", to="webdataset")
    found = [s["json"] for s in read(tmp_path / "f", "pil")]
    assert found == [{"label": [k / 4, -k], "names": ["quarter", "minus"]} for k in range(6)]
    first, again = Store(floats()), Store(prep(tmp_path / "f", tmp_path / "f.fds", regression="label", workers=1).out)
    assert again.manifest.labels == first.manifest.labels
    np.testing.assert_array_equal(again.samples["label"], first.samples["label"])
    export(unlabelled(), tmp_path / "u", to="webdataset")
    assert [{*s} - {"__key__", "__url__", "__local_path__"} for s in read(tmp_path / "u")] == [{"jpg"}] * 5


def test_it_reads_our_16_bits_and_masks(tmp_path: Path) -> None:
    export(deep(), tmp_path / "d", to="webdataset")
    files = [cv2.imdecode(np.frombuffer(s["png"], np.uint8), cv2.IMREAD_UNCHANGED)[:, :, ::-1] for s in read(tmp_path / "d")]
    equal(files, whole(deep()))
    scenes = [(picture(k, 20, 30), picture(k, 20, 30)[:, :, 0]) for k in range(3)]
    for k, (image, mask) in enumerate(scenes):
        write_files(tmp_path, {f"in/{k}.png": image, f"masks/{k}.png": mask})
    made = prep(tmp_path / "in", tmp_path / "o.fds", masks=tmp_path / "masks", codec="rgb", workers=1)
    export(made.out, tmp_path / "m", to="webdataset")
    for sample, (image, mask) in zip(read(tmp_path / "m", "pil"), scenes, strict=True):
        equal([np.asarray(sample["png"]), np.asarray(sample["mask.png"])], [image, mask])


# Theirs, read by us


def test_we_read_what_its_writer_writes(tmp_path: Path) -> None:
    root, images = folder(), [picture(k, 20 + k, 30) for k in range(10)]
    with wds.ShardWriter(f"{root}/train-%06d.tar", maxcount=4, verbose=0) as sink:
        for k, image in enumerate(images):
            labels = {"cls": 3 - k % 3, "json": {"caption": "a picture", "number": k}, "txt": "words"}
            sink.write({"__key__": f"dir.a/{k:03d}", "png": image, "mask.png": image[:, :, 0] // 30, **labels})
    for source in (root, root / "train-{000000..000002}.tar"):
        made = prep(source, tmp_path / "o.fds", codec="rgb", workers=1)
        found = Store(made.out)
        equal(whole(made.out), images)
        assert made.rejected == {} and found.manifest.labels.names == ("0", "1", "2", "3")  # numbers keep their value
        assert found.samples["label"].tolist() == [3 - k % 3 for k in range(10)]
        assert made.skipped == {".mask.png": 10, ".json": 10, ".txt": 10}
        assert found.names() == [f"train-{k // 4:06d}.tar/dir.a/{k:03d}.png" for k in range(10)]


@pytest.mark.parametrize(
    "name",
    ["a.jpg", "a.mask.png", "d/a.jpg", "d.e/a.b.JPG", "d.e/f.g/a.x", "a", "d/a", "d.e/a", "a.", "a b.c d.e", ".hidden", "d/x.y/z"],
)
def test_a_key_ends_where_it_ends_for_them(name: str) -> None:
    found = SAMPLE.fullmatch(name)
    assert (found.groups() if found else (None, None)) == base_plus_ext(name)
