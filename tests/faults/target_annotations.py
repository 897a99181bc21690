"""Targets: annotations of images: COCO's JSON, YOLO's text and YAML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import test_coco
from fastdata.errors import CodecError, PrepError
from fastdata.sources.annotations import with_coco, with_yolo
from fastdata.sources.fields import in_pixels, read_fields
from fastdata.sources.inputs import SourceList
from fastdata.sources.listing import list_sources
from stores import folder
from support import write_pictures
from target import Case, target


@cache
def images() -> SourceList:
    root = folder() / "in"
    write_pictures(root, 3)
    return list_sources(root)


def worked_on(found: SourceList) -> Any:
    """What a worker makes of the annotations, or why it cannot."""
    good = [source for source in found.sources if not source.problem]
    for source in good:
        with suppress(CodecError):  # for which a worker rejects the image
            in_pixels(found.fields, read_fields(found.root, source, found.fields), (9, 9), Counter())
    return [source.problem for source in found.sources]


def coco_file() -> dict[str, bytes]:
    body = test_coco.scene(folder(), 3)
    for k, image in enumerate(body["images"]):
        image["file_name"] = f"{k:02d}.png"
    body["annotations"][0]["caption"] = "a caption"
    return {"coco.json": json.dumps(body).encode()}


@target(coco_file, cases=3000, allowed=(PrepError,))
def coco(case: Case) -> Any:
    return worked_on(with_coco(images(), case.write()))


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
    return worked_on(with_yolo(images(), root))
