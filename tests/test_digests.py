"""What every dataset delivers from a fixed set of inputs, through every source, is what data/digests.json records.

A change of the store's format has to reproduce it. `python tests/test_digests.py` records it anew; list in the commit what changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

import fastdata
from archives import write_tar
from fastdata import (
    ArrayDataset,
    CenterCrop,
    LMDBDataset,
    Loader,
    MaskDataset,
    MultiCrop,
    Ragged,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    TableDataset,
    TokenDataset,
)
from stores import folder, write_files
from support import encode, picture

RECORDED = Path(__file__).parent / "data/digests.json"
FOREIGN = Path(__file__).parent / "data/foreign"
COUNT, CLASSES = 12, ("ant", "bee", "cat")
SIDES = [(60 + 7 * (k % 5), 90 - 4 * (k % 3)) for k in range(COUNT)]
NAMES = [f"{CLASSES[k % 3]}/{k:02d}.png" for k in range(COUNT)]
BOXES = [[[3 + k + j, 5 + j, 30 + k, 40 + 2 * j] for j in range(k % 4)] for k in range(COUNT)]  # x1, y1, x2, y2
POEM = ["a line of text and an ümläut\n", "another one, shorter\n", "the third: 12 34 56\n"]


# Inputs: PNG and what numpy writes, the same with any library


@cache
def inputs() -> Path:
    root = folder()
    for k, name in enumerate(NAMES):
        height, width = SIDES[k]
        lines = [
            f"{j % 2} {(a + c) / 2 / width} {(b + d) / 2 / height} {(c - a) / width} {(d - b) / height}\n"
            for j, (a, b, c, d) in enumerate(BOXES[k])
        ]
        files = {
            f"images/{name}": picture(k, *SIDES[k]),
            f"gray/{name}": picture(k, *SIDES[k])[..., 0],
            f"deep/{name}": picture(k, *SIDES[k]).astype(np.uint16) * 251,
            f"flat/{k}.png": picture(k, *SIDES[k]),
            f"photos/{k}.jpg": picture(k, 3 * height, 3 * width),
            f"masks/{k}.png": np.add.outer(np.arange(height), np.arange(width)).astype(np.uint8) // 40,
            f"pair/photo/{k}.png": picture(k, *SIDES[k]),
            f"pair/depth/{k}.png": picture(k, *SIDES[k])[..., 1].astype(np.uint16) * 99,
            f"described/{k}.png": picture(k, *SIDES[k]),
            f"described/{k}.txt": f"picture {k}, {CLASSES[k % 3]}",
            f"described/{k}.npy": np.full(4, k / 8, np.float32),
            f"yolo/{k}.txt": "".join(lines),
        }
        write_files(root, files)
    for k in range(3):
        values = np.random.default_rng(k).integers(-999, 999, (40 + k, 33, 35))
        arrays = {f"arrays/{k}.npy": values.astype(np.int16), f"array-masks/{k}.npy": (values % 5).astype(np.uint8)}
        write_files(root, {f"text/{k}.txt": "".join(POEM * (9 + k)), **arrays})
    write_files(root, {"yolo/classes.txt": "cup\nplate\n"})
    tables(root)
    archives(root)
    annotations(root)
    (root / "npz").mkdir()
    np.savez(root / "npz/all.npz", **{f"a{k}": np.arange(600 + k, dtype=np.float32) for k in range(3)})
    return root


def tables(root: Path) -> None:
    rows = [
        {"path": f"images/{NAMES[k]}", "label": CLASSES[k % 3], "score": k / 8, "age": 10 + k, "code": f"{k % 4:02d}"}
        for k in range(COUNT)
    ]
    cells = [",".join(map(str, row.values())) for row in rows]
    files = {
        "beside.csv": "".join(["path,label\n", *(f"{NAMES[k]},{k % 2}\n" for k in range(COUNT))]),
        "t.csv": "\r\n".join([",".join(rows[0]), *cells, ""]),
        "t.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "lines.jsonl": "".join(json.dumps({"text": line * 9}) + "\n" for line in POEM * 3),
    }
    write_files(root, files)
    pq.write_table(pa.Table.from_pylist(rows), root / "t.parquet")
    pictures = [{"bytes": encode(picture(k, *SIDES[k]), ".png"), "path": f"{k}.png"} for k in range(COUNT)]
    labels = pa.array([k % 3 for k in range(COUNT)])
    pq.write_table(pa.table({"image": pictures, "label": labels}), root / "images.parquet")
    with pa.OSFile(str(root / "images.arrow"), "wb") as sink:
        table = pa.table({"image": pictures, "label": labels})
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    numbers = {
        "x": [None if k % 7 == 3 else k for k in range(40)],
        "big": [k * 70_000 for k in range(40)],
        "share": [k / 16 for k in range(40)],
        "city": [("Rome", "Oslo", "01")[k % 3] for k in range(40)],
        "y": [("low", "high")[k % 2] for k in range(40)],
    }
    pq.write_table(pa.table(numbers), root / "numbers.parquet")


def archives(root: Path) -> None:
    (root / "tars").mkdir()
    for n in range(2):
        members = []
        for k in range(6 * n, 6 * n + 6):
            members.append((f"{k:04d}.png", encode(picture(k, *SIDES[k]), ".png")))
            members += [(f"{k:04d}.cls", str(k % 3).encode()), (f"{k:04d}.txt", f"number {k}".encode())]
        write_tar(root / f"tars/{n:05d}.tar", members)


def annotations(root: Path) -> None:
    objects = [(k, j, box) for k in range(COUNT) for j, box in enumerate(BOXES[k])]
    coco = {
        "images": [{"id": 100 + k, "file_name": f"{k}.png", "height": SIDES[k][0], "width": SIDES[k][1]} for k in range(COUNT)],
        "annotations": [
            {"image_id": 100 + k, "category_id": 5 + j % 2, "bbox": [a, b, c - a, d - b]} for k, j, (a, b, c, d) in objects
        ],
        "categories": [{"id": 5, "name": "cup"}, {"id": 6, "name": "plate"}],
    }
    write_files(root, {"coco.json": json.dumps(coco)})


# Datasets


@cache
def made(source: Any, **options: Any) -> Path:
    """A store of inputs: a path below `inputs()`, or an object."""
    for name in ("masks", "labels", "coco", "yolo"):
        if name in options:
            options[name] = inputs() / options[name]
    return fastdata.prep(inputs() / source if isinstance(source, str) else source, folder() / "o.fds", workers=1, **options).out


jpegs, masked = partial(made, "images", size=(64, 48)), partial(made, "flat", masks="masks", codec="rgb")
annotated = partial(made, "flat", coco="coco.json", codec="rgb")
described = partial(made, "described", fields=("caption=txt", "embedding=npy"), tokenize=("caption=bytes:24",), codec="rgb")
words, volumes = partial(made, "text", tokenizer="bytes", split_lines=True), partial(made, "arrays", masks="array-masks", chunk=16)


class Pictures(list[Any]):
    """A sequence of pairs, as torchvision's datasets are."""

    classes = CLASSES
    __hash__ = object.__hash__  # type: ignore[assignment]  # of `made`, which caches by it


