"""Targets: annotations of images: COCO's JSON, YOLO's text and YAML."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import test_coco
from fastdata.errors import PrepError
from fastdata.sources.coco import with_coco
from fastdata.sources.inputs import SourceList
from fastdata.sources.listing import list_sources
from fastdata.sources.yolo import with_yolo
from stores import folder
from support import write_pictures
from target import Case, target


@cache
def images() -> SourceList:
    root = folder() / "in"
    write_pictures(root, 3)
    return list_sources(root)


def coco_file() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as root:
        body = test_coco.scene(Path(root), 3)
    for k, image in enumerate(body["images"]):
        image["file_name"] = f"{k:02d}.png"
    body["annotations"][0]["caption"] = "a caption"
    return {"coco.json": json.dumps(body).encode()}


@target(coco_file, cases=3000, allowed=(PrepError,))
def coco(case: Case) -> Any:
    found = [with_coco(images(), case.write(), reject_boxes=reject) for reject in (False, True)]
    return [[source.values for source in one.sources] for one in found]


def yolo_files() -> Mapping[str, bytes]:
    return {
        "plain/00.txt": b"0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.05 0.05\n1 0.1 0.1 0.2 0.2 0.3 0.1\n",
        "names/data.yaml": b"names:\n  0: dog\n  1: 'a cat'\nnc: 2 # two\n",
        "pose/data.yaml": b"kpt_shape: [3, 2]\nflip_idx: [0, 2, 1]\nnames: [person]\n",
    }


@target(yolo_files, cases=3000, allowed=(PrepError,))
def yolo(case: Case) -> Any:
    root = case.write().parent
    if case.name.endswith(".yaml"):
        (root / "00.txt").write_bytes(b"0 0.5 0.5 0.25 0.25" + b" 0.1" * 6 * case.name.startswith("pose") + b"\n")
    found = with_yolo(images(), root, reject_boxes=False)
    return [source.values for source in found.sources]
