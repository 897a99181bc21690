"""Stores of every kind and codec have the bytes that version 0.1 gave them.

`python tests/test_golden_kinds.py FOLDER` with that version made the sums.
"""

from __future__ import annotations

import json
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import xxhash

import fastdata
import stores

SUMS = Path(__file__).parent / "data/golden_kinds.json"
IMAGES, PAIRS, TEXT, ARRAYS = "images", "pairs/images", "text", "arrays"
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    **{codec: (IMAGES, {"size": (64, 32), "codec": codec}) for codec in ("jpeg", "original", "rgb", "png")},
    "gray16": (IMAGES, {"bits": 16, "codec": "png", "gray": True, "resize": "long", "size": 150}),
    "square": (IMAGES, {"size": 40, "resize": "crop", "limit": 7, "quality": 80}),
    "regex": (IMAGES, {"codec": "rgb", "label_from": r"([0-4])\."}),
    "masks": (PAIRS, {"size": 48, "masks": "pairs/masks"}),
    "bytes": (TEXT, {"tokenizer": "bytes", "split_lines": True}),
    "chars": (TEXT, {"tokenizer": "chars", "end_token": "none"}),
    "chunks": (ARRAYS, {"chunk": 16}),
}
ROUNDED = {"rgb", "png", "gray16", "square"}  # show how OpenCV rounds when it resizes, which the processor decides
X86 = platform.machine() == "x86_64" and cv2.checkHardwareSupport(11)  # with AVX2


def write_inputs(root: Path) -> None:
    """Files that are the same with any library: PNG and what numpy writes."""
    random = np.random.default_rng(0)
    for folder in ("images/ant", "images/bee", "pairs/images", "pairs/masks", "text", "arrays"):
        (root / folder).mkdir(parents=True)
    for folder in ("images/ant", "images/bee", "pairs/images"):
        for k in range(5):
            smooth = np.add.outer(np.arange(120 + k), np.arange(140 - 3 * k))[..., None] + random.integers(0, 60, 3)
            cv2.imwrite(str(root / folder / f"{k}.png"), smooth.astype(np.uint8))
            if folder == PAIRS:
                cv2.imwrite(str(root / "pairs/masks" / f"{k}.png"), (smooth[..., 0] // 60).astype(np.uint8))
    for k in range(3):
        (root / f"text/{k}.txt").write_text(f"line {k} of some text\nand another, ümläut\n" * (20 + k), encoding="utf-8")
        np.save(root / f"arrays/{k}.npy", random.integers(-999, 999, (40, 33, 35)).astype(np.int16))


def sums(name: str, root: Path, out: Path) -> dict[str, str]:
    """The checksum of each file of a store, but of the manifest, which has the versions of libraries, what says how it was made."""
    source, options = STORES[name]
    options = {key: root / value if key == "masks" else value for key, value in options.items()}
    fastdata.prep(root / source, out, workers=1, **options)
    found = {path.relative_to(out).as_posix(): xxhash.xxh3_64_hexdigest(path.read_bytes()) for path in out.rglob("*.*")}
    manifest = json.loads((out / "manifest.json").read_bytes())
    for varying in ("libraries", "fingerprint"):
        del manifest[varying]
    return found | {"manifest.json": xxhash.xxh3_64_hexdigest(json.dumps(manifest, sort_keys=True).encode())}


@cache
def inputs() -> Path:
    """The folder of the inputs, which lives as long as the tests."""
    write_inputs(root := stores.folder())
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_the_bytes_are_those_of_the_first_version(name: str, tmp_path: Path) -> None:
    if name in ROUNDED and not X86:
        pytest.skip("the sums are those of x86-64 with AVX2")
    assert sums(name, inputs(), tmp_path / f"{name}.fds") == json.loads(SUMS.read_text())[name]


if __name__ == "__main__":
    work = Path(sys.argv[1])
    write_inputs(work)
    SUMS.write_text(json.dumps({name: sums(name, work, work / f"{name}.fds") for name in STORES}, indent=1) + "\n")