Case = Callable[[], Any]


def stored(source: Any, emit: Any = None, **options: Any) -> Case:
    """The images of a store of inputs. emit: their fields."""
    return lambda: LMDBDataset(made(source, **options), fields=emit)


SOURCES: dict[str, Case] = {
    "folder": lambda: LMDBDataset(jpegs(), size=64),
    "folder, second size": lambda: LMDBDataset(jpegs(), size=48),
    "folder, label from a name": stored("flat", label_from=r"(\d)\.", codec="rgb"),
    **{f"codec {codec}": stored("images", size=40, codec=codec) for codec in ("rgb", "png", "original")},
    "photos": stored("photos", size=64),
    "photos, codec original": stored("photos", codec="original"),
    "photos, gray": stored("photos", size=64, gray=True),
    "labels beside": stored("images", labels="beside.csv", codec="rgb", size=32),
    "gray": stored("gray", gray=True, size=50),
    "16 bits": stored("deep", bits=16, codec="png", size=50),
    "long side": stored("images", resize="long", size=50, codec="rgb"),
    "cut square": stored("images", resize="crop", size=40, codec="rgb"),
    "stretched": stored("images", resize="stretch", size=40, codec="rgb"),
    "enlarged": stored("images", size=120, codec="rgb"),
    "shuffled": stored("images", order="shuffled", codec="rgb"),
    **{f"paths in {end}": stored(f"t.{end}", label_column="label", codec="rgb", size=32) for end in ("csv", "jsonl", "parquet")},
    "numbers in csv": stored("t.csv", regression=("score", "age"), codec="rgb", size=32),
    "codes in csv": stored("t.csv", label_column="code", codec="rgb", size=32),
    "images in parquet": stored("images.parquet", codec="rgb", size=32),
    "images in arrow": stored("images.arrow", codec="rgb", size=32),
    "tars": stored("tars", fields=("txt=txt",), codec="rgb", size=32, emit="txt"),
    "tars, classes": stored("tars", codec="rgb", size=32),
    "sequence": stored(Pictures((picture(k, *SIDES[k]), k % 3) for k in range(COUNT)), codec="rgb", size=32),
    "coco": lambda: LMDBDataset(annotated(), fields=("boxes", "category")),
    "yolo": stored("flat", yolo="yolo", codec="rgb", emit=("boxes", "category")),
    "captions": lambda: LMDBDataset(described(), fields=("caption", "embedding")),
    "several images": stored("pair", images=("photo=photo", "depth=depth:png:16:gray")),
    "masks": lambda: MaskDataset(masked()),
    "mds": stored(FOREIGN / "mds-jpeg", codec="rgb", size=32),
    "litdata": stored(FOREIGN / "litdata-dict", codec="rgb", size=32),
}
DATASETS: dict[str, Case] = {
    "random crops": lambda: LMDBDataset(jpegs(), size=64, crop=RandomResizedCrop(32), hflip=0.5, vflip=0.2),
    "random crops, bilinear": lambda: LMDBDataset(jpegs(), size=64, crop=RandomResizedCrop(32, antialias=False, fast=True)),
    "cuts": lambda: LMDBDataset(jpegs(), size=64, crop=RandomCrop(40, padding=4)),
    "centres": lambda: LMDBDataset(jpegs(), size=64, crop=CenterCrop(70)),
    "whole, resized": lambda: LMDBDataset(jpegs(), size=64, crop=Resize((30, 44))),
    "views": lambda: LMDBDataset(jpegs(), size=64, crop=MultiCrop(40, 20, num_local=2), hflip=0.5),
    "in memory": lambda: RAMDataset(jpegs(), size=64, crop=RandomResizedCrop(32)),
    "files in memory": lambda: RAMDataset(sorted((inputs() / "flat").iterdir()), crop=CenterCrop(40)),
    "sum": lambda: LMDBDataset(jpegs(), size=64, crop=CenterCrop(32)) + LMDBDataset(made("images", size=40), crop=CenterCrop(32)),
    "subset": lambda: LMDBDataset(jpegs(), size=64, crop=CenterCrop(32)).subset([7, 3, 3, 11]),
    "first of a split": lambda: LMDBDataset(jpegs(), size=64, crop=CenterCrop(32)).split(0.5, seed=1, stratify=True)[0],
    "boxes in crops": lambda: LMDBDataset(
        annotated(), crop=RandomResizedCrop(32), hflip=0.5, fields=("boxes", "category"), min_visible=0.3
    ),
    "masks in crops": lambda: MaskDataset(masked(), crop=RandomResizedCrop(32), hflip=0.5),
    **{
        f"tokens, {mode}, {ends}": lambda mode=mode, ends=ends: TokenDataset(words(), 16, mode=mode, documents=ends)
        for mode in ("random", "sequential")
        for ends in ("join", "mask", "align")
    },
    "tokens, document": lambda: TokenDataset(words(), 16, mode="document"),
    "tokens in memory": lambda: RAMDataset(words(), block_size=16),
    "tokens of characters": lambda: TokenDataset(made("text", tokenizer="chars", end_token="none"), 16),
    "tokens of jsonl": lambda: TokenDataset(made("lines.jsonl", tokenizer="bytes"), 16, mode="sequential"),
    "arrays": lambda: ArrayDataset(volumes(), crop=RandomCrop(16), flips=0.5),
    "arrays, whole": lambda: ArrayDataset(made("npz")),
    "arrays in memory": lambda: RAMDataset(volumes(), crop=CenterCrop(16)),
    "table": lambda: TableDataset(inputs() / "numbers.parquet", target="y"),
    "table, numbers": lambda: TableDataset(inputs() / "numbers.parquet", target=("share", "big")),
}
CASES = {**SOURCES, **DATASETS}


