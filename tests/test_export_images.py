"""Exports hold the columns of a store: members of WebDataset samples, and metadata.jsonl."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import webdataset as wds
from PIL import Image
from webdataset.tariterators import base_plus_ext

from archives import equal
from fastdata import LMDBDataset, prep
from fastdata.errors import StoreError
from fastdata.sources.tar import SAMPLE
from fastdata.store.export import export
from fastdata.store.store import Store
from stores import deep, floats, folder, store, unlabelled, whole, write_files
from support import picture, tree
from test_coco import POINTS, scene

TABLE = '''path,caption,score,tags,meta,embedding,rating,raw
a.png,"a ""red"" dog, running",0.5,"[1, 2]","{""a"": [1, null]}","[0.5, -1, 3]",7,x
b.png,,,[],null,"[1, 2, 3]",-1,
c.png,häßlich\u3042,1e30,[-9],"""text""","[0, 0, 0]",3,line
'''
FIELDS = ("caption", "score:float32", "tags:int16[]", "meta:json", "embedding:float32[3]", "rating:int64", "raw:bytes")


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("columns")
    body = scene(root / "images")
    captions = [{"image_id": 1000, "caption": "first"}, {"image_id": 998, "caption": "é"}, {"image_id": 1000, "caption": "second"}]
    (root / "all.json").write_text(json.dumps({**body, "annotations": [*body["annotations"], *captions]}))
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of columns of every type."""
    root = tmp_path_factory.mktemp("table")
    write_files(root, {"t.csv": TABLE, **{f"{name}.png": picture(k, 20, 30) for k, name in enumerate("abc")}})
    return prep(root / "t.csv", root / "o.fds", label_column="none", fields=FIELDS, workers=1).out


def exported(path: Path, out: Path, **options: Any) -> list[str]:
    """Export, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export(path, out, **options)
    return [str(one.message) for one in caught]


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize("resize", ["short", "crop", "stretch"])
def test_annotations_in_tars_and_tables_are_those_of_the_dataset(annotated: Path, tmp_path: Path, resize: str) -> None:
    """Which `test_coco.py` compares with one annotation after another."""
    out = prep(annotated / "images", tmp_path / "o.fds", coco=annotated / "all.json", size=(64, 32), resize=resize, workers=1).out
    warned = exported(out, tmp_path / "x", to="webdataset", size=32) + exported(out, tmp_path / "y", size=32)
    found = members(tmp_path / "x/00000.tar")
    lines = [json.loads(line) for line in (tmp_path / "y/metadata.jsonl").read_text().splitlines()]
    names = ("boxes", "category", "area", "crowd", "keypoints", "captions")
    dataset = LMDBDataset(out, size=32, fields=names)
    assert len(lines) == len(dataset) and "source_size" not in lines[0]
    for k, line in enumerate(lines):
        want = dataset[k][1]
        assert (tmp_path / "y" / line["file_name"]).is_file()
        for name in names[:-1]:
            np.testing.assert_array_equal(np.load(io.BytesIO(found[f"{k:08d}.{name}.npy"])), want[name])
            np.testing.assert_array_equal(np.reshape(line[name], want[name].shape), want[name])
        assert json.loads(found[f"{k:08d}.captions.json"]) == line["captions"] == want["captions"]
    gone = sum(map(len, dataset.columns["boxes"])) - sum(len(line["boxes"]) for line in lines)
    assert (resize == "crop") == (gone > 0) and len(warned) == 2 * (gone > 0)
    assert all(f"left out {gone} boxes that lie outside of their images" in one for one in warned)
    for root in ("x", "y"):
        meanings = json.loads((tmp_path / root / "columns.json").read_text())
        assert meanings == {"category": ["person", "dog", "tree"], "keypoints": POINTS}


@pytest.mark.parametrize("names", [("Score", "score"), ("s" * 90, "b")])
def test_names_that_a_tar_has_no_place_for(tmp_path: Path, names: tuple[str, str]) -> None:
    write_files(tmp_path, {"a.png": picture(0, 9, 9), "t.csv": f"path,{','.join(names)}\na.png,1,2\n"})
    out = prep(
        tmp_path / "t.csv", tmp_path / "o.fds", label_column="none", fields=[f"{name}:int64" for name in names], workers=1
    ).out
    with pytest.raises(StoreError, match=rf"column {names[0]} cannot be in a tar: its name is too long, or equals another"):
        export(out, tmp_path / "x", to="webdataset")
    assert not (tmp_path / "x").exists()


def test_every_column_comes_back_from_tars_and_from_the_table(table: Path, tmp_path: Path) -> None:
    columns = LMDBDataset(table).columns
    exported(table, tmp_path / "x", to="webdataset")
    arrays = [f"{name}={name}.npy" for name in ("score", "embedding", "rating")]
    files = ["caption=txt", *arrays, "tags=tags.npy:int16[]", "meta=meta.json", "raw=raw.bin:bytes"]
    again = prep(tmp_path / "x", tmp_path / "o.fds", fields=files, label_column="none", workers=1)
    assert again.rejected == {}
    exported(table, tmp_path / "z", to="webdataset")
    assert tree(tmp_path / "x") == tree(tmp_path / "z")
    (warned,) = exported(table, tmp_path / "y")
    assert "metadata.jsonl has no place for these columns: raw;" in warned
    rows = ("caption", "score:float32", "tags:int16[]", "meta:json", "embedding:float32[3]", "rating:int64")
    from_rows = prep(tmp_path / "y/metadata.jsonl", tmp_path / "p.fds", fields=rows, label_column="none", workers=1)
    for out, names in ((again.out, {*columns} - {"label"}), (from_rows.out, {*columns} - {"label", "raw"})):
        found = LMDBDataset(out).columns
        assert {*found} - {"label"} == names
        for name in names:
            for value, was in zip(found[name], columns[name], strict=True):
                np.testing.assert_array_equal(value, was, err_msg=name)
                assert getattr(value, "dtype", None) == getattr(was, "dtype", None), name


# The package webdataset itself reads the tars that we write, and we read those that it writes

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
    export(made.out, tmp_path / "f")
    for kind, k in (("images", 0), ("masks", 1)):
        equal(
            [np.asarray(Image.open(tmp_path / f"f/{kind}/{n}.png").convert("RGB")) for n in range(3)],
            [scene[k] for scene in scenes],
        )
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