# What they deliver


def digests(dataset: Any) -> dict[str, Any]:
    """Names, classes, targets, columns and all samples; then two epochs of shuffled batches, if samples can be batched."""
    found: dict[str, Any] = {"samples": len(dataset)}
    for name in ("classes", "targets"):
        if hasattr(dataset, name):
            found[name] = digest([getattr(dataset, name)])
    if hasattr(dataset, "name"):
        found["names"] = digest([[dataset.name(k).removeprefix(str(inputs())) for k in range(len(dataset))]])
    torch.manual_seed(0)
    samples = [dataset[k] for k in range(len(dataset))]
    found["items"] = digest(samples)
    if len({str(shapes(sample)) for sample in samples}) == 1:
        loader = Loader(dataset, batch_size=4, shuffle=True, seed=7, num_workers=0)
        found["batches"] = digest((batch.ids, list(batch)) for _ in range(2) for batch in loader)
    return found


def shapes(sample: Any) -> Any:
    """The shapes of the arrays of a sample that a batch stacks: all but those of targets."""
    image = sample[0] if isinstance(sample, tuple) else sample
    if isinstance(image, dict):
        return [each.shape for each in image.values()]
    return [each.shape for each in (image if isinstance(image, tuple) else (image,)) if isinstance(each, torch.Tensor)]


def digest(values: Iterable[Any]) -> str:
    """Shapes, dtypes and bytes of all arrays, and JSON of all else."""
    seen = xxhash.xxh3_64()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.numpy()
        if isinstance(value, (np.ndarray, np.generic)):
            seen.update(f"{value.dtype.str} {value.shape}".encode())
            seen.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Ragged):
            add(value.values)
            add(value.offsets)
        elif isinstance(value, dict):
            add(sorted(value))
            add([value[key] for key in sorted(value)])
        elif isinstance(value, (list, tuple)):
            seen.update(f"[{len(value)}]".encode())
            for each in value:
                add(each)
        else:
            seen.update(json.dumps(value).encode())

    for each in values:
        add(each)
    return seen.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_delivered_is_what_was_recorded(case: str) -> None:
    assert digests(CASES[case]()) == json.loads(RECORDED.read_text())[case]


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(CASES)
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    recorded.update({case: digests(CASES[case]()) for case in wanted})
    RECORDED.write_text(json.dumps({case: recorded[case] for case in CASES if case in recorded}, indent=1) + "\n")
